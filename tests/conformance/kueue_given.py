"""From a case's input to a ledger: shared by the judges of all kinds of queueing cases."""

from __future__ import annotations

from typing import Any

from shoal.engine.kueue import FlavorResource, Kueue, KueueSettings, Terms, read
from shoal.engine.model import Gang, Namespace, PodSetAssignment

Case = dict[str, Any]

# Gates that change decisions: how each maps to our settings, and the values under which nothing needs mapping, or which
# `rules_of` maps.
GATES_AS_SETTINGS = {
    "PartialAdmission": "partial_admission",
    "RecomputeAssignmentUponPreemptionTargetsOverlap": "recompute_on_overlap",
    "FairSharingPrioritizeNonBorrowing": "share_prefers_lenders",
    "FairSharingPreemptWithinNominal": "share_reclaims_nominal",
}
GATES_WITHOUT_EFFECT = {
    "TopologyAwareScheduling": None,
    "TASRecomputeAssignmentWithinSchedulingCycle": None,
    "ReclaimablePods": None,
    "PrioritySortingWithinCohort": True,
    "FlavorFungibility": True,
    "SchedulingEquivalenceHashing": True,
    "VectorizedResourceRequests": None,
    "SchedulerLibraryIntegration": None,
    "MultiKueueOrchestratedPreemption": None,
    "PriorityBoost": None,
    "ElasticJobsViaWorkloadSlices": None,
}


def unsupported_gates(given: Case) -> list[str]:
    return [
        name
        for name, value in (given.get("featureGates") or {}).items()
        if name not in GATES_AS_SETTINGS
        and not (name in GATES_WITHOUT_EFFECT and GATES_WITHOUT_EFFECT[name] in (None, value))
    ]


def settings_of(given: Case, **more: Any) -> KueueSettings:
    gates = given.get("featureGates") or {}
    chosen = {GATES_AS_SETTINGS[name]: value for name, value in gates.items() if name in GATES_AS_SETTINGS}
    if given.get("preemptionStrategies"):
        chosen["share_strategies"] = tuple(given["preemptionStrategies"])
    chosen["slices"] = gates.get("ElasticJobsViaWorkloadSlices", True)
    return KueueSettings(fair_sharing=bool(given.get("fairSharing")), **chosen, **more)


def rules_of(given: Case) -> read.PodRules:
    gates = given.get("featureGates") or {}
    return read.PodRules(
        limit_ranges=tuple(entry for entry in given.get("objects") or [] if entry.get("_kind") == "LimitRange"),
        reclaimable_pods=gates.get("ReclaimablePods", True),
        priority_boost=gates.get("PriorityBoost", False),
        preemption_gates=gates.get("MultiKueueOrchestratedPreemption", False),
        transformations=tuple(
            read.Transformation(
                input=entry["input"],
                outputs=entry.get("outputs") or {},
                replace=entry.get("strategy") == "Replace",
                multiply_by=entry.get("multiplyBy") or "",
            )
            for entry in given.get("resourceTransformations") or []
        ),
    )


def told(given: Case, settings: KueueSettings) -> Kueue:
    """The ledger with everything a case gives but workloads."""
    kueue = Kueue(settings)
    for entry in given.get("namespaces") or [{"name": "default", "labels": {}}]:
        kueue.update(Namespace(name=entry["name"], labels=entry.get("labels") or {}))
    for entry in given.get("resourceFlavors") or []:
        kueue.update(read.flavor(entry))
    for entry in given.get("cohorts") or []:
        kueue.update(read.cohort(entry))
    for entry in given.get("clusterQueues") or []:
        kueue.update(read.cluster_queue(entry))
    for entry in given.get("localQueues") or []:
        kueue.update(read.local_queue(entry))
    return kueue


def place(key: str) -> FlavorResource:
    flavor, resource = key.split("|")
    return FlavorResource(flavor, resource)


def by_key(usage: dict[FlavorResource, int]) -> dict[str, int]:
    return {f"{at.flavor}|{at.resource}": value for at, value in usage.items()}


def holder(queue: str, usage: dict[str, int]) -> Gang:
    """A gang that holds exactly this usage."""
    return Gang(
        key=f"Workload/default/holder-of-{queue}",
        uid=f"holder-of-{queue}",
        namespace="default",
        name=f"holder-of-{queue}",
        dialect="kueue",
        state="admitted",
        assignment=tuple(
            PodSetAssignment(name=key, count=1, flavors={at.resource: at.flavor}, usage={at.resource: value})
            for key, value in usage.items()
            for at in [place(key)]
        ),
        details={"kueue": Terms(cluster_queue=queue)},
    )


def compared(name: str, ours: Any, expected: Any) -> list[str]:
    return [] if ours == expected else [f"{name}: ours {ours!r}, expected {expected!r}"]
