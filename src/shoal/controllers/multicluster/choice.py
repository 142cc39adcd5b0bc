"""Which member a gang goes to, among those that would start it now. Equal input, equal choice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from shoal.engine.model import Amounts

Policy = Literal["first", "most-free", "tightest", "cheapest", "spread"]
"""`first`: by the order of the MultiKueueConfig. `most-free` and `tightest`: by what is free there of what the gang
asks for. `cheapest`: by the member's price. `spread`: where the fewest gangs of this hub are, by its weight."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A member that would start the gang now, or whose room may not be read."""

    name: str
    at: int
    """Its place in the MultiKueueConfig."""
    is_known: bool = True
    free: Amounts = {}
    price: float = 0.0
    weight: float = 1.0
    gangs: int = 0
    """Of this hub, there now."""


def chosen(candidates: Sequence[Candidate], policy: Policy, demand: Amounts) -> str:
    """The name of one; empty where there is none. One whose room may not be read comes after all others."""
    if not candidates:
        return ""
    score = _SCORES[policy]
    return min(candidates, key=lambda one: (not one.is_known, score(one, demand), one.at, one.name)).name


def _left(one: Candidate, demand: Amounts) -> float:
    """What share of its free room would be left, of the resource that would be used up most."""
    shares = [1 - needed / one.free[name] for name, needed in demand.items() if needed and one.free.get(name)]
    return min(shares, default=1.0)


def _largest(one: Candidate, demand: Amounts) -> tuple[int, ...]:
    return tuple(one.free.get(name, 0) for name in sorted(demand))


_SCORES: dict[Policy, Callable[[Candidate, Amounts], object]] = {
    "first": lambda one, demand: 0,
    "most-free": lambda one, demand: tuple(-amount for amount in _largest(one, demand)),
    "tightest": _left,
    "cheapest": lambda one, demand: one.price,
    "spread": lambda one, demand: (one.gangs + 1) / max(one.weight, 1e-9),
}
