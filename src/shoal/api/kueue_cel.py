"""What the schemas of Kueue's kinds say in CEL: pairs of a rule and its message.

Read by the CRD generator. What a schema says is refused with 422, as by Kueue's; what it cannot say is in `kueue_rules`
and `kueue_workload_rules`. Rules that hold in both versions guard each field with `has`.
"""

from __future__ import annotations

_HELD = (
    "has({0}.status) && has({0}.status.conditions) && "
    "{0}.status.conditions.exists(c, c.type == '{1}' && c.status == 'True')"
)
_HELD_BEFORE = _HELD.format("oldSelf", "QuotaReserved")
_HELD_NOW = _HELD.format("self", "QuotaReserved")
_QUEUE = "(has({0}.spec.queueName) ? {0}.spec.queueName : '')"
_LIMIT = "(has({0}.spec.maximumExecutionTimeSeconds) ? {0}.spec.maximumExecutionTimeSeconds : 0)"

RESERVED = (
    (
        f"!({_HELD_NOW} && has(self.status.admission) && has(self.spec.podSets)) || "
        "size(self.spec.podSets) == size(self.status.admission.podSetAssignments)",
        "podSetAssignments must have the same number of podSets as the spec",
    ),
    (
        f"!({_HELD_BEFORE} && {_HELD_NOW}) || {_QUEUE.format('oldSelf')} == {_QUEUE.format('self')}",
        "queueName is immutable while workload quota reserved",
    ),
    (
        f"!({_HELD.format('oldSelf', 'Admitted')} && {_HELD.format('self', 'Admitted')}) || "
        f"{_LIMIT.format('oldSelf')} == {_LIMIT.format('self')}",
        "maximumExecutionTimeSeconds is immutable while workload quota reserved",
    ),
)
"""What stays while a Workload holds quota, in both versions."""

REFERENCE = (
    (
        f"!({_HELD_BEFORE}) || (has(oldSelf.spec.priorityClassRef) == has(self.spec.priorityClassRef) && "
        "(!has(self.spec.priorityClassRef) || ("
        "oldSelf.spec.priorityClassRef.group == self.spec.priorityClassRef.group && "
        "oldSelf.spec.priorityClassRef.kind == self.spec.priorityClassRef.kind && "
        "(self.spec.priorityClassRef.kind == 'WorkloadPriorityClass' || "
        "oldSelf.spec.priorityClassRef.name == self.spec.priorityClassRef.name))))",
        "priorityClassRef is immutable while workload quota reserved, but for the name of a WorkloadPriorityClass",
    ),
)
"""One rule: each is looked at with every write of a status."""

PRIORITY = (
    ("!has(self.priorityClassRef) || has(self.priority)", "priority should not be nil when priorityClassRef is set"),
)
OLD_PRIORITY = (
    ("!has(self.priorityClassName) || has(self.priority)", "priority should not be nil when priorityClassName is set"),
)
SOURCE = (
    (
        f"!({_HELD_BEFORE} && has(oldSelf.spec.priorityClassSource) && has(self.spec.priorityClassSource)) || ("
        "oldSelf.spec.priorityClassSource == self.spec.priorityClassSource && "
        "(self.spec.priorityClassSource == 'kueue.x-k8s.io/workloadpriorityclass' || "
        "!has(oldSelf.spec.priorityClassName) || !has(self.spec.priorityClassName) || "
        "oldSelf.spec.priorityClassName == self.spec.priorityClassName))",
        "priorityClassSource and priorityClassName are immutable while workload quota reserved, but for the name of a "
        "WorkloadPriorityClass",
    ),
)

CLUSTER = (
    (
        "!has(oldSelf.clusterName) || !has(self.clusterName) || oldSelf.clusterName == self.clusterName",
        "clusterName is immutable once set",
    ),
    (
        "!has(self.clusterName) || !has(self.nominatedClusterNames) || size(self.nominatedClusterNames) == 0",
        "clusterName and nominatedClusterNames are mutually exclusive",
    ),
)

PREFERENCE = (
    (
        "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')",
        "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor",
    ),
)

_NO_COHORT = "borrowingLimit must be nil when cohort is empty"
COHORT = (
    (
        "has(self.cohortName) || !has(self.resourceGroups) || self.resourceGroups.all(rg, rg.flavors.all(f, "
        "f.resources.all(r, !has(r.borrowingLimit))))",
        _NO_COHORT,
    ),
)
ANY_COHORT = (
    (
        "has(self.cohortName) || has(self.cohort) || !has(self.resourceGroups) || self.resourceGroups.all(rg, "
        "rg.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit))))",
        _NO_COHORT,
    ),
)

_EFFECTS = "['NoSchedule', 'PreferNoSchedule', 'NoExecute']"
_SUPPORTED = "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"
TAINTS = ((f"self.all(x, x.effect in {_EFFECTS})", _SUPPORTED),)
TOLERATIONS = (
    (
        "self.all(x, has(x.key) || (has(x.operator) && x.operator == 'Exists'))",
        "operator must be Exists when 'key' is empty, which means 'match all values and all keys'",
    ),
    (
        "self.all(x, !has(x.tolerationSeconds) || (has(x.effect) && x.effect == 'NoExecute'))",
        "effect must be 'NoExecute' when 'tolerationSeconds' is set",
    ),
    (
        "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])",
        "supported toleration values: 'Equal'(default), 'Exists'",
    ),
    (
        "self.all(x, !has(x.operator) || x.operator != 'Exists' || !has(x.value))",
        "a value must be empty when 'operator' is 'Exists'",
    ),
    (f"self.all(x, !has(x.effect) || x.effect in {_EFFECTS})", _SUPPORTED),
)
