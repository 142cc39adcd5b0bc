"""In which order gangs get their chance, and which may take the place of which.

A policy is a small object with a name; the planner asks it and does the rest. Those that ship are listed in `SHIPPED`;
one's own is named in the configuration by import path, `package.module:object`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Hashable
from typing import Any, Protocol

from shoal.engine.model import Gang
from shoal.errors import BadInput

Rank = tuple[Any, ...]


class View(Protocol):
    """What a policy may know of the cluster."""

    def share(self, namespace: str) -> float:
        """Largest fraction of any resource of the cluster that this namespace's gangs hold."""


class Policy(Protocol):
    name: str
    strict: bool
    """Nothing overtakes a gang that has to wait."""
    timeless: bool
    """Rank is order, whatever the moment and whichever gang holds what."""
    reserves: bool
    """The first gang that has to wait gets room set aside; others may only fill what it does not need."""

    def lane(self, gang: Gang) -> Hashable:
        """Gangs of one lane keep their order for ever; lanes are compared by rank."""

    def order(self, gang: Gang) -> Rank:
        """Place within the lane; smallest first. Must be total: end with the UID."""

    def rank(self, gang: Gang, view: View, now: int) -> Rank:
        """Place among the heads of all lanes; smallest first."""

    def may_preempt(self, preemptor: Gang, victim: Gang) -> bool:
        """May the first take the second one's room, where preemption is on?"""


def by_age(gang: Gang) -> Rank:
    return (gang.queued_at, gang.created_at, gang.namespace, gang.name, gang.uid)


class Fifo:
    """First come, first served; a gang that does not fit is overtaken, not waited for."""

    name = "fifo"
    strict = False
    timeless = True
    reserves = False

    def lane(self, gang: Gang) -> Hashable:
        return None

    def order(self, gang: Gang) -> Rank:
        return by_age(gang)

    def rank(self, gang: Gang, view: View, now: int) -> Rank:
        return self.order(gang)

    def may_preempt(self, preemptor: Gang, victim: Gang) -> bool:
        return False


class Priority(Fifo):
    """Higher priority first, then first come. The default, as MCAD promises."""

    name = "priority"

    def order(self, gang: Gang) -> Rank:
        return (-gang.priority, *by_age(gang))

    def may_preempt(self, preemptor: Gang, victim: Gang) -> bool:
        return preemptor.priority > victim.priority


class StrictPriority(Priority):
    """As priority, but no gang overtakes another that has to wait."""

    name = "strict-priority"
    strict = True


class PrioritySlope(Priority):
    """Priority grows with age by each gang's own slope (MCAD's dynamic priority). No priority preemption, as MCAD."""

    name = "priority-slope"
    timeless = False

    def lane(self, gang: Gang) -> Hashable:
        return _slope(gang)

    def order(self, gang: Gang) -> Rank:
        # With one slope, priority + slope × (now - queued_at) orders the same at every moment.
        return (-(gang.priority - _slope(gang) * gang.queued_at / 1_000_000), *by_age(gang))

    def rank(self, gang: Gang, view: View, now: int) -> Rank:
        return (-system_priority(gang, now), *by_age(gang))

    def may_preempt(self, preemptor: Gang, victim: Gang) -> bool:
        return False


class FairShare(Priority):
    """The namespace that holds least goes first; within one, by priority and age."""

    name = "fair-share"
    timeless = False

    def lane(self, gang: Gang) -> Hashable:
        return gang.namespace

    def rank(self, gang: Gang, view: View, now: int) -> Rank:
        return (view.share(gang.namespace), *self.order(gang))


class Backfill(Priority):
    """By priority and age; room is set aside for the first that has to wait, others fill what it does not need."""

    name = "backfill"
    reserves = True


SHIPPED: dict[str, Policy] = {
    policy.name: policy for policy in (Fifo(), Priority(), StrictPriority(), PrioritySlope(), FairShare(), Backfill())
}


def system_priority(gang: Gang, now: int) -> float:
    """MCAD's `systempriority` under dynamic priority."""
    return gang.priority + _slope(gang) * (now - gang.queued_at) / 1_000_000


def _slope(gang: Gang) -> float:
    return gang.priority_slope if math.isfinite(gang.priority_slope) else 0.0


def load(name: str) -> Policy:
    """A shipped policy by name, or one's own as `package.module:object`. Raises BadInput with what was wrong."""
    if name in SHIPPED:
        return SHIPPED[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise BadInput(f"policy {name!r} is unknown; use one of {', '.join(SHIPPED)} or package.module:object")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise BadInput(f"policy {name!r} cannot be loaded: {error}") from error
    try:
        policy = found() if isinstance(found, type) else found
    except TypeError as error:
        raise BadInput(f"policy {name!r} cannot be made without arguments: {error}") from error
    missing = [part for part in ("name", "order", "may_preempt") if not hasattr(policy, part)]
    if missing:
        raise BadInput(f"policy {name!r} lacks {', '.join(missing)}")
    return policy if all(hasattr(policy, part) for part in _MEMBERS) else Completed(policy)


_MEMBERS = ("name", "strict", "timeless", "reserves", "lane", "order", "rank", "may_preempt")


class Completed(Fifo):
    """One's own policy that says no more than its name, its order and who may take whose place: one lane, ranked by
    that order, and a gang that does not fit is overtaken."""

    def __init__(self, own: Any) -> None:
        self.name: str = own.name
        self.strict: bool = getattr(own, "strict", False)
        self.reserves: bool = getattr(own, "reserves", False)
        self.timeless: bool = getattr(own, "timeless", not hasattr(own, "rank"))
        self._own = own

    def lane(self, gang: Gang) -> Hashable:
        lane: Hashable = self._own.lane(gang) if hasattr(self._own, "lane") else None
        return lane

    def order(self, gang: Gang) -> Rank:
        order: Rank = self._own.order(gang)
        return order

    def rank(self, gang: Gang, view: View, now: int) -> Rank:
        rank: Rank = self._own.rank(gang, view, now) if hasattr(self._own, "rank") else self._own.order(gang)
        return rank

    def may_preempt(self, preemptor: Gang, victim: Gang) -> bool:
        return bool(self._own.may_preempt(preemptor, victim))
