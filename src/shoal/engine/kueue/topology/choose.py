"""Which domains of the requested level take the pods: one if possible, else as few as will do.

The second step of a placement, after room was counted (`spots`) and before it is spread below (`spread`). Required pods
stay in one domain or fail; preferred ones look a level higher, and at the top take several; unconstrained ones take
several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.engine.kueue.topology.exclusions import Exclusions
from shoal.engine.kueue.topology.request import Grain
from shoal.engine.kueue.topology.spots import Preferences, Spot
from shoal.engine.kueue.topology.tree import TopologyTree


class PlaceSearch(msgspec.Struct, frozen=True):
    """One placement under way."""

    tree: TopologyTree
    levels: list[list[Spot]]
    grain: Grain
    preferences: Preferences
    count: int
    leaders: int
    excluded: Callable[[], Exclusions]
    """Why nodes are out of the question, where that is to be said."""

    @property
    def slices(self) -> int:
        return self.count // self.grain.slice_size


def choose(search: PlaceSearch) -> tuple[int, list[Spot]] | str:
    """The level and its domains, or why there are none."""
    level = search.grain.level
    while True:
        spots = search.levels[level]
        if not spots:
            return f"no topology domains at level: {search.tree.levels[level]}"
        ordered = search.preferences.ordered_for_leader(spots)
        found = _one(search, ordered)
        if found is not None:
            return level, [found]
        if search.grain.required:
            return misfit(search, level, _most(search, ordered))
        if level == 0 or search.grain.unconstrained:
            chosen = several(search, ordered)
            return misfit(search, level, chosen) if isinstance(chosen, int) else (level, chosen)
        level -= 1


def _one(search: PlaceSearch, ordered: list[Spot]) -> Spot | None:
    """A single domain that takes everything."""
    preferences, slices, leaders = search.preferences, search.slices, search.leaders
    if not preferences.best_fit:
        for spot in ordered:
            room = spot.slices_with_leader if leaders else spot.slices
            if spot.leaders >= leaders and room >= slices:
                return spot
    # With preferred nodes, a required domain may be one of the less preferred; others are looked for higher up first.
    starts = range(len(ordered)) if preferences.by_score and search.grain.required else range(1)
    for start in starts:
        if _takes_all(ordered[start], slices, leaders):
            return preferences.smallest(ordered[start:], slices, leaders) if preferences.best_fit else ordered[start]
    return None


def _takes_all(spot: Spot, slices: int, leaders: int) -> bool:
    return spot.slices_with_leader >= slices and spot.leaders >= leaders


def _most(search: PlaceSearch, ordered: list[Spot]) -> int:
    """How much the best domain takes, for the message."""
    return ordered[0].slices if search.preferences.best_fit else ordered[-1].pods


def several(search: PlaceSearch, ordered: list[Spot]) -> list[Spot] | int:
    """Domains, given in order, that take everything together; or how many slices (with no place for the leader:
    leaders) they take."""
    preferences = search.preferences
    ordered = leader_first(ordered, search.slices, search.leaders)
    found: list[Spot] = []
    slices, leaders, index = search.slices, search.leaders, 0
    while leaders > 0 and index < len(ordered) and ordered[index].leaders > 0:
        spot = ordered[index]
        if preferences.best_fit and spot.slices_with_leader >= slices:
            spot = preferences.smallest(ordered[index:], slices, leaders)
        found.append(spot)
        leaders -= spot.leaders
        slices -= spot.slices_with_leader
        index += 1
    if leaders > 0:
        return search.leaders - leaders
    rest = preferences.ordered(ordered[index:])
    for index, spot in enumerate(rest):
        if slices <= 0:
            break
        if preferences.best_fit and spot.slices >= slices:
            spot = preferences.smallest(rest[index:], slices, 0)
        found.append(spot)
        slices -= spot.slices
    return search.slices - slices if slices > 0 else found


def leader_first(spots: Sequence[Spot], slices: int, leaders: int) -> list[Spot]:
    """Put a domain for the leader to the front whose room beside the leader leaves enough for all others."""
    total = sum(spot.slices for spot in spots)
    for index, spot in enumerate(spots if leaders else ()):
        if spot.leaders >= leaders and total - (spot.slices - spot.slices_with_leader) >= slices:
            return [spot, *spots[:index], *spots[index + 1 :]]
    return list(spots)


def misfit(search: PlaceSearch, level: int, fit: int) -> str:
    """Why pods have no place, in Kueue's words."""
    begin = f'topology "{search.tree.name}"'
    if search.grain.layers:
        return f"{begin} doesn't allow to fit{_by_layer(search, level)}{search.excluded().text()}"
    unit = "pod" if search.grain.slice_size == 1 else "slice"
    if fit == 0:
        return f"{begin} doesn't allow to fit any of {search.slices} {unit}(s){search.excluded().text()}"
    return f"{begin} allows to fit only {fit} out of {search.slices} {unit}(s){search.excluded().text()}"


def _by_layer(search: PlaceSearch, level: int) -> str:
    """For each layer, how many of its groups the best domain takes."""
    best = min(search.levels[level], key=lambda spot: (-spot.slices, spot.domain.values))
    text = ""
    for layer in search.grain.layers:
        below = search.tree.levels.index(layer.topology) - level
        fit = _groups(best, below, layer.size)
        text += f"; {fit}/{search.count // layer.size} slice(s) fit on level {layer.topology}"
    return text


def _groups(spot: Spot, below: int, size: int) -> int:
    if below <= 0:
        return spot.pods // size
    return sum(_groups(child, below - 1, size) for child in spot.children)
