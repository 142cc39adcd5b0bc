"""The way through a topology where nothing but room counts: as `choose`, on the arrays that `room` keeps.

Asked by `place` for every gang that needs places, again and again. Only domains that take part in the answer become
`Spot`s, with those below them once they are asked for. Gives exactly what `choose` gives on spots of all domains.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.choose import PlaceSearch, misfit, several
from shoal.engine.kueue.topology.request import Grain, PodsToPlace
from shoal.engine.kueue.topology.room import PlaceRoom
from shoal.engine.kueue.topology.spots import Spot, fitting
from shoal.engine.kueue.topology.totals import Ints
from shoal.engine.kueue.topology.tree import UNBOUNDED
from shoal.engine.model import Amounts

_NEVER = 2**62


class RoomView:
    """For one pod set, with its leader if it has one: what fits in every domain, by level."""

    def __init__(
        self, room: PlaceRoom, row: int, grain: Grain, pods: PodsToPlace, leader: Amounts | None,
        assumed: Mapping[Values, Amounts], *, empty: bool,
    ) -> None:  # fmt: skip
        self.room = room
        self.grain = grain
        self.lowest = len(room.domains) - 1
        self.has_leader = leader is not None
        self.assumed = {column: assumed[key] for key in assumed if (column := room.column(key)) is not None}
        self.pods = room.levels(row, empty=empty)
        wanted = {**pods.requests, "pods": 1}
        if self.assumed:
            self._overlay(wanted, row, assumed, empty)
        self.leaders: list[Ints] = []
        self.pods_with_leader = self.pods
        if leader is not None:
            self._with_leader(wanted, {**leader, "pods": 1}, row, assumed, empty)
        size = grain.slice_size
        self.slices = self._slices(self.pods[grain.slice_level] // size) if size > 1 or self._is_high else self.pods
        self.slices_with_leader = self.slices if leader is None else self._slices_with_leader(size)

    @property
    def _is_high(self) -> bool:
        """Slices are counted above the lowest level."""
        return self.grain.slice_level < self.lowest

    def _overlay(self, wanted: Amounts, row: int, assumed: Mapping[Values, Amounts], empty: bool) -> None:
        """Pod sets that were placed before take their share of a few domains."""
        self.pods = [level.copy() for level in self.pods]
        eligible = self.room.eligible(row)
        for column in self.assumed:
            if not eligible[column]:
                continue
            leaf = self.room.leaves[column]
            change = fitting(wanted, leaf.free(assumed, empty))[0] - int(self.pods[-1][column])
            if change:
                for level, pods in enumerate(self.pods):
                    pods[leaf.domain.ancestor(level).index] += change

    def _with_leader(
        self, wanted: Amounts, leader: Amounts, row: int, assumed: Mapping[Values, Amounts], empty: bool
    ) -> None:
        room, lowest = self.room, self.pods[-1]
        eligible = room.eligible(row)
        hosts = self._times(leader, {}, empty) > 0
        beside = np.where(hosts, self._times(wanted, leader, empty), lowest)
        for column in self.assumed:
            free = room.leaves[column].free(assumed, empty)
            hosts[column] = fitting(leader, free)[0] > 0
            if hosts[column]:
                for resource, amount in leader.items():
                    free[resource] = free.get(resource, 0) - amount
                beside[column] = fitting(wanted, free)[0]
            else:
                beside[column] = lowest[column]
        hosts &= eligible
        beside[~eligible] = 0
        self.leaders = [hosts.astype(np.int64)]
        self.pods_with_leader = [beside]
        for level in range(self.lowest - 1, -1, -1):
            hosting = np.maximum.reduceat(self.leaders[0], room.starts[level])
            best = self._beside(level, self.leaders[0], hosting, self.pods, self.pods_with_leader[0])
            self.leaders.insert(0, hosting)
            self.pods_with_leader.insert(0, best)

    def _times(self, wanted: Amounts, less: Amounts, empty: bool) -> Ints:
        """How many fit in every lowest domain, less what is taken there first."""
        found = np.full(len(self.room.leaves), UNBOUNDED, dtype=np.int64)
        for resource, amount in wanted.items():
            if amount > 0:
                free = self.room.free(resource, empty=empty) - less.get(resource, 0)
                np.minimum(found, free // amount, out=found)
        return np.maximum(found, 0)

    def _beside(self, level: int, hosts: Ints, hosting: Ints, counts: list[Ints], beside: Ints) -> Ints:
        """What fits in the domains of a level beside a leader: as much as where it costs least."""
        cost = np.where(hosts > 0, counts[level + 1] - beside, _NEVER)
        least = np.minimum.reduceat(cost, self.room.starts[level])
        return np.where(hosting > 0, counts[level] - least, 0)

    def _slices(self, at: Ints) -> list[Ints]:
        """From the level of slices up; below it none are counted."""
        level = self.grain.slice_level
        found = [at, *[np.zeros_like(below) for below in self.pods[level + 1 :]]]
        for above in range(level - 1, -1, -1):
            found.insert(0, np.add.reduceat(found[0], self.room.starts[above]))
        return found

    def _slices_with_leader(self, size: int) -> list[Ints]:
        level = self.grain.slice_level
        found = [self.pods_with_leader[level] // size, *[np.zeros_like(below) for below in self.pods[level + 1 :]]]
        for above in range(level - 1, -1, -1):
            hosting = self.leaders[above]
            found.insert(0, self._beside(above, self.leaders[above + 1], hosting, self.slices, found[0]))
        return found

    def spot(self, level: int, index: int) -> Spot:
        found = Spot(self.room.domains[level][index], self._below)
        found.pods = int(self.pods[level][index])
        found.slices = int(self.slices[level][index])
        found.pods_with_leader = int(self.pods_with_leader[level][index])
        found.slices_with_leader = int(self.slices_with_leader[level][index])
        found.leaders = int(self.leaders[level][index]) if self.has_leader else 0
        return found

    def _below(self, spot: Spot) -> list[Spot]:
        """Only those that take anything, as in `spots`."""
        level = len(spot.domain.values)
        within = self.room.below(level - 1, spot.domain.index)
        useful = self.pods[level][within] > 0
        if self.has_leader:
            useful = useful | (self.leaders[level][within] > 0)
        return [self.spot(level, within.start + int(index)) for index in np.flatnonzero(useful)]

    def spots(self, level: int) -> list[Spot]:
        """Those of a level that take anything: others are of no use."""
        useful = self.slices[level] > 0
        if self.has_leader:
            useful = useful | (self.leaders[level] > 0)
        return [self.spot(level, int(index)) for index in np.flatnonzero(useful)]


def choose_in(view: RoomView, search: PlaceSearch) -> tuple[int, list[Spot]] | str:
    """The level and its domains, or why there are none."""
    grain, level = search.grain, search.grain.level
    while True:
        if not search.tree.by_level[level]:
            return f"no topology domains at level: {search.tree.levels[level]}"
        found = _one(view, search, level)
        if found is not None:
            return level, [view.spot(level, found)]
        if grain.required:
            return misfit(search, level, _most(view, level))
        if level == 0 or grain.unconstrained:
            total = int(view.slices[level].sum())
            if not search.leaders and total < search.slices:
                return misfit(search, level, total)
            chosen = several(search, search.preferences.ordered_for_leader(view.spots(level)))
            return misfit(search, level, chosen) if isinstance(chosen, int) else (level, chosen)
        level -= 1


def _one(view: RoomView, search: PlaceSearch, level: int) -> int | None:
    """The smallest domain that takes everything, whichever order they are in."""
    room = view.slices_with_leader[level]
    takes: NDArray[np.bool_] = room >= search.slices
    if search.leaders:
        takes &= view.leaders[level] >= search.leaders
    found = np.flatnonzero(takes)
    for amounts in (room, view.pods_with_leader[level]):
        if len(found) > 1:
            here = amounts[found]
            found = found[here == here.min()]
    return int(found[0]) if len(found) else None


def _most(view: RoomView, level: int) -> int:
    """How much the best domain takes, for the message."""
    found = view.room.indexes(level)
    keys = [-view.slices_with_leader[level], view.pods_with_leader[level]]
    if view.has_leader:
        keys.insert(0, -view.leaders[level])
    for amounts in keys:
        if len(found) > 1:
            here = amounts[found]
            found = found[here == here.min()]
    return int(view.slices[level][found[0]])
