"""What every part of the queue controller works with: caches, decisions in flight, writes, and telling people."""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.queues.draft import SECOND, Draft, EventType
from shoal.controllers.queues.pending import Pending
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.words import LONGEST_EVENT, bounded
from shoal.controllers.queues.world import World
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, BadRequest, Forbidden, Invalid, ServerError, Unknown
from shoal.kube.events import Recorder
from shoal.kube.writes import Writer

RETRY_REFUSED = 60.0
"""Seconds after which a reservation that the server refused to store is tried again."""


class Office:
    def __init__(
        self,
        client: Client,
        settings: QueueSettings,
        clock: Clock,
        world: World,
        pending: Pending,
        writer: Writer,
        recorder: Recorder,
    ) -> None:
        self.client = client
        self.settings = settings
        self.clock = clock
        self.world = world
        self.pending = pending
        self.writer = writer
        self.recorder = recorder
        self.stored: Callable[[Draft], None] = lambda draft: None
        """Told of every status of a Workload that was written."""
        self.tell_again: Callable[[str], None] = lambda uid: None
        """Makes the engine hear what is stored of the gang with this UID, and plan."""
        self._in_doubt: set[str] = set()
        """UIDs of Workloads of which a write had no answer, and none got through since."""

    def call_off(self, draft: Draft) -> None:
        """It was given quota and told to leave, and neither is stored: then it simply waits on. Where a write may have
        got through unseen, both are stored one after the other instead: the revision tells."""
        key, uid = _address(draft)
        if uid in self._in_doubt or draft.is_true("QuotaReserved") or not self.pending.is_overtaken(key, uid):
            return
        self.pending.withdraw(key)
        self.tell_again(uid)

    def forget(self, uid: str) -> None:
        """The Workload with this UID is gone."""
        self._in_doubt.discard(uid)

    async def store(self, draft: Draft) -> Json:
        """Write the draft's status on the very revision it was read at; then tell people what changed."""
        change = draft.change
        if not change:
            return draft.obj
        uid = draft.obj["metadata"]["uid"]
        try:
            stored = await self.writer.patch(kinds.WORKLOAD, draft.obj, {"status": change}, subresource="status")
        except (Unknown, ServerError):
            self._in_doubt.add(uid)
            raise
        except (Invalid, Forbidden, BadRequest) as error:
            self._refuse(draft, error)
            raise
        self._in_doubt.discard(uid)
        self.world.workloads.note_write(stored)
        self.stored(draft)
        for type, reason, message in draft.told:
            self.tell(draft.obj, type, reason, message)
        return stored

    def _refuse(self, draft: Draft, error: ApiError) -> None:
        """Quota that cannot be stored is not kept from others."""
        key, uid = _address(draft)
        if draft.is_true("QuotaReserved") and self.pending.reservation(key, uid) is not None:
            self.pending.refuse(key, draft.now + int(RETRY_REFUSED * SECOND))
            self.tell(draft.obj, "Warning", "QuotaRefused", f"its quota cannot be stored: {error}")
            self.tell_again(uid)

    def tell(self, obj: Json, type: EventType, reason: str, message: str) -> None:
        if self.settings.events:
            self.recorder.event(obj, type, reason, bounded(message, LONGEST_EVENT))


def _address(draft: Draft) -> tuple[str, str]:
    """Key and UID of its gang."""
    metadata = draft.obj["metadata"]
    return f"Workload/{metadata.get('namespace', '')}/{metadata['name']}", metadata["uid"]
