"""From Kueue's objects to facts: the types of `api` at v1beta2 in, frozen facts out.

Controllers call this with objects as the API server stored them, the conformance runner with its cases. Reads only;
an object that cannot be read raises BadInput naming the field, except a Workload, which becomes a gang with its
problem as text, so that its owner is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.api import kueue
from shoal.api.fields import Amount
from shoal.api.gang import USER_USAGE
from shoal.api.kueue_other import Topology
from shoal.api.kueue_told import BACKFILLED
from shoal.api.kueue_workload import PodSet as StoredPodSet
from shoal.api.kueue_workload import PodSetAssignment as StoredAssignment
from shoal.api.kueue_workload import Workload, WorkloadStatus
from shoal.api.labels import (
    KUEUE_GATED_BY,
    KUEUE_GROUP_WORKLOAD,
    KUEUE_JOB_UID,
    KUEUE_PRIORITY_BOOST,
    KUEUE_SLICE_REPLACES,
)
from shoal.api.meta import Condition, ObjectMeta
from shoal.api.objects import annotation, label
from shoal.api.quantity import MAX_UNITS, amount, amounts, parse
from shoal.api.times import parse_time
from shoal.engine import facts as pods
from shoal.engine.kueue.facts import (
    UNLIMITED,
    WHOLE_WEIGHT,
    ClusterQueue,
    Cohort,
    ConsumedUsage,
    Flavor,
    FlavorQuota,
    Fungibility,
    Limits,
    LocalQueue,
    Policy,
    Preemption,
    ResourceGroup,
    Terms,
    TopologyFact,
)
from shoal.engine.kueue.limits import check_limit_ranges, check_requests
from shoal.engine.kueue.topology.assignment import read_placement
from shoal.engine.model import Gang, PodSet, PodSetAssignment, State, Taint, Toleration, TopologyPlacement
from shoal.errors import BadInput

Json = Mapping[str, Any]

BY_USAGE = "UsageBasedAdmissionFairSharing"


def cluster_queue(stored: kueue.ClusterQueue) -> ClusterQueue:
    spec = stored.spec
    borrow = spec.preemption.borrow_within_cohort
    return ClusterQueue(
        name=stored.metadata.name,
        cohort=spec.cohort_name,
        groups=_groups(spec.resource_groups),
        strategy="StrictFIFO" if spec.queueing_strategy == "StrictFIFO" else "BestEffortFIFO",
        namespace_selector=None if spec.namespace_selector is None else msgspec.to_builtins(spec.namespace_selector),
        fungibility=Fungibility(
            next_when_borrowing=spec.flavor_fungibility.when_can_borrow == "TryNextFlavor",
            next_when_preempting=spec.flavor_fungibility.when_can_preempt == "TryNextFlavor",
            prefer_preempting=spec.flavor_fungibility.preference == "PreemptionOverBorrowing",
        ),
        preemption=Preemption(
            reclaim_within_cohort=_policy(spec.preemption.reclaim_within_cohort),
            within_cluster_queue=_policy(spec.preemption.within_cluster_queue),
            borrow_within_cohort=_policy(borrow.policy if borrow is not None else None),
            borrow_threshold=borrow.max_priority_threshold if borrow is not None else None,
        ),
        stopped=(spec.stop_policy or "None") != "None",
        weight=_weight(spec.fair_sharing),
        by_usage=spec.admission_scope is not None and spec.admission_scope.admission_mode == BY_USAGE,
    )


def cohort(stored: kueue.Cohort) -> Cohort:
    return Cohort(
        name=stored.metadata.name,
        parent=stored.spec.parent_name,
        groups=_groups(stored.spec.resource_groups),
        weight=_weight(stored.spec.fair_sharing),
    )


def local_queue(stored: kueue.LocalQueue) -> LocalQueue:
    return LocalQueue(
        namespace=stored.metadata.namespace or "default",
        name=stored.metadata.name,
        cluster_queue=stored.spec.cluster_queue,
        stopped=(stored.spec.stop_policy or "None") != "None",
        weight=_weight(stored.spec.fair_sharing),
        consumed=_consumed(stored),
    )


def _consumed(stored: kueue.LocalQueue) -> ConsumedUsage | None:
    """What was stored of its usage; what cannot be read counts as nothing."""
    shared = stored.status.fair_sharing
    usage = shared.admission_fair_sharing_status if shared is not None else None
    if usage is None or not usage.last_update:
        return None
    text = (stored.metadata.annotations or {}).get(USER_USAGE) or "{}"
    try:
        users = msgspec.json.decode(text, type=dict[str, dict[str, str]])
        return ConsumedUsage(
            amounts=_fractions(usage.consumed_resources or {}),
            at=parse_time(usage.last_update),
            users={user: _fractions(amounts) for user, amounts in users.items()},
        )
    except (ValueError, BadInput):
        return None


def _fractions(resources: Mapping[str, Amount]) -> dict[str, float]:
    """In the engine's units; less than nothing was never had."""
    return {name: max(0, parse(value).nano) / (10**6 if name == "cpu" else 10**9) for name, value in resources.items()}


def flavor(stored: kueue.ResourceFlavor) -> Flavor:
    return Flavor(
        name=stored.metadata.name,
        labels=dict(stored.spec.node_labels or {}),
        taints=tuple(Taint(one.key, one.value, one.effect) for one in stored.spec.node_taints or ()),
        tolerations=tuple(
            Toleration(one.key, one.operator or "Equal", one.value, one.effect) for one in stored.spec.tolerations or ()
        ),
        topology=stored.spec.topology_name or "",
    )


def topology(stored: Topology) -> TopologyFact:
    return TopologyFact(name=stored.metadata.name, levels=tuple(level.node_label for level in stored.spec.levels))


class Transformation(msgspec.Struct, frozen=True, kw_only=True):
    """`resources.transformations[]`: what asking for one resource costs in others."""

    input: str
    """The resource that pods ask for."""
    outputs: dict[str, str] = {}
    """Resources that quota counts for it, each with the amount for one whole unit."""
    replace: bool = False
    """Count the outputs instead of the input, not beside it."""
    multiply_by: str = ""
    """A resource whose requested amount multiplies the outputs."""


class PodRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration and the namespace make of a pod's requests."""

    excluded_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()
    limit_ranges: tuple[Json, ...] = ()
    reclaimable_pods: bool = True
    partial_admission: bool = True
    priority_boost: bool = False
    """Gate `PriorityBoost`: an annotation adds to the priority."""
    preemption_gates: bool = False
    """Gate `MultiKueueOrchestratedPreemption`: a workload may be kept from evicting others."""
    requeue_by_creation: bool = False
    """`waitForPodsReady.requeuingStrategy.timestamp: Creation`: a workload that timed out keeps its place."""

    @property
    def changes_requests(self) -> bool:
        """Does quota count other amounts than nodes do?"""
        return bool(self.excluded_prefixes or self.transformations)


DEFAULT_RULES = PodRules()
NOTHING: dict[str, Any] = {}
"""For what a Workload says nothing of: one for all of thousands, never to be changed."""
PLAIN_TERMS = Terms(pods_ready=False)
PLAIN_DETAILS = {"kueue": PLAIN_TERMS}


def workload(stored: Workload, rules: PodRules = DEFAULT_RULES, before: Gang | None = None) -> Gang:
    """A Workload as a gang. What is wrong with its pods becomes the gang's `problem`.

    `before` is what it was read as when its spec and the rules were the same: pods are not read again then.
    """
    metadata, spec, status = stored.metadata, stored.spec, stored.status
    namespace, name = metadata.namespace or "default", metadata.name
    conditions = {one.type: one for one in status.conditions or ()}
    problem = before.problem if before is not None else ""
    pod_sets = before.pod_sets if before is not None else ()
    try:
        if before is None:
            pod_sets = tuple(_pod_set(entry, rules) for entry in spec.pod_sets)
            problem = check_requests(spec.pod_sets) or check_limit_ranges(spec.pod_sets, rules.limit_ranges)
    except BadInput as fault:
        problem = f"resources validation failed: {fault}"
    reserved = conditions.get("QuotaReserved")
    holds = reserved is not None and reserved.status == "True"
    return Gang(
        key=f"Workload/{namespace}/{name}",
        uid=metadata.uid or f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        dialect="kueue",
        queue=spec.queue_name,
        priority=(spec.priority or 0) + (_boost(metadata) if rules.priority_boost else 0),
        created_at=_moment(metadata.creation_timestamp),
        pod_sets=pod_sets,
        labels=metadata.labels or {},
        state=_state(stored, conditions, holds),
        admitted_at=_moment(reserved.last_transition_time) if holds and reserved is not None else 0,
        assignment=_assignment(status) if holds else (),
        problem=problem,
        node_selector=NOTHING,
        seats=NOTHING,
        gone=NOTHING,
        obtaining=NOTHING,
        details=_details(_terms(stored, conditions, rules)),
    )


def _details(terms: Terms) -> dict[str, Any]:
    """Most of many that wait have nothing said of them yet: for them it is there once."""
    return PLAIN_DETAILS if terms == PLAIN_TERMS else {"kueue": terms}


def ended(stored: Workload) -> Gang:
    """A Workload that is over, as a gang: it holds and asks for nothing any more."""
    metadata = stored.metadata
    return Gang(
        key=f"Workload/{metadata.namespace or 'default'}/{metadata.name}",
        uid=metadata.uid,
        namespace=metadata.namespace or "default",
        name=metadata.name,
        dialect="kueue",
        queue=stored.spec.queue_name,
        state="finished",
    )


def _boost(metadata: ObjectMeta) -> int:
    """What the annotation adds; one that cannot be read adds nothing."""
    try:
        return int((metadata.annotations or {}).get(KUEUE_PRIORITY_BOOST, "0"))
    except ValueError:
        return 0


def is_one_pod(stored: Workload) -> bool:
    """Is the workload's job a single Pod, which no controller makes again elsewhere?"""
    owners = stored.metadata.owner_references or ()
    is_pod = len(owners) == 1 and (owners[0].api_version, owners[0].kind) == ("v1", "Pod")
    return is_pod and annotation(stored, KUEUE_GROUP_WORKLOAD) != "true"


def placements(status: WorkloadStatus) -> dict[str, TopologyPlacement]:
    """By pod set, where its pods go in a topology, for those that go anywhere."""
    parts = status.admission.pod_set_assignments if status.admission is not None else ()
    found = {part.name or "main": _placement(part) for part in parts}
    return {name: placement for name, placement in found.items() if placement is not None}


def _placement(part: StoredAssignment) -> TopologyPlacement | None:
    return None if part.topology_assignment is None else read_placement(msgspec.to_builtins(part.topology_assignment))


def _is_gated(stored: Workload) -> bool:
    """Does a preemption gate of the workload still stand closed?"""
    wanted = {entry.name for entry in stored.spec.preemption_gates or ()}
    return bool(wanted - {entry.name for entry in stored.status.preemption_gates or () if entry.position == "Open"})


def _terms(stored: Workload, conditions: dict[str, Condition], rules: PodRules) -> Terms:
    status = stored.status
    evicted = conditions.get("Evicted")
    if evicted is not None and evicted.status != "True":
        evicted = None
    reason = evicted.reason if evicted is not None else ""
    requeued, ready = conditions.get("Requeued"), conditions.get("PodsReady")
    reclaimable = {entry.name: entry.count for entry in status.reclaimable_pods or ()}
    return Terms(
        cluster_queue=status.admission.cluster_queue if status.admission is not None else "",
        evicted_at=_moment(evicted.last_transition_time) if evicted is not None else None,
        evicted_reason="" if reason == "PodsReadyTimeout" and rules.requeue_by_creation else reason,
        gated=rules.preemption_gates and _is_gated(stored),
        replaces=f"Workload/{replaces}" if (replaces := annotation(stored, KUEUE_SLICE_REPLACES)) else "",
        checks_failed=any(entry.state in ("Retry", "Rejected") for entry in status.admission_checks or ()),
        requeue_at=_moment(status.requeue_state.requeue_at if status.requeue_state is not None else None),
        backing_off=requeued is not None and requeued.status == "False",
        reclaimable=reclaimable if rules.reclaimable_pods else {},
        longest=_longest(stored),
        backfilled=(filled := conditions.get(BACKFILLED)) is not None and filled.status == "True",
        job_uid=label(stored, KUEUE_JOB_UID),
        pods_ready=ready is not None and ready.status == "True",
        unhealthy_nodes=tuple(entry.name for entry in status.unhealthy_nodes or ()),
        one_pod=is_one_pod(stored),
        awaits_places=_awaits_places(status),
    )


def _longest(stored: Workload) -> int:
    """What is left of its maximum execution time, in microseconds; 0: it declared none."""
    limit = stored.spec.maximum_execution_time_seconds
    if limit is None:
        return 0
    return max(1, (limit - (stored.status.accumulated_past_execution_time_seconds or 0)) * 1_000_000)


def _awaits_places(status: WorkloadStatus) -> bool:
    """Are all its checks ready, and were places for its pods put off until then?"""
    checks = status.admission_checks or ()
    if not checks or any(check.state != "Ready" for check in checks) or status.admission is None:
        return False
    parts = status.admission.pod_set_assignments
    return any(part.delayed_topology_request == "Pending" and part.topology_assignment is None for part in parts)


def _state(stored: Workload, conditions: dict[str, Condition], holds: bool) -> State:
    def true(kind: str) -> bool:
        found = conditions.get(kind)
        return found is not None and found.status == "True"

    if true("Finished"):
        return "finished"
    if holds:
        return "stopping" if true("Evicted") else "admitted" if true("Admitted") else "reserved"
    if not stored.spec.active or annotation(stored, KUEUE_GATED_BY) or true("WaitingForReplacementPods"):
        return "held"
    return "waiting"


def _pod_set(entry: StoredPodSet, rules: PodRules) -> PodSet:
    made = pods.pod_set(
        entry.name or "main",
        entry.count,
        entry.template,
        min_count=entry.min_count if rules.partial_admission else None,
    )
    requests = {**_named_zero(entry.template.get("spec") or {}), **made.requests}
    topology = msgspec.to_builtins(entry.topology_request) if entry.topology_request is not None else {}
    return msgspec.structs.replace(
        made,
        requests={name: max(0, each) for name, each in requests.items()},
        quota_requests=_transformed(requests, rules) if rules.changes_requests else None,
        topology_request=topology,
    )


def _named_zero(spec: Json) -> dict[str, int]:
    """Resources asked for with zero: they still get a flavor."""
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or []), spec]
    return {name: 0 for container in containers for name in (container.get("resources") or {}).get("requests") or {}}


def _transformed(requests: dict[str, int], rules: PodRules) -> dict[str, int]:
    """Exclusions, then transformations, then no total below zero. As Kueue: outputs add up with what is there."""
    if rules.excluded_prefixes:
        requests = {name: each for name, each in requests.items() if not name.startswith(rules.excluded_prefixes)}
    mapping = {rule.input: rule for rule in rules.transformations}
    if mapping:
        result: dict[str, int] = {}
        for name, each in requests.items():
            rule = mapping.get(name)
            if rule is None or not rule.replace:
                result[name] = result.get(name, 0) + each
            if rule is None:
                continue
            factor = requests.get(rule.multiply_by, 0) if rule.multiply_by else 1
            for output, rate in rule.outputs.items():
                result[output] = result.get(output, 0) + _converted(name, each, output, rate) * factor
        requests = result
    return {name: max(0, each) for name, each in requests.items()}


def _converted(name: str, each: int, output: str, rate: str) -> int:
    """`each` of one resource at `rate` of another per whole unit, in that one's base units, rounded up."""
    per_unit = 1000 if name == "cpu" else 1
    return -(-each * amount(output, rate) // per_unit)


def _assignment(status: WorkloadStatus) -> tuple[PodSetAssignment, ...]:
    return tuple(
        PodSetAssignment(
            name=entry.name or "main",
            count=1 if entry.count is None else entry.count,
            flavors=dict(entry.flavors or {}),
            usage=amounts(entry.resource_usage),
            topology=_placement(entry),
            delayed_topology=entry.delayed_topology_request or "",
        )
        for entry in (status.admission.pod_set_assignments if status.admission is not None else ())
    )


def _groups(groups: tuple[kueue.ResourceGroup, ...] | None) -> tuple[ResourceGroup, ...]:
    return tuple(
        ResourceGroup(
            tuple(group.covered_resources),
            tuple(
                FlavorQuota(entry.name, {quota.name: _limits(quota) for quota in entry.resources})
                for entry in group.flavors
            ),
        )
        for group in groups or ()
    )


def _limits(quota: kueue.FlavorResourceQuota) -> Limits:
    def read(value: Amount | None) -> int | None:
        if value is None:
            return None
        units = amount(quota.name, value)
        return UNLIMITED if units >= MAX_UNITS else units

    return Limits(read(quota.nominal_quota) or 0, read(quota.borrowing_limit), read(quota.lending_limit))


def _weight(shared: kueue.FairSharing | None) -> int:
    return WHOLE_WEIGHT if shared is None else parse(shared.weight).nano


def _policy(name: str | None) -> Policy:
    match name:
        case "LowerPriority" | "LowerOrNewerEqualPriority" | "Any":
            return name
    return "Never"


def _moment(text: str | None) -> int:
    return parse_time(text) if text else 0
