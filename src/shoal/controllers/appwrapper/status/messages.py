"""What a waiting AppWrapper tells its owner, without a storm of writes.

The literal condition is written once; the reason beside it (`status.message` for people, `status.explanation` as data:
what is short, and where) follows when it changes. A plan does not speak again of those it knows cannot start, so after
a plan all waiting gangs are gone through, equal ones at the price of one. Positions, holders and what would help are
not stored: they change with every arrival, and are answered when asked for (`controllers/planning/questions`).
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus
from shoal.api.kind import Kind
from shoal.controllers.appwrapper.context import WrapperContext
from shoal.controllers.appwrapper.status import explain
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.v1beta2 import status as component_status
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.naming import is_same_cause
from shoal.controllers.planning.words import why_waiting
from shoal.engine.model import Explanation, Hold

EVENTS_PER_SECOND = 5.0
EVENTS_AT_ONCE = 50.0
FIRST = 0.5
"""Seconds after a change until the first look: what changes together is looked at once."""
PER_GANG = 0.003
"""Seconds between two rounds, for every gang that waits: 1.5 s for 500, 15 s for 5,000."""
MANY = 5_000
"""Where more than so many wait and things keep changing, other amounts alone are told only once it is calm."""
CHUNK = 100
"""So many are looked at before others get a turn."""
BY_LOOKING = ("resources", "quota")
"""Holds whose reason can be found out again; the others say what they wait for."""

replace = msgspec.structs.replace


class Newer(msgspec.Struct, frozen=True):
    said: Explanation
    """What the plan had said."""
    found: Explanation
    """What was found out since."""


class MessageRate:
    """So many at once, and so many per second after that."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self.left = most
        self._at = now

    def take(self, now: float) -> bool:
        self.left = min(self._most, self.left + (now - self._at) * self._rate)
        self._at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Messages:
    def __init__(self, context: WrapperContext) -> None:
        self.context = context
        self._events = MessageRate(EVENTS_PER_SECOND, EVENTS_AT_ONCE, context.clock.monotonic())
        self._newer: dict[str, Newer] = {}
        """By UID of a gang."""
        self._changed = asyncio.Event()

    async def publish(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """The status of one that waits: first sight, then why."""
        context = self.context
        status = wrapper.status
        if not status.queue_job_state:
            status = statuses.first_seen(status, wrapper.spec.priority, context.clock.now)
        hold = context.decisions.hold(gang_key(wrapper), wrapper.metadata.uid)
        if hold is None:
            await context.store.status(kind, wrapper, status)
            return None
        quota = self._in_quota_mode(hold)
        destinations = context.intake.destinations
        nowhere = destinations is not None and wrapper.metadata.uid in destinations.nowhere
        if not _says(status, quota, nowhere):
            status = self._backed_off(self.explained(wrapper, status, hold), quota, nowhere)
            stored = await context.store.status(kind, wrapper, status)
            if not statuses.was_told(wrapper.status):
                self._announce(stored)
        elif self.is_stale(wrapper, hold):
            await context.store.status(kind, wrapper, self.explained(wrapper, status, hold))
        return None

    async def publish_held(self, kind: Kind, wrapper: AppWrapper, hold: Hold) -> None:
        """The same for a v1beta2 AppWrapper, which has a condition of its own for it."""
        context, status = self.context, wrapper.status
        if not component_status.is_waiting(status):
            waiting = component_status.waiting(self.explained(wrapper, status, hold), context.clock.now())
            self._announce(await context.store.status(kind, wrapper, waiting))
        elif self.is_stale(wrapper, hold):
            await context.store.status(kind, wrapper, self.explained(wrapper, status, hold))

    def explained(self, wrapper: AppWrapper, status: AppWrapperStatus, hold: Hold) -> AppWrapperStatus:
        """The status with the newest reason: for people, and as data."""
        found, now = self.reason(hold), self.context.clock.now()
        stored = replace(self._told(wrapper, found), at=now, asked=explain.question(wrapper))
        status = statuses.ranked(status, self.context.facts.priority(wrapper, now))
        message = why_waiting(found, wrapper.metadata.namespace, self.context.planning.known_as)
        return replace(status, message=message, explanation=explain.write(stored))

    def is_stale(self, wrapper: AppWrapper, hold: Hold) -> bool:
        """Would the reason read otherwise now?"""
        found = self.reason(hold)
        stored = explain.read(wrapper.status.explanation)
        if stored is None:  # a definition of another release may not keep it
            known_as = self.context.planning.known_as
            return wrapper.status.message != why_waiting(found, wrapper.metadata.namespace, known_as)
        if not self.context.facts.ages and wrapper.status.system_priority != wrapper.spec.priority:
            return True
        return stored.asked != explain.question(wrapper) or replace(stored, at=0, asked="") != self._told(
            wrapper, found
        )

    def reason(self, hold: Hold) -> Explanation:
        """Why it waits: what was found out since the plan said it, or that."""
        newer = self._newer.get(hold.uid)
        return newer.found if newer is not None and newer.said == hold.explanation else hold.explanation

    def _told(self, wrapper: AppWrapper, found: Explanation) -> explain.StoredExplanation:
        plain = Explanation(message=found.message, shortfalls=found.shortfalls, place=found.place)
        return explain.told(
            plain, wrapper.metadata.namespace, self._uid_of, self.context.planning.known_as, in_full=False
        )

    def _announce(self, wrapper: AppWrapper) -> None:
        """An event, for users that watch events; where very many come to wait at once their statuses must do."""
        if self._events.take(self.context.clock.monotonic()):
            self.context.tell_people(wrapper, "Normal", "Waiting", wrapper.status.message)

    def _uid_of(self, key: str) -> str:
        gang = self.context.planning.engine.gang(key)
        return gang.uid if gang is not None else ""

    def changed(self) -> None:
        """A plan was made."""
        self._changed.set()

    async def keep_true(self) -> None:
        """After every change, find out again why gangs wait, and look at those whose reason reads otherwise."""
        clock, turn = self.context.clock, -1
        while True:
            await self._changed.wait()
            self._changed.clear()
            if turn == self.context.planning.turn:
                continue  # nothing was told since the last round
            await clock.sleep(FIRST)
            ours = self.context.intake.addresses
            waiting = [hold for hold in self.context.decisions.holds.values() if hold.gang in ours]
            sparing = self._changed.is_set() and len(waiting) > MANY
            self._changed.clear()
            turn = self.context.planning.turn
            uids = {hold.uid for hold in waiting}
            self._newer = {uid: newer for uid, newer in self._newer.items() if uid in uids}
            await self._go_through(waiting, sparing)
            if sparing:
                turn = -1  # what was left out is told in a later round
                self._changed.set()
            await clock.sleep(PER_GANG * len(waiting))

    async def _go_through(self, waiting: list[Hold], sparing: bool) -> None:
        decisions, known = self.context.decisions, dict[object, Explanation]()
        turn = self.context.planning.turn
        for number, hold in enumerate(waiting, 1):
            if number % CHUNK == 0:
                await asyncio.sleep(0)
                if turn != self.context.planning.turn:
                    turn, known = self.context.planning.turn, {}
            hold = decisions.holds.get(hold.gang, hold)
            found = self.context.planning.engine.room_reason(hold.gang, known) if hold.reason in BY_LOOKING else None
            if found is None or found == self.reason(hold):
                continue
            if sparing and is_same_cause(found.message, self.reason(hold).message):
                continue
            self._newer[hold.uid] = Newer(hold.explanation, found)
            address = self.context.intake.addresses.get(hold.gang)
            if address is not None:
                self.context.intake.refresh(address)

    def _in_quota_mode(self, hold: Hold) -> bool:
        """As MCAD: where quota is in force, a back-off is worded as one of quota and resources together."""
        if hold.reason == "bad-fact":
            return False
        return self.context.settings.quota == "always" or bool(self.context.planning.engine.trees)

    def _backed_off(self, status: AppWrapperStatus, quota: bool, nowhere: bool) -> AppWrapperStatus:
        now, sender = self.context.clock.now, self.context.settings.backoff_sender
        headed = statuses.head_of_line(status, now)
        return statuses.backed_off(headed, now, sender=sender, quota=quota, nowhere=nowhere)


def _says(status: AppWrapperStatus, quota: bool, nowhere: bool) -> bool:
    """True when the stored status already tells of a back-off of this sort."""
    if status.queue_job_state != "Backoff":
        return False
    wanted = statuses.QUOTA_EXCEEDED if quota else statuses.NOT_RUNNABLE
    backoffs = [one for one in status.conditions or () if one.type == "Backoff"]
    newest = max(backoffs, key=lambda one: one.last_update_micro_time or "", default=None)
    told = newest is not None and newest.reason == wanted
    return told and newest is not None and (quota or nowhere == (newest.message == statuses.NO_CLUSTER))
