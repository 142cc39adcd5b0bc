"""Which worker pods of one group go and which come. Pure: a group and its pods in, a plan out.

Rules that keep others' work safe: a terminating pod still counts, so there are never more pods than wanted; with an
autoscaler only named or dead pods go; without, exactly the excess, the least useful first.
"""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import counts
from shoal.controllers.ray.pods import observed
from shoal.controllers.ray.settings import RaySettings


class WorkerSlot(msgspec.Struct, frozen=True):
    """A place in a group that needs a pod."""

    group: str
    replica: int
    host: int = 0


class GroupPlan(msgspec.Struct, frozen=True):
    """Pods to delete with the reason, and places to fill. Never both for the same place in one pass."""

    delete: list[tuple[Json, str]] = []
    create: list[WorkerSlot] = []


def plan_group(cluster: Json, group: Json, pods: list[Json], settings: RaySettings) -> GroupPlan:
    if group.get("suspend") is True:
        return GroupPlan(delete=[(pod, "its worker group is suspended") for pod in _staying(pods)])
    if view.hosts(group) > 1:
        return _plan_replicas(cluster, group, pods, settings)
    return _plan_single(cluster, group, pods, settings)


def _plan_single(cluster: Json, group: Json, pods: list[Json], settings: RaySettings) -> GroupPlan:
    staying = _staying(pods)
    dead = [(pod, observed.why_dead(pod)) for pod in staying if observed.is_dead(pod)]
    if dead:
        return GroupPlan(delete=dead)
    named = set(view.workers_to_delete(group))
    chosen = [(pod, "the autoscaler named it") for pod in staying if view.name(pod) in named]
    left = [pod for pod in staying if view.name(pod) not in named]
    wanted = counts.wanted_pods(group)
    if len(left) > wanted and may_choose(cluster, settings):
        surplus = sorted(left, key=usefulness)[: len(left) - wanted]
        return GroupPlan(delete=[*chosen, *((pod, "there are more workers than wanted") for pod in surplus)])
    missing = wanted - len(pods)
    if missing <= 0:
        return GroupPlan(delete=chosen)
    taken = {view.labels(pod).get(names.REPLICA_INDEX) for pod in pods}
    return GroupPlan(
        delete=chosen, create=[WorkerSlot(view.group_name(group), index) for index in _free(taken, missing)]
    )


def _plan_replicas(cluster: Json, group: Json, pods: list[Json], settings: RaySettings) -> GroupPlan:
    """Several hosts per replica: a replica lives and dies whole."""
    hosts = view.hosts(group)
    by_replica: dict[str, list[Json]] = {}
    for pod in pods:
        by_replica.setdefault(view.labels(pod).get(names.REPLICA_NAME, ""), []).append(pod)
    named = set(view.workers_to_delete(group))
    going: list[tuple[Json, str]] = []
    for replica, members in by_replica.items():
        reason = _why_replica_goes(replica, members, hosts, named)
        if reason:
            going += [(pod, reason) for pod in _staying(members)]
    if going:
        return GroupPlan(delete=going)
    wanted = counts.wanted_replicas(group)
    whole = [members for members in by_replica.values() if len(_staying(members)) == hosts]
    if len(whole) > wanted and may_choose(cluster, settings):
        surplus = sorted(whole, key=lambda members: min(map(usefulness, members)))[: len(whole) - wanted]
        return GroupPlan(
            delete=[(pod, "there are more replicas than wanted") for members in surplus for pod in members]
        )
    missing = wanted - len(by_replica)
    if missing <= 0:
        return GroupPlan()
    taken = {view.labels(pod).get(names.REPLICA_INDEX) for pod in pods}
    name = view.group_name(group)
    return GroupPlan(create=[WorkerSlot(name, index, host) for index in _free(taken, missing) for host in range(hosts)])


def _why_replica_goes(replica: str, members: list[Json], hosts: int, named: set[str]) -> str:
    staying = _staying(members)
    dead = next((pod for pod in staying if observed.is_dead(pod)), None)
    if dead is not None:
        return f"a host of its replica is gone: {observed.why_dead(dead)}"
    if any(view.name(pod) in named for pod in members):
        return "the autoscaler named a host of its replica"
    if not staying:
        return ""
    return "" if len(staying) == hosts and replica else "its replica is not whole"


def may_choose(cluster: Json, settings: RaySettings) -> bool:
    """May the operator pick a victim? Not where an autoscaler does."""
    return not view.autoscaling(cluster) or settings.random_pod_delete


def usefulness(pod: Json) -> tuple[int, str, int]:
    """Least useful first: pending, then not ready, then the youngest of the rest; of one age the highest index."""
    rank = 2 if observed.is_ready(pod) else 1 if observed.is_running(pod) else 0
    created = str(view.metadata(pod).get("creationTimestamp") or "")
    index = view.labels(pod).get(names.REPLICA_INDEX, "")
    place = -int(index) if index.isascii() and index.isdigit() else 0
    return rank, "".join(chr(0x10FFFF - ord(character)) for character in created), place


def _staying(pods: list[Json]) -> list[Json]:
    return [pod for pod in pods if not view.deleting(pod)]


def _free(taken: set[str | None], count: int) -> list[int]:
    """The lowest free indices."""
    found: list[int] = []
    index = 0
    while len(found) < count:
        if str(index) not in taken:
            found.append(index)
        index += 1
    return found
