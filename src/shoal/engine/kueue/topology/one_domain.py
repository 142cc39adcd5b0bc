"""Places in one domain for pods that require it, one by one: what gangs ask for most often.

Asked by `place` before the way through views and spots (`view`, `spread`), and gives exactly what that gives; where it
finds none only that way can say why. Reads the arrays that `room` keeps and makes no object for a domain.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.request import Grain
from shoal.engine.kueue.topology.room import PlaceRoom
from shoal.engine.kueue.topology.spots import fitting
from shoal.engine.kueue.topology.totals import Ints
from shoal.engine.kueue.topology.tree import Domain
from shoal.engine.model import Amounts

_NEVER = 2**62
Less = dict[int, int]
"""By domain of one level: how many pods fit less (or more) than the arrays say."""


def asks_for_one_domain(grain: Grain, lowest: int) -> bool:
    """Are all pods to be in one domain, and it does not matter which are together below it?"""
    return grain.required and not grain.unconstrained and grain.slice_size == 1 and grain.slice_level == lowest


def in_one_domain(
    room: PlaceRoom, row: int, level: int, count: int, each: Amounts, assumed: Mapping[Values, Amounts], *, empty: bool
) -> list[tuple[Domain, int]] | None:
    """The lowest domains and how many of the `count` pods go there, in the smallest domain of a level that takes them
    all; None: there is none. `assumed`: what pod sets placed before take of the lowest domains."""
    levels = room.levels(row, empty=empty)
    changes = _changes(room, row, levels[-1], each, assumed, empty) if assumed else [{} for _ in levels]
    first = _smallest(levels[level], changes[level], count)
    if first is None:
        return None
    found = [(first, count)]
    for below in range(level + 1, len(levels)):
        found = _fill(_inside(room, levels[below], changes[below], below, [index for index, _ in found]), count)
    return [(room.domains[-1][index], pods) for index, pods in found]


def _changes(
    room: PlaceRoom, row: int, lowest: Ints, each: Amounts, assumed: Mapping[Values, Amounts], empty: bool
) -> list[Less]:
    """By level: in which domains another number of pods fits."""
    found: list[Less] = [{} for _ in room.domains]
    wanted = {**each, "pods": 1}
    eligible = room.eligible(row)
    for key in assumed:
        column = room.column(key)
        if column is None or not eligible[column]:
            continue
        leaf = room.leaves[column]
        change = fitting(wanted, leaf.free(assumed, empty))[0] - int(lowest[column])
        for level, changes in enumerate(found):
            index = leaf.domain.ancestor(level).index
            changes[index] = changes.get(index, 0) + change
    return found


def _smallest(fits: Ints, changes: Less, count: int) -> int | None:
    if changes:
        fits = fits.copy()
        for index, change in changes.items():
            fits[index] += change
    enough = np.where(fits >= count, fits, _NEVER)
    best = int(enough.argmin()) if len(enough) else 0
    return best if len(enough) and enough[best] < _NEVER else None


def _inside(room: PlaceRoom, fits: Ints, changes: Less, level: int, above: list[int]) -> list[tuple[int, int]]:
    """The domains of a level below some others that take anything, with how many; the emptiest first."""
    found = []
    for index in above:
        within = room.below(level - 1, index)
        found += [
            (-pods, at)
            for at, there in enumerate(fits[within].tolist(), within.start)
            if (pods := there + changes.get(at, 0)) > 0
        ]
    found.sort()
    return [(at, -pods) for pods, at in found]


def _fill(domains: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Each is filled before the next; the last one is the smallest that takes what is left."""
    found: list[tuple[int, int]] = []
    for position, (index, fits) in enumerate(domains):
        if fits >= count:
            last = min((pods, at) for at, pods in domains[position:] if pods >= count)
            return [*found, (last[1], count)]
        found.append((index, fits))
        count -= fits
    return found
