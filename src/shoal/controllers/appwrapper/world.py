"""What the AppWrapper controller watches, and how a pod finds its gang.

A pod belongs to the gang whose UID stands at the top of its owner chain; the mark that we put on pod templates is
believed only when such an AppWrapper exists in the pod's own namespace. Names alone never decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from shoal.api import gang, kinds
from shoal.api.appwrapper import AppWrapper, QuotaSubtree
from shoal.api.fields import ABSENT
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json, Object
from shoal.kube.cache import Cache, Change, Index
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.feed import Trouble

# Kinds that stand between a wrapped object and its pods; kinds that AppWrappers wrap join as they are met.
_BETWEEN = (kinds.REPLICA_SET, kinds.JOB, kinds.RAY_CLUSTER)
_LONGEST_CHAIN = 8


class Followed(Object):
    """A wrapped object, as far as it is read: who owns it, and how it fares."""

    status: msgspec.Raw = ABSENT


class World:
    """Caches of everything an admission depends on."""

    def __init__(self, client: Client, clock: Clock, *, legacy: bool = True) -> None:
        self.client = client
        self._clock = clock
        self._absent: dict[Kind, asyncio.Event] = {}
        uid = {"uid": lambda obj: (obj.metadata.uid,)}
        wrapper_kinds = [kinds.APP_WRAPPER, *([kinds.APP_WRAPPER_LEGACY] if legacy else [])]
        self.wrappers: dict[Kind, Cache[AppWrapper]] = {
            kind: self._cache(kind, AppWrapper, uid) for kind in wrapper_kinds
        }
        self.nodes: Cache[Json] = self._cache(kinds.NODE, dict, {})
        self.pods: Cache[Json] = self._cache(kinds.POD, dict, {"owner": _owner_uids})
        quota_kinds = [kinds.QUOTA_SUBTREE, *([kinds.QUOTA_SUBTREE_LEGACY] if legacy else [])]
        self.subtrees: dict[Kind, Cache[QuotaSubtree]] = {
            kind: self._cache(kind, QuotaSubtree, {}) for kind in quota_kinds
        }
        self.between: dict[Kind, Cache[Followed]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, wrapped: Callable[[Kind, Change], None]) -> None:
        """Keep every cache filled until cancelled; `wrapped` hears of changes to objects between wrapper and pod."""
        self._wrapped = wrapped
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for cache in (*self.wrappers.values(), self.nodes, self.pods, *self.subtrees.values()):
                tasks.create_task(cache.run())
            for kind in _BETWEEN:
                self.watch(kind)

    def watch(self, kind: Kind) -> None:
        """Also watch this kind, which some AppWrapper wraps."""
        if kind in self.between or kind == kinds.POD or self._tasks is None:
            return
        cache = Cache(self.client, kind, Followed, indexes={"uid": lambda obj: (obj.metadata.uid,)}, clock=self._clock)
        self.between[kind] = cache
        cache.subscribe(lambda change: self._wrapped(kind, change))
        self._tasks.create_task(cache.run())

    async def synced(self) -> None:
        """Until everything that a decision depends on was read once. Kinds that are not installed do not hold us up."""
        caches = (self.nodes, self.pods, *self.wrappers.values(), *self.subtrees.values())
        await asyncio.gather(*(self._read_or_absent(cache) for cache in caches))

    async def _read_or_absent(self, cache: Cache[Any]) -> None:
        waits = [asyncio.ensure_future(cache.synced.wait()), asyncio.ensure_future(self._absent[cache.kind].wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _cache(self, kind: Kind, type: Any, indexes: Mapping[str, Index]) -> Cache[Any]:
        absent = self._absent[kind] = asyncio.Event()

        def report(trouble: Trouble) -> None:
            if trouble.reason == "KindNotInstalled":
                absent.set()

        return Cache(self.client, kind, type, indexes=indexes, clock=self._clock, report=report)

    def wrapper_by_uid(self, uid: str) -> AppWrapper | None:
        for cache in self.wrappers.values():
            for found in cache.by_index("uid", uid):
                return found
        return None

    def wrapper(self, kind: Kind, key: Key) -> AppWrapper | None:
        return self.wrappers[kind].get(key)

    def gang_of(self, pod: Json) -> str:
        """UID of the AppWrapper that this pod belongs to, or an empty text."""
        marked = (pod["metadata"].get("annotations") or {}).get(gang.GANG_UID, "")
        if marked:
            wrapper = self.wrapper_by_uid(marked)
            if wrapper is not None and wrapper.metadata.namespace == pod["metadata"].get("namespace"):
                return marked
        for uid in self._owners(pod):
            if self.wrapper_by_uid(uid) is not None:
                return uid
        return ""

    def _owners(self, pod: Json) -> Iterator[str]:
        """UIDs up the chain of controllers."""
        uid = _controller_uid(pod)
        for _ in range(_LONGEST_CHAIN):
            if not uid:
                return
            yield uid
            owner = next((found for cache in self.between.values() for found in cache.by_index("uid", uid)), None)
            references = owner.metadata.owner_references or () if owner is not None else ()
            uid = next((reference.uid for reference in references if reference.controller), "")


def _controller_uid(pod: Json) -> str:
    for reference in pod["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid") or "")
    return ""


def _owner_uids(pod: Json) -> Iterator[str]:
    uid = _controller_uid(pod)
    if uid:
        yield uid
