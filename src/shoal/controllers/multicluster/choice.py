"""Which member a gang goes to, among those that would start it. Equal input, equal choice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.engine.model import Amounts
from shoal.errors import BadInput

MOST_RACERS = 20
"""As many as a MultiKueueConfig may name."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A member that would start the gang, or whose room may not be read."""

    name: str
    at: int
    """Its place in the MultiKueueConfig."""
    tier: int = 0
    """How well it does, best first; every policy decides among members of the best tier alone."""
    free: Amounts = {}
    price: float = 0.0
    weight: float = 1.0
    gangs: int = 0
    """Of this hub, there now."""
    preferred: bool = False
    """Does it have the labels that the gang prefers?"""


class ClusterPolicy(msgspec.Struct, frozen=True):
    """What decides, the first that differs; and how many members are asked at once."""

    order: tuple[str, ...] = ("first",)
    race: int = 1

    @property
    def first_settles(self) -> bool:
        """Is the first of the best tier the one that is chosen, whatever comes after it?"""
        return self.order[0] == "first" and self.race == 1


def parse_policy(text: str) -> ClusterPolicy:
    """From `cheapest,most-free` or `race=2,first`. Raises BadInput."""
    order: list[str] = []
    race = 1
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, number = part.partition("=")
        if name == "race" and equals:
            if not (number.isascii() and number.isdigit() and 1 <= int(number) <= MOST_RACERS):
                raise BadInput(f"race={number}: how many members are asked at once is a number from 1 to {MOST_RACERS}")
            race = int(number)
        elif part in _SCORES:
            order.append(part)
        else:
            raise BadInput(f"{part!r} is none of {', '.join(_SCORES)}, race=N")
    return ClusterPolicy(tuple(order) or ("first",), race)


def chosen(candidates: Sequence[Candidate], policy: ClusterPolicy, demand: Amounts) -> tuple[str, ...]:
    """The names of those that are asked, best first: one, or as many as race. None where there is none."""
    if not candidates:
        return ()
    ranked = sorted(candidates, key=lambda one: (one.tier, *_scores(one, policy, demand), one.at, one.name))
    best = [one for one in ranked if one.tier == ranked[0].tier]
    return tuple(one.name for one in best[: policy.race])


def _scores(one: Candidate, policy: ClusterPolicy, demand: Amounts) -> list[object]:
    return [_SCORES[name](one, demand) for name in policy.order]


def _left(one: Candidate, demand: Amounts) -> float:
    """What share of its free room would be left, of the resource that would be used up most."""
    shares = [1 - needed / one.free[name] for name, needed in demand.items() if needed and one.free.get(name)]
    return min(shares, default=1.0)


def _largest(one: Candidate, demand: Amounts) -> tuple[int, ...]:
    return tuple(one.free.get(name, 0) for name in sorted(demand))


_SCORES: dict[str, Callable[[Candidate, Amounts], object]] = {
    "first": lambda one, demand: one.at,
    "most-free": lambda one, demand: tuple(-amount for amount in _largest(one, demand)),
    "tightest": _left,
    "cheapest": lambda one, demand: one.price,
    "affinity": lambda one, demand: not one.preferred,
    "spread": lambda one, demand: (one.gangs + 1) / max(one.weight, 1e-9),
}
"""`first`: by the order of the MultiKueueConfig. `most-free` and `tightest`: by what is free there of what it asks
for. `cheapest`: by the member's price. `affinity`: those with the labels that the gang prefers. `spread`: where the
fewest gangs of this hub are, by its weight."""
