"""One kind's objects in memory, and the recent past of them that watches read.

Records are immutable and hold the object as encoded bytes: what a watcher, a reader and the database get is one and the
same buffer, encoded once per write. The storage alone adds to a collection; readers never see a write before it is
durable, writers (`head`) do.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable

import msgspec

log = logging.getLogger(__name__)

HISTORY_EVENTS = 20_000
HISTORY_BYTES = 24 << 20
ENCODED_EVENTS = 256  # how many of the newest keep their lines: what watchers that keep up ask for


class _Meta(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Meta = _Meta()


_labels_decoder = msgspec.json.Decoder(_Labelled)


class StoredObject:
    """One object at one revision; a removed one is its last state, at the revision of its removal."""

    __slots__ = ("_labels", "id", "name", "namespace", "raw", "removed", "revision")

    def __init__(self, id: int, namespace: str, name: str, revision: int, raw: bytes, removed: bool = False) -> None:
        self.id = id
        self.namespace = namespace
        self.name = name
        self.revision = revision
        self.raw = raw
        self.removed = removed
        self._labels: dict[str, str] | None = None

    @property
    def labels(self) -> dict[str, str]:
        if self._labels is None:
            try:
                self._labels = _labels_decoder.decode(self.raw).metadata.labels or {}
            except msgspec.MsgspecError:  # labels that are not text match nothing
                self._labels = {}
        return self._labels


class StoredEvent:
    """One change. `previous` is what a selector saw before; `lines` keeps the encoded event per served version."""

    __slots__ = ("lines", "previous", "record", "type")

    def __init__(self, type: str, record: StoredObject, previous: StoredObject | None) -> None:
        self.type = type
        self.record = record
        self.previous = previous
        self.lines: dict[str, bytes] = {}


Follower = Callable[[str, StoredEvent], None]
"""Told at once of every change of every resource, named as in `deployments.apps`; must not block."""


class Collection:
    """All objects of one resource. `floor` is the newest revision whose events may be missing from the history."""

    def __init__(self, name: str, floor: int, followers: list[Follower]) -> None:
        self.name = name
        self.floor = floor
        self.followers = followers  # of every collection of the storage
        self.objects: dict[str, dict[str, StoredObject]] = {}
        self.pending: dict[tuple[str, str], StoredObject] = {}
        self.events: list[StoredEvent] = []
        self.first = 0  # sequence number of events[0]
        self.revision = floor  # of the last change here
        self._bytes = 0
        self._sorted: list[StoredObject] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.listeners: list[Callable[[StoredEvent], None]] = []  # told at once, in order; must not block

    def __len__(self) -> int:
        return sum(len(names) for names in self.objects.values())

    # --- reading

    def get(self, namespace: str, name: str) -> StoredObject | None:
        """As readers see it: durable."""
        names = self.objects.get(namespace)
        return names.get(name) if names is not None else None

    def head(self, namespace: str, name: str) -> StoredObject | None:
        """As the next writer must see it: with writes that are on their way to the disk."""
        pending = self.pending.get((namespace, name)) if self.pending else None
        if pending is not None:
            return None if pending.removed else pending
        return self.get(namespace, name)

    def heads(self, namespace: str) -> list[StoredObject]:
        """Every object of a namespace as the next writer must see it."""
        found = dict(self.objects.get(namespace, {}))
        for (one, name), record in self.pending.items():
            if one == namespace:
                if record.removed:
                    found.pop(name, None)
                else:
                    found[name] = record
        return list(found.values())

    def all_heads(self) -> list[StoredObject]:
        namespaces = {*self.objects, *(namespace for namespace, _ in self.pending)}
        return [record for namespace in namespaces for record in self.heads(namespace)]

    def records(self, namespace: str | None = None) -> list[StoredObject]:
        """Sorted by namespace and name. `None` is all namespaces. The answer must not be changed."""
        if namespace is not None:
            names = self.objects.get(namespace)
            return [names[name] for name in sorted(names)] if names else []
        if self._sorted is None:
            self._sorted = [
                self.objects[one][name] for one in sorted(self.objects) for name in sorted(self.objects[one])
            ]
        return self._sorted

    def records_at(self, revision: int, namespace: str | None) -> list[StoredObject] | None:
        """The state at an older revision, by undoing what came after it; None when that history is gone."""
        if revision < self.floor:
            return None
        found = {(record.namespace, record.name): record for record in self.records(namespace)}
        for event in reversed(self.events):
            if event.record.revision <= revision:
                break
            key = (event.record.namespace, event.record.name)
            if namespace is not None and key[0] != namespace:
                continue
            if event.previous is None:
                found.pop(key, None)
            else:
                found[key] = event.previous
        return [found[key] for key in sorted(found)]

    # --- the recent past

    @property
    def end(self) -> int:
        """Sequence number of the next event."""
        return self.first + len(self.events)

    def sequence_after(self, revision: int) -> int:
        """Where a watch from `revision` begins."""
        return self.first + bisect_right(self.events, revision, key=lambda event: event.record.revision)

    def since(self, sequence: int) -> list[StoredEvent]:
        return self.events[sequence - self.first :]

    def changed(self) -> asyncio.Future[None]:
        """A future that is done at the next change (or at `wake`)."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def forget(self, waiting: asyncio.Future[None]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    # --- for the storage alone

    def load(self, record: StoredObject) -> None:
        self.objects.setdefault(record.namespace, {})[record.name] = record

    def apply(self, record: StoredObject) -> None:
        """Make one durable write visible."""
        names = self.objects.setdefault(record.namespace, {})
        previous = names.get(record.name)
        if record.removed:
            names.pop(record.name, None)
            if not names:
                del self.objects[record.namespace]
            kind = "DELETED"
        else:
            names[record.name] = record
            kind = "ADDED" if previous is None else "MODIFIED"
        self._sorted = None
        key = (record.namespace, record.name)
        if self.pending.get(key) is record:
            del self.pending[key]
        self.revision = record.revision
        event = StoredEvent(kind, record, previous)
        self.events.append(event)
        if len(self.events) > ENCODED_EVENTS:
            self.events[-ENCODED_EVENTS - 1].lines = {}
        self._notify(event)
        self._bytes += len(record.raw)
        if self._bytes > HISTORY_BYTES or len(self.events) > HISTORY_EVENTS:
            self.compact(len(self.events) // 4 or 1)

    def _notify(self, event: StoredEvent) -> None:
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # the write is durable: others that wait for it must not pay for one listener
                log.exception("a listener of %s failed at revision %d", self.name, event.record.revision)
        for follower in self.followers:
            try:
                follower(self.name, event)
            except Exception:  # as above
                log.exception("a follower of %s failed at revision %d", self.name, event.record.revision)

    def compact(self, count: int) -> None:
        """Forget the oldest `count` events; watches from before them answer 410."""
        dropped = self.events[:count]
        if not dropped:
            return
        self.floor = dropped[-1].record.revision
        self._bytes -= sum(len(event.record.raw) for event in dropped)
        del self.events[:count]
        self.first += len(dropped)
