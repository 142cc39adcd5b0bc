"""Nodes that fail under a gang with places in a topology: named in its status, so that the engine finds others.

Asked by the reconciler about an admitted Workload. As Kueue: a node counts as failed when it is gone, when it has no
Ready condition, when it is not ready and the gang's pods there have ended or are ending, and when it has a NoExecute
taint that the pods do not tolerate. A node that is only slow to answer keeps its pods. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.api.codec import opened
from shoal.api.kueue_workload import Workload
from shoal.api.labels import HOSTNAME
from shoal.api.meta import Json
from shoal.controllers.planning.pods import SeenPod
from shoal.engine.facts import tolerations
from shoal.engine.kueue.read import placements
from shoal.engine.model import Taint, Toleration
from shoal.engine.nodes import tolerates

MOST = 8
"""So many fit into a status."""


def nodes_of(workload: Workload) -> set[str]:
    """Host names that its pods were given by a topology; none where nodes are not its lowest level."""
    found = placements(workload.status).values()
    return {one.values[-1] for placed in found if placed.levels[-1] == HOSTNAME for one in placed.domains}


def failed_nodes(
    workload: Workload, node_by_host: Callable[[str], Json | None], pods: Iterable[SeenPod]
) -> tuple[str, ...]:
    """Host names of its nodes that failed, in order."""
    hosts = sorted(nodes_of(workload))
    if not hosts:
        return ()
    there: dict[str, list[SeenPod]] = {}
    for pod in pods:
        there.setdefault(str(opened(pod.spec).get("nodeName") or ""), []).append(pod)
    tolerated = [tolerations(one.template.get("spec") or {}) for one in workload.spec.pod_sets]
    found = []
    for host in hosts:
        node = node_by_host(host)
        if node is None or _has_failed(node, there.get(node["metadata"]["name"], []), tolerated):
            found.append(host)
    return tuple(found[:MOST])


def _has_failed(node: Json, pods: list[SeenPod], tolerated: list[tuple[Toleration, ...]]) -> bool:
    conditions = {one.get("type"): one.get("status") for one in (node.get("status") or {}).get("conditions") or ()}
    if "Ready" not in conditions:
        return True
    if conditions["Ready"] != "True" and pods and all(_is_ending(one) for one in pods):
        return True
    taints = [
        Taint(one.get("key") or "", one.get("value") or "", "NoExecute")
        for one in (node.get("spec") or {}).get("taints") or ()
        if one.get("effect") == "NoExecute"
    ]
    return any(not tolerates(known, taint) for taint in taints for known in tolerated)


def _is_ending(pod: SeenPod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp is not None
