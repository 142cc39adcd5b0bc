"""What is free on which node, as arrays.

The ledger writes here, the fit code reads. Each node keeps exact integers of what its pods and its planned pods take;
from those follow one matrix of free amounts and, per pod shape, how many such pods each node would still hold. A change
touches one column of both, so its cost does not depend on how many gangs wait. It never knows gangs or queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.engine.model import Amounts, HostPort, NodeFact
from shoal.engine.nodes.affinity import Neighbourhood
from shoal.engine.nodes.labels import Labels, Mask
from shoal.engine.nodes.shape import Shape, is_eligible, ports_conflict
from shoal.engine.nodes.slot import LARGEST, Slot

MANY = 2**30  # a node's capacity for pods that ask for nothing
_FEW = 48  # up to so many changed nodes are updated one by one, more of them shape by shape
_UNUSED_SHAPES = 256

Ints = NDArray[np.int64]


class Room:
    """All nodes. Call `flush` after changes and before reading arrays."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.by_name: dict[str, Slot] = {}
        self.resources: dict[str, int] = {}
        self.free: Ints = np.zeros((4, 16), dtype=np.int64)
        self.idle: Ints = np.zeros((4, 16), dtype=np.int64)
        """As `free`, but planned pods are not taken off."""
        self.alive: Mask = np.zeros(16, dtype=bool)
        self.name_rank: Ints = np.zeros(16, dtype=np.int64)
        """Each node's place in the order of names: ties are broken by it, never by the order of arrival."""
        self.node_count = 0
        self.imagined: dict[int, str] = {}
        """Columns of nodes that are only thought of, see `imagining`; used last."""
        self.accelerators: set[int] = set()
        """Rows of resources that are devices."""
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.around = Neighbourhood(self)
        self.strained: set[str] = set()
        """Nodes that have not, or may not have, the room for all that is planned there."""
        self.version = 0
        """Grows with every flushed change."""
        self._vacant: list[int] = []
        self._changed: set[int] = set()
        self._relabelled: set[int] = set()
        self._renamed = False
        self._labels = Labels(16)
        # Per shape: a row each.
        self.shapes: list[Shape | None] = []
        self._shape_rows: dict[Shape, int] = {}
        self._vacant_rows: list[int] = []
        self._pins: Counter[int] = Counter()
        self._unused: dict[int, None] = {}
        self.eligible: Mask = np.zeros((4, 16), dtype=bool)
        self.capacity: NDArray[np.int32] = np.zeros((4, 16), dtype=np.int32)
        self.totals: Ints = np.zeros(4, dtype=np.int64)
        self._wanted: Ints = np.zeros((4, 4), dtype=np.int64)  # resource × shape
        self._divisors: tuple[Ints, Ints] | None = None
        """Of `_wanted`: what to divide by, and what is the least where nothing is asked for. None: to be made again."""
        self._port_rows: set[int] = set()
        self._named_rows: set[int] = set()
        """Of shapes that name their hosts."""
        self._helped: set[int] = set()
        self._allocatable: Amounts = {}
        self._allocatable_stale = False

    # Facts about nodes

    def set_node(self, fact: NodeFact) -> None:
        slot = self.slot(fact.name)
        old = slot.fact
        if old == fact:
            return
        slot.fact = fact
        self._allocatable_stale = True
        self._changed.add(slot.index)
        for resource in fact.allocatable:
            self._resource_row(resource)
        if old is None or (old.labels, old.taints, old.unschedulable, old.ready) != (
            fact.labels,
            fact.taints,
            fact.unschedulable,
            fact.ready,
        ):
            self._relabelled.add(slot.index)
            self._labels.note(slot)
            self.around.relabelled()
        if old is None:
            self._renamed = True

    def drop_node(self, name: str) -> None:
        slot = self.by_name.get(name)
        if slot is None or slot.fact is None:
            return
        slot.fact = None
        self._allocatable_stale = True
        self._changed.add(slot.index)
        self._relabelled.add(slot.index)
        self._labels.note(slot)
        self.around.relabelled()
        self._renamed = True

    def slot(self, name: str) -> Slot:
        found = self.by_name.get(name)
        if found is None:
            index = self._vacant.pop() if self._vacant else len(self.slots)
            found = self.by_name[name] = Slot(name, index)
            if index < len(self.slots):
                self.slots[index] = found
            else:
                self.slots.append(found)
            if index >= self.alive.shape[0]:
                self._widen(2 * self.alive.shape[0])
        return found

    @property
    def facts(self) -> Iterable[NodeFact]:
        return (slot.fact for slot in self.slots if slot.fact is not None)

    # What is taken

    def take(self, node: str, requests: Mapping[str, int], count: int, planned: bool) -> None:
        """Charge `count` pods to a node; a negative count gives back. Planned pods are those not bound yet."""
        slot = self.slot(node)
        side = slot.planned if planned else slot.bound
        for resource, value in requests.items():
            if resource == "pods" or value <= 0:
                continue
            left = side.get(resource, 0) + value * count
            if left:
                side[resource] = left
            else:
                side.pop(resource, None)
        pods = side.get("pods", 0) + count
        if pods:
            side["pods"] = pods
        else:
            side.pop("pods", None)
        self._changed.add(slot.index)

    def relieve(self, node: str, amounts: Mapping[str, int], sign: int) -> None:
        """Count so much less as planned on a node, of `pods` as of any other resource (sign 1), or again (-1)."""
        slot = self.slot(node)
        for resource, amount in amounts.items():
            left = slot.planned.get(resource, 0) - sign * amount
            if left:
                slot.planned[resource] = left
            else:
                slot.planned.pop(resource, None)
        self._changed.add(slot.index)

    def take_ports(self, node: str, ports: Iterable[HostPort], count: int) -> None:
        slot = self.slot(node)
        for port in ports:
            slot.ports[port] += count
            if slot.ports[port] <= 0:
                del slot.ports[port]
            self._changed.add(slot.index)

    # Shapes

    def row(self, shape: Shape) -> int:
        """The row of a shape, made on first sight. Rows that are not pinned are forgotten when they become many."""
        found = self._shape_rows.get(shape)
        if found is not None:
            if found in self._unused:
                self._unused[found] = self._unused.pop(found)  # the longest unused goes first
            return found
        self.flush()
        row = self._vacant_rows.pop() if self._vacant_rows else len(self.shapes)
        if row == len(self.shapes):
            self.shapes.append(shape)
            if row >= self.totals.shape[0]:
                self._deepen(2 * self.totals.shape[0])
        else:
            self.shapes[row] = shape
        self._shape_rows[shape] = row
        self._wanted[:, row] = 0
        self._divisors = None
        for resource, value in shape.requests:
            resource_row = self._resource_row(resource)  # may grow the matrix
            self._wanted[resource_row, row] = min(value, LARGEST + 1)
        if shape.host_ports:
            self._port_rows.add(row)
        if shape.hosts is not None:
            self._named_rows.add(row)
        self.eligible[row] = self._labels.eligible(shape, self.slots, self.alive)
        self._fill(row)
        self._unused[row] = None
        if len(self._unused) > _UNUSED_SHAPES:
            self._forget(next(iter(self._unused)))
        return row

    def pin(self, row: int) -> None:
        self._pins[row] += 1
        self._unused.pop(row, None)

    def unpin(self, row: int) -> None:
        self._pins[row] -= 1
        if self._pins[row] <= 0:
            del self._pins[row]
            self._unused[row] = None
            if row in self._named_rows:  # pods that name their hosts are of one gang alone
                self._forget(row)

    def _forget(self, row: int) -> None:
        shape = self.shapes[row]
        if shape is not None:
            del self._shape_rows[shape]
        self.shapes[row] = None
        self._wanted[:, row] = 0
        self._divisors = None
        self.eligible[row] = False
        self.capacity[row] = 0
        self.totals[row] = 0
        self._port_rows.discard(row)
        self._named_rows.discard(row)
        self._unused.pop(row, None)
        self._vacant_rows.append(row)

    # Bringing arrays up to date

    def flush(self) -> None:
        """Carry all changes into the arrays and note which shapes they helped."""
        if self._renamed:
            self._renamed = False
            known = sorted(slot.name for slot in self.slots if slot.fact is not None)
            self.name_rank[[self.by_name[name].index for name in known]] = np.arange(len(known))
            self.node_count = len(known)
        if not self._changed:
            return
        changed, relabelled = sorted(self._changed), self._relabelled
        self._changed, self._relabelled = set(), set()
        self.version += 1
        for index in changed:
            self._write_free(self.slots[index])
        if len(changed) <= _FEW:
            for index in changed:
                self._refresh_column(index, index in relabelled)
        else:
            self._refresh_rows(bool(relabelled))
        for index in changed:
            self._reclaim(self.slots[index])

    def _reclaim(self, slot: Slot) -> None:
        """A node that is gone, with nothing left on it, gives its column to the next new one."""
        empty = slot.fact is None and not slot.bound and not slot.planned and not slot.ports
        if empty and self.by_name.pop(slot.name, None) is not None:
            self._vacant.append(slot.index)
            self.strained.discard(slot.name)

    def total_allocatable(self, resource: str) -> int:
        """Over all nodes, whichever gangs may use them; worked out again only when a node changed."""
        if self._allocatable_stale:
            self._allocatable_stale = False
            self._allocatable = {}
            for fact in self.facts:
                for name, amount in fact.allocatable.items():
                    self._allocatable[name] = self._allocatable.get(name, 0) + max(0, amount)
        return self._allocatable.get(resource, 0)

    def sum_idle(self, resource: str, mask: Mask) -> int:
        return _exact_sum(self.idle, self.resources.get(resource), mask, lowest=-LARGEST)

    def sum_free(self, resource: str, mask: Mask) -> int:
        """Free on these nodes together; an overfull node counts as zero."""
        return _exact_sum(self.free, self.resources.get(resource), mask, lowest=0)

    def take_helped(self) -> set[int]:
        """Rows of shapes for which some node can hold more than when last asked."""
        helped, self._helped = self._helped, set()
        return helped

    def note_helped(self, rows: set[int]) -> None:
        self._helped |= rows

    def _write_free(self, slot: Slot) -> None:
        self.alive[slot.index] = slot.fact is not None
        strained = slot.fact is None or slot.fact.unschedulable or not slot.fact.ready
        for resource, row in self.resources.items():
            idle = slot.idle(resource)
            free = idle - slot.planned.get(resource, 0)
            strained = strained or free < 0
            self.idle[row, slot.index] = min(max(idle, -LARGEST), LARGEST)
            self.free[row, slot.index] = min(max(free, -LARGEST), LARGEST) if slot.fact is not None else 0
        if strained and slot.planned:
            self.strained.add(slot.name)
        else:
            self.strained.discard(slot.name)

    def _refresh_column(self, index: int, relabelled: bool) -> None:
        """One node changed: its capacity for all shapes at once."""
        count = len(self.shapes)
        if not count:
            return
        slot = self.slots[index]
        if relabelled:
            for row, shape in enumerate(self.shapes):
                self.eligible[row, index] = (
                    shape is not None and slot.fact is not None and is_eligible(shape, slot.fact)
                )
        used = len(self.resources)
        if self._divisors is None:
            self._divisors = (np.maximum(self._wanted, 1), np.where(self._wanted > 0, -LARGEST, MANY))
        each = self.free[:used, index, None] // self._divisors[0][:used, :count]
        np.maximum(each, self._divisors[1][:used, :count], out=each)
        fits = np.minimum.reduce(each, axis=0, initial=MANY)
        np.maximum(fits, 0, out=fits)
        fits *= self.eligible[:count, index]
        new = fits.astype(np.int32)
        for row in self._port_rows:
            new[row] = min(int(new[row]), self._port_capacity(row, slot))
        old = self.capacity[:count, index]
        more = (new > old).nonzero()[0]
        if len(more):
            self._helped.update(more.tolist())
        self.totals[:count] += new - old
        self.capacity[:count, index] = new

    def _refresh_rows(self, relabelled: bool) -> None:
        """Many nodes changed: all nodes, shape by shape."""
        for row, shape in enumerate(self.shapes):
            if shape is None:
                continue
            if relabelled:
                self.eligible[row] = self._labels.eligible(shape, self.slots, self.alive)
            old = self.capacity[row].copy()
            self._fill(row)
            if bool((self.capacity[row] > old).any()):
                self._helped.add(row)

    def _fill(self, row: int) -> None:
        some = np.flatnonzero(self.eligible[row])
        if len(some) <= _FEW:  # most often because it names its hosts
            self.capacity[row] = 0
            self.capacity[row, some] = self._times(row, self.free[:, some])
        else:
            self.capacity[row] = self.holds(row, self.free)
        for port_row in self._port_rows & {row}:
            for slot in self.slots:
                here = int(self.capacity[port_row, slot.index])
                self.capacity[port_row, slot.index] = min(here, self._port_capacity(port_row, slot))
        self.totals[row] = int(self.capacity[row].sum(dtype=np.int64))

    def holds(self, row: int, free: Ints) -> NDArray[np.int32]:
        """How many pods of a shape each node holds, given these free amounts. Ports are not looked at."""
        fits = self._times(row, free)
        fits[~self.eligible[row]] = 0
        return fits

    def _times(self, row: int, free: Ints) -> NDArray[np.int32]:
        wanted = self._wanted[:, row]
        fits = np.full(free.shape[1], MANY, dtype=np.int64)
        for resource in np.flatnonzero(wanted):
            asked = int(wanted[resource])
            np.minimum(fits, free[resource] if asked == 1 else free[resource] // asked, out=fits)
        np.maximum(fits, 0, out=fits)
        return fits.astype(np.int32)

    def _port_capacity(self, row: int, slot: Slot) -> int:
        shape = self.shapes[row]
        if shape is None:
            return 0
        return 0 if any(ports_conflict(want, taken) for want in shape.host_ports for taken in slot.ports) else 1

    def column(self, key: str) -> tuple[NDArray[np.int32], dict[str, int]]:
        """A label key as numbers: per node the id of its value (-1: absent), and the ids by value."""
        return self._labels.column(key, self.slots)

    def of_hosts(self, hosts: Iterable[str]) -> list[Slot]:
        """The nodes that have one of these host names."""
        return [self.slots[index] for index in self._labels.of_hosts(hosts, self.slots)]

    # Nodes that are only thought of

    @contextmanager
    def imagining(self, facts: Iterable[NodeFact]) -> Iterator[None]:
        """The room with these nodes in it, empty and ready; exactly as it was afterwards. They come after all real ones
        in order and are filled last. Nothing may be charged to them."""
        self.flush()
        before = (self.version, self.around.version, self._allocatable_stale, self.node_count)
        helped = self.take_helped()
        names = []
        for number, fact in enumerate(facts):
            self.set_node(fact)
            slot = self.by_name[fact.name]
            self.name_rank[slot.index] = self.node_count + number
            self.imagined[slot.index] = fact.name
            self._renamed = False  # their rank is known; the others keep theirs
            names.append(fact.name)
            if len(self._changed) >= _FEW:
                self.flush()
        self.flush()
        try:
            yield
        finally:
            for name in names:
                self.drop_node(name)
                self._renamed = False
                if len(self._changed) >= _FEW:
                    self.flush()
            self.flush()
            self.imagined.clear()
            self.take_helped()
            self.note_helped(helped)
            self.version, self.around.version, self._allocatable_stale, self.node_count = before

    # Growth

    def _resource_row(self, resource: str) -> int:
        row = self.resources.get(resource)
        if row is not None:
            return row
        row = self.resources[resource] = len(self.resources)
        if is_accelerator(resource):
            self.accelerators.add(row)
        if row >= self.free.shape[0]:
            self.free = _grown(self.free, 0, 2 * self.free.shape[0])
            self.idle = _grown(self.idle, 0, 2 * self.idle.shape[0])
            self._wanted = _grown(self._wanted, 0, 2 * self._wanted.shape[0])
            self._divisors = None
        for slot in self.slots:
            self._write_free(slot)
        return row

    def _widen(self, width: int) -> None:
        self.free = _grown(self.free, 1, width)
        self.idle = _grown(self.idle, 1, width)
        self.alive = _grown(self.alive, 0, width)
        self.name_rank = _grown(self.name_rank, 0, width)
        self.eligible = _grown(self.eligible, 1, width)
        self.capacity = _grown(self.capacity, 1, width)
        self._labels.widen(width)

    def _deepen(self, depth: int) -> None:
        self.eligible = _grown(self.eligible, 0, depth)
        self.capacity = _grown(self.capacity, 0, depth)
        self.totals = _grown(self.totals, 0, depth)
        self._wanted = _grown(self._wanted, 1, depth)
        self._divisors = None


def is_accelerator(resource: str) -> bool:
    """Scarce devices, known by the Kubernetes convention for extended resources: a vendor's domain before the name."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _exact_sum(amounts: Ints, row: int | None, mask: Mask, lowest: int) -> int:
    """Beyond what 64 bits can sum, Python's integers do it."""
    if row is None:
        return 0
    chosen = np.maximum(amounts[row][mask], lowest)
    if not len(chosen):
        return 0
    if int(np.abs(chosen).max()) <= LARGEST // len(chosen):
        return int(chosen.sum())
    return sum(int(value) for value in chosen)


_T = TypeVar("_T", bound=np.generic)


def _grown(array: NDArray[_T], axis: int, size: int) -> NDArray[_T]:
    shape = list(array.shape)
    shape[axis] = size
    larger = np.zeros(shape, dtype=array.dtype)
    larger[tuple(slice(0, length) for length in array.shape)] = array
    return larger
