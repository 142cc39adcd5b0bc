"""Judge one `topology` case: nodes, levels and pod sets in, domains or the failure out."""

from __future__ import annotations

from typing import Any

from shoal.api.kueue_workload import Workload
from shoal.engine import facts
from shoal.engine.kueue import read
from shoal.engine.kueue.topology import (
    PlaceOutcome,
    Placer,
    PodsToPlace,
    Repair,
    TopologySettings,
    TopologyTree,
    belongs,
    read_placement,
    read_wish,
)
from tests.conformance.kueue_given import Case, compared, typed_as

TAS_ANNOTATIONS = tuple(
    f"kueue.x-k8s.io/podset-{name}-topology" for name in ("required", "preferred", "unconstrained", "slice-required")
)


def topology_differences(given: Case, expect: Case) -> list[str]:
    tree = topology_tree(given)
    placer = Placer(tree, topology_settings(given.get("featureGates") or {}))
    pod_sets = [_pods(entry) for entry in given["podSets"]]
    outcome = placer.place(pod_sets, _repair(given.get("workload")))
    ours = [_shown(entry["name"], outcome.get(entry["name"], PlaceOutcome())) for entry in given["podSets"]]
    return compared("podSets", ours, [_expected(entry) for entry in expect["podSets"]])


def topology_settings(gates: dict[str, bool]) -> TopologySettings:
    return TopologySettings(
        mixed_profile=gates.get("TASProfileMixed", True),
        balanced=gates.get("TASBalancedPlacement", False),
        preferred_nodes=gates.get("TASRespectNodeAffinityPreferred", False),
        keep_places=gates.get("ElasticJobsViaWorkloadSlicesWithTAS", False),
        keep_single_pods=gates.get("SkipReassignmentForPodOwnedWorkloads", True),
    )


def topology_tree(given: Case) -> TopologyTree:
    levels = tuple(given["levels"])
    nodes = [facts.node_fact(node) for node in given["nodes"]]
    tree = TopologyTree(
        given["topologyName"], levels, [node for node in nodes if belongs(node, given["nodeLabels"], levels)]
    )
    for pod in given["pods"]:
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        placed = set(TAS_ANNOTATIONS) & set(pod["metadata"].get("annotations") or {})
        if not ended and not placed:
            tree.take(pod["spec"].get("nodeName") or "", facts.pod_requests(pod["spec"]))
    return tree


def _pods(entry: Case) -> PodsToPlace:
    return PodsToPlace(
        name=entry["name"],
        count=entry["count"],
        requests=entry["requests"],
        wish=read_wish(entry.get("topologyRequest") or {}),
        implied=not entry.get("topologyRequest"),
        group=entry.get("podSetGroupName") or "",
        node_selector=entry.get("nodeSelector") or {},
        affinity={"nodeAffinity": entry["nodeAffinity"]} if entry.get("nodeAffinity") else {},
        tolerations=facts.tolerations(entry),
        previous=read_placement(entry.get("previousAssignment")),
    )


def _repair(workload: Case | None) -> Repair | None:
    failed = ((workload or {}).get("status") or {}).get("unhealthyNodes") or []
    if workload is None or not failed:
        return None
    placed = {
        part["name"]: found
        for part in workload["status"]["admission"]["podSetAssignments"]
        if (found := read_placement(part.get("topologyAssignment"))) is not None
    }
    return Repair(failed[0]["name"], placed, is_pod=read.is_one_pod(typed_as(Workload, workload)))


def _shown(name: str, outcome: PlaceOutcome) -> dict[str, Any]:
    placement = outcome.placement
    return {
        "name": name,
        "failure": outcome.failure,
        "assignment": None
        if placement is None
        else (list(placement.levels), [(list(domain.values), domain.count) for domain in placement.domains]),
    }


def _expected(entry: Case) -> dict[str, Any]:
    told = entry["assignment"]
    domains = None if told is None else [(part["values"], part["count"]) for part in told["domains"]]
    return {
        "name": entry["name"],
        "failure": entry["failure"],
        "assignment": None if told is None else (told["levels"], domains),
    }
