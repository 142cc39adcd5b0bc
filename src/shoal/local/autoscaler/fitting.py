"""How many nodes of which pool would hold a group of pods. Pure; uses the engine's fit code and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.api.meta import Json
from shoal.api.quantity import amounts
from shoal.engine.facts import host_ports, node_fact, pod_requests
from shoal.engine.fit import Placement, place
from shoal.engine.model import Gang, NodeFact, PodSet, Taint
from shoal.engine.room import Room
from shoal.errors import BadInput
from shoal.local.agent.nodes import POOL
from shoal.local.scheduler.groups import HELD_FOR, HOSTNAME
from shoal.local.settings import Pool

_NEW = "\x00new-"  # no real node can be called so
TERMINAL = ("Succeeded", "Failed")


class Growth(msgspec.Struct, frozen=True):
    """The answer: `count` more nodes of `pool`. A count of zero means that there is room already."""

    pool: str
    count: int
    uses: tuple[str, ...] = ()
    """Nodes that are there already and take some of the pods."""


class Never(msgspec.Struct, frozen=True):
    """No pool could ever hold this, even empty and at its largest."""

    reason: str


class Later(msgspec.Struct, frozen=True):
    """A pool could, but its maximum is in use."""

    reason: str


def pool_fact(pool: Pool, name: str) -> NodeFact:
    """A node that this pool would add."""
    return NodeFact(
        name=name,
        labels={HOSTNAME: name, POOL: pool.name, "kubernetes.io/os": "linux", **pool.labels},
        taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in pool.taints),
        allocatable={"pods": 110, **amounts(pool.capacity)},
    )


def free_room(nodes: Iterable[Json], pods: Iterable[Json], *, without_held: bool = True) -> Room:
    """The nodes with what their pods leave; nodes held for a request are left out."""
    room = Room()
    for node in nodes:
        if without_held and (node["metadata"].get("annotations") or {}).get(HELD_FOR):
            continue
        try:
            room.set_node(node_fact(node))
        except BadInput:
            continue
    for pod in pods:
        where = str((pod.get("spec") or {}).get("nodeName") or "")
        if not where or (pod.get("status") or {}).get("phase") in TERMINAL or where not in room.by_name:
            continue
        try:
            room.take(where, pod_requests(pod["spec"]), 1, planned=False)
            room.take_ports(where, host_ports(pod["spec"]), 1)
        except BadInput:
            continue
    return room


def growth_for(
    pod_sets: Sequence[PodSet], namespace: str, pools: Iterable[tuple[Pool, int]], room: Room
) -> Growth | Never | Later:
    """The smallest growth of one pool after which all pods fit together. `pools` come with their present sizes.

    Changes `room`: hand in one of your own.
    """
    gang = Gang(key="growth", uid="growth", namespace=namespace, name="growth", pod_sets=tuple(pod_sets))
    there = place(gang, room)
    if isinstance(there, Placement):
        return Growth("", 0, _used(there))
    best: Growth | None = None
    blocked = ""
    total = sum(pod_set.count for pod_set in pod_sets)
    for pool, size in pools:
        found = _needed(gang, pool, room, min(total, pool.most))
        if found is None:
            continue
        needed, placement = found
        if size + needed > pool.most:
            blocked = f"pool {pool.name} would need {needed} more nodes but has {size} of at most {pool.most}"
        elif best is None or needed < best.count:
            best = Growth(pool.name, needed, _used(placement))
    if best is not None:
        return best
    return Later(blocked) if blocked else Never("no pool can hold these pods, even empty and at its largest")


def _needed(gang: Gang, pool: Pool, room: Room, most: int) -> tuple[int, Placement] | None:
    """By doubling, then halving: placing is monotone in the number of equal nodes."""
    added: list[str] = []
    found: dict[int, Placement] = {}

    def fits(count: int) -> bool:
        while len(added) < count:
            name = f"{_NEW}{len(added)}"
            room.set_node(pool_fact(pool, name))
            added.append(name)
        while len(added) > count:
            room.drop_node(added.pop())
        answer = place(gang, room)
        if isinstance(answer, Placement):
            found[count] = answer
        return count in found

    try:
        low, high = 0, 1
        while not fits(min(high, most)):
            if high >= most:
                return None
            low, high = high, high * 2
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high, found[high]
    finally:
        for name in added:
            room.drop_node(name)


def _used(placement: Placement) -> tuple[str, ...]:
    return tuple(sorted({name for nodes in placement.pod_sets for name in nodes if not name.startswith(_NEW)}))
