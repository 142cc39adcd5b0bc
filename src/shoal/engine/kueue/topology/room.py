"""How many pods of each kind every domain of a topology has room for, kept as arrays.

Asked by `place` (through `view`) where it is a matter of nothing but room; a `TopologyTree` tells it which of its
lowest domains changed. A change touches the columns of these, for all kinds of pods at once: it costs the same however
many nodes there are and gangs wait. `spots.RoomCount` works the same out from the beginning and is the specification;
tests hold the two equal. Never decides anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.engine.identity import by_identity
from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.exclusions import Exclusions
from shoal.engine.kueue.topology.request import PodsToPlace
from shoal.engine.kueue.topology.spots import NodeFilter
from shoal.engine.kueue.topology.tree import UNBOUNDED, TopologyTree
from shoal.engine.model import Amounts, Toleration

Ints = NDArray[np.int64]
LARGEST = 2**62
MOST_CELLS = 8_000_000
"""Kinds times lowest domains that are kept; where there would be more, all are forgotten."""
_FEW = 64
"""Up to so many changed domains sums are corrected, beyond they are made again."""


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
    barred: Counter[str]
    """Why nodes are out of the question whatever is free there, and how many."""


class Totals:
    """How many pods of each kind fit in the lowest domains and those above: with what placed gangs use, or without."""

    def __init__(self, sizes: list[int]) -> None:
        self.levels: list[Ints] = [np.zeros((8, size), dtype=np.int64) for size in sizes]
        self.touched: set[int] = set()
        self._most: list[Ints] = [np.zeros(8, dtype=np.int64) for _ in sizes]
        """By level and kind: what the best domain has room for, or more where that is `_vague`."""
        self._vague: list[NDArray[np.bool_]] = [np.zeros(8, dtype=bool) for _ in sizes]

    def widen(self, rows: int) -> None:
        for number, level in enumerate(self.levels):
            if rows > level.shape[0]:
                more = max(rows, 2 * level.shape[0]) - level.shape[0]
                self.levels[number] = np.concatenate([level, np.zeros((more, level.shape[1]), dtype=np.int64)])
                self._most[number] = np.concatenate([self._most[number], np.zeros(more, dtype=np.int64)])
                self._vague[number] = np.concatenate([self._vague[number], np.zeros(more, dtype=bool)])

    def add(self, level: int, domain: int, change: Ints) -> None:
        """So much more room in one domain, for the first kinds."""
        kinds = slice(0, len(change))
        here, most = self.levels[level][kinds, domain], self._most[level][kinds]
        self._vague[level][kinds] |= (here == most) & (change < 0)
        here += change
        np.maximum(most, here, out=most)

    def renew(self, level: int, kinds: slice) -> None:
        """Room of these kinds was counted from the beginning."""
        self._vague[level][kinds] = True

    def most(self, level: int, kind: int) -> int:
        """What the best domain of a level has room for."""
        if self._vague[level][kind]:
            self._most[level][kind] = self.levels[level][kind].max(initial=0)
            self._vague[level][kind] = False
        return int(self._most[level][kind])


class PlaceRoom:
    def __init__(self, tree: TopologyTree) -> None:
        self.tree = tree
        self.domains = [sorted(level.values(), key=lambda one: one.values) for level in tree.by_level]
        """By level, in order: those below one domain stand together."""
        for level in self.domains:
            for index, domain in enumerate(level):
                domain.index = index
        self.leaves = [domain.leaf for domain in self.domains[-1] if domain.leaf is not None]
        self.columns = {leaf.key: index for index, leaf in enumerate(self.leaves)}
        self.starts = [
            _begins([child.parent.index for child in below if child.parent is not None], len(level))
            for level, below in pairwise(self.domains)
        ]
        """By level but the lowest: where the domains right below each one begin."""
        self._above = [
            [leaf.domain.ancestor(level).index for leaf in self.leaves] for level in range(len(self.domains) - 1)
        ]
        """By level but the lowest: in which domain each of the lowest ones is."""
        self._lowest = [_begins(above, len(level)) for above, level in zip(self._above, self.domains[:-1], strict=True)]
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
        self._used = Totals(sizes)
        self._empty = Totals(sizes)
        self.forgotten = 0
        """Grows when all kinds are forgotten: their numbers mean nothing any more."""

    # What changes

    def touch(self, key: Values, *, idle: bool = False) -> None:
        """What is free in this lowest domain changed; `idle`: also what is beside placed gangs."""
        column = self.columns.get(key)
        if column is not None:
            self._used.touched.add(column)
            if idle:
                self._empty.touched.add(column)

    def flush(self) -> None:
        if self._used.touched:
            self._recount(self._used, self._free, empty=False)
        if self._empty.touched:
            self._recount(self._empty, self._idle, empty=True)

    def _recount(self, totals: Totals, free: Ints, *, empty: bool) -> None:
        columns = sorted(totals.touched)
        totals.touched.clear()
        for column in columns:
            amounts = self.leaves[column].free({}, empty)
            free[:, column] = [_bounded(amounts.get(resource, 0)) for resource in self._resources]
        count = len(self._rows)
        kinds, lowest = slice(0, count), totals.levels[-1]
        totals.renew(len(self._above), kinds)
        if len(columns) > _FEW:
            at = np.array(columns, dtype=np.int64)
            lowest[:count, at] = self._fitting(free[:, at], kinds, self._eligible[:count, at])
            for level in range(len(self._above)):
                self._sum(totals, kinds, level)
            return
        for column in columns:
            here = slice(column, column + 1)
            found = self._fitting(free[:, here], kinds, self._eligible[:count, here])[:, 0]
            change = found - lowest[:count, column]
            lowest[:count, column] = found
            for level, above in enumerate(self._above):
                totals.add(level, above[column], change)

    def _sum(self, totals: Totals, rows: slice, level: int) -> None:
        """One level from the lowest: domains of a level are in the order of those below them."""
        totals.levels[level][rows] = np.add.reduceat(totals.levels[-1][rows], self._lowest[level], axis=1)
        totals.renew(level, rows)

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
            self.forgotten += 1
        number = len(self._rows)
        wanted = {**pods.requests, "pods": 1}
        excluded = Exclusions()
        mask: list[bool] | bool = True
        if self._tainted or node_filter.selector or node_filter.terms is not None:
            mask = [leaf.node is None or node_filter.admits(leaf.node, excluded) for leaf in self.leaves]
        row = self._rows[kind] = _Row(number, wanted, excluded.reasons)
        self._widen(number + 1)
        self._divisors = None
        for resource in wanted:
            self._resource(resource)
        for resource, amount in wanted.items():
            self._wanted[self._resources[resource], number] = _bounded(max(0, amount))
        self._eligible[number] = mask
        only = slice(number, number + 1)
        for totals, free in ((self._used, self._free), (self._empty, self._idle)):
            totals.widen(number + 1)
            totals.levels[-1][only] = self._fitting(free, only, self._eligible[only])
            totals.renew(len(self._above), only)
            for level in range(len(self._above)):
                self._sum(totals, only, level)
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

    def levels(self, row: int, *, empty: bool) -> list[Ints]:
        """By level: how many pods of a kind each domain has room for. Not to be changed."""
        self.flush()
        totals = self._empty if empty else self._used
        return [level[row] for level in totals.levels]

    def most(self, row: int, level: int, *, one: bool) -> int:
        """How many fit in the best domain of a level, or (not `one`) in all together."""
        self.flush()
        if not one:
            return int(self._used.levels[0][row].sum())
        return self._used.most(level, row)

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
        found.nodes = len(self.leaves)
        found.reasons.update(known.barred)
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
    if not isinstance(tree.watcher, PlaceRoom):
        tree.watcher = PlaceRoom(tree)
    return tree.watcher


def _begins(parents: list[int], count: int) -> Ints:
    """Where the children of each of so many parents begin; they stand in the order of their parents."""
    return np.searchsorted(np.array(parents, dtype=np.int64), np.arange(count)).astype(np.int64)


def _bounded(amount: int) -> int:
    return min(LARGEST, max(-LARGEST, amount))
