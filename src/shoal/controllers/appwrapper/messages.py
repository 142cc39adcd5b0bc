"""What a waiting AppWrapper tells its owner, without a storm of writes.

The literal condition is written once; the explanation beside it (`status.message` for people, `status.explanation` for
`shoal why`: what is short, where, position, who holds it, what would help) follows when it changes, but never faster
than a fixed rate for all together. A hand-over may move a thousand positions; it does not write a thousand statuses.
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus
from shoal.api.kind import Kind
from shoal.controllers.appwrapper import component_status, explain
from shoal.controllers.appwrapper import status as statuses
from shoal.controllers.appwrapper.house import House
from shoal.controllers.appwrapper.words import why_waiting
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.engine.model import Explanation, Hold

WRITES_PER_SECOND = 5.0
BURST = 10.0
EVENTS_AT_ONCE = 50.0
ROUND = 30.0
"""Seconds between two rounds over everyone who waits."""
FRONT = 10
SOON = 1.0
"""So many at the front of the line are looked at again so many seconds after it moved."""
EFFORT = 2_000
"""Spent on what would help one gang, for its status; whoever asks gets the whole answer."""
SHARE_OF_TIME = 0.02
"""How much of the controller's time may go into finding out what would help: in a large cluster that takes long."""
TRIED_AGAIN = 5.0
"""Seconds after which it is found out again why a gang waits, though nothing was heard of it."""

replace = msgspec.structs.replace


class Tried(msgspec.Struct, frozen=True):
    said: Explanation
    """What the plan had said."""
    found: Explanation
    at: float
    turn: int


class Bucket:
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
    def __init__(self, house: House) -> None:
        self.house = house
        self._refreshes = Bucket(WRITES_PER_SECOND, BURST, house.clock.monotonic())
        self._events = Bucket(WRITES_PER_SECOND, EVENTS_AT_ONCE, house.clock.monotonic())
        self._try_again_at = 0.0
        self.turn = 0
        """Counts what the engine was told."""
        self._tried: dict[str, Tried] = {}
        """By UID of a gang: what was found out since its plan said why it waits."""
        self._moved = asyncio.Event()

    async def publish(self, kind: Kind, wrapper: AppWrapper) -> float | None:
        """The status of one that waits: first sight, then why."""
        house = self.house
        status = wrapper.status
        if not status.queue_job_state:
            status = statuses.first_seen(status, wrapper.spec.priority, house.clock.now)
        hold = house.planner.hold(gang_key(wrapper), wrapper.metadata.uid)
        if hold is None:
            await house.store.status(kind, wrapper, status)
            return None
        quota = self._in_quota_mode(hold)
        if not _says(status, quota):
            status = self._backed_off(self.explained(wrapper, status, hold), quota)
            stored = await house.store.status(kind, wrapper, status)
            if not statuses.was_told(wrapper.status):
                self._announce(stored)
        elif self.is_stale(wrapper, hold) and self._may_refresh():
            await house.store.status(kind, wrapper, self.explained(wrapper, status, hold))
        return None

    async def publish_held(self, kind: Kind, wrapper: AppWrapper, hold: Hold) -> None:
        """The same for a v1beta2 AppWrapper, which has a condition of its own for it."""
        house, status = self.house, wrapper.status
        if not component_status.is_waiting(status):
            waiting = component_status.waiting(self.explained(wrapper, status, hold), house.clock.now())
            self._announce(await house.store.status(kind, wrapper, waiting))
        elif self.is_stale(wrapper, hold) and self._may_refresh():
            await house.store.status(kind, wrapper, self.explained(wrapper, status, hold))

    def explained(self, wrapper: AppWrapper, status: AppWrapperStatus, hold: Hold) -> AppWrapperStatus:
        """The status with the newest explanation: for people, and as data."""
        found, in_full = self._newest(hold, 0.0)
        now = self.house.clock.now()
        namespace = wrapper.metadata.namespace
        known_as = self.house.world.known_as
        stored = explain.told(found, namespace, self._uid_of, known_as, in_full=in_full)
        stored = replace(stored, at=now, asked=explain.question(wrapper))
        status = statuses.ranked(status, self.house.facts.priority(wrapper, now))
        return replace(status, message=why_waiting(found, namespace, known_as), explanation=explain.write(stored))

    def is_stale(self, wrapper: AppWrapper, hold: Hold) -> bool:
        """Would the explanation read otherwise now?"""
        namespace, known_as = wrapper.metadata.namespace, self.house.world.known_as
        found, in_full = self._newest(hold, TRIED_AGAIN)
        stored = explain.read(wrapper.status.explanation)
        if stored is None:  # a definition of another release may not keep it
            return wrapper.status.message != why_waiting(found, namespace, known_as)
        if not self.house.facts.ages and wrapper.status.system_priority != wrapper.spec.priority:
            return True
        if stored.asked != explain.question(wrapper) or (in_full and not stored.in_full):
            return True
        now = explain.told(found, namespace, self._uid_of, known_as, in_full=False)
        return explain.as_brief(stored) != explain.as_brief(now)

    def _newest(self, hold: Hold, pause: float) -> tuple[Explanation, bool]:
        """Why it waits as of now, and whether it was looked for what would help.

        A plan says why when it refuses, and not again while it knows without a look that nothing became better: the
        amounts, and even what it is that is short, may have changed since.
        """
        engine, clock = self.house.planner.engine, self.house.clock
        known, began, now = self._tried.get(hold.uid), clock.monotonic(), clock.now()
        due = known is None or (known.turn != self.turn and began - known.at >= pause)
        if due and began >= self._try_again_at:
            found = engine.explain(hold.gang, now, EFFORT)
            self._try_again_at = began + (clock.monotonic() - began) / SHARE_OF_TIME
            if found is not None:
                holders = () if found.shortfalls else found.holders  # of what is short, they are looked up each time
                known = self._tried[hold.uid] = Tried(
                    hold.explanation, replace(found, holders=holders), began, self.turn
                )
        if known is None or known.said != hold.explanation:
            return engine.brief(hold.gang, hold.explanation, now), False
        return engine.brief(hold.gang, known.found, now), True

    def _announce(self, wrapper: AppWrapper) -> None:
        """An event, for those who watch events; where very many come to wait at once their statuses must do."""
        if self._events.take(self.house.clock.monotonic()):
            self.house.tell_people(wrapper, "Normal", "Waiting", wrapper.status.message)

    def _uid_of(self, key: str) -> str:
        gang = self.house.planner.engine.gang(key)
        return gang.uid if gang is not None else ""

    async def refresh_for_ever(self) -> None:
        """Look again at everyone who waits, one after the other, in rounds."""
        clock = self.house.clock
        while True:
            await clock.sleep(ROUND)
            waiting = {hold.uid for hold in self.house.planner.holds.values()}
            self._tried = {uid: found for uid, found in self._tried.items() if uid in waiting}
            for key in list(self.house.planner.holds):
                address = self.house.intake.addresses.get(key)
                if address is not None:
                    self.house.intake.look(address)
                    await clock.sleep(1.0 / WRITES_PER_SECOND)

    def line_moved(self) -> None:
        """Somebody came, went or was admitted."""
        self._moved.set()

    async def refresh_the_front(self) -> None:
        """Those who are next read the truth about their position soon; everyone else in the next round."""
        clock, pause, before = self.house.clock, SOON, list[str]()
        while True:
            await self._moved.wait()
            await clock.sleep(pause)
            self._moved.clear()
            began = clock.monotonic()
            front = self.house.planner.engine.front(FRONT, clock.now())
            stale = [key for key in front if self._look_again(key)]
            if stale or any(self._owes(key) for key in front):
                self._moved.set()  # some may be held back: look whether they were written
            pause = min(2 * pause, ROUND) if stale and stale == before else SOON
            pause, before = max(pause, (clock.monotonic() - began) / SHARE_OF_TIME), stale

    def _look_again(self, key: str) -> bool:
        hold, address = self.house.planner.holds.get(key), self.house.intake.addresses.get(key)
        wrapper = self.house.world.wrapper_by_uid(hold.uid) if hold is not None else None
        if hold is None or address is None or wrapper is None or not self.is_stale(wrapper, hold):
            return False
        self.house.intake.look(address)
        return True

    def _owes(self, key: str) -> bool:
        """Did anything happen since it was found out why this one waits? Then it was too soon to find out again."""
        hold = self.house.planner.holds.get(key)
        known = self._tried.get(hold.uid) if hold is not None else None
        return known is not None and known.turn != self.turn

    def _in_quota_mode(self, hold: Hold) -> bool:
        """As MCAD: where quota is in force, a back-off is worded as one of quota and resources together."""
        if hold.reason == "bad-fact":
            return False
        return self.house.settings.quota == "always" or bool(self.house.planner.engine.trees)

    def _backed_off(self, status: AppWrapperStatus, quota: bool) -> AppWrapperStatus:
        now = self.house.clock.now
        headed = statuses.head_of_line(status, now)
        return statuses.backed_off(headed, now, sender=self.house.settings.backoff_sender, quota=quota)

    def _may_refresh(self) -> bool:
        return self._refreshes.take(self.house.clock.monotonic())


def _says(status: AppWrapperStatus, quota: bool) -> bool:
    """True when the stored status already tells of a back-off of this sort."""
    if status.queue_job_state != "Backoff":
        return False
    wanted = statuses.QUOTA_EXCEEDED if quota else statuses.NOT_RUNNABLE
    backoffs = [one for one in status.conditions or () if one.type == "Backoff"]
    newest = max(backoffs, key=lambda one: one.last_update_micro_time or "", default=None)
    return newest is not None and newest.reason == wanted
