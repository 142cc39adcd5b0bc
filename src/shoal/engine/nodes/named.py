"""Room for a gang whose pods name their hosts, as one does that has places in a topology.

Asked by `fit.place` before its own way: what it says yes to, that would pack in the very same way; of all else it says
nothing. Plain numbers of a few nodes instead of arrays over all, and no row for a shape that no other gang has.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.engine.model import Gang
from shoal.engine.nodes.room import MANY, Room, is_accelerator
from shoal.engine.nodes.shape import Shape, is_eligible, shape_of
from shoal.engine.nodes.slot import LARGEST, Slot

MOST_HOSTS = 32
"""That are looked at one by one; beyond, arrays are quicker."""
TOO_MUCH = LARGEST + 1  # more than any node can have
_Free = dict[str, dict[str, int]]
"""By node and resource."""


class _Part:
    """One pod set: its shape and count, and how many pods each of its nodes takes while nothing is placed yet."""

    def __init__(self, index: int, count: int, shape: Shape, slots: list[Slot], free: _Free) -> None:
        self.index = index
        self.count = max(0, count)
        self.requests = [(resource, min(amount, TOO_MUCH)) for resource, amount in shape.requests]
        self.holds = {
            slot.name: count
            for slot in slots
            if slot.fact is not None and is_eligible(shape, slot.fact) and (count := self.times(free[slot.name]))
        }

    def times(self, free: Mapping[str, int]) -> int:
        return max(0, min(MANY, *[free[resource] // amount for resource, amount in self.requests]))

    @property
    def hardness(self) -> tuple[int, float, int]:
        """As `fit` puts pod sets in order: small goes first."""
        accelerated = any(is_accelerator(resource) for resource, _ in self.requests)
        per_node = sum(self.holds.values()) / len(self.holds) if self.holds else 0.0
        return (0 if accelerated else 1, per_node, self.index)

    @property
    def main(self) -> str:
        """The resource by which fullness is measured."""
        named = [resource for resource, _ in self.requests if resource != "pods"]
        return "cpu" if "cpu" in named else (named or ["pods"])[0]


def place_on_hosts(gang: Gang, room: Room) -> tuple[dict[str, int], ...] | None:
    """For every pod set its nodes and how many pods go there; None: only `fit` can tell."""
    if room.imagined or room.around.closers or not gang.pod_sets:
        return None
    shapes: list[Shape] = []
    slots: list[list[Slot]] = []
    resources: set[str] = set()
    for pod_set in gang.pod_sets:
        if not pod_set.affinity or len(pod_set.affinity) > 1 or "nodeAffinity" not in pod_set.affinity:
            return None
        shape = shape_of(pod_set, gang.node_selector)
        hosts = shape.hosts
        if hosts is None or len(hosts) > MOST_HOSTS or shape.host_ports:
            return None
        shapes.append(shape)
        slots.append(room.of_hosts(hosts))
        resources.update([resource for resource, _ in shape.requests])
    if not resources <= room.resources.keys():
        return None
    wanted = sorted(resources | {name for name, row in room.resources.items() if row in room.accelerators})
    free = {slot.name: {one: _bounded(slot.free(one)) for one in wanted} for each in slots for slot in each}
    parts = [
        _Part(index, pod_set.count, shapes[index], slots[index], free) for index, pod_set in enumerate(gang.pod_sets)
    ]
    spare = [resource for resource in wanted if is_accelerator(resource)]
    chosen: dict[int, dict[str, int]] = {}
    for part in sorted(parts, key=lambda one: one.hardness):
        pack = _pack(part, free, spare)
        if pack is None:
            return None
        chosen[part.index] = pack
        for node, count in pack.items():
            for resource, amount in part.requests:
                free[node][resource] -= amount * count
    return tuple([chosen[index] for index in range(len(parts))])


def _pack(part: _Part, free: _Free, spare: list[str]) -> dict[str, int] | None:
    """Nodes in order of preference, each filled before the next."""
    found: dict[str, int] = {}
    left = part.count
    if not left:
        return found
    able = {node: count for node in sorted(part.holds) if (count := min(part.holds[node], part.times(free[node])))}
    for node in sorted(able, key=lambda node: _preference(part, free[node], spare)):
        found[node] = min(left, able[node])
        left -= found[node]
        if not left:
            return found
    return None


def _preference(part: _Part, free: Mapping[str, int], spare: list[str]) -> int:
    """As in `fit`: nodes without spare accelerators first, then the fullest."""
    asked = {resource for resource, _ in part.requests}
    left = 0
    for resource in spare:
        here = max(0, min(free[resource], 2**20))
        left += here + (2**21 if here and resource not in asked else 0)
    return min(max(0, free[part.main]), 2**40 - 1) + min(left, 2**22) * 2**40


def _bounded(amount: int) -> int:
    return min(max(amount, -LARGEST), LARGEST)
