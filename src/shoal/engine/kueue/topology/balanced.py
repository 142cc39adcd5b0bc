"""Balanced placement: pods that prefer a level are spread evenly over as few domains as hold them.

Asked before `choose` where it is switched on, for pods that prefer a level. Below each domain one level up, the
largest number of slices is sought that every used domain could take at least (the threshold); the domains with the
highest one win. Where none is found the placement goes on as without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import msgspec

from shoal.engine.kueue.topology.choose import PlaceSearch
from shoal.engine.kueue.topology.spots import Preferences, RoomCount, Spot

_FULLEST_LAST = Preferences(least_free=False, by_score=False)


class Greedy(msgspec.Struct, frozen=True):
    """What filling the largest domains first would use."""

    number: int
    """How many domains."""
    last_with_leader: Spot | None
    last: Spot | None

    def threshold(self, slices: int) -> int:
        """The most that each of so many domains could take at least."""
        bounds = [slices // self.number]
        if self.last_with_leader is not None:
            bounds.append(self.last_with_leader.slices_with_leader)
        if self.last is not None:
            bounds.append(self.last.slices)
        return min(bounds)


def balance(search: PlaceSearch, count: RoomCount) -> tuple[int, list[Spot]] | None:
    """The level at which pods are placed evenly, and its domains with what each takes; None: no such placement."""
    threshold, candidates = _best(search, count)
    if threshold <= 0:
        return None
    grain, level = search.grain, search.grain.level
    if level < grain.slice_level:
        chosen = _fewest(candidates, search, by_entropy=True)
        if chosen is None:
            return None
        candidates = [child for spot in chosen for child in spot.children]
        level += 1
    placed = _placed(candidates, search, threshold)
    return None if placed is None else (level, placed)


def _best(search: PlaceSearch, count: RoomCount) -> tuple[int, list[Spot]]:
    """The highest threshold, and domains of the requested level that allow it; the fewest where several do."""
    level = search.grain.level
    above = sorted(search.levels[level - 1], key=lambda spot: spot.domain.values) if level else []
    families = [spot.children for spot in above] if level else [search.levels[0]]
    best, fewest, chosen = 0, 0, list[Spot]()
    for family in families:
        bounds = _thresholds([spot.copy() for spot in family], search)
        for threshold in bounds:
            if threshold < best or threshold <= 0:
                break
            spots = [spot.copy() for spot in family]
            _prune(spots, threshold, search, count)
            greedy = greedily(spots, search.slices, search.leaders)
            if greedy is None:
                continue  # the next bound keeps room for the leader
            if threshold > best or greedy.number < fewest:
                best, fewest, chosen = threshold, greedy.number, spots
            break
    return best, chosen


def _thresholds(spots: list[Spot], search: PlaceSearch) -> list[int]:
    """What to try, highest first."""
    if search.grain.level < search.grain.slice_level:
        spots = [child for spot in spots for child in spot.children]
    greedy = greedily(spots, search.slices, search.leaders)
    if greedy is None:
        return []
    threshold = greedy.threshold(search.slices)
    if search.leaders and greedy.last is not None and greedy.last.slices_with_leader < threshold:
        return [threshold, greedy.last.slices_with_leader]
    return [threshold]


def _prune(spots: list[Spot], threshold: int, search: PlaceSearch, count: RoomCount) -> None:
    """Close every domain, and the level below, that would take less than the threshold."""
    for spot in spots:
        for child in spot.children:
            _prune_one(child, threshold, search.leaders)
    for spot in spots:
        _sum_again(spot, search.grain.level, count)
        _prune_one(spot, threshold, search.leaders)


def _prune_one(spot: Spot, threshold: int, leaders: int) -> None:
    if spot.slices < threshold:
        spot.close()
    elif leaders and spot.leaders and spot.slices_with_leader < threshold:
        spot.close_to_leader()


def _sum_again(spot: Spot, level: int, count: RoomCount) -> None:
    for child in spot.children:
        _sum_again(child, level + 1, count)
    count.sum_up(spot, level)


def greedily(spots: Sequence[Spot], slices: int, leaders: int) -> Greedy | None:
    """Fill the largest first, with the leader where it fits; None when not all fits."""
    number, last_with_leader, last = 0, None, None
    left = list(spots)
    if leaders:
        left = _FULLEST_LAST.ordered_for_leader(left)
        while leaders > 0 and left and left[0].leaders > 0:
            last_with_leader = left.pop(0)
            number += 1
            leaders -= last_with_leader.leaders
            slices -= last_with_leader.slices_with_leader
    if leaders > 0:
        return None
    for spot in _FULLEST_LAST.ordered(left):
        if slices <= 0 or spot.slices <= 0:
            break
        number, last = number + 1, spot
        slices -= spot.slices
    return None if slices > 0 or not number else Greedy(number, last_with_leader, last)


Left = tuple[int, int]
"""Leaders and pods that have no place yet."""


def _fewest(spots: list[Spot], search: PlaceSearch, *, by_entropy: bool) -> list[Spot] | None:
    """As few domains as hold everything, and of these the ones with the least room left over.

    Every set of domains is built up one domain at a time; of sets equal in number and in what is left, the first stays.
    """
    greedy = greedily(spots, search.slices, search.leaders)
    if greedy is None:
        return None
    ordered = sorted(spots, key=_by_capacity_and_entropy if by_entropy else lambda spot: spot.domain.values)
    reached: list[dict[Left, list[Spot]]] = [{} for _ in range(greedy.number + 1)]
    reached[0][search.leaders, search.slices * search.grain.slice_size] = []
    for spot in ordered:
        for number in range(greedy.number, 0, -1):
            for (leaders, pods), before in sorted(reached[number - 1].items(), key=lambda entry: entry[0]):
                if leaders <= 0 and pods <= 0:
                    continue
                with_it = [*before, spot]
                if leaders > 0 and spot.leaders > 0:
                    reached[number].setdefault((leaders - spot.leaders, pods - spot.pods_with_leader), with_it)
                if spot.slices > 0:
                    reached[number].setdefault((leaders, pods - spot.pods), with_it)
    enough = [
        (pods, chosen) for (leaders, pods), chosen in reached[greedy.number].items() if leaders == 0 and pods <= 0
    ]
    return max(enough, key=lambda entry: entry[0])[1] if enough else None


def _by_capacity_and_entropy(spot: Spot) -> tuple[int, int, float, tuple[str, ...]]:
    """The largest first; of equal ones, the one whose room is spread most evenly below."""
    return -spot.leaders, -spot.slices_with_leader, -_entropy(spot.children), spot.domain.values


def _entropy(spots: list[Spot]) -> float:
    total = sum(spot.pods for spot in spots)
    shares = sorted([spot.pods / total for spot in spots if spot.pods]) if total else []
    return sum(-share * log2(share) for share in shares)  # in one order, whichever the domains stand in


def _placed(spots: list[Spot], search: PlaceSearch, threshold: int) -> list[Spot] | None:
    """The threshold for every domain, and what is beyond it to the largest ones first."""
    chosen = _fewest(spots, search, by_entropy=False)
    if chosen is None or search.slices < len(chosen) * threshold:
        return None
    extra, leaders = search.slices - len(chosen) * threshold, search.leaders
    ordered = _FULLEST_LAST.ordered_for_leader(chosen)
    for spot in ordered:
        room = spot.slices_with_leader if leaders > 0 else spot.slices
        more = min(room - threshold, extra)
        spot.leaders = 1 if leaders > 0 else 0
        leaders -= spot.leaders
        spot.slices = spot.slices_with_leader = threshold + more
        spot.pods = spot.slices * search.grain.slice_size
        spot.pods_with_leader = spot.pods - spot.leaders
        extra -= more
    return None if extra > 0 or leaders > 0 else ordered
