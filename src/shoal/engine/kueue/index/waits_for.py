"""What gangs of one shape ask of one queue, worked out once: the places they could have, and how much at each.

Kept for all queues that offer the same flavors, for as long as no flavor changes. Tells at once whether a gang fits as
things are, without messages or preemption; everything else is the flavor search's business (`assign`). Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from operator import le
from typing import TYPE_CHECKING, Literal, NamedTuple

from shoal.engine.kueue.demand import QueueMember, grouped, totals_of
from shoal.engine.kueue.facts import Flavor, FlavorResource, Fungibility, KueueSettings, ResourceGroup, Usage
from shoal.engine.kueue.flavors.assign import Placing
from shoal.engine.kueue.flavors.assignment import Assignment, Choice, Mode, PodSetChoice
from shoal.engine.kueue.flavors.eligible import kept_elsewhere, objection
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.remembered import Remembered

if TYPE_CHECKING:
    from shoal.engine.kueue.cycle.lacking import PlaceNeed

MOST_WAYS = 64
"""Choices of flavors tried out when it is asked whether a gang has a chance; beyond, pod sets are looked at singly."""

MOST_KNOWN = 20_000
"""Shapes remembered for queues that offer the same."""

Option = tuple[tuple[int, int], ...]
"""How much at which of the places, on one flavor."""

Least = tuple[tuple[Option, ...], ...]
"""By pod set and resource group: the flavors in order."""


class QuotaPlaces:
    """Where something must be found: at `places`, and over each of `totals`. Equal ones are the same object."""

    __slots__ = ("_together", "places", "totals")

    def __init__(
        self, places: tuple[FlavorResource, ...], totals: tuple[tuple[FlavorResource, ...], ...], *, at_once: bool
    ) -> None:
        self.places = places
        self.totals = totals
        self._together = {at: frozenset(places) if at_once else frozenset((at,)) for at in places}

    def together_with(self, at: FlavorResource) -> frozenset[FlavorResource]:
        """The places that a gang may need at once with this one."""
        return self._together[at]


class Reachable(NamedTuple):
    """The most that could be there, in the order of the places."""

    alone: tuple[int, ...]
    """At each place, if every gang that may be made to leave does."""
    together: tuple[int, ...]
    """Over each group of places."""
    nearby: tuple[int, ...] | None = None
    """At each place without making other queues give way. None: it makes no difference how they do."""
    own: tuple[int, ...] = ()
    """At each place without borrowing: other queues give way only to a gang that borrows nowhere."""
    largest: tuple[int, ...] = ()
    """The most of `alone`, over each group of places."""
    free: tuple[int, ...] | None = None
    """At each place as things are. None: a flavor may be taken that has to be freed where another would fit."""

    def tempts(self, waits_for: WaitsFor) -> bool:
        """Is a closer look worth while? Enough in all, and for the pod set that asks for most. Never wrongly no."""
        return all(map(le, waits_for.together, self.together)) and all(map(le, waits_for.largest, self.largest))

    def allows(self, waits_for: WaitsFor) -> bool:
        """Could it be enough for the whole gang? Never wrongly no."""
        if waits_for.ways > MOST_WAYS:
            return all(any(_within(option, self.alone) for option in options) for options in waits_for.least)
        return self._finds_way(waits_for, 0, [0] * len(self.alone))

    def _finds_way(self, waits_for: WaitsFor, depth: int, taken: list[int]) -> bool:
        """Is there a choice of flavors with enough at every place for all pod sets that would share it?"""
        if depth == len(waits_for.least):
            return self.nearby is None or _fits(taken, self.nearby) or _fits(taken, self.own)
        for option in self._in_question(waits_for, depth, taken):
            for place, amount in option:
                taken[place] += amount
            if all(taken[place] <= self.alone[place] for place, _ in option) and self._finds_way(
                waits_for, depth + 1, taken
            ):
                return True
            for place, amount in option:
                taken[place] -= amount
        return False

    def _in_question(self, waits_for: WaitsFor, depth: int, taken: list[int]) -> Sequence[Option]:
        """The flavors that a search may choose here: as a rule one that fits, if there is such.

        A later search goes on behind the flavor at which an earlier one stopped, which fitted then; only what lies
        behind it is in question then.
        """
        options, free = waits_for.least[depth], self.free
        if free is None or waits_for.may_shrink or len(options) < 2:
            return options
        fits = [all(taken[place] + amount <= free[place] for place, amount in option) for option in options]
        if not any(fits):
            return options
        stops = [all(amount <= free[place] for place, amount in option) for option in options]
        chosen: set[int] = set()
        for start in (0, *[index + 1 for index, stop in enumerate(stops) if stop]):
            behind = range(start, len(options))
            chosen.update([index for index in behind if fits[index]] or behind)
        return [option for index, option in enumerate(options) if index in chosen]


def _within(option: Option, most: tuple[int, ...]) -> bool:
    return all(amount <= most[place] for place, amount in option)


def _fits(taken: list[int], most: tuple[int, ...]) -> bool:
    return all(amount <= there or not amount for amount, there in zip(taken, most, strict=True))


_Option = tuple[int, str, tuple[tuple[str, FlavorResource, int], ...]]
"""A flavor's index and name, and by resource the place and the amount."""


class _WaitsForScan(NamedTuple):
    """One resource group's flavors, for pod sets that share one."""

    length: int
    """How many flavors the group has; those the pods may not use are left out below."""
    options: tuple[_Option, ...]


class Free(dict[FlavorResource, int]):
    """What a queue or cohort can still use, by place, worked out when first asked for. Good until its tree changes."""

    __slots__ = ("above", "node")

    def __init__(self, node: QuotaTreeNode, above: Free | None = None) -> None:
        self.node = node
        self.above = above
        """That of its parent, if it is kept."""

    def __missing__(self, at: FlavorResource) -> int:
        node, above = self.node, self.above
        amount = node.raw_available(at) if above is None else node.available_below(at, above[at])
        self[at] = amount = max(0, amount) if node.is_queue else amount
        return amount


class WaitsFor:
    __slots__ = (
        "_asked", "_made", "_open", "_parts", "at_places", "largest", "least", "may_shrink", "modesty", "need",
        "together", "ways",
    )  # fmt: skip

    def __init__(
        self,
        member: QueueMember,
        groups: Mapping[str, ResourceGroup],
        flavors: Mapping[str, Flavor],
        settings: KueueSettings,
        known_places: dict[object, QuotaPlaces],
    ) -> None:
        demands = member.demands
        self.may_shrink = member.may_shrink
        self._open: bool | None = None
        self.need: PlaceNeed | Literal["unknown"] | None = "unknown"
        """What it needs in topologies, worked out once by `placing`; None: nothing, or only the search can tell."""
        self._asked = [
            (demand.name, demand.count, totals_of(demand, demand.count, "pods" in groups)) for demand in demands
        ]
        full = [totals for _, _, totals in self._asked]
        smallest = [totals_of(demand, demand.least, "pods" in groups) for demand in demands]
        self._parts: list[tuple[list[int], list[_WaitsForScan]]] = []
        places: dict[FlavorResource, int] = {}
        least: list[tuple[Option, ...]] = []
        for indexes in grouped(demands):
            scans: list[_WaitsForScan] = []
            for covered, group in _covering(indexes, full, groups, settings):
                options, waits_for = [], []
                for number, quota in enumerate(group.flavors if group is not None else ()):
                    flavor = flavors.get(quota.name)
                    if flavor is None or any(objection(demands[index].constraints, flavor) for index in indexes):
                        continue
                    if any(kept_elsewhere(demands[index], name, quota.name) for index in indexes for name in covered):
                        continue
                    named = [(name, FlavorResource(quota.name, name)) for name in covered]
                    wanted = [(name, at, _sum(indexes, full, name)) for name, at in named]
                    options.append((number, quota.name, tuple(wanted)))
                    waits_for.append(
                        tuple(
                            [(places.setdefault(at, len(places)), _sum(indexes, smallest, name)) for name, at in named]
                        )
                    )
                scans.append(_WaitsForScan(len(group.flavors) if group is not None else 0, tuple(options)))
                least.append(tuple(waits_for))
            self._parts.append((indexes, scans))
        self.least: Least = tuple(least)
        self.ways = prod([len(options) for options in least])
        self._made: Remembered[object, Assignment] = Remembered(MOST_WAYS)
        """By flavors and heights: gangs of one shape are given the same few assignments again and again."""
        names = sorted({at.resource for at in places})
        self.together = tuple([sum(totals.get(name, 0) for totals in smallest) for name in names])
        """By resource: how much over all its places."""
        self.largest = tuple([max([_sum(indexes, smallest, name) for indexes, _ in self._parts]) for name in names])
        """By resource: what the pod set that asks for most needs at one place."""
        self.modesty = (self.together[0], self.largest[0]) if self.together else (0, 0)
        """Of the first resource: how much in all, and for the pod set that asks for most."""
        totals = tuple([tuple([at for at in places if at.resource == name]) for name in names])
        at_once = len(names) > 1 or len(self._parts) > 1
        key = (tuple(places), totals, at_once)
        self.at_places = known_places.setdefault(key, QuotaPlaces(tuple(places), totals, at_once=at_once))

    def is_open_to(self, placing: Placing) -> bool:
        """Is every flavor open to its pods, as far as topologies are concerned? The same for all gangs of its shape."""
        if self._open is None:
            self._open = placing.is_open
        return self._open

    def fit(
        self, node: QuotaTreeNode, free: Free, fungibility: Fungibility, most: Callable[[FlavorResource], int] | None
    ) -> Assignment | None:
        """The flavors it gets if it fits as things are. None: it does not, or only the search can tell.

        `most`: how much could be had at a place if others were made to leave. None: no other can be.
        """
        if not (fungibility.prefer_preempting or not fungibility.next_when_preempting):
            most = None  # a flavor that fits is taken before one that would have to be freed
        usage: Usage = {}
        ways: list[tuple[_Option, tuple[int, ...], int]] = []
        for _, scans in self._parts:
            for scan in scans:
                best: tuple[_Option, tuple[int, ...]] | None = None
                best_height, reached = 0, scan.length - 1
                for option in scan.options:
                    heights = _heights(node, free, option, usage)
                    if heights is None:
                        if most is not None and not _is_hopeless(option, usage, most):
                            return None
                        continue
                    height = max(heights, default=0)
                    if height and fungibility.next_when_borrowing:
                        if best is None or height < best_height:
                            best, best_height = (option, heights), height
                        continue
                    best, reached = (option, heights), option[0]
                    break
                if best is None:
                    return None
                for _, at, amount in best[0][2]:
                    usage[at] = usage.get(at, 0) + amount
                ways.append((*best, -1 if reached >= scan.length - 1 else reached))
        key = tuple([(option[0], heights, tried) for option, heights, tried in ways])
        known = self._made.get(key)
        if known is None:
            known = self._made.remember(key, self._make(ways))
        return known

    def _make(self, ways: list[tuple[_Option, tuple[int, ...], int]]) -> Assignment:
        """The flavors of each scan, put together. The caller must not change it: other callers get the same."""
        usage: Usage = {}
        top = 0
        done: list[PodSetChoice] = []
        rest = iter(ways)
        for indexes, scans in self._parts:
            chosen: dict[str, Choice] = {}
            for option, heights, tried in [next(rest) for _ in scans]:
                top = max(top, *heights) if heights else top
                for (name, _, _), height in zip(option[2], heights, strict=True):
                    chosen[name] = Choice(option[1], Mode.FIT, height, tried)
            for index in indexes:
                part = PodSetChoice(*self._asked[index])
                part.choices = {name: choice for name, choice in chosen.items() if name in part.requests}
                for name, choice in part.choices.items():
                    at = FlavorResource(choice.flavor, name)
                    usage[at] = usage.get(at, 0) + part.requests[name]
                done.append(part)
        return Assignment(done, usage, top)


def _is_hopeless(option: _Option, usage: Usage, most: Callable[[FlavorResource], int]) -> bool:
    """Is there too little of something on this flavor even if others were made to leave? No search would choose it."""
    return any(amount + usage.get(at, 0) > most(at) for _, at, amount in option[2])


def _heights(node: QuotaTreeNode, free: Free, option: _Option, usage: Usage) -> tuple[int, ...] | None:
    """How high the flavor's resources would have to be borrowed, beside what `usage` takes; None: not enough."""
    found = []
    for _, at, amount in option[2]:
        whole = amount + usage[at] if at in usage else amount
        if whole > free[at]:
            return None
        found.append(node.borrowing_height(at, whole)[0] if node.borrows_with(at, whole) else 0)
    return tuple(found)


class WaitsForCache:
    """What is asked of queues that offer the same flavors of the same resources, whatever their quota."""

    __slots__ = ("_known", "_known_places", "groups")

    def __init__(self, groups: Mapping[str, ResourceGroup]) -> None:
        self.groups = groups
        self._known: Remembered[str, WaitsFor] = Remembered(MOST_KNOWN)
        self._known_places: dict[object, QuotaPlaces] = {}

    def of(self, member: QueueMember, flavors: Mapping[str, Flavor], settings: KueueSettings) -> WaitsFor:
        """What gangs of this one's shape ask for."""
        known = self._known.get(member.shape)
        if known is None:
            made = WaitsFor(member, self.groups, flavors, settings, self._known_places)
            known = self._known.remember(member.shape, made)
        return known


def _covering(
    indexes: list[int], totals: list[dict[str, int]], groups: Mapping[str, ResourceGroup], settings: KueueSettings
) -> Iterator[tuple[list[str], ResourceGroup | None]]:
    """The resources asked for, by the group that covers them; None where no group does and one must."""
    names = sorted({name for index in indexes for name in totals[index]})
    settled: set[str] = set()
    for name in names:
        group = groups.get(name)
        if name in settled:
            continue
        if group is not None:
            covered = [other for other in names if other in group.resources]
            settled.update(covered)
            yield covered, group
        elif _sum(indexes, totals, name) and not settings.ignore_undeclared:
            yield [name], None


def _sum(indexes: list[int], totals: list[dict[str, int]], name: str) -> int:
    return sum([totals[index].get(name, 0) for index in indexes])
