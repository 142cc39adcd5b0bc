"""A cache of a few namespaces: one list and watch for each, so that rights in those namespaces are enough.

Made by `Cache` where its client is limited to namespaces. Each feed sees only its own namespace of the cache, and the
cache is filled once all of them are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from shoal.api.kind import Key
from shoal.kube.feed import Feed, FeedCounts, Sink
from shoal.kube.revisions import RevisionMark
from shoal.kube.trouble import Trouble


class SlicedSink(Protocol):
    """The cache: a sink of all namespaces, that can be told of one."""

    undecodable: dict[Key, str]
    synced: asyncio.Event

    def take(self, raw: msgspec.Raw, *, listed_at: str = "", forced: bool = False) -> RevisionMark | None: ...
    def drop(self, raw: msgspec.Raw) -> RevisionMark | None: ...
    def keep_only(self, listed: set[Key], revision: str, *, forced: bool = False, within: str = "") -> None: ...
    def revision_of(self, key: Key) -> str | None: ...
    def __iter__(self) -> Iterator[Key]: ...


class NamespaceSlice:
    """What one feed fills."""

    def __init__(self, whole: SlicedSink, namespace: str, filled: Callable[[str], None]) -> None:
        self.undecodable = whole.undecodable
        self._whole = whole
        self._namespace = namespace
        self._filled = filled

    def take(self, raw: msgspec.Raw, *, listed_at: str = "", forced: bool = False) -> RevisionMark | None:
        return self._whole.take(raw, listed_at=listed_at, forced=forced)

    def drop(self, raw: msgspec.Raw) -> RevisionMark | None:
        return self._whole.drop(raw)

    def keep_only(self, listed: set[Key], revision: str, *, forced: bool = False) -> None:
        self._whole.keep_only(listed, revision, forced=forced, within=self._namespace)
        self._filled(self._namespace)

    def revision_of(self, key: Key) -> str | None:
        return self._whole.revision_of(key)

    def __iter__(self) -> Iterator[Key]:
        return (key for key in self._whole if key.namespace == self._namespace)


class SlicedFeed:
    """Several feeds that look like one."""

    def __init__(
        self, whole: SlicedSink, namespaces: tuple[str, ...], feed: Callable[[Sink, str | None], Feed]
    ) -> None:
        self._synced = whole.synced
        self._empty = set(namespaces)
        self._feeds = [feed(NamespaceSlice(whole, one, self._fill), one) for one in namespaces]

    @property
    def counts(self) -> FeedCounts:
        total = FeedCounts()
        for name in FeedCounts.__struct_fields__:
            setattr(total, name, sum(getattr(one.counts, name) for one in self._feeds))
        return total

    @property
    def trouble(self) -> Trouble | None:
        return next((one.trouble for one in self._feeds if one.trouble is not None), None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in self._feeds:
                tasks.create_task(one.run())

    async def catch_up(self) -> None:
        await asyncio.gather(*(one.catch_up() for one in self._feeds))

    def _fill(self, namespace: str) -> None:
        self._empty.discard(namespace)
        if not self._empty:
            self._synced.set()
