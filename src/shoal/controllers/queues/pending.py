"""Decisions between the moment they are made and the moment they are stored.

The engine assumes its own plans. Whatever is told about a gang meanwhile must not make it forget: the decision is laid
over what is stored until that shows it, or until it is withdrawn because it can no longer be stored. No decision stays
here that no write will end. One that is overtaken by a later plan before it was stored is kept with that one, because
its write may be under way: the writer knows, and stores both or withdraws both.
"""

from __future__ import annotations

import msgspec

from shoal.controllers.decisions import about
from shoal.engine.kueue import terms_of
from shoal.engine.model import Admit, Gang, Hold, Plan, PodSetAssignment, Preempt, Reservation

replace = msgspec.structs.replace


class Pending:
    """By key of the gang, and only for the UID that was judged."""

    def __init__(self) -> None:
        self._reservations: dict[str, Reservation] = {}
        self._admits: dict[str, Admit] = {}
        self._preempts: dict[str, Preempt] = {}
        self._holds: dict[str, Hold] = {}
        """Why a gang has no quota."""
        self._no_room: dict[str, Hold] = {}
        """Why a gang that has quota is not started."""
        self._placed: dict[str, tuple[PodSetAssignment, ...]] = {}
        """Where the pods of an admitted gang were planned, by UID; not stored, so lost in a restart."""
        self._judged: dict[str, object] = {}
        self._refused: dict[str, tuple[object, int]] = {}
        """By key: what a reservation that the server would not store was decided on, and until when it is not tried."""

    def planned(self, plan: Plan, gang_of: dict[str, Gang]) -> list[str]:
        """Take over a plan; returns the keys of gangs it says something about."""
        touched: dict[str, None] = {}
        for reservation in (one for one in plan.reservations if one.gang in gang_of):
            self._reservations[reservation.gang] = reservation
            self._judged[reservation.gang] = _shape(gang_of.get(reservation.gang))
            self._holds.pop(reservation.gang, None)
            self._preempts.pop(reservation.gang, None)
            touched[reservation.gang] = None
        for admit in plan.admits:
            if admit.gang in gang_of:
                self._admits[admit.gang] = admit
                self._placed[admit.uid] = admit.assignment
                self._no_room.pop(admit.gang, None)
                touched[admit.gang] = None
        for preempt in plan.preempts:
            if preempt.gang in gang_of:
                self._preempts[preempt.gang] = preempt
                self._admits.pop(preempt.gang, None)
                touched[preempt.gang] = None
        for hold in plan.holds:
            if hold.gang in gang_of:
                (self._holds if hold.term else self._no_room)[hold.gang] = hold
                touched[hold.gang] = None
        return list(touched)

    def settle(self, gang: Gang) -> None:
        """Forget what is stored, or what the facts have overtaken."""
        key = gang.key
        reservation = self._reservations.get(key)
        if reservation is not None and (gang.state != "waiting" or self._judged.get(key) != _shape(gang)):
            self._reservations.pop(key)
            if gang.state == "waiting":
                self._admits.pop(key, None)  # decided on what is not so any more
        if gang.state not in ("reserved", "waiting") or (gang.state == "waiting" and key not in self._reservations):
            self._admits.pop(key, None)
        if gang.state == "reserved" and not gang.checks_done:
            self._admits.pop(key, None)
        if gang.state not in ("reserved", "admitted") and key not in self._reservations:
            self._preempts.pop(key, None)
        if gang.state != "waiting":
            self._holds.pop(key, None)
        if key in self._refused and (gang.state != "waiting" or self._refused[key][0] != _shape(gang)):
            del self._refused[key]
        if gang.state != "reserved" and key not in self._reservations:
            self._no_room.pop(key, None)
        if gang.state in ("waiting", "finished", "held") and key not in self._admits:
            self._placed.pop(gang.uid, None)

    def assumed(self, gang: Gang) -> Gang:
        """The gang as it will be once everything that is decided is stored."""
        key, uid = gang.key, gang.uid
        reservation, admit, preempt = self.reservation(key, uid), self.admit(key, uid), self.preempt(key, uid)
        if reservation is not None and gang.state == "waiting":
            terms = replace(terms_of(gang), cluster_queue=reservation.queue, evicted_at=None)
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
        if admit is not None and gang.state == "reserved":
            gang = replace(gang, state="admitted")
        if gang.state in ("admitted", "stopping") and uid in self._placed:
            gang = replace(gang, assignment=_with_nodes(gang.assignment, self._placed[uid]))
        if preempt is not None and gang.state in ("reserved", "admitted"):
            state = "stopping" if gang.state == "admitted" else "reserved"  # either way its quota is taken until then
            gang = replace(gang, state=state, stopping_for=preempt.preemptor_uid)
        return gang

    def forget(self, key: str, uid: str) -> None:
        for book in (self._reservations, self._admits, self._preempts, self._holds, self._no_room, self._judged):
            book.pop(key, None)
        self._refused.pop(key, None)
        self._placed.pop(uid, None)

    def withdraw(self, key: str) -> None:
        """What was decided cannot be stored; the caller tells the facts again."""
        for book in (self._reservations, self._admits, self._preempts):
            book.pop(key, None)

    def refuse(self, key: str, until: int) -> None:
        """The server will not store its reservation: others go first, and it is tried again later. The caller tells."""
        self._refused[key] = (self._judged.get(key), until)
        self.withdraw(key)

    def is_overtaken(self, key: str, uid: str) -> bool:
        """Was it given quota, and told to leave again, before anything of that was stored?"""
        return self.reservation(key, uid) is not None and self.preempt(key, uid) is not None

    def reservation(self, key: str, uid: str) -> Reservation | None:
        return about(self._reservations, key, uid)

    def admit(self, key: str, uid: str) -> Admit | None:
        return about(self._admits, key, uid)

    def preempt(self, key: str, uid: str) -> Preempt | None:
        return about(self._preempts, key, uid)

    def hold(self, key: str, uid: str) -> Hold | None:
        return about(self._holds, key, uid)

    def restate(self, hold: Hold) -> bool:
        """Take over newer words for why a gang has no quota, or no room (without a term); False where they are no news,
        or it gets what it waits for."""
        book, given = (self._holds, self._reservations) if hold.term else (self._no_room, self._admits)
        if hold.gang in given or about(book, hold.gang, hold.uid) == hold:
            return False
        book[hold.gang] = hold
        return True

    def no_room(self, key: str, uid: str) -> Hold | None:
        return about(self._no_room, key, uid)


def _shape(gang: Gang | None) -> object:
    """What a reservation was decided on."""
    if gang is None:
        return None
    asked = tuple((one.name, one.count, one.requests) for one in gang.pod_sets)
    return gang.uid, gang.queue, gang.priority, asked


def _with_nodes(
    stored: tuple[PodSetAssignment, ...], placed: tuple[PodSetAssignment, ...]
) -> tuple[PodSetAssignment, ...]:
    nodes = {one.name: one.nodes for one in placed}
    return tuple(replace(one, nodes=nodes.get(one.name, {})) for one in stored) if stored else placed
