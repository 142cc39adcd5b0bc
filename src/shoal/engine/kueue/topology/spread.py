"""From the chosen domains down to the lowest: how many pods each one takes.

The third step of a placement. Above the slice level pods go to any domains below the chosen ones; at it and below, what
was given to a domain stays within it. Domains are filled in order, and the last one is as small as will do.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.engine.kueue.topology.choose import PlaceSearch, leader_first
from shoal.engine.kueue.topology.spots import Preferences, Spot


def spread(search: PlaceSearch, level: int, chosen: list[Spot], *, balanced: bool) -> list[Spot] | None:
    """The lowest domains with what they take; None where they do not take all (room was counted wrongly)."""
    grain, preferences = search.grain, search.preferences
    found = fill(chosen, search.count, search.leaders, grain.slice_size, preferences)
    lowest = len(search.tree.levels) - 1
    while found is not None and level < min(lowest, grain.slice_level) and not balanced:
        below = preferences.ordered([child for spot in found for child in spot.children])
        found = fill(below, search.count, search.leaders, grain.slice_size, preferences)
        level += 1
    while found is not None and level < lowest:
        size = grain.slice_size if level < grain.slice_level else grain.inner_sizes.get(level + 1, 1)
        found = _below_each(found, size, preferences)
        level += 1
    return found


def _below_each(spots: list[Spot], size: int, preferences: Preferences) -> list[Spot] | None:
    found: list[Spot] = []
    for spot in spots:
        below = preferences.ordered(spot.children)
        for child in below:
            child.slices_of(size)
        filled = fill(below, spot.pods, spot.leaders, size, preferences)
        if filled is None:
            return None
        found += filled
    return found


def fill(spots: Sequence[Spot], count: int, leaders: int, size: int, preferences: Preferences) -> list[Spot] | None:
    """Put `count` pods, in slices of `size`, and the leader into these domains, in order."""
    slices = count // size
    ordered = leader_first(spots, slices, leaders)
    found: list[Spot] = []
    for index, spot in enumerate(ordered):
        with_leader = leaders > 0
        if preferences.best_fit and _room(spot, with_leader) >= slices and spot.leaders >= leaders:
            spot = preferences.smallest(ordered[index:], slices, leaders)
        room = _room(spot, with_leader)
        last = room >= slices and spot.leaders >= leaders
        taken = min(room, slices)
        spot.leaders = min(spot.leaders, leaders)
        spot.slices = taken
        spot.pods = taken * size
        found.append(spot)
        if last:
            return found
        slices -= taken
        leaders -= spot.leaders
    return None


def _room(spot: Spot, with_leader: bool) -> int:
    return spot.slices_with_leader if with_leader else spot.slices
