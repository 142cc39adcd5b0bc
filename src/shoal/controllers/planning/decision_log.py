"""What becomes of a decision, for the log and for Prometheus: decided, stored, or withdrawn, under one id.

The planning loop tells it of plans and of what is stored. A gang has one decision on its way at a time; a later one
takes its place. Nothing here decides, and nothing is kept for a restart: what the next leader finds stored was decided.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator

import msgspec

from shoal.controllers.planning.spread import Spread
from shoal.engine.model import Gang, Plan
from shoal.kube import tracing

log = logging.getLogger(__name__)

BOUNDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
ERROR_BOUNDS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
MOST_PROMISES = 10_000
SECOND = 1_000_000
STORED = {
    "reserved": ("reserved", "admitted", "finished"),
    "admitted": ("admitted", "finished"),
    "preempted": ("stopping", "waiting", "held", "finished"),
}
"""By what was decided: the states of a stored gang that show it."""
HOLDING = ("reserved", "admitted", "stopping")


class OpenDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    uid: str
    id: str
    verb: str
    at: float
    """On the clock that only goes forward."""
    since: float | None
    """When the room or quota was given back that this start uses; None where nothing was."""


class DecisionLog:
    def __init__(self) -> None:
        self.store = Spread(BOUNDS)
        """From a decision until the watch shows it stored."""
        self.hand_over = Spread(BOUNDS)
        """From the end of a gang until the start of the next is stored."""
        self.estimate_error = Spread(ERROR_BOUNDS)
        """Between the first estimate of a start that was told and the start, whichever came first."""
        self._promised: dict[str, int] = {}
        """By UID: the moment that was told."""
        self._open: dict[str, OpenDecision] = {}
        self._freed: float | None = None

    def decided(self, plan: Plan, now: int, at: float) -> None:
        for verb, gang, uid, why in _verbs(plan):
            id = decision_id(uid, now)
            since = self._freed if verb != "preempted" else None
            self._open[gang] = OpenDecision(uid=uid, id=id, verb=verb, at=at, since=since)
            log.info("%s is to be %s%s", gang, verb, why, extra=_about(gang, uid, id))
        if plan.admits or plan.reservations:
            self._freed = None

    def promised(self, uid: str, at: int) -> None:
        """A user was told that the gang starts from this moment on."""
        if len(self._promised) < MOST_PROMISES:
            self._promised.setdefault(uid, at)

    def told(self, gang: Gang, before: Gang | None, at: float) -> None:
        """What is stored of a gang; `before`: as the engine knew it."""
        if before is not None and before.state in HOLDING and gang.state not in HOLDING:
            self._freed = at
        if gang.state == "admitted" and gang.uid in self._promised:
            self.estimate_error.add(abs(gang.admitted_at - self._promised.pop(gang.uid)) / SECOND)
        found = self._open.get(gang.key)
        if found is None or found.uid != gang.uid or gang.state not in STORED[found.verb]:
            return
        del self._open[gang.key]
        self.store.add(at - found.at)
        about = {"shoal.object": gang.key, "shoal.uid": gang.uid, "shoal.decision": found.id}
        tracing.past(f"decision: {found.verb}", at - found.at, lambda: about)
        if found.since is not None:
            self.hand_over.add(at - found.since)
        log.info("%s is %s: stored", gang.key, found.verb, extra=_about(gang.key, gang.uid, found.id))

    def withdrawn(self, gang: str) -> None:
        """It cannot be stored as it was decided."""
        found = self._open.pop(gang, None)
        if found is not None:
            extra = _about(gang, found.uid, found.id)
            log.info("%s was to be %s: withdrawn, it could not be stored", gang, found.verb, extra=extra)

    def gone(self, gang: str, uid: str, held: bool, at: float) -> None:
        """The gang is deleted; `held`: it had room or quota."""
        self._open.pop(gang, None)
        self._promised.pop(uid, None)
        if held:
            self._freed = at


def decision_id(uid: str, now: int) -> str:
    """One for all that a plan decides about a gang."""
    return hashlib.blake2s(f"{uid} {now}".encode(), digest_size=6).hexdigest()


def _verbs(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """What is decided of each gang; of one that gets its quota and starts at once only the start is told."""
    starts = {admit.gang for admit in plan.admits}
    queues: dict[str, str] = {}
    for reservation in plan.reservations:
        queues[reservation.gang] = where = f" in ClusterQueue {reservation.queue}"
        if reservation.gang not in starts:
            yield "reserved", reservation.gang, reservation.uid, where
    for admit in plan.admits:
        yield "admitted", admit.gang, admit.uid, queues.get(admit.gang, "")
    for preempt in plan.preempts:
        yield "preempted", preempt.gang, preempt.uid, f" for {preempt.preemptor}" if preempt.preemptor else ""


def _about(gang: str, uid: str, id: str) -> dict[str, str]:
    return {"object": gang, "uid": uid, "decision": id}
