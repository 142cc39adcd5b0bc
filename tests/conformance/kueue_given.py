"""From a case's input to a ledger: shared by the judges of all kinds of queueing cases."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from shoal.api.codec import typed
from shoal.api.kueue import ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from shoal.api.kueue_convert import upgrade
from shoal.api.kueue_other import Topology
from shoal.api.kueue_workload import Workload
from shoal.engine import facts
from shoal.engine.kueue import ClusterQueue as QueueFact
from shoal.engine.kueue import FlavorResource, Gates, Kueue, KueueSettings, Terms, read
from shoal.engine.model import Gang, Namespace, PodSetAssignment

Case = dict[str, Any]
T = TypeVar("T")

# Gates that change decisions: how each maps to our settings, and the values under which nothing needs mapping, or which
# `rules_of` maps.
GATES_AS_SETTINGS = {
    "PartialAdmission": "partial_admission",
    "RecomputeAssignmentUponPreemptionTargetsOverlap": "recompute_on_overlap",
    "TASRecomputeAssignmentWithinSchedulingCycle": "recompute_topology",
    "TASFailedNodeReplacementFailFast": "replace_at_once",
    "TopologyAwareScheduling": "topology_aware",
    "FairSharingPrioritizeNonBorrowing": "share_prefers_lenders",
    "FairSharingPreemptWithinNominal": "share_reclaims_nominal",
}
GATES_WITHOUT_EFFECT = {
    "TASMultiLayerTopology": None,
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
    chosen["slices"] = gates.get("ElasticJobsViaWorkloadSlices", True)
    own = {name: chosen.pop(name) for name in ("partial_admission", "topology_aware") if name in chosen}
    if given.get("preemptionStrategies"):
        own["share_strategies"] = tuple(given["preemptionStrategies"])
    return KueueSettings(fair_sharing=bool(given.get("fairSharing")), gates=Gates(**chosen), **own, **more)


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


def typed_as(type: type[T], entry: Case) -> T:
    """An object of a case, which may be written as v1beta1 spells it."""
    return typed(upgrade({**entry, "kind": type.__name__}), type)


def gang_of(entry: Case, rules: read.PodRules = read.DEFAULT_RULES) -> Gang:
    return read.workload(typed_as(Workload, entry), rules)


def told(given: Case, settings: KueueSettings) -> Kueue:
    """The ledger with everything a case gives but workloads."""
    kueue = Kueue(settings)
    for entry in given.get("namespaces") or [{"name": "default", "labels": {}}]:
        kueue.update(Namespace(name=entry["name"], labels=entry.get("labels") or {}))
    for entry in given.get("resourceFlavors") or []:
        kueue.update(read.flavor(typed_as(ResourceFlavor, entry)))
    for entry in given.get("topologies") or []:
        kueue.update(read.topology(typed_as(Topology, entry)))
    for entry in given.get("nodes") or []:
        kueue.update(facts.node_fact(entry))
    for number, entry in enumerate(given.get("pods") or []):
        kueue.update(facts.pod_fact({**entry, "metadata": {"uid": str(number), **entry["metadata"]}}))
    for entry in given.get("cohorts") or []:
        kueue.update(read.cohort(typed_as(Cohort, entry)))
    for entry in given.get("clusterQueues") or []:
        kueue.update(_queue(entry, given.get("admissionChecks") or []))
    for entry in given.get("localQueues") or []:
        kueue.update(read.local_queue(typed_as(LocalQueue, entry)))
    return kueue


def _queue(entry: Case, checks: list[Case]) -> QueueFact:
    """A cluster queue, with what its admission checks mean for topologies."""
    queue = read.cluster_queue(typed_as(ClusterQueue, entry))
    controllers = {check["metadata"]["name"]: check["spec"]["controllerName"] for check in checks}
    rules = (entry["spec"].get("admissionChecksStrategy") or {}).get("admissionChecks") or []
    every = {flavor.name for group in queue.groups for flavor in group.flavors}
    later = {
        flavor
        for rule in rules
        if controllers.get(rule["name"]) == "kueue.x-k8s.io/provisioning-request"
        for flavor in rule.get("onFlavors") or every
    }
    elsewhere = any(controllers.get(rule["name"]) == "kueue.x-k8s.io/multikueue" for rule in rules)
    return msgspec.structs.replace(queue, places_later=frozenset(later), places_elsewhere=elsewhere)


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
