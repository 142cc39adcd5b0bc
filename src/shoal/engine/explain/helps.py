"""What would start a gang that waits: others that end, quotas that grow, nodes that come. Tried before it is said.

Called by `Engine.explain` alone. It proposes, the rehearsal judges. What is called `least` was found by trying all less
that could make a difference; where that would take too long, or less is not known to fail, it is called `enough`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import gcd
from typing import NamedTuple

import msgspec

from shoal.api.labels import HOSTNAME
from shoal.engine.explain.rehearsal import Deed, Rehearsal
from shoal.engine.line.queues import QueueFact
from shoal.engine.model import Amounts, Fact, Gang, Measure, NewNodes, NodeFact, PodSet, QuotaIncrease, Together
from shoal.engine.nodes.fit import demand_of

NAMES = ("0", "zz")
"""A new node may have any name, and names break ties: it is tried as the first of all nodes and as the last."""
MOST_SINGLES = 24
MOST_STEPS = 16
"""Steps of the common unit of all amounts that are tried one by one; beyond that the amount is called enough."""
MOST_LISTED = 4
"""Lists up to this length are called least, when no part of them would do."""
MOST_NODES = 16
MOST_PASSES = 4
LEAPS = (1, 3, 9)
NODES = ""
"""Stands for nodes where quotas have their name."""

Part = tuple[str, str]
"""The name of a quota, or nodes, and a resource."""
More = dict[Part, int]


class QuotaPlace(NamedTuple):
    """A quota that could be raised."""

    name: str
    fact: Fact | QueueFact
    """What says how much it is now; several quotas may be in one fact."""
    estimate: Amounts
    """What it lacks for this gang alone, as far as that is known."""
    most: Amounts
    """What would do for everything that waits."""
    raised: Callable[..., Fact | QueueFact]
    """The fact with so much more in it."""


class Case(msgspec.Struct, frozen=True):
    """All that is known of one gang that waits, for the search."""

    gang: Gang
    running: Sequence[Gang]
    """Those that hold quota or room and could end."""
    alone: bool
    """Nothing else waits or is on its way out: more of anything never does harm."""
    shares: bool
    """Which gang comes next depends on shares of the whole, so that every single unit may count."""
    places: Sequence[QuotaPlace]
    units: Amounts
    """Per resource, the unit that all amounts are multiples of."""
    suggested: tuple[str, ...] = ()
    """Ends that would do, were there nothing ahead of it."""
    labels: dict[str, str] | None = {}
    """What new nodes would be labelled with; None: no one kind of node would do."""
    most: Amounts = {}
    """What everything that waits asks for."""


class Help(msgspec.Struct, frozen=True, kw_only=True):
    release: tuple[str, ...] = ()
    release_measure: Measure = "enough"
    increase: QuotaIncrease | None = None
    nodes: NewNodes | None = None
    together: Together | None = None


def by_itself(rehearsal: Rehearsal) -> bool:
    return rehearsal.starts(Deed())


def find_help(case: Case, rehearsal: Rehearsal) -> Help:
    release, measure = ends(case, rehearsal)
    more, fresh = increase(case, rehearsal), nodes(case, rehearsal)
    both = together(case, rehearsal) if more is None and fresh is None else None
    return Help(release=release, release_measure=measure, increase=more, nodes=fresh, together=both)


# Others that end


def ends(case: Case, rehearsal: Rehearsal) -> tuple[tuple[str, ...], Measure]:
    """Gangs whose end would start it: the suggested ones, one, or as few of the most helpful as would do."""

    def enough(keys: Sequence[str]) -> bool:
        return bool(keys) and rehearsal.starts(Deed(ends=tuple(keys)))

    order = [other.key for other in sorted(case.running, key=lambda other: (-_overlap(case.gang, other), other.key))]
    for keys in _lists(order, case.suggested):
        if enough(keys):
            chosen, measure = _without_spares(list(keys), enough)
            return chosen, measure if rehearsal.is_complete else "enough"
    return (), "enough"


def _lists(order: list[str], suggested: tuple[str, ...]) -> Iterator[Sequence[str]]:
    if suggested:
        yield suggested
    for key in order[:MOST_SINGLES]:
        yield (key,)
    length = 2
    while length < len(order):
        yield order[:length]
        length += max(1, length // 2)
    yield order


def _without_spares(chosen: list[str], enough: Callable[[Sequence[str]], bool]) -> tuple[tuple[str, ...], Measure]:
    for one in list(reversed(chosen)):
        rest = [other for other in chosen if other != one]
        if enough(rest):
            chosen = rest
    if len(chosen) > MOST_LISTED:
        return tuple(chosen), "enough"
    for size in range(1, len(chosen)):
        for part in combinations(chosen, size):
            if enough(part):
                return _without_spares(list(part), enough)
    return tuple(chosen), "least"


def _overlap(gang: Gang, other: Gang) -> float:
    """How much of what the one asks for the other holds."""
    wanted, held = demand_of(gang.pod_sets), demand_of(other.pod_sets)
    return sum(min(1.0, held.get(name, 0) / amount) for name, amount in wanted.items() if amount > 0)


# Something more: of a quota, of nodes, of both


class Trial:
    """Tries amounts on top of what there is. `torn`: a new node's name made a difference, so nothing is sure."""

    def __init__(self, case: Case, rehearsal: Rehearsal, count: int = 1, most_steps: int = MOST_STEPS) -> None:
        self.case = case
        self.rehearsal = rehearsal
        self.count = count
        self.most_steps = most_steps
        self.torn = False

    def enough(self, more: More) -> bool:
        facts = self._raised(more)
        amounts = {resource: amount for (place, resource), amount in more.items() if place == NODES and amount}
        if not amounts:
            return self.rehearsal.starts(Deed(facts=facts))
        labels = self.case.labels or {}
        answers = {
            self.rehearsal.starts(Deed(facts=(*facts, *new_nodes(name, self.count, amounts, labels)))) for name in NAMES
        }
        self.torn = self.torn or len(answers) > 1
        return answers == {True}

    def _raised(self, more: More) -> tuple[Fact | QueueFact, ...]:
        facts: dict[int, Fact | QueueFact] = {}
        for place in self.case.places:
            amounts = {resource: amount for (name, resource), amount in more.items() if name == place.name and amount}
            if amounts:
                facts[id(place.fact)] = place.raised(facts.get(id(place.fact), place.fact), amounts)
        return tuple(facts.values())

    def trimmed(self, more: More) -> tuple[More, Measure]:
        """No part by more than it takes, given the others."""
        exact = False
        for _ in range(MOST_PASSES):
            before, exact = dict(more), True
            for part in sorted(more):
                more[part], sure = self._least(more, part)
                exact = exact and sure
            more = {part: amount for part, amount in more.items() if amount}
            if more == before:
                break
        else:
            exact = False
        return more, "least" if exact and not self.torn and self.rehearsal.is_complete else "enough"

    def _least(self, more: More, part: Part) -> tuple[int, bool]:
        """The least of one part that will do, and whether everything less was found not to."""
        case, most = self.case, more[part]
        unit = max(1, case.units.get(part[1], 1))
        if not case.alone and -(-most // unit) <= self.most_steps:
            for amount in _steps(most, unit):
                if amount < most and self.enough({**more, part: amount}):
                    return amount, not case.shares
            return most, not case.shares
        if most == 0 or self.enough({**more, part: 0}):
            return 0, case.alone
        low, high = 1, -(-most // unit)
        while low < high:
            middle = (low + high) // 2
            if self.enough({**more, part: middle * unit}):
                high = middle
            else:
                low = middle + 1
        amount = min(most, high * unit)
        return amount, case.alone and not self.enough({**more, part: amount - 1})


def _steps(most: int, unit: int) -> Iterator[int]:
    """Every amount below `most` that could differ from the one before it: whole units, and just below them."""
    for amount in range(0, most, unit):
        yield amount
        if unit > 1:
            yield amount + unit - 1


def increase(case: Case, rehearsal: Rehearsal) -> QuotaIncrease | None:
    """Of the quotas that would do, each raised alone, the one that has to grow least."""
    found: list[tuple[int, int, str, Amounts, Measure]] = []
    trial = Trial(case, rehearsal)
    for place in case.places:
        for amounts in _growing(place.estimate, place.most):
            more = _parts(place.name, amounts)
            if more and trial.enough(more):
                more, measure = trial.trimmed(more)
                least = _amounts(place.name, more)
                found.append((len(least), sum(least.values()), place.name, least, measure))
                break
    if not found:
        return None
    _, _, name, least, measure = min(found, key=lambda entry: entry[:3])
    return QuotaIncrease(name, least, measure)


def nodes(case: Case, rehearsal: Rehearsal) -> NewNodes | None:
    """One more node, with all that the gang needs there; else several equal ones, each for one pod or more."""
    if case.labels is None or case.gang.supply == "off":
        return None
    trial = Trial(case, rehearsal)
    for amounts in _growing(demand_of(case.gang.pod_sets), case.most):
        more = _parts(NODES, amounts)
        if more and trial.enough(more):
            more, measure = trial.trimmed(more)
            return NewNodes(amounts=_amounts(NODES, more), labels=case.labels, measure=measure)
    each = _parts(NODES, _largest_pod(case.gang.pod_sets))
    pods = sum(max(0, pod_set.count) for pod_set in case.gang.pod_sets)
    for count in range(2, min(pods, MOST_NODES) + 1) if each else ():
        if Trial(case, rehearsal, count).enough(each):
            return NewNodes(count=count, amounts=_amounts(NODES, each), labels=case.labels, measure="enough")
    return None


def _growing(first: Amounts, most: Amounts) -> Iterator[Amounts]:
    """From what would do for this gang alone to what would do for all, in leaps: those ahead take some of it."""
    for factor in LEAPS if any(first.values()) else ():
        yield {resource: min(amount * factor, max(amount, most.get(resource, 0))) for resource, amount in first.items()}
    yield most


def together(case: Case, rehearsal: Rehearsal) -> Together | None:
    """Where nothing alone would do: several quotas, and a node if need be, all at once."""
    trial = Trial(case, rehearsal, most_steps=0)
    quotas: More = {}
    lacking: More = {}
    for place in case.places:
        quotas |= _parts(place.name, place.most)
        lacking |= _parts(place.name, place.estimate)
    node: More = {}
    if case.labels is not None and case.gang.supply != "off":
        node = _parts(NODES, case.most)
        lacking |= _parts(NODES, demand_of(case.gang.pod_sets)) if lacking else {}
    for more in (lacking, quotas, quotas | node):
        if more and trial.enough(more):
            for name in sorted({place for place, _ in more}, reverse=True):  # a quota that need not grow is left out
                rest = {part: amount for part, amount in more.items() if part[0] != name}
                if rest and trial.enough(rest):
                    more = rest
            more, measure = trial.trimmed(more)
            return _together(more, case.labels or {}, measure)
    return None


def _together(more: More, labels: dict[str, str], measure: Measure) -> Together:
    names = sorted({place for place, _ in more if place != NODES})
    amounts = _amounts(NODES, more)
    return Together(
        quotas=tuple(QuotaIncrease(name, _amounts(name, more), measure) for name in names),
        nodes=NewNodes(amounts=amounts, labels=labels, measure=measure) if amounts else None,
        measure=measure,
    )


def new_nodes(name: str, count: int, amounts: Amounts, labels: Mapping[str, str]) -> tuple[NodeFact, ...]:
    names = [f"{name}{number}" for number in range(count)]
    return tuple(NodeFact(name=one, labels={**labels, HOSTNAME: one}, allocatable=amounts) for one in names)


def _parts(place: str, amounts: Amounts) -> More:
    return {(place, resource): amount for resource, amount in amounts.items() if amount > 0 and resource != "pods"}


def _amounts(place: str, more: More) -> Amounts:
    return {resource: amount for (name, resource), amount in more.items() if name == place}


def _largest_pod(pod_sets: Iterable[PodSet]) -> Amounts:
    largest: Amounts = {}
    for pod_set in pod_sets:
        for resource, amount in pod_set.requests.items() if pod_set.count > 0 else ():
            largest[resource] = max(largest.get(resource, 0), amount)
    return largest


# What the search needs to know


def labels_for(gang: Gang) -> dict[str, str] | None:
    """Labels of a node that may run every pod of a gang, as far as its selectors say; None where they contradict."""
    labels: dict[str, str] = {}
    for pod_set in gang.pod_sets:
        for selector in (gang.node_selector, pod_set.node_selector) if pod_set.count > 0 else ():
            if any(labels.get(key, value) != value for key, value in selector.items()):
                return None
            labels |= selector
    return None if HOSTNAME in labels else labels


def units_of(gangs: Iterable[Gang], quotas: Iterable[Amounts]) -> Amounts:
    """Per resource, the greatest unit that all requests and all quotas are multiples of."""
    units: Amounts = {}
    for gang in gangs:
        for pod_set in gang.pod_sets:
            for resource, amount in pod_set.requests.items():
                units[resource] = gcd(units.get(resource, 0), amount)
    for quota in quotas:
        for resource, amount in quota.items():
            units[resource] = gcd(units.get(resource, 0), amount)
    return units
