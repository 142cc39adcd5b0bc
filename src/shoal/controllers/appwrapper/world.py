"""What the AppWrapper controller watches, and how a pod finds its gang.

A pod belongs to the gang whose UID stands at the top of its owner chain; the mark that we put on pod templates is
believed only when such an AppWrapper exists in the pod's own namespace. Names alone never decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, QuotaSubtree
from shoal.api.fields import ABSENT
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json, Object, controller_of
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults, defaults_of
from shoal.controllers.planning.naming import KnownAs
from shoal.controllers.planning.pods import SeenPod, mark_of, owner_uid
from shoal.controllers.planning.stamps import By, Stamps
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.trouble import Trouble

# Kinds that stand between a wrapped object and its pods; kinds that AppWrappers wrap join as they are met.
_BETWEEN = (kinds.REPLICA_SET, kinds.JOB, kinds.RAY_CLUSTER)
_BETTER_WITH = (*_BETWEEN, kinds.LIMIT_RANGE, kinds.RUNTIME_CLASS)
"""Where these cannot be read, whatever the reason, decisions are made without them."""
STORED = ("status.admission", "status.canrun", "status.state")
"""What a decision is read back from; with a CRD that drops it nothing may be decided."""
_LONGEST_CHAIN = 8


class Followed(Object):
    """A wrapped object, as far as it is read: who owns it, and how it fares."""

    status: msgspec.Raw = ABSENT


class World:
    """Caches of everything an admission depends on."""

    def __init__(self, client: Client, clock: Clock, stamps: By = "server", *, wrappers: bool = True) -> None:
        """Without `wrappers` only nodes and pods are watched, for the sake of other dialects."""
        self.client = client
        self._clock = clock
        self._awaited = Awaited()
        unreadable = self._awaited.report(kinds.MUTATING_WEBHOOK, lambda trouble: True)
        self.stamps_changed: Callable[[], None] = lambda: None
        self.stamps = Stamps(client, clock, stamps, lambda: self.stamps_changed(), unreadable)
        uid = {"uid": lambda obj: (obj.metadata.uid,)}
        self.wrappers: dict[Kind, Cache[AppWrapper]] = {
            kind: self._cache(kind, AppWrapper, uid, STORED)
            for kind in ((kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY) if wrappers else ())
        }
        self.subtrees: dict[Kind, Cache[QuotaSubtree]] = {
            kind: self._cache(kind, QuotaSubtree, {})
            for kind in ((kinds.QUOTA_SUBTREE, kinds.QUOTA_SUBTREE_LEGACY) if wrappers else ())
        }
        self.nodes: Cache[Json] = self._cache(kinds.NODE, dict, {})
        self.limit_ranges: Cache[Json] = self._cache(kinds.LIMIT_RANGE, dict, {})
        self.runtime_classes: Cache[Json] = self._cache(kinds.RUNTIME_CLASS, dict, {})
        self.pods: Cache[SeenPod] = self._cache(
            kinds.POD, SeenPod, {"owner": lambda pod: _given(owner_uid(pod)), "mark": lambda pod: _given(mark_of(pod))}
        )
        self.between: dict[Kind, Cache[Followed]] = {}
        self._owner_of: dict[str, str] = {}
        """UID of an object between AppWrapper and pod to the UID of its controller."""
        self.guest_gang: Callable[[str, Iterator[str]], str] = lambda namespace, owners: ""
        """Whose pod it is, of the gangs of other dialects: asked with the pod's namespace and owners."""
        self.guest_known_as: KnownAs = str
        """What people call a gang of another dialect: asked with its key."""
        self._tasks: asyncio.TaskGroup | None = None
        self._heard: Callable[[Kind, Change], None] = lambda kind, change: None

    async def run(self, heard: Callable[[Kind, Change], None]) -> None:
        """Keep every cache filled until cancelled; `heard` is told of objects between AppWrapper and pod."""
        self._heard = heard
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for cache in self.caches:
                tasks.create_task(cache.run())
            for kind in _BETWEEN:
                self.watch(kind)

    @property
    def caches(self) -> list[Cache[Any]]:
        """What is watched from the start, whatever AppWrappers wrap."""
        return [
            *self.wrappers.values(),
            *self.subtrees.values(),
            self.nodes,
            self.pods,
            self.limit_ranges,
            self.runtime_classes,
            *([self.stamps.cache] if self.stamps.cache is not None else ()),
        ]

    def watch(self, kind: Kind) -> None:
        """Also watch this kind, which some AppWrapper wraps."""
        if kind in self.between or kind == kinds.POD or self._tasks is None:
            return
        owner = {"owner": lambda obj: _given(owner_uid(obj))}
        cache: Cache[Followed] = self._cache(kind, Followed, owner)
        self.between[kind] = cache
        cache.subscribe(lambda change: self._between_changed(kind, change))
        self._tasks.create_task(cache.run())

    async def synced(self) -> None:
        """Until everything that a decision depends on was read once. Kinds that are not installed do not hold us up."""
        await asyncio.gather(self.nodes.synced.wait(), self.pods.synced.wait())
        optional: list[Cache[Any]] = [*self.wrappers.values(), *self.subtrees.values(), *self.between.values()]
        optional += [self.limit_ranges, self.runtime_classes]
        optional += [self.stamps.cache] if self.stamps.cache is not None else []
        await self._awaited.known(optional)

    def wrapper_by_uid(self, uid: str) -> AppWrapper | None:
        for cache in self.wrappers.values():
            for found in cache.by_index("uid", uid):
                return found
        return None

    def wrapper(self, kind: Kind, key: Key) -> AppWrapper | None:
        return self.wrappers[kind].get(key)

    def pod_defaults(self, namespace: str) -> Defaults:
        """What pods of this namespace are given where they do not say what they need."""
        if not len(self.limit_ranges) and not len(self.runtime_classes):
            return NOTHING
        return defaults_of(self.limit_ranges.list(namespace), self.runtime_classes.list())

    def followed(self, kind: Kind, key: Key) -> Object | None:
        """A wrapped object of a kind that we watch, as last seen."""
        if kind == kinds.POD:
            return self.pods.get(key)
        cache = self.between.get(kind)
        return cache.get(key) if cache is not None else None

    def gang_of(self, pod: SeenPod) -> str:
        """UID of the AppWrapper that this pod belongs to, or an empty text."""
        marked = mark_of(pod)
        candidates: list[str] = [*([marked] if marked else ()), *self._owners(pod)]
        for uid in candidates:
            wrapper = self.wrapper_by_uid(uid)
            if wrapper is not None and wrapper.metadata.namespace == pod.metadata.namespace:
                return uid
        return self.guest_gang(pod.metadata.namespace, self._owners(pod))

    def known_as(self, key: str) -> str:
        """What people call the gang with this key, or what made the pod with it."""
        kind, _, rest = key.partition("/")
        if kind != kinds.POD.kind:
            return self.guest_known_as(key)
        namespace, _, name = rest.partition("/")
        found: Object | None = self.pods.get(Key(namespace, name))
        for _ in range(_LONGEST_CHAIN):
            owner = controller_of(found.metadata) if found is not None else None
            if owner is None:
                break
            key = f"{owner.kind}/{namespace}/{owner.name}"
            above = next((one for one in self.between if one.kind == owner.kind), None)
            found = self.between[above].get(Key(namespace, owner.name)) if above is not None else None
        return key

    def pods_below(self, uid: str) -> Iterator[SeenPod]:
        """Pods that name this object as their gang or stand below it in the chain of owners."""
        yield from self.pods.by_index("mark", uid)
        waiting, seen = [uid], {uid}
        while waiting:
            owner = waiting.pop()
            yield from self.pods.by_index("owner", owner)
            for cache in self.between.values():
                below = [obj.metadata.uid for obj in cache.by_index("owner", owner)]
                waiting += [one for one in below if one not in seen]
                seen.update(below)

    def strays(self, uid: str) -> Iterator[tuple[Kind, Object]]:
        """Objects that an AppWrapper directly controls, among the kinds we watch."""
        for pod in self.pods.by_index("owner", uid):
            yield kinds.POD, pod
        for kind, cache in self.between.items():
            for obj in cache.by_index("owner", uid):
                yield kind, obj

    def _owners(self, pod: SeenPod) -> Iterator[str]:
        """UIDs up the chain of controllers."""
        uid = owner_uid(pod)
        for _ in range(_LONGEST_CHAIN):
            if not uid:
                return
            yield uid
            uid = self._owner_of.get(uid, "")

    def _between_changed(self, kind: Kind, change: Change) -> None:
        if change.new is None:
            self._owner_of.pop(change.old.metadata.uid, None)
        else:
            self._owner_of[change.new.metadata.uid] = owner_uid(change.new)
        self._heard(kind, change)

    def _cache(self, kind: Kind, type: Any, indexes: Any, requires: tuple[str, ...] = ()) -> Cache[Any]:
        def given_up(trouble: Trouble) -> bool:
            return trouble.reason in ("KindNotInstalled", "SchemaTooOld") or kind in _BETTER_WITH

        report = self._awaited.report(kind, given_up)
        return Cache(self.client, kind, type, indexes=indexes, clock=self._clock, report=report, requires=requires)


def _given(text: str) -> tuple[str, ...]:
    return (text,) if text else ()
