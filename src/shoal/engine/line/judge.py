"""May this gang start now? Quota first, then room, then nodes that could come, and only then others that would leave.

Used by the cycle, which carries out what is found here. A refusal leaves no trace in the state; a yes leaves the seat
in the quota forest that it was found with.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.engine.line.state import LineState
from shoal.engine.line.victims import Release, smallest_release
from shoal.engine.line.yielding import Barred
from shoal.engine.mcad.forest import Consumer, Seating
from shoal.engine.model import Amounts, Gang, Seat, Shortfall
from shoal.engine.nodes.fit import Placement, demand_of
from shoal.engine.nodes.pools import Wanting
from shoal.engine.nodes.supply import find_room

SURPLUS = "surplus"
"""Cause: only pods leave that elastic gangs have beyond their admission, and gangs that backfill."""
RUNNING = ("admitted", "stopping")


class Start(msgspec.Struct, frozen=True):
    """It can start, once the victims (UIDs) are gone."""

    placement: Placement
    seats: dict[str, Seat]
    victims: tuple[str, ...] = ()
    cause: str = ""


class Blocked(msgspec.Struct, frozen=True):
    shortfalls: tuple[Shortfall, ...]

    @property
    def by_quota(self) -> bool:
        return any(shortfall.kind == "quota" for shortfall in self.shortfalls)


class Judge:
    def __init__(self, state: LineState) -> None:
        self.state = state
        self.steps = 0
        """How much looking was done; the cycle bounds it."""

    def judge(
        self, gang: Gang, preempting: bool, asking: bool = False, shrinking: bool = False
    ) -> Start | Wanting | Blocked:
        """Quota first, then room; then what elastic gangs have beyond their admission (`shrinking`), then nodes that
        could come (`asking`), and only then others that would have to leave. A refusal leaves no trace."""
        state = self.state
        self.steps += 1
        seats: dict[str, Seat] = {}
        victims: tuple[str, ...] = ()
        tentative = False
        if self._has_quota(gang) and not state.forest.holds(gang.uid):
            seating = state.forest.allocate(state.consumer(gang))
            if isinstance(seating, tuple):
                return Blocked(seating)
            victims, tentative = seating.victims, True
            barred = state.barred(gang, victims)
            if barred is not None:
                state.forest.undo()
                state.forest.refused_path = state.forest.path_of(state.consumer(gang))
                return Blocked((may_not_push_out(state, gang, barred),))
        if self._has_quota(gang):
            seats = state.forest.seats(gang.uid)
        found = self._room_without(gang, victims)
        if isinstance(found, Placement):
            return Start(found, seats, victims, "quota" if victims else "")
        if shrinking and (state.surplus.owners or (state.fillers and gang.uid not in state.fillers)):
            release = self._surplus_for(gang, victims)
            if release is not None:
                return Start(release.placement, seats, (*victims, *release.gangs), "quota" if victims else SURPLUS)
        wanting = state.pools.wanting(gang, state.ledger.room) if asking else None
        if tentative and (wanting is None or victims):
            state.forest.undo()
        if wanting is not None:
            return wanting  # nodes come first: until they are there, no gang has to leave for its quota
        if preempting and not self._has_quota(gang):
            return self._with_preemption(gang, found)
        return Blocked(found)

    def _has_quota(self, gang: Gang) -> bool:
        return self.state.settings.quota and gang.dialect == "mcad" and bool(self.state.forest.trees)

    def _room_without(self, gang: Gang, victims: tuple[str, ...]) -> Placement | tuple[Shortfall, ...]:
        ledger = self.state.ledger
        if not victims:
            gang_class = self.state.waiting.class_of(gang.uid)
            return find_room(gang, ledger, say_why=gang_class is None or gang_class.explanation is None)
        if gang.supply == "aggregate":
            extra: Amounts = {}
            for uid in victims:
                for resource, amount in demand_of(self.state.by_uid(uid).pod_sets).items():
                    extra[resource] = extra.get(resource, 0) + amount
            return find_room(gang, ledger, extra)
        with ledger.without(victims):
            return find_room(gang, ledger)

    def _surplus_for(self, gang: Gang, victims: tuple[str, ...]) -> Release | None:
        """The least of what elastic gangs have on top that would have to leave, were the victims gone."""
        state = self.state
        candidates = state.surplus.gangs(state)
        if gang.uid not in state.fillers:
            candidates += [state.by_uid(uid) for uid in state.fillers if state.by_uid(uid).state in RUNNING]
        with state.ledger.without(victims):
            release = smallest_release(gang, candidates, state.ledger)
        self.steps += release.steps if release is not None else 1
        return release

    def _with_preemption(self, gang: Gang, missing: tuple[Shortfall, ...]) -> Start | Blocked:
        """Lowest priority first, newest first within one; no more than are needed."""
        state = self.state
        candidates = sorted(
            (
                other
                for other in state.ledger.holders.values()
                if other.state == "admitted"
                and other.preemptable
                and gang.dialect == other.dialect == "mcad"  # between queues, quota decides which has to leave
                and state.policy.may_preempt(gang, other)
            ),
            key=lambda other: (other.priority, -other.admitted_at, -other.queued_at, other.uid),
        )
        release = smallest_release(gang, candidates, state.ledger)
        if release is None:
            return Blocked(missing)
        self.steps += release.steps
        return Start(release.placement, {}, release.gangs, "priority")


def quota_refusal(
    state: LineState, gang: Gang, consumer: Consumer, without: Iterable[str] = ()
) -> tuple[Shortfall, ...]:
    """Why quota would say no, were those `without` gone; empty where it would say yes. Changes nothing."""
    seating = state.forest.trial(consumer, without)
    if not isinstance(seating, Seating):
        return seating
    barred = state.barred(gang, seating.victims)
    return () if barred is None else (may_not_push_out(state, gang, barred),)


def may_not_push_out(state: LineState, gang: Gang, barred: Barred) -> Shortfall:
    """Said of a gang whose quota is held by one that it, or an equal ahead of it, had to make way for."""
    message = f"preempted by {state.keys[barred.holder]} earlier, which still holds the quota"
    if barred.yielder != gang.uid:
        first = state.keys[barred.yielder]
        message = f"{state.keys[barred.holder]} holds the quota; it preempted {first}, an equal gang ahead in the queue"
    return Shortfall(kind="quota", place="quota", message=message)
