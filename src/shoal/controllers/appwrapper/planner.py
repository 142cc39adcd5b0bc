"""Decisions between the moment they are made and the moment they are stored.

The engine assumes its own plans; whatever is told about a gang meanwhile must not make it forget. A decision stays
pending here until the stored status shows it, or until it is withdrawn because it could not be stored. An eviction that
overtakes an admission which is not stored yet stands beside it, because that write may be under way: the writer
knows, and calls both off or stores both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from shoal.controllers.decisions import about
from shoal.engine import Engine
from shoal.engine.model import Admit, Gang, Hold, Plan, PodSet, Preempt, Reseat

log = logging.getLogger(__name__)
replace = msgspec.structs.replace

VICTIMS_DEADLINE = 5_000_000
"""Microseconds for which an eviction that cannot be stored holds up those it is not for."""


class Planner:
    """One engine and the decisions that are on their way into the API server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.holds: dict[str, Hold] = {}
        self._admits: dict[str, Admit] = {}
        self._judged: dict[str, tuple[PodSet, ...]] = {}
        """The demand that a pending admission was decided on."""
        self._preempts: dict[str, Preempt] = {}
        self._reseats: dict[str, Reseat] = {}
        self._in_doubt: set[str] = set()
        """Keys of gangs whose admission was written without an answer."""
        self._decided: dict[str, int] = {}
        """When a gang's pending admission or eviction was decided."""
        self._warned: frozenset[str] = frozenset()
        self.overlay: Callable[[Gang], Gang] = lambda gang: gang
        """Adds what is known of a gang beside its object, as nodes that were asked for on its behalf."""

    # --- facts

    def tell(self, gang: Gang) -> None:
        """What is stored; a decision about this very gang that is being written stays in force until then."""
        self._settle(gang)
        self.engine.update(self._assumed(self.overlay(gang)))

    def forget(self, key: str) -> None:
        self.engine.remove(key)
        for pending in (self.holds, self._admits, self._judged, self._preempts, self._reseats, self._decided):
            pending.pop(key, None)
        self._in_doubt.discard(key)

    def _settle(self, gang: Gang) -> None:
        """Forget decisions that are stored, or that what is stored has overtaken."""
        if gang.state != "waiting" or gang.problem or self._judged.get(gang.key) != gang.pod_sets:
            self.withdraw(gang.key)
        if gang.state != "waiting":
            self.holds.pop(gang.key, None)
        if gang.state != "waiting":
            self._in_doubt.discard(gang.key)
        if gang.state != "admitted" and gang.key not in self._admits:
            self._preempts.pop(gang.key, None)
            self._reseats.pop(gang.key, None)  # else it moved before its admission is stored, and must be told there
        reseat = self._reseats.get(gang.key)
        if reseat is not None and reseat.seats == gang.seats:
            del self._reseats[gang.key]

    def _assumed(self, gang: Gang) -> Gang:
        key, uid = gang.key, gang.uid
        admit, preempt, reseat = self.admit(key, uid), self.preempt(key, uid), self.reseat(key, uid)
        if admit is not None:
            gang = replace(gang, state="admitted", seats=admit.seats, assignment=admit.assignment, stopping_for="")
        if reseat is not None:
            gang = replace(gang, seats=reseat.seats)
        if preempt is not None:
            gang = replace(gang, state="stopping", stopping_for=preempt.preemptor_uid)
        return gang

    # --- plans

    def plan(self, now: int) -> Plan:
        plan = self.engine.plan(now)
        for warning in plan.warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        self._warned = frozenset(plan.warnings)
        for admit in filter(self._is_ours, plan.admits):
            judged = self.engine.gang(admit.gang)
            self._admits[admit.gang] = admit
            self._preempts.pop(admit.gang, None)
            self._decided[admit.gang] = now
            self._judged[admit.gang] = judged.pod_sets if judged is not None else ()
            self.holds.pop(admit.gang, None)
        for preempt in filter(self._is_ours, plan.preempts):
            self._preempts[preempt.gang] = preempt
            self._decided[preempt.gang] = now
        for hold in filter(self._is_ours, plan.holds):
            self.holds[hold.gang] = hold
        for reseat in plan.reseats:
            self._reseats[reseat.gang] = reseat
            pending = self.admit(reseat.gang, reseat.uid)
            if pending is not None:
                self._admits[reseat.gang] = replace(pending, seats=reseat.seats)
        return plan

    def _is_ours(self, decision: Admit | Preempt | Hold) -> bool:
        """Gangs of other dialects are carried out elsewhere."""
        gang = self.engine.gang(decision.gang)
        return gang is None or gang.dialect == "mcad"

    def admit(self, key: str, uid: str) -> Admit | None:
        return about(self._admits, key, uid)

    def preempt(self, key: str, uid: str) -> Preempt | None:
        return about(self._preempts, key, uid)

    def is_clearing(self, key: str, uid: str, now: int) -> bool:
        """Must the admission of this gang wait until an eviction is stored?

        The victims of its own, always; under quota anyone's that was decided with it or before, for a while: the quota
        it was given may be theirs (room is not: victims hold it until their pods are gone). Whoever restarts in between
        must find the victims gone, never both.
        """
        decided = self._decided.get(key, 0) if self.engine.trees else -1
        return any(
            one.preemptor_uid == uid
            or (self._decided.get(victim, 0) <= decided and now < self._decided.get(victim, 0) + VICTIMS_DEADLINE)
            for victim, one in self._preempts.items()
            if victim != key
        )

    @property
    def admitting(self) -> list[str]:
        """Keys of gangs whose admission is decided and not stored yet."""
        return list(self._admits)

    def reseat(self, key: str, uid: str) -> Reseat | None:
        return about(self._reseats, key, uid)

    def hold(self, key: str, uid: str) -> Hold | None:
        return about(self.holds, key, uid)

    def doubt(self, key: str) -> None:
        """The admission was written, and no answer came."""
        self._in_doubt.add(key)

    def call_off(self, key: str, uid: str) -> bool:
        """It waits as far as is stored, and was to start and to stop again: neither happens, unless the first may have
        been stored unseen. True: the caller tells what is stored now."""
        if self.admit(key, uid) is None or self.preempt(key, uid) is None or key in self._in_doubt:
            return False
        self.withdraw(key)
        del self._preempts[key]
        return True

    def withdraw(self, key: str) -> None:
        """The admission could not be stored and certainly was not: the caller tells what is stored now."""
        self._admits.pop(key, None)
        self._judged.pop(key, None)
