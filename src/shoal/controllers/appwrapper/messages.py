"""What a waiting AppWrapper tells its owner, without a storm of writes.

The literal condition is written once; the explanation beside it (`status.message`: what is short, where, position, who
holds it) follows when it changes, but never faster than a fixed rate for all together. A hand-over may move a thousand
positions; it does not write a thousand statuses.
"""

from __future__ import annotations

import msgspec

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus
from shoal.api.kind import Kind
from shoal.controllers.appwrapper import status as statuses
from shoal.controllers.appwrapper.house import House
from shoal.controllers.appwrapper.words import why_waiting
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.engine.model import Hold

WRITES_PER_SECOND = 5.0
BURST = 10.0
ROUND = 30.0
"""Seconds between two rounds over everyone who waits."""


class Messages:
    def __init__(self, house: House) -> None:
        self.house = house
        self._left = BURST
        self._at = house.clock.monotonic()

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
        text = self._text(hold)
        quota = self._in_quota_mode(hold)
        if not _says(status, quota):
            status = self._backed_off(status, text, quota)
            stored = await house.store.status(kind, wrapper, status)
            if not statuses.was_told(wrapper.status):
                house.tell_people(stored, "Normal", "Waiting", text)
        elif status.message != text and self._may_refresh():
            await house.store.status(kind, wrapper, msgspec.structs.replace(status, message=text))
        return None

    async def refresh_for_ever(self) -> None:
        """Look again at everyone who waits, one after the other, in rounds."""
        clock = self.house.clock
        while True:
            await clock.sleep(ROUND)
            for key in list(self.house.planner.holds):
                address = self.house.intake.addresses.get(key)
                if address is not None:
                    self.house.intake.look(address)
                    await clock.sleep(1.0 / WRITES_PER_SECOND)

    def _text(self, hold: Hold) -> str:
        return why_waiting(self.house.planner.engine.brief(hold.gang, hold.explanation, self.house.clock.now()))

    def _in_quota_mode(self, hold: Hold) -> bool:
        """As MCAD: where quota is in force, a back-off is worded as one of quota and resources together."""
        if hold.reason == "bad-fact":
            return False
        return self.house.settings.quota == "always" or bool(self.house.planner.engine.trees)

    def _backed_off(self, status: AppWrapperStatus, text: str, quota: bool) -> AppWrapperStatus:
        now = self.house.clock.now
        headed = statuses.head_of_line(status, now)
        return statuses.backed_off(
            headed, now, sender=self.house.settings.backoff_sender, explanation=text, quota=quota
        )

    def _may_refresh(self) -> bool:
        moment = self.house.clock.monotonic()
        self._left = min(BURST, self._left + (moment - self._at) * WRITES_PER_SECOND)
        self._at = moment
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _says(status: AppWrapperStatus, quota: bool) -> bool:
    """True when the stored status already tells of a back-off of this sort."""
    if status.queue_job_state != "Backoff":
        return False
    wanted = statuses.QUOTA_EXCEEDED if quota else statuses.NOT_RUNNABLE
    backoffs = [one for one in status.conditions or () if one.type == "Backoff"]
    newest = max(backoffs, key=lambda one: one.last_update_micro_time or "", default=None)
    return newest is not None and newest.reason == wanted
