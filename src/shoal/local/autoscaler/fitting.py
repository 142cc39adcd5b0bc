"""How many nodes of which pool would hold a group of pods. Pure; uses the engine's fit code and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.api.booking import BookedPods, Booking, Place
from shoal.api.labels import HOSTNAME, OPERATING_SYSTEM
from shoal.api.meta import Json
from shoal.api.quantity import amounts
from shoal.engine.facts import node_fact
from shoal.engine.model import Amounts, Gang, HostPort, NodeFact, NodePool, PodSet, Taint
from shoal.engine.nodes import Placement, Pools, Room, Wanting, place
from shoal.errors import BadInput
from shoal.local.nodes.agent.nodes import POOL
from shoal.local.settings import Pool


class BoundPod(msgspec.Struct, frozen=True):
    """What a pod takes on its node."""

    node: str
    requests: Amounts
    ports: tuple[HostPort, ...] = ()


class PoolGrowth(msgspec.Struct, frozen=True):
    """The answer: so many more nodes of each pool; none at all where there is room already."""

    nodes: dict[str, int]


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
        labels={HOSTNAME: name, POOL: pool.name, OPERATING_SYSTEM: "linux", **pool.labels},
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
    """Another pod was placed where this was booked, before the booking was seen."""
    slots = [room.by_name[node] for node in nodes if node in room.by_name]
    return any(slot.free(resource) < 0 for slot in slots for resource in slot.planned)


def charge(room: Room, pod_sets: Sequence[PodSet], placement: Placement) -> None:
    """Take the places: the next group must not count on them."""
    for pod_set, nodes in zip(pod_sets, placement.pod_sets, strict=True):
        for node, count in nodes.items():
            room.take(node, pod_set.requests, count, planned=True)


def booking(pod_sets: Sequence[PodSet], placement: Placement, new: dict[str, str]) -> Booking:
    pods = zip(pod_sets, placement.pod_sets, strict=True)
    return Booking(tuple(BookedPods(pod_set.requests, nodes) for pod_set, nodes in pods), new)


def growth_for(
    pod_sets: Sequence[PodSet], namespace: str, pools: Sequence[tuple[Pool, int]], room: Room
) -> PoolGrowth | Never | Later:
    """The smallest growth after which all pods fit together: of one pool if one can do it, without devices that no pod
    asked for, else of several. `pools` come with their present sizes; `room` is left as it was."""
    gang = as_gang(pod_sets, namespace)
    if isinstance(place(gang, room, say_why=False), Placement):
        return PoolGrowth({})
    found = _wanting(gang, [(pool, pool.most - size) for pool, size in pools], room)
    if found is not None:
        return PoolGrowth(found.nodes)
    found = _wanting(gang, [(pool, pool.most) for pool, _ in pools], room)
    if found is None:
        return Never("no pool can hold these pods, even empty and at its largest")
    name, size, most = next(
        (pool.name, size, pool.most) for pool, size in pools if size + found.nodes.get(pool.name, 0) > pool.most
    )
    return Later(f"pool {name} would need {found.nodes[name]} more nodes but has {size} of at most {most}")


def place_with(
    pod_sets: Sequence[PodSet], namespace: str, pools: dict[str, Pool], new: dict[str, str], room: Room
) -> Placement | None:
    """Where the pods go once these new nodes (name to pool) are there."""
    with room.imagining(pool_fact(pools[pool], name) for name, pool in new.items()):
        found = place(as_gang(pod_sets, namespace), room, say_why=False)
    return found if isinstance(found, Placement) else None


def could_ever(pod_sets: Sequence[PodSet], namespace: str, pools: Sequence[Pool], nodes: Sequence[Json]) -> bool:
    """Whether these pods would fit if no other pod were here and all pools were at their largest."""
    names = {pool.name for pool in pools}
    others = [node for node in nodes if (node["metadata"].get("labels") or {}).get(POOL) not in names]
    room = free_room(others, (), ())
    return isinstance(growth_for(pod_sets, namespace, [(pool, 0) for pool in pools], room), PoolGrowth)


def as_gang(pod_sets: Sequence[PodSet], namespace: str) -> Gang:
    return Gang(key="growth", uid="growth", namespace=namespace, name="growth", pod_sets=tuple(pod_sets))


def _wanting(gang: Gang, pools: Iterable[tuple[Pool, int]], room: Room) -> Wanting | None:
    """As the engine asks for nodes on behalf of a gang; one way of thinking for both."""
    thought = Pools()
    for pool, left in pools:
        fact = pool_fact(pool, pool.name)
        thought.facts[pool.name] = NodePool(
            name=pool.name,
            labels=fact.labels,
            taints=fact.taints,
            allocatable=fact.allocatable,
            obtainable=max(0, left),
        )
    return thought.wanting(gang, room)
