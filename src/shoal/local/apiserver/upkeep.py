"""What a server does now and then: forget old events, keep the database file small.

Runs on the injected clock. A round that fails is reported and tried again at the next; it never ends the loop.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.kube.clock import Clock
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.requests.call import decoded
from shoal.local.apiserver.storage.collection import Collection, StoredObject
from shoal.local.apiserver.storage.store import Storage, WriteFailed

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
COMPACT_ROUNDS = 5  # as Kubernetes: every five minutes, what is older than the last time
EVENT_LIFE = 3600 * 1_000_000  # as Kubernetes' --event-ttl
MOST_EVENTS = 20_000


class _Created(msgspec.Struct, rename="camel", frozen=True):
    creation_timestamp: str | None = None


class _Times(msgspec.Struct, rename="camel"):
    last_timestamp: str | None = None
    event_time: str | None = None
    metadata: _Created = _Created()


class Upkeep:
    def __init__(self, storage: Storage, registry: Registry, clock: Clock) -> None:
        self.storage = storage
        self.registry = registry
        self.clock = clock
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        self._rounds = 0
        self._noted = 0

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self.clock.sleep(EVERY_SECONDS)
            try:
                await self.round()
            except WriteFailed as error:
                self.failures += 1
                log.warning("upkeep failed, next try in %d s: %s", EVERY_SECONDS, error)

    async def round(self) -> None:
        """Remove events past their life, the oldest first when there are too many; give free pages back.

        Lists and watches can be continued for five to ten minutes; after that their revision is too old.
        """
        self._rounds += 1
        if self._rounds % COMPACT_ROUNDS == 0:
            self.storage.compacted, self._noted = self._noted, self.storage.committed
            self.storage.forget(self.storage.compacted)
        events = self.registry.find("", "events")
        assert events is not None
        for record in self._expired(events.collection.records()):
            await self._remove(events.collection, record)
        await self.storage.shrink()

    def _expired(self, records: list[StoredObject]) -> list[StoredObject]:
        now = self.clock.now()
        oldest_first = sorted(records, key=lambda record: record.revision)
        surplus = len(records) - MOST_EVENTS
        return [
            record
            for index, record in enumerate(oldest_first)
            if index < surplus or now - _last_seen(record, now) > EVENT_LIFE
        ]

    async def _remove(self, collection: Collection, record: StoredObject) -> None:
        if collection.head(record.namespace, record.name) is not record:
            return
        revision = self.storage.next_revision()
        last = decoded(record)
        last["metadata"]["resourceVersion"] = str(revision)
        await self.storage.remove(collection, record, revision, msgspec.json.encode(last))


def _last_seen(record: StoredObject, now: int) -> int:
    times = msgspec.json.decode(record.raw, type=_Times)
    for text in (times.last_timestamp, times.event_time, times.metadata.creation_timestamp):
        if text:
            try:
                return parse_time(text)
            except BadInput:
                continue
    return now
