"""From Kueue's objects to facts: v1beta2 JSON in, frozen facts out.

Controllers call this with objects as the API server stored them, the conformance runner with its cases. Reads only;
an object that cannot be read raises BadInput naming the field, except a Workload, which becomes a gang with its
problem as text, so that its owner is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from shoal.api.labels import KUEUE_GATED_BY, KUEUE_JOB_UID, KUEUE_PRIORITY_BOOST, KUEUE_SLICE_REPLACES
from shoal.api.quantity import MAX_UNITS, amount, amounts, parse
from shoal.api.times import parse_time
from shoal.engine import facts as pods
from shoal.engine.kueue.facts import (
    UNLIMITED,
    WHOLE_WEIGHT,
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    Fungibility,
    Limits,
    LocalQueue,
    Policy,
    Preemption,
    ResourceGroup,
    Terms,
)
from shoal.engine.kueue.limits import check_limit_ranges, check_requests
from shoal.engine.model import Gang, PodSet, PodSetAssignment, State, Taint
from shoal.errors import BadInput

Json = Mapping[str, Any]

JOB_UID = KUEUE_JOB_UID
GATED_BY = KUEUE_GATED_BY


def cluster_queue(stored: Json) -> ClusterQueue:
    spec = stored.get("spec") or {}
    preemption = spec.get("preemption") or {}
    borrow = preemption.get("borrowWithinCohort") or {}
    fungibility = spec.get("flavorFungibility") or {}
    return ClusterQueue(
        name=stored["metadata"]["name"],
        cohort=spec.get("cohortName") or spec.get("cohort") or "",
        groups=_groups(spec),
        strategy="StrictFIFO" if spec.get("queueingStrategy") == "StrictFIFO" else "BestEffortFIFO",
        namespace_selector=spec.get("namespaceSelector"),
        fungibility=Fungibility(
            next_when_borrowing=fungibility.get("whenCanBorrow") == "TryNextFlavor",
            next_when_preempting=fungibility.get("whenCanPreempt", "TryNextFlavor") == "TryNextFlavor",
            prefer_preempting=fungibility.get("preference") == "PreemptionOverBorrowing",
        ),
        preemption=Preemption(
            reclaim_within_cohort=_policy(preemption.get("reclaimWithinCohort")),
            within_cluster_queue=_policy(preemption.get("withinClusterQueue")),
            borrow_within_cohort=_policy(borrow.get("policy")),
            borrow_threshold=borrow.get("maxPriorityThreshold"),
        ),
        stopped=(spec.get("stopPolicy") or "None") != "None",
        weight=_weight(spec),
    )


def cohort(stored: Json) -> Cohort:
    spec = stored.get("spec") or {}
    return Cohort(
        name=stored["metadata"]["name"],
        parent=spec.get("parentName") or spec.get("parent") or "",
        groups=_groups(spec),
        weight=_weight(spec),
    )


def local_queue(stored: Json) -> LocalQueue:
    spec = stored.get("spec") or {}
    return LocalQueue(
        namespace=stored["metadata"].get("namespace") or "default",
        name=stored["metadata"]["name"],
        cluster_queue=spec.get("clusterQueue") or "",
        stopped=(spec.get("stopPolicy") or "None") != "None",
    )


def flavor(stored: Json) -> Flavor:
    spec = stored.get("spec") or {}
    return Flavor(
        name=stored["metadata"]["name"],
        labels=dict(spec.get("nodeLabels") or {}),
        taints=tuple(
            Taint(taint.get("key") or "", taint.get("value") or "", taint.get("effect") or "")
            for taint in spec.get("nodeTaints") or []
        ),
        tolerations=pods.tolerations(spec),
    )


class Transformation(msgspec.Struct, frozen=True, kw_only=True):
    """`resources.transformations[]`: what asking for one resource costs in others."""

    input: str
    outputs: dict[str, str] = {}
    replace: bool = False
    multiply_by: str = ""


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


BOOST = KUEUE_PRIORITY_BOOST
REPLACES = KUEUE_SLICE_REPLACES

DEFAULT_RULES = PodRules()


def workload(stored: Json, rules: PodRules = DEFAULT_RULES) -> Gang:
    """A Workload as a gang. What is wrong with its pods becomes the gang's `problem`."""
    metadata, spec, status = stored["metadata"], stored.get("spec") or {}, stored.get("status") or {}
    namespace, name = metadata.get("namespace") or "default", metadata["name"]
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    problem = ""
    pod_sets: tuple[PodSet, ...] = ()
    try:
        pod_sets = tuple(_pod_set(entry, rules) for entry in spec.get("podSets") or [])
        problem = check_requests(spec) or check_limit_ranges(spec, rules.limit_ranges)
    except BadInput as fault:
        problem = f"resources validation failed: {fault}"
    reserved = conditions.get("QuotaReserved")
    holds = reserved is not None and reserved.get("status") == "True"
    return Gang(
        key=f"Workload/{namespace}/{name}",
        uid=metadata.get("uid") or f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        dialect="kueue",
        queue=spec.get("queueName") or "",
        priority=(spec.get("priority") or 0) + (_boost(metadata) if rules.priority_boost else 0),
        created_at=_moment(metadata.get("creationTimestamp")),
        pod_sets=pod_sets,
        labels=dict(metadata.get("labels") or {}),
        state=_state(stored, conditions, holds),
        admitted_at=_moment(reserved.get("lastTransitionTime")) if holds and reserved is not None else 0,
        assignment=_assignment(status) if holds else (),
        problem=problem,
        details={"kueue": _terms(stored, conditions, rules)},
    )


def _boost(metadata: Json) -> int:
    """What the annotation adds; one that cannot be read adds nothing."""
    try:
        return int((metadata.get("annotations") or {}).get(BOOST, "0"))
    except ValueError:
        return 0


def _annotation(stored: Json, name: str) -> str:
    return str((stored["metadata"].get("annotations") or {}).get(name) or "")


def _is_gated(stored: Json) -> bool:
    """Does a preemption gate of the workload still stand closed?"""
    wanted = {entry["name"] for entry in (stored.get("spec") or {}).get("preemptionGates") or []}
    states = (stored.get("status") or {}).get("preemptionGates") or []
    return bool(wanted - {entry.get("name") for entry in states if entry.get("position") == "Open"})


def _terms(stored: Json, conditions: dict[str, Json], rules: PodRules) -> Terms:
    status = stored.get("status") or {}
    evicted = conditions.get("Evicted")
    is_evicted = evicted is not None and evicted.get("status") == "True"
    reason = (evicted.get("reason") or "") if is_evicted and evicted is not None else ""
    checks = [entry.get("state") for entry in status.get("admissionChecks") or []]
    requeued, ready = conditions.get("Requeued"), conditions.get("PodsReady")
    reclaimable = {entry["name"]: entry["count"] for entry in status.get("reclaimablePods") or []}
    return Terms(
        cluster_queue=(status.get("admission") or {}).get("clusterQueue") or "",
        evicted_at=_moment(evicted.get("lastTransitionTime")) if is_evicted and evicted is not None else None,
        evicted_reason="" if reason == "PodsReadyTimeout" and rules.requeue_by_creation else reason,
        gated=rules.preemption_gates and _is_gated(stored),
        replaces=f"Workload/{replaces}" if (replaces := _annotation(stored, REPLACES)) else "",
        checks_failed=any(state in ("Retry", "Rejected") for state in checks),
        requeue_at=_moment((status.get("requeueState") or {}).get("requeueAt")),
        backing_off=requeued is not None and requeued.get("status") == "False",
        reclaimable=reclaimable if rules.reclaimable_pods else {},
        job_uid=(stored["metadata"].get("labels") or {}).get(JOB_UID, ""),
        pods_ready=ready is not None and ready.get("status") == "True",
    )


def _state(stored: Json, conditions: dict[str, Json], holds: bool) -> State:
    def true(kind: str) -> bool:
        return (conditions.get(kind) or {}).get("status") == "True"

    if true("Finished"):
        return "finished"
    if holds:
        return "stopping" if true("Evicted") else "admitted" if true("Admitted") else "reserved"
    inactive = (stored.get("spec") or {}).get("active") is False
    if inactive or _annotation(stored, GATED_BY) or true("WaitingForReplacementPods"):
        return "held"
    return "waiting"


def _pod_set(entry: Json, rules: PodRules) -> PodSet:
    template = entry.get("template") or {}
    made = pods.pod_set(
        entry.get("name") or "main",
        entry.get("count", 1),
        template,
        min_count=entry.get("minCount") if rules.partial_admission else None,
    )
    requests = _transformed({**_named_zero(template.get("spec") or {}), **made.requests}, rules)
    return msgspec.structs.replace(made, requests=requests, topology_request=dict(entry.get("topologyRequest") or {}))


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


def _assignment(status: Json) -> tuple[PodSetAssignment, ...]:
    return tuple(
        PodSetAssignment(
            name=entry.get("name") or "main",
            count=entry.get("count", 1),
            flavors=dict(entry.get("flavors") or {}),
            usage=amounts(entry.get("resourceUsage")),
        )
        for entry in (status.get("admission") or {}).get("podSetAssignments") or []
    )


def _groups(spec: Json) -> tuple[ResourceGroup, ...]:
    return tuple(
        ResourceGroup(
            tuple(group.get("coveredResources") or ()),
            tuple(
                FlavorQuota(entry["name"], {quota["name"]: _limits(quota) for quota in entry.get("resources") or []})
                for entry in group.get("flavors") or []
            ),
        )
        for group in spec.get("resourceGroups") or []
    )


def _limits(quota: Json) -> Limits:
    def read(field: str) -> int | None:
        text = quota.get(field)
        if text is None:
            return None
        value = amount(quota["name"], text)
        return UNLIMITED if value >= MAX_UNITS else value

    return Limits(read("nominalQuota") or 0, read("borrowingLimit"), read("lendingLimit"))


def _weight(spec: Json) -> int:
    weight = (spec.get("fairSharing") or {}).get("weight")
    return WHOLE_WEIGHT if weight is None else parse(weight).nano


def _policy(name: str | None) -> Policy:
    for policy in get_args(Policy):
        if policy == name:
            return policy  # type: ignore[no-any-return]
    return "Never"


def _moment(text: str | None) -> int:
    return parse_time(text) if text else 0
