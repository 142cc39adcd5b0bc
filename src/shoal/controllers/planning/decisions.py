"""Decisions between the moment they are made and the moment they are stored, for the gangs of every source.

The engine assumes its own plans. What is told about a gang meanwhile must not make it forget: the decision is laid over
what is stored until that shows it, or until it is withdrawn because it can no longer be stored. A decision that a later
plan overtakes before it was stored is kept beside that one, because its write may be under way: the writer knows, and
stores both or withdraws both.

A gang leaves the line by its first decision: an admission, or, in a queue, a reservation of quota that an admission
follows once checks and room say yes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from shoal.engine.kueue import terms_of
from shoal.engine.model import Admit, Gang, Hold, Plan, PodSetAssignment, Preempt, Reseat, Reservation, Turn

replace = msgspec.structs.replace

VICTIMS_DEADLINE = 5_000_000
"""Microseconds for which an eviction that cannot be stored holds up those it is not for."""


class Decision(Protocol):
    @property
    def uid(self) -> str: ...


D = TypeVar("D", bound=Decision)


def about(decided: Mapping[str, D], key: str, uid: str) -> D | None:
    """What was decided about this very gang: its key may have been another's before."""
    found = decided.get(key)
    return found if found is not None and found.uid == uid else None


def is_queued(gang: Gang) -> bool:
    """Does a queue reserve quota for it before it is admitted?"""
    return gang.dialect == "kueue"


class Decisions:
    """By key of the gang, and only for the UID that was judged."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        """Why a gang is in the line; in a queue, why it has no quota."""
        self._no_room: dict[str, Hold] = {}
        """Why a gang that has quota is not started."""
        self._reservations: dict[str, Reservation] = {}
        self._places: dict[str, Reservation] = {}
        """Other places in a topology for gangs that have quota."""
        self._turns: dict[str, Turn] = {}
        """Gangs that were started by backfill, and whose turn has come."""
        self._admits: dict[str, Admit] = {}
        self._preempts: dict[str, Preempt] = {}
        self._reseats: dict[str, Reseat] = {}
        self._placed: dict[str, tuple[PodSetAssignment, ...]] = {}
        """Where the pods of an admitted gang of a queue were planned, by UID; not stored, so lost in a restart."""
        self._stored: dict[str, Gang] = {}
        """Gangs as they are stored, without what is only decided."""
        self._judged: dict[str, object] = {}
        """What a gang's first decision was made on."""
        self._refused: dict[str, tuple[object, int]] = {}
        """What a reservation that the server would not store was decided on, and until when it is not tried."""
        self._in_doubt: set[str] = set()
        """Keys of gangs of which a write had no answer, and none got through since."""
        self._decided: dict[str, int] = {}
        """When a gang's pending admission or eviction was decided."""
        self.stored = 0
        """How many reservations were stored so far."""

    @property
    def unstored(self) -> int:
        """How many gangs at least were given quota, or a start, which is on its way to the API server: most that are
        given quota are given both."""
        return max(len(self._admits), len(self._reservations))

    # --- facts

    def settle(self, gang: Gang) -> None:
        """This is stored: forget the decisions that it shows, or that it has overtaken."""
        self._stored[gang.key] = gang
        (self._settle_queued if is_queued(gang) else self._settle_plain)(gang)
        if gang.state == "finished" and is_queued(gang):
            self.forget(gang.key, gang.uid)

    def _settle_plain(self, gang: Gang) -> None:
        key, waits = gang.key, gang.state == "waiting"
        if not waits or gang.problem or self._judged.get(key) != _shape(gang):
            self._withdraw_admission(key)
        if not waits:
            self.holds.pop(key, None)
            self._in_doubt.discard(key)
        if gang.state != "admitted" and key not in self._admits:
            self._preempts.pop(key, None)
            self._reseats.pop(key, None)  # else it moved before its admission is stored, and must be told there
        reseat = self._reseats.get(key)
        if reseat is not None and reseat.seats == gang.seats:
            del self._reseats[key]

    def _settle_queued(self, gang: Gang) -> None:
        key, waits = gang.key, gang.state == "waiting"
        if key in self._reservations and (not waits or self._judged.get(key) != _shape(gang)):
            self._reservations.pop(key)
            self.stored += not waits
            if waits:
                self._admits.pop(key, None)  # decided on what is not so any more
        if key in self._places and (
            gang.state not in ("reserved", "admitted") or self._places[key].assignment == gang.assignment
        ):
            del self._places[key]
        if key in self._turns and not terms_of(gang).backfilled and key not in self._reservations:
            del self._turns[key]
        if gang.state not in ("reserved", "waiting") or (waits and key not in self._reservations):
            self._admits.pop(key, None)
        if gang.state == "reserved" and not gang.checks_done:
            self._admits.pop(key, None)
        if gang.state not in ("reserved", "admitted") and key not in self._reservations:
            self._preempts.pop(key, None)
        if not waits:
            self.holds.pop(key, None)
        if key in self._refused and (not waits or self._refused[key][0] != _shape(gang)):
            del self._refused[key]
        if gang.state != "reserved" and key not in self._reservations:
            self._no_room.pop(key, None)
        if gang.state in ("waiting", "finished", "held") and key not in self._admits:
            self._placed.pop(gang.uid, None)

    def assumed(self, gang: Gang) -> Gang:
        """The gang as it will be once everything that is decided is stored."""
        return self._assumed_queued(gang) if is_queued(gang) else self._assumed_plain(gang)

    def _assumed_plain(self, gang: Gang) -> Gang:
        key, uid = gang.key, gang.uid
        admit, preempt, reseat = self.admit(key, uid), self.preempt(key, uid), self.reseat(key, uid)
        if admit is not None:
            gang = replace(gang, state="admitted", seats=admit.seats, assignment=admit.assignment, stopping_for="")
        if reseat is not None:
            gang = replace(gang, seats=reseat.seats)
        if preempt is not None:
            gang = replace(gang, state="stopping", stopping_for=preempt.preemptor_uid)
        return gang

    def _assumed_queued(self, gang: Gang) -> Gang:
        key, uid = gang.key, gang.uid
        reservation, admit, preempt = self.reservation(key, uid), self.admit(key, uid), self.preempt(key, uid)
        if reservation is not None and gang.state == "waiting":
            terms = replace(
                terms_of(gang), cluster_queue=reservation.queue, evicted_at=None, backfilled=reservation.backfilled
            )
            gang = replace(
                gang,
                state="reserved",
                assignment=reservation.assignment,
                stopping_for="",
                details={**gang.details, "kueue": terms},
            )
        elif key in self._refused and gang.state == "waiting":
            terms = terms_of(gang)
            later = replace(terms, requeue_at=max(terms.requeue_at, self._refused[key][1]))
            gang = replace(gang, details={**gang.details, "kueue": later})
        if key in self._turns and self.turn(key, uid) is not None and terms_of(gang).backfilled:
            gang = replace(gang, details={**gang.details, "kueue": replace(terms_of(gang), backfilled=False)})
        places = self.places(key, uid)
        if places is not None and gang.state in ("reserved", "admitted"):
            terms = replace(terms_of(gang), unhealthy_nodes=(), awaits_places=False)
            gang = replace(gang, assignment=places.assignment, details={**gang.details, "kueue": terms})
        if admit is not None and gang.state == "reserved":
            gang = replace(gang, state="admitted")
        if gang.state in ("admitted", "stopping") and uid in self._placed:
            gang = replace(gang, assignment=_with_nodes(gang.assignment, self._placed[uid]))
        if preempt is not None and gang.state in ("reserved", "admitted"):
            state = "stopping" if gang.state == "admitted" else "reserved"  # either way its quota is taken until then
            gang = replace(gang, state=state, stopping_for=preempt.preemptor_uid)
        return gang

    def forget(self, key: str, uid: str) -> None:
        """The gang is gone."""
        for book in (
            self.holds, self._no_room, self._reservations, self._places, self._admits, self._preempts, self._reseats,
            self._turns, self._stored, self._judged, self._refused, self._decided,
        ):  # fmt: skip
            book.pop(key, None)
        self._placed.pop(uid, None)
        self._in_doubt.discard(key)

    # --- plans

    def planned(self, plan: Plan, now: int) -> list[str]:
        """Take over a plan; returns the keys of the gangs that it says something about."""
        touched: dict[str, None] = {}
        for reservation in plan.reservations:
            self._reservations[reservation.gang] = reservation
            self._leaves_line(reservation.gang)
        for moved in plan.places:
            self._places[moved.gang] = moved
        for turn in plan.turns:
            self._turns[turn.gang] = turn
        for admit in plan.admits:
            self._admits[admit.gang] = admit
            if self._is_queued(admit.gang):
                self._placed[admit.uid] = admit.assignment
                self._no_room.pop(admit.gang, None)
            else:
                self._decided[admit.gang] = now
                self._leaves_line(admit.gang)
        for preempt in plan.preempts:
            self._preempts[preempt.gang] = preempt
            if self._is_queued(preempt.gang):
                self._admits.pop(preempt.gang, None)
            else:
                self._decided[preempt.gang] = now
        for hold in plan.holds:
            (self._no_room if self._is_queued(hold.gang) and not hold.term else self.holds)[hold.gang] = hold
        for reseat in plan.reseats:
            self._reseats[reseat.gang] = reseat
            pending = self.admit(reseat.gang, reseat.uid)
            if pending is not None:
                self._admits[reseat.gang] = replace(pending, seats=reseat.seats)
        for part in (
            plan.reservations, plan.places, plan.admits, plan.preempts, plan.holds, plan.reseats, plan.turns,
        ):  # fmt: skip
            touched.update(dict.fromkeys(one.gang for one in part))
        return list(touched)

    def _leaves_line(self, key: str) -> None:
        gang = self._stored.get(key)
        self._judged[key] = _shape(gang) if gang is not None else None
        self.holds.pop(key, None)
        self._preempts.pop(key, None)

    def _is_queued(self, key: str) -> bool:
        gang = self._stored.get(key)
        return gang is not None and is_queued(gang)

    # --- reading

    def reservation(self, key: str, uid: str) -> Reservation | None:
        return about(self._reservations, key, uid)

    def places(self, key: str, uid: str) -> Reservation | None:
        return about(self._places, key, uid)

    def turn(self, key: str, uid: str) -> Turn | None:
        return about(self._turns, key, uid)

    def admit(self, key: str, uid: str) -> Admit | None:
        return about(self._admits, key, uid)

    def preempt(self, key: str, uid: str) -> Preempt | None:
        return about(self._preempts, key, uid)

    def reseat(self, key: str, uid: str) -> Reseat | None:
        return about(self._reseats, key, uid)

    def hold(self, key: str, uid: str) -> Hold | None:
        return about(self.holds, key, uid)

    def no_room(self, key: str, uid: str) -> Hold | None:
        return about(self._no_room, key, uid)

    @property
    def admitting(self) -> list[str]:
        """Keys of gangs whose admission is decided and not stored yet."""
        return list(self._admits)

    def is_clearing(self, key: str, uid: str, now: int, *, quota: bool) -> bool:
        """Must the admission of this gang wait until an eviction is stored?

        The victims of its own, always; under `quota` every other that was decided with it or before, for a while: the
        quota it was given may be theirs (room is not: victims hold it until their pods are gone). A controller that
        restarts in between must find the victims gone, never both.
        """
        decided = self._decided.get(key, 0) if quota else -1
        return any(
            one.preemptor_uid == uid
            or (self._decided.get(victim, 0) <= decided and now < self._decided.get(victim, 0) + VICTIMS_DEADLINE)
            for victim, one in self._preempts.items()
            if victim != key and not self._is_queued(victim)
        )

    def is_overtaken(self, key: str, uid: str) -> bool:
        """Was it to start, and to stop again, before anything of that was stored, or can have been?"""
        first = self.reservation(key, uid) if self._is_queued(key) else self.admit(key, uid)
        return first is not None and self.preempt(key, uid) is not None and key not in self._in_doubt

    # --- what became of a write

    def doubt(self, key: str) -> None:
        """A write had no answer."""
        self._in_doubt.add(key)

    def believe(self, key: str) -> None:
        """A write got through."""
        self._in_doubt.discard(key)

    def withdraw(self, key: str) -> None:
        """What was decided cannot be stored and certainly was not: the caller tells what is stored now."""
        self._withdraw_admission(key)
        if self._is_queued(key):
            self._reservations.pop(key, None)
            self._turns.pop(key, None)
            self._preempts.pop(key, None)

    def call_off(self, key: str) -> None:
        """An overtaken start: neither it nor the stop happens. The caller tells what is stored now."""
        self.withdraw(key)
        self._preempts.pop(key, None)

    def refuse(self, key: str, until: int) -> None:
        """The server will not store its reservation: others go first, and it is tried again later. The caller tells."""
        self._refused[key] = (self._judged.get(key), until)
        self.withdraw(key)

    def restate(self, hold: Hold) -> bool:
        """Take over newer words for why a gang has no quota, or no room (without a term); False where they are no news,
        or it gets what it waits for."""
        book, given = (self.holds, self._reservations) if hold.term else (self._no_room, self._admits)
        if hold.gang in given or about(book, hold.gang, hold.uid) == hold:
            return False
        book[hold.gang] = hold
        return True

    def _withdraw_admission(self, key: str) -> None:
        self._admits.pop(key, None)
        if not self._is_queued(key):
            self._judged.pop(key, None)


def _shape(gang: Gang) -> object:
    """What a gang's first decision was made on."""
    if not is_queued(gang):
        return gang.pod_sets
    asked = tuple((one.name, one.count, one.requests) for one in gang.pod_sets)
    return gang.uid, gang.queue, gang.priority, asked


def _with_nodes(
    stored: tuple[PodSetAssignment, ...], placed: tuple[PodSetAssignment, ...]
) -> tuple[PodSetAssignment, ...]:
    nodes = {one.name: one.nodes for one in placed}
    return tuple(replace(one, nodes=nodes.get(one.name, {})) for one in stored) if stored else placed
