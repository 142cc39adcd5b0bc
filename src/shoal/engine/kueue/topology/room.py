"""How many pods of each kind every domain of a topology has room for, kept as arrays.

Asked by `place` (through `view`) where it is a matter of nothing but room; a `TopologyTree` tells it which of its
lowest domains changed, came or are gone. A change touches the columns of these, for all kinds of pods at once: it costs
the same however many nodes there are and gangs wait. A domain that is gone keeps its column, with room for nothing, in
case it comes back; one that was never there is put in between the others. `spots.RoomCount` works the same out from the
beginning and is the specification; tests hold the two equal. Never decides anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.engine.identity import by_identity
from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.exclusions import Exclusions
from shoal.engine.kueue.topology.hopes import Hopes
from shoal.engine.kueue.topology.request import PodsToPlace
from shoal.engine.kueue.topology.spots import NodeFilter
from shoal.engine.kueue.topology.totals import LARGEST, Ints, Totals
from shoal.engine.kueue.topology.tree import UNBOUNDED, Domain, Leaf, TopologyTree
from shoal.engine.model import Amounts, NodeFact, Toleration
from shoal.remembered import Remembered

MOST_CELLS = 8_000_000
"""Kinds times lowest domains that are kept; where there would be more, all are forgotten."""
_FEW = 64
"""Up to so many changed domains sums are corrected, beyond they are made again."""
_MOST_FITS = 4_096
_FEW_NEW = 16
"""Up to so many new domains are put in between the others, beyond all is built again."""


class PodKind(NamedTuple):
    """Pods of one kind find room at the same places."""

    requests: tuple[tuple[str, int], ...]
    node_selector: tuple[tuple[str, str], ...]
    affinity: bytes
    tolerations: tuple[Toleration, ...]


@by_identity
def kind_of(pods: PodsToPlace, tolerations: tuple[Toleration, ...]) -> PodKind:
    """`tolerations`: of the flavor, beside those of the pods."""
    selector, affinity = pods.node_selector, pods.affinity
    return PodKind(
        tuple(sorted(pods.requests.items())),
        tuple(sorted(selector.items())) if selector else (),
        msgspec.json.encode(affinity, order="deterministic") if affinity else b"",
        pods.tolerations + tolerations,
    )


class _Row(NamedTuple):
    """One kind that is kept."""

    number: int
    wanted: Amounts
    nodes: NodeFilter
    barred: Counter[str]
    """Why nodes are out of the question whatever is free there, and how many."""


class PlaceRoom:
    def __init__(self, tree: TopologyTree) -> None:
        self.tree = tree
        self.domains = [sorted(level.values(), key=lambda one: one.values) for level in tree.by_level]
        """By level, in order: those below one domain stand together. Some may be gone."""
        for level in self.domains:
            _number(level, 0)
        self.leaves = [domain.leaf for domain in self.domains[-1] if domain.leaf is not None]
        self._gone: list[dict[Values, Domain]] = [{} for _ in tree.levels]
        """By level: those of `domains` that are not in the tree any more."""
        self.new: dict[Values, Leaf] = {}
        """Lowest domains that have no column yet."""
        self.starts = [
            _begins([child.parent.index for child in below if child.parent is not None], len(level))
            for level, below in pairwise(self.domains)
        ]
        """By level but the lowest: where the domains right below each one begin."""
        above = [[leaf.domain.ancestor(level).index for leaf in self.leaves] for level in range(len(self.domains) - 1)]
        self._lowest = [_begins(each, len(level)) for each, level in zip(above, self.domains[:-1], strict=True)]
        """By level but the lowest: where the lowest domains of each one begin."""
        sizes = [len(level) for level in self.domains]
        offered = sorted({name for leaf in self.leaves for name in leaf.capacity})
        self._resources = {name: row for row, name in enumerate(offered)}
        self._free = self._amounts(self._resources, empty=False)
        self._idle = self._amounts(self._resources, empty=True)
        self._tainted = any(leaf.node is not None and leaf.node.taints for leaf in self.leaves)
        self._rows: dict[PodKind, _Row] = {}
        self._wanted: Ints = np.zeros((len(self._resources), 8), dtype=np.int64)
        """Resource × kind."""
        self._divisors: tuple[Ints, Ints] | None = None
        """Of `_wanted`: what to divide by, and the least where that is not asked for. None: to be made again."""
        self._eligible = np.zeros((8, len(self.leaves)), dtype=bool)
        self._is_open = True
        """May every kind go everywhere? Then `_eligible` is not looked at."""
        self._fits: Remembered[tuple[int, ...], Ints] = Remembered(_MOST_FITS)
        """By what is free in a lowest domain: how many of each kind fit. The same comes back again and again."""
        self._used = Totals(sizes)
        self._empty = Totals(sizes)
        self.hopes = Hopes()
        """Who waits for more room than there is, beside placed gangs."""
        self.forgotten = 0
        """Grows when all kinds are forgotten: their numbers mean nothing any more."""

    # What changes

    def touch(self, key: Values, *, idle: bool = False) -> None:
        """What is free in this lowest domain changed; `idle`: also what is beside placed gangs."""
        column = self.column(key)
        if column is not None:
            self._used.touched.add(column)
            if idle:
                self._empty.touched.add(column)

    def came(self, leaf: Leaf) -> None:
        self.new[leaf.domain.values] = leaf

    def left(self, leaf: Leaf) -> None:
        column, path = leaf.domain.index, _path(leaf)
        for domain, known, gone in zip(path, self.tree.by_level, self._gone, strict=True):
            if domain.index >= 0 and known.get(domain.values) is not domain:
                gone[domain.values] = domain
        if self.new.pop(leaf.domain.values, None) is not None:
            return
        if leaf.node is not None:
            self._judge(column, leaf.node, None)
        self._eligible[:, column] = self._is_open = False
        count, at = len(self._rows), [domain.index for domain in path]
        for totals in (self._used, self._empty):
            totals.touched.discard(column)
            totals.add(at, -totals.levels[-1][:count, column])

    def renewed(self, leaf: Leaf, before: NodeFact) -> None:
        node = leaf.node
        if leaf.domain.values in self.new:
            return
        if node is not None and (node.labels, node.taints) != (before.labels, before.taints):
            self._judge(leaf.domain.index, before, node)
        self.touch(leaf.key, idle=True)

    def _judge(self, column: int, before: NodeFact | None, node: NodeFact | None) -> None:
        """Which kinds may go to a node, whatever is free there."""
        tainted = any(one is not None and one.taints for one in (before, node))
        self._tainted = self._tainted or tainted
        for row in self._rows.values():
            if not (tainted or row.nodes.is_choosy):
                continue
            excluded, barred = Exclusions(), Exclusions()
            self._eligible[row.number, column] = node is not None and row.nodes.admits(node, excluded)
            self._is_open = False
            if before is not None:
                row.nodes.admits(before, barred)
            row.barred.update(excluded.reasons)
            row.barred.subtract(barred.reasons)

    @property
    def is_worn(self) -> bool:
        """Are so many domains new, or gone, that all had better be built again?"""
        return len(self.new) > _FEW_NEW or len(self._gone[-1]) > len(self.tree.leaves) + _FEW

    def settle(self) -> None:
        """Give new domains their columns."""
        for leaf in self.new.values():
            path = _path(leaf)
            for level, domain in enumerate(path):
                if domain.index < 0:
                    self._put(level, domain)
            column = leaf.domain.index
            self.leaves[column] = leaf
            self._eligible[: len(self._rows), column] = True
            if leaf.node is not None:
                self._judge(column, None, leaf.node)
            self._used.touched.add(column)
            self._empty.touched.add(column)
        self.new.clear()

    def _put(self, level: int, domain: Domain) -> None:
        """Where it was before, or in between; that above it has its place."""
        known, before = self.domains[level], self._gone[level].pop(domain.values, None)
        if before is not None:
            domain.index = before.index
            known[domain.index] = domain
            return
        index = bisect_left(known, domain.values, key=lambda one: one.values)
        known.insert(index, domain)
        _number(known, index)
        for totals in (self._used, self._empty):
            totals.insert(level, index)
        lowest = len(self.domains) - 1
        if level < lowest:
            self.starts[level] = _insert(self.starts[level], index, len(self.domains[level + 1]))
            self._lowest[level] = _insert(self._lowest[level], index, len(self.leaves))
        if domain.parent is not None:
            self.starts[level - 1][domain.parent.index + 1 :] += 1
        if level == lowest:
            self._insert_column(index, domain)

    def _insert_column(self, index: int, domain: Domain) -> None:
        assert domain.leaf is not None
        for level, lowest in enumerate(self._lowest):
            lowest[domain.ancestor(level).index + 1 :] += 1
        self.leaves.insert(index, domain.leaf)
        self._eligible = np.insert(self._eligible, index, False, axis=1)
        self._free = np.insert(self._free, index, 0, axis=1)
        self._idle = np.insert(self._idle, index, 0, axis=1)
        for totals in (self._used, self._empty):
            totals.touched = {column + (column >= index) for column in totals.touched}

    def flush(self) -> None:
        if self._used.touched:
            self._recount(self._used, self._free, empty=False)
        if self._empty.touched:
            self._recount(self._empty, self._idle, empty=True)

    def _recount(self, totals: Totals, free: Ints, *, empty: bool) -> None:
        columns = sorted(totals.touched)
        totals.touched.clear()
        names, count, lowest = tuple(self._resources), len(self._rows), totals.levels[-1]
        if len(columns) > _FEW:
            at = np.array(columns, dtype=np.int64)
            free[:, at] = np.array([self._free_in(self.leaves[column], names, empty) for column in columns]).T
            lowest[:count, at] = self._fitting(free[:, at], slice(0, count), self._eligible[:count, at])
            self._sum(totals, slice(0, count))
            return
        for column in columns:
            leaf = self.leaves[column]
            amounts = self._free_in(leaf, names, empty)
            free[:, column] = amounts
            found = self._fitting_one(amounts, count)
            change = (found if self._is_open else found * self._eligible[:count, column]) - lowest[:count, column]
            if np.count_nonzero(change):
                totals.add([domain.index for domain in _path(leaf)], change)

    def _free_in(self, leaf: Leaf, names: tuple[str, ...], empty: bool) -> tuple[int, ...]:
        """What is free of these in a lowest domain."""
        capacity = leaf.capacity
        found = [capacity.get(name, 0) for name in names]
        for part in (*leaf.taken.values(), {} if empty else leaf.used):
            if part:
                found = [amount - part.get(name, 0) for amount, name in zip(found, names, strict=True)]
        return tuple([amount if -LARGEST < amount < LARGEST else _bounded(amount) for amount in found])

    def _fitting_one(self, free: tuple[int, ...], count: int) -> Ints:
        """How many of each kind fit where so much is free. Not to be changed."""
        found = self._fits.get(free)
        if found is None:
            every = np.ones((count, 1), dtype=bool)
            column = np.array(free, dtype=np.int64).reshape(len(free), 1)
            found = self._fits.remember(free, self._fitting(column, slice(0, count), every)[:, 0])
        return found

    def _sum(self, totals: Totals, rows: slice) -> None:
        """All levels from the lowest: domains of a level are in the order of those below them."""
        for level, begins in enumerate(self._lowest):
            totals.levels[level][rows] = np.add.reduceat(totals.levels[-1][rows], begins, axis=1)
        totals.renew(rows)

    def _fitting(self, free: Ints, kinds: slice, eligible: NDArray[np.bool_]) -> Ints:
        """Kind × place: how many fit."""
        if self._divisors is None:
            self._divisors = (np.maximum(self._wanted, 1), np.where(self._wanted > 0, -LARGEST, UNBOUNDED))
        divisors, least = self._divisors
        each = free[:, None, :] // divisors[:, kinds, None]
        np.maximum(each, least[:, kinds, None], out=each)
        found: Ints = np.minimum.reduce(each, axis=0, initial=UNBOUNDED)
        np.maximum(found, 0, out=found)
        found *= eligible
        return found

    # Kinds

    def row(self, kind: PodKind, pods: PodsToPlace, tolerations: tuple[Toleration, ...]) -> int:
        """The number of a kind, which is kept from now on. Raises BadInput where its affinity cannot be read."""
        known = self._rows.get(kind)
        return known.number if known is not None else self._keep(kind, pods, tolerations).number

    def _keep(self, kind: PodKind, pods: PodsToPlace, tolerations: tuple[Toleration, ...]) -> _Row:
        node_filter = NodeFilter(pods, tolerations, by_score=False)
        self.flush()
        if (len(self._rows) + 1) * len(self.leaves) > MOST_CELLS and self._rows:
            self._rows.clear()
            self._wanted[:] = 0
            self.hopes = Hopes()
            self.forgotten += 1
        number = len(self._rows)
        wanted = {**pods.requests, "pods": 1}
        excluded = Exclusions()
        mask: list[bool] | bool = True
        if self._tainted or node_filter.is_choosy:
            mask = [
                leaf.domain.values in self._gone[-1] or leaf.node is None or node_filter.admits(leaf.node, excluded)
                for leaf in self.leaves
            ]
        row = self._rows[kind] = _Row(number, wanted, node_filter, excluded.reasons)
        self._widen(number + 1)
        self._divisors = None
        self._fits.clear()
        for resource in wanted:
            self._resource(resource)
        for resource, amount in wanted.items():
            self._wanted[self._resources[resource], number] = _bounded(max(0, amount))
        self._eligible[number] = mask
        self._is_open = self._is_open and mask is True
        self._eligible[number, [domain.index for domain in self._gone[-1].values()]] = False
        only = slice(number, number + 1)
        for totals, free in ((self._used, self._free), (self._empty, self._idle)):
            totals.widen(number + 1)
            totals.levels[-1][only] = self._fitting(free, only, self._eligible[only])
            self._sum(totals, only)
        return row

    def _widen(self, rows: int) -> None:
        known = self._wanted.shape[1]
        if rows <= known:
            return
        more = max(rows, 2 * known) - known
        self._eligible = np.concatenate([self._eligible, np.zeros((more, len(self.leaves)), dtype=bool)])
        self._wanted = np.concatenate([self._wanted, np.zeros((self._wanted.shape[0], more), dtype=np.int64)], axis=1)

    def _resource(self, name: str) -> None:
        if name in self._resources:
            return
        self._fits.clear()
        self._resources[name] = len(self._resources)
        self._free = np.concatenate([self._free, self._amounts([name], empty=False)])
        self._idle = np.concatenate([self._idle, self._amounts([name], empty=True)])
        self._wanted = np.concatenate([self._wanted, np.zeros((1, self._wanted.shape[1]), dtype=np.int64)])

    def _amounts(self, resources: Iterable[str], *, empty: bool) -> Ints:
        """What is free of these, for every lowest domain."""
        names = list(resources)
        free = [leaf.free({}, empty) for leaf in self.leaves]
        rows = [[_bounded(amounts.get(name, 0)) for amounts in free] for name in names]
        return np.array(rows, dtype=np.int64).reshape(len(names), len(self.leaves))

    # Asking

    def column(self, key: Values) -> int | None:
        """Where the numbers of a lowest domain stand; None: there is none, or it has no place yet."""
        leaf = self.tree.leaves.get(key)
        return leaf.domain.index if leaf is not None and leaf.domain.index >= 0 else None

    def below(self, level: int, index: int) -> slice:
        """Those of the next level that are in a domain."""
        starts = self.starts[level]
        return slice(
            int(starts[index]), int(starts[index + 1]) if index + 1 < len(starts) else len(self.domains[level + 1])
        )

    def indexes(self, level: int) -> Ints:
        """The domains of a level that are there."""
        gone = [domain.index for domain in self._gone[level].values()]
        return np.delete(np.arange(len(self.domains[level])), gone)

    def levels(self, row: int, *, empty: bool) -> list[Ints]:
        """By level: how many pods of a kind each domain has room for. Not to be changed."""
        self.flush()
        totals = self._empty if empty else self._used
        return [level[row] for level in totals.levels]

    def most(self, row: int, level: int) -> int:
        """How many fit in the best domain of a level, or in all together (`EVERYWHERE`)."""
        self.flush()
        return self._used.most(level, row)

    def met(self) -> list[Any]:
        """Those of `hopes` for which there is room now."""
        self.flush()
        return self.hopes.met(self._used)

    def eligible(self, row: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._eligible[row]
        return found

    def free(self, resource: str, *, empty: bool) -> Ints:
        self._resource(resource)
        found: Ints = (self._idle if empty else self._free)[self._resources[resource]]
        return found

    def excluded(self, kind: PodKind, lowest: Ints, assumed: Mapping[int, Amounts], *, empty: bool) -> Exclusions:
        """Why nodes are out of the question for a kind, given how many pods each has room for."""
        known = self._rows[kind]
        found = Exclusions()
        found.nodes = len(self.tree.leaves)
        found.reasons.update(+known.barred)
        left = np.flatnonzero((lowest == 0) & self._eligible[known.number])
        for resource in sorted(known.wanted):
            amount = known.wanted[resource]
            if amount <= 0 or not len(left):
                continue
            free = self.free(resource, empty=empty)
            if assumed:
                free = free.copy()
                for column, amounts in assumed.items():
                    free[column] -= amounts.get(resource, 0)
            short = free[left] < amount
            if short.any():
                found.resource(resource, int(short.sum()))
                left = left[~short]
        return found


def room_of(tree: TopologyTree) -> PlaceRoom:
    """What is kept of a tree, from the first time that it is asked for."""
    room = tree.watcher
    if not isinstance(room, PlaceRoom) or room.is_worn:
        room = tree.watcher = PlaceRoom(tree)
    elif room.new:
        room.settle()
    return room


def _path(leaf: Leaf) -> list[Domain]:
    """The domains that a lowest one is in, from the top, and itself."""
    path, domain = [leaf.domain], leaf.domain.parent
    while domain is not None:
        path.append(domain)
        domain = domain.parent
    path.reverse()
    return path


def _number(domains: list[Domain], first: int) -> None:
    for index in range(first, len(domains)):
        domains[index].index = index


def _insert(begins: Ints, index: int, end: int) -> Ints:
    """One more parent, whose children are to come; `end`: where the last one's end."""
    return np.insert(begins, index, begins[index] if index < len(begins) else end)


def _begins(parents: list[int], count: int) -> Ints:
    """Where the children of each of so many parents begin; they stand in the order of their parents."""
    return np.searchsorted(np.array(parents, dtype=np.int64), np.arange(count)).astype(np.int64)


def _bounded(amount: int) -> int:
    return min(LARGEST, max(-LARGEST, amount))
