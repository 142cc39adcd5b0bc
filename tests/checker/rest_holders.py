"""Gangs that hold quota, and the gang that asks, as the plain rules of preemption see them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.checker.rest_gangs import Demand
from tests.checker.rest_objects import Json
from tests.checker.rest_quota import Node, Place, Usage


@dataclass(frozen=True)
class Holder:
    """Somebody with quota."""

    uid: str
    name: str
    node: Node
    usage: Usage
    priority: int
    time: int
    """The moment that decides first in, first out."""
    reserved_at: int
    is_leaving: bool

    def go(self) -> None:
        self.node.take(self.usage, -1)

    def come_back(self) -> None:
        self.node.take(self.usage, 1)


@dataclass(frozen=True)
class Asking:
    """Somebody who waits for quota."""

    uid: str
    node: Node
    queue: Json
    demands: list[Demand]
    priority: int
    time: int
    spared: frozenset[str] = field(default_factory=frozenset)
    """UIDs of the gangs that it may not push out."""

    @property
    def policies(self) -> Json:
        found: Json = (self.queue.get("spec") or {}).get("preemption") or {}
        return found

    @property
    def within(self) -> str:
        return self.policies.get("withinClusterQueue") or "Never"

    @property
    def reclaim(self) -> str:
        return self.policies.get("reclaimWithinCohort") or "Never"

    @property
    def borrow(self) -> Json:
        """Empty where no gang is pushed out for the sake of borrowed quota."""
        found: Json = self.policies.get("borrowWithinCohort") or {}
        return found if (found.get("policy") or "Never") != "Never" else {}

    @property
    def is_strict(self) -> bool:
        return bool((self.queue.get("spec") or {}).get("queueingStrategy") == "StrictFIFO")


class Ask:
    """One question: which gangs has `asking` to push out at `places`, so that `wanted` fits?"""

    def __init__(
        self, asking: Asking, holders: list[Holder], wanted: Usage, places: frozenset[Place], latest_uid_first: bool
    ) -> None:
        self.asking = asking
        self.holders = holders
        self.wanted = wanted
        self.places = places
        self._latest_uid_first = latest_uid_first

    def of(self, node: Node, policy: str) -> list[Holder]:
        """Those of one queue that use what is needed and that the policy lets go, the first to go first."""
        found = [one for one in self.holders if one.node is node and self._may_go(one, policy)]
        if self._latest_uid_first:
            found.sort(key=lambda one: one.uid, reverse=True)
        else:
            found.sort(key=lambda one: one.uid)
        return sorted(found, key=self.order)

    def order(self, one: Holder) -> tuple[bool, bool, int, int]:
        return (not one.is_leaving, one.node is self.asking.node, one.priority, -one.reserved_at)

    def _may_go(self, one: Holder, policy: str) -> bool:
        asking = self.asking
        if not any(at in self.places for at in one.usage) or (not one.is_leaving and one.uid in asking.spared):
            return False
        newer = one.priority == asking.priority and asking.time < one.time
        return (
            policy == "Any"
            or (policy != "Never" and one.priority < asking.priority)
            or (policy == "LowerOrNewerEqualPriority" and newer)
        )

    def fits(self, *, borrowing: bool = True) -> bool:
        node = self.asking.node
        if not borrowing and any(node.borrows(at, value) for at, value in self.wanted.items()):
            return False
        return all(value <= max(0, node.available(at)) for at, value in self.wanted.items())

    def without_spare(self, gone: list[Holder], *, borrowing: bool) -> list[Holder]:
        """All of them have left; those come back without whose leaving it fits as well. The rest is still gone."""
        kept = list(gone)
        for one in reversed(gone[:-1]):
            one.come_back()
            if self.fits(borrowing=borrowing):
                kept.remove(one)
            else:
                one.go()
        return kept
