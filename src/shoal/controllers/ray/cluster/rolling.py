"""Which pods strategy Rolling replaces next. Pure: a cluster and its pods in, pods to delete out.

Workers come first, in the order of the groups, each replica whole and drained by its own end; the next one goes when
all others are ready, so a template that does not start stops the upgrade at its first pod. The head comes last, and
only where its state survives outside of it: otherwise every task would be lost, so it is kept and the status says so.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import counts, status
from shoal.controllers.ray.pods import fault_tolerance, observed

WHY = "the spec changed and its strategy is Rolling"


def rolls(cluster: Json) -> bool:
    return (view.spec(cluster).get("upgradeStrategy") or {}).get("type") == "Rolling"


def next_to_go(cluster: Json, pods: list[Json]) -> list[Json]:
    """Empty where nothing differs from the spec, or where it is not the time yet."""
    if not rolls(cluster) or view.suspended(cluster) or any(view.deleting(pod) for pod in pods):
        return []
    old = _drifted(cluster, pods)
    workers = [pod for pod in pods if view.labels(pod).get(names.NODE_TYPE) == names.WORKER]
    old_workers = [pod for pod in workers if view.uid(pod) in old]
    broken = [pod for pod in old_workers if not observed.is_ready(pod)]
    if broken:
        return _whole_replicas(broken, workers)  # they do nothing that could be lost
    if len(workers) < sum(map(counts.wanted_pods, view.groups(cluster))) or not all(map(observed.is_ready, pods)):
        return []
    if old_workers:
        order = [view.group_name(group) for group in view.groups(cluster)]
        first = min(old_workers, key=lambda pod: _place(pod, order))
        return _whole_replicas([first], workers)
    return [pod for pod in pods if view.uid(pod) in old and moves_head(cluster)]


def moves_head(cluster: Json) -> bool:
    """May the head be replaced under its workers?"""
    return fault_tolerance.enabled(cluster)


def _drifted(cluster: Json, pods: list[Json]) -> set[str]:
    """UIDs of the pods that were built from another template."""
    return {view.uid(pod) for pod in pods if status.drifted_groups(cluster, [pod])}


def _whole_replicas(chosen: list[Json], workers: list[Json]) -> list[Json]:
    """With several hosts per replica all of them go together."""
    replicas = {name for pod in chosen if (name := view.labels(pod).get(names.REPLICA_NAME))}
    uids = {view.uid(pod) for pod in chosen}
    return [pod for pod in workers if view.uid(pod) in uids or view.labels(pod).get(names.REPLICA_NAME) in replicas]


def _place(pod: Json, order: list[str]) -> tuple[int, int, str]:
    labels = view.labels(pod)
    group, index = labels.get(names.GROUP, ""), labels.get(names.REPLICA_INDEX, "")
    number = int(index) if index.isascii() and index.isdigit() else 0
    return order.index(group) if group in order else len(order), number, view.name(pod)
