"""How many nodes of which pool would hold a group of pods. Pure; uses the engine's fit code and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.api.booking import BookedPods, Booking, Place
from shoal.api.meta import Json
from shoal.api.quantity import amounts
from shoal.engine.facts import node_fact
from shoal.engine.fit import Placement, place
from shoal.engine.model import Amounts, Gang, HostPort, NodeFact, PodSet, Taint
from shoal.engine.room import Room, is_accelerator
from shoal.errors import BadInput
from shoal.local.agent.nodes import POOL
from shoal.local.scheduler.groups import HOSTNAME
from shoal.local.settings import Pool

_NEW = "\x00new-"  # no real node can be called so


class BoundPod(msgspec.Struct, frozen=True):
    """What a pod takes on its node."""

    node: str
    requests: Amounts
    ports: tuple[HostPort, ...] = ()


class Growth(msgspec.Struct, frozen=True):
    """The answer: `count` more nodes of `pool`, and where the pods would go. Zero means that there is room already."""

    pool: str
    count: int
    placement: Placement

    def named(self, names: Sequence[str]) -> Placement:
        """The placement with the new nodes called so."""
        known = {f"{_NEW}{index}": name for index, name in enumerate(names)}
        return Placement(
            tuple({known.get(node, node): count for node, count in nodes.items()} for nodes in self.placement.pod_sets)
        )


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


def free_room(nodes: Iterable[Json], pods: Iterable[BoundPod], booked: Iterable[Place]) -> Room:
    """The nodes with what their pods and the bookings of requests leave."""
    room = Room()
    for node in nodes:
        try:
            room.set_node(node_fact(node))
        except BadInput:
            continue
    for pod in pods:
        room.take(pod.node, pod.requests, 1, planned=False)
        room.take_ports(pod.node, pod.ports, 1)
    for held in booked:
        room.take(held.node, held.requests, held.count, planned=True)
    return room


def is_overfull(room: Room, nodes: Iterable[str]) -> bool:
    """Someone was placed where this was booked, before the booking was seen."""
    slots = [room.by_name[node] for node in nodes if node in room.by_name]
    return any(slot.free(resource) < 0 for slot in slots for resource in slot.planned)


def charge(room: Room, pod_sets: Sequence[PodSet], placement: Placement) -> None:
    """Take the places: the next group must not count on them."""
    for pod_set, nodes in zip(pod_sets, placement.pod_sets, strict=True):
        for node, count in nodes.items():
            room.take(node, pod_set.requests, count, planned=True)


def booking(pod_sets: Sequence[PodSet], placement: Placement, pool: str, new: Sequence[str]) -> Booking:
    pods = zip(pod_sets, placement.pod_sets, strict=True)
    return Booking(tuple(BookedPods(pod_set.requests, nodes) for pod_set, nodes in pods), pool, tuple(new))


def growth_for(
    pod_sets: Sequence[PodSet], namespace: str, pools: Iterable[tuple[Pool, int]], room: Room
) -> Growth | Never | Later:
    """The smallest growth of one pool after which all pods fit together. `pools` come with their present sizes.

    Devices that nobody asked for are not spent: a pool without them is preferred. `room` is left as it was.
    """
    gang = Gang(key="growth", uid="growth", namespace=namespace, name="growth", pod_sets=tuple(pod_sets))
    there = place(gang, room, say_why=False)
    if isinstance(there, Placement):
        return Growth("", 0, there)
    best: tuple[tuple[int, int], Growth] | None = None
    blocked = ""
    total = sum(pod_set.count for pod_set in pod_sets)
    asked = {resource for pod_set in pod_sets for resource in pod_set.requests}
    for pool, size in pools:
        found = _needed(gang, pool, room, min(total, pool.most))
        if found is None:
            continue
        needed, placement = found
        wasted = sum(1 for resource in pool.capacity if is_accelerator(resource) and resource not in asked)
        if size + needed > pool.most:
            blocked = f"pool {pool.name} would need {needed} more nodes but has {size} of at most {pool.most}"
        elif best is None or (wasted, needed) < best[0]:
            best = (wasted, needed), Growth(pool.name, needed, placement)
    if best is not None:
        return best[1]
    return Later(blocked) if blocked else Never("no pool can hold these pods, even empty and at its largest")


def could_ever(pod_sets: Sequence[PodSet], namespace: str, pools: Iterable[Pool], nodes: Sequence[Json]) -> bool:
    """Whether these pods would fit if nobody else were here and one pool were at its largest."""
    for pool in pools:
        others = [node for node in nodes if (node["metadata"].get("labels") or {}).get(POOL) != pool.name]
        answer = growth_for(pod_sets, namespace, [(pool, 0)], free_room(others, (), ()))
        if isinstance(answer, Growth):
            return True
    return isinstance(growth_for(pod_sets, namespace, (), free_room(nodes, (), ())), Growth)


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
        answer = place(gang, room, say_why=False)
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
