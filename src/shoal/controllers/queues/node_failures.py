"""Nodes that fail under a gang with places in a topology: named in its status, so that the engine finds others.

Asked by the reconciler about an admitted Workload. As Kueue: a node counts as failed when it is gone or has no Ready
condition, and, once no pod of the gang lives there, when it is not ready or has a taint that its pods do not tolerate
for good. A node that is only slow to answer keeps its pods. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.api.codec import opened
from shoal.api.kueue import ResourceFlavor
from shoal.api.kueue_workload import Workload
from shoal.api.labels import HOSTNAME, NODE_UNSCHEDULABLE
from shoal.api.meta import Json
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.queues.inject import StartError
from shoal.controllers.queues.workloads import infos_of
from shoal.engine.facts import tolerations
from shoal.engine.kueue.read import placements
from shoal.engine.model import Taint, Toleration
from shoal.engine.nodes import untolerated

MOST = 8
"""So many fit into a status."""


def nodes_of(workload: Workload) -> set[str]:
    """Host names that its pods were given by a topology; none where nodes are not its lowest level."""
    found = placements(workload.status).values()
    return {one.values[-1] for placed in found if placed.levels[-1] == HOSTNAME for one in placed.domains}


def failed_nodes(
    workload: Workload,
    node_by_host: Callable[[str], Json | None],
    pods: Iterable[SeenPod],
    flavor: Callable[[str], ResourceFlavor | None],
) -> tuple[str, ...]:
    """Host names of its nodes that failed, in order."""
    hosts = sorted(nodes_of(workload))
    if not hosts:
        return ()
    lives = {str(opened(pod.spec).get("nodeName") or "") for pod in pods if not _is_ending(pod)}
    tolerated: list[tuple[Toleration, ...]] | None = None
    found = []
    for host in hosts:
        node = node_by_host(host)
        if node is None or "Ready" not in _conditions(node):
            found.append(host)
        elif node["metadata"]["name"] not in lives:
            if tolerated is None:
                tolerated = _tolerated(workload, flavor)
            if _conditions(node)["Ready"] != "True" or _keeps_off(node, tolerated):
                found.append(host)
    return tuple(found[:MOST])


def _conditions(node: Json) -> dict[str, str]:
    return {one.get("type"): one.get("status") for one in (node.get("status") or {}).get("conditions") or ()}


def _tolerated(workload: Workload, flavor: Callable[[str], ResourceFlavor | None]) -> list[tuple[Toleration, ...]]:
    """For each pod set, what its pods tolerate for as long as they run."""
    try:
        added = {one.name: one.tolerations for one in infos_of(workload, flavor)}
    except StartError:  # it can never start: its templates alone count
        added = {}
    found = []
    for pod_set in workload.spec.pod_sets:
        own = (pod_set.template.get("spec") or {}).get("tolerations") or ()
        both = (*own, *added.get(pod_set.name or "main", ()))
        found.append(tolerations({"tolerations": [one for one in both if one.get("tolerationSeconds") is None]}))
    return found


def _keeps_off(node: Json, tolerated: list[tuple[Toleration, ...]]) -> bool:
    """Has the node a taint that pods of the gang do not tolerate for good? A cordoned node has one, told or not."""
    spec = node.get("spec") or {}
    taints = [
        Taint(one.get("key") or "", one.get("value") or "", one.get("effect") or "") for one in spec.get("taints") or ()
    ]
    taints += [Taint(NODE_UNSCHEDULABLE, "", "NoSchedule")] if spec.get("unschedulable") else []
    return any(untolerated(known, taints) is not None for known in tolerated)


def _is_ending(pod: SeenPod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed") or pod.metadata.deletion_timestamp is not None
