"""What every source of workloads needs to know of the cluster, each kind watched once in a process.

Nodes, pods, limits, ProvisioningRequests, and the objects that stand between a workload and its pods. Answers whose
pod is whose as far as owners tell; which gang that is, the sources say. Reads only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.booking import owner_of
from shoal.api.fields import ABSENT
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json, Object, controller_of
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults, defaults_of
from shoal.controllers.planning.pods import SeenPod, mark_of, owner_uid
from shoal.controllers.planning.stamps import By, Stamps
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.trouble import Trouble

# Kinds that stand between a workload and its pods; kinds that AppWrappers wrap join as they are met.
_BETWEEN = (kinds.REPLICA_SET, kinds.JOB, kinds.RAY_CLUSTER)
_BETTER_WITH = (*_BETWEEN, kinds.LIMIT_RANGE, kinds.RUNTIME_CLASS)
"""Where these cannot be read, whatever the reason, decisions are made without them."""
UNREADABLE = ("KindNotInstalled", "SchemaTooOld", "Forbidden")
"""Troubles with a kind that do not hold up everything else: it joins when they are over."""
_LONGEST_CHAIN = 8


class Followed(Object):
    """An object above pods, as far as it is read: its owner, and how it fares."""

    status: msgspec.Raw = ABSENT


class SharedCaches:
    """`requests` is there where a source or the provisioning of nodes asked for it (`watch_requests`)."""

    def __init__(self, client: Client, clock: Clock, stamps: By = "server", record_namespace: str = "") -> None:
        self.client = client
        self._clock = clock
        self._awaited = Awaited()
        self.stamps = Stamps(
            client, clock, stamps, lambda kind: self._awaited.report(kind, lambda trouble: True), record_namespace
        )
        self.nodes: Cache[Json] = self._cache(kinds.NODE, dict, {})
        self.limit_ranges: Cache[Json] = self._cache(kinds.LIMIT_RANGE, dict, {})
        self.runtime_classes: Cache[Json] = self._cache(kinds.RUNTIME_CLASS, dict, {})
        self.pods: Cache[SeenPod] = self._cache(
            kinds.POD,
            SeenPod,
            {
                "owner": lambda pod: _given(owner_uid(pod)),
                "mark": lambda pod: _given(mark_of(pod)),
                "uid": lambda pod: _given(pod.metadata.uid),
            },
        )
        self.requests: Cache[Json] = self._cache(
            kinds.PROVISIONING_REQUEST, dict, {"owner": lambda request: _given(owner_of(request))}
        )
        self._watches_requests = False
        self.between: dict[Kind, Cache[Followed]] = {}
        self._owner_of: dict[str, str] = {}
        """UID of an object above pods to the UID of its controller."""
        self._tasks: asyncio.TaskGroup | None = None
        self._notify: Callable[[Kind, Change], None] = lambda kind, change: None

    async def run(self, notify: Callable[[Kind, Change], None]) -> None:
        """Keep every cache filled until cancelled; `notify` hears of objects above pods."""
        self._notify = notify
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for cache in self.all:
                tasks.create_task(cache.run())
            for kind in _BETWEEN:
                self.watch(kind)

    @property
    def all(self) -> list[Cache[Any]]:
        """What is watched from the start, whatever AppWrappers wrap."""
        return [
            self.nodes,
            self.pods,
            self.limit_ranges,
            self.runtime_classes,
            *([self.requests] if self._watches_requests else ()),
            *self.stamps.caches,
        ]

    def watch_requests(self) -> Cache[Json]:
        """ProvisioningRequests are watched, too. To be called before `run`."""
        self._watches_requests = True
        return self.requests

    def watch(self, kind: Kind) -> None:
        """Also watch this kind, whose objects own pods."""
        if kind in self.between or kind == kinds.POD or self._tasks is None:
            return
        owner = {"owner": lambda obj: _given(owner_uid(obj))}
        cache: Cache[Followed] = self._cache(kind, Followed, owner)
        self.between[kind] = cache
        cache.subscribe(lambda change: self._between_changed(kind, change))
        self._tasks.create_task(cache.run())

    async def follow(self, kind: Kind) -> None:
        """Watch this kind, too, until it was read once, or cannot be read."""
        self.watch(kind)
        if kind in self.between:
            await self._awaited.known([self.between[kind]])

    async def synced(self) -> None:
        """Until everything that a decision depends on was read once. Kinds that are not installed do not hold us up."""
        await asyncio.gather(self.nodes.synced.wait(), self.pods.synced.wait())
        optional: list[Cache[Any]] = [*self.between.values(), self.limit_ranges, self.runtime_classes]
        optional += [self.requests] if self._watches_requests else []
        optional += self.stamps.caches
        await self._awaited.known(optional)

    @property
    def limits_turn(self) -> int:
        """Another one with every change of LimitRanges and RuntimeClasses."""
        return self.limit_ranges.turn + self.runtime_classes.turn

    def pod_defaults(self, namespace: str) -> Defaults:
        """What pods of this namespace are given where they do not say what they need."""
        if not len(self.limit_ranges) and not len(self.runtime_classes):
            return NOTHING
        return defaults_of(self.limit_ranges.list(namespace), self.runtime_classes.list())

    def followed(self, kind: Kind, key: Key) -> Object | None:
        """An object of a kind that we watch, as last seen."""
        if kind == kinds.POD:
            return self.pods.get(key)
        cache = self.between.get(kind)
        return cache.get(key) if cache is not None else None

    def made_pod(self, key: str) -> str:
        """From a pod's key (`Pod/namespace/name`) to the key of what made it, as far up as is known."""
        namespace, _, name = key.partition("/")[2].partition("/")
        found: Object | None = self.pods.get(Key(namespace, name))
        for _ in range(_LONGEST_CHAIN):
            owner = controller_of(found.metadata) if found is not None else None
            if owner is None:
                break
            key = f"{owner.kind}/{namespace}/{owner.name}"
            above = next((one for one in self.between if one.kind == owner.kind), None)
            found = self.between[above].get(Key(namespace, owner.name)) if above is not None else None
        return key

    def maker(self, pod: SeenPod) -> tuple[str, str, str, int]:
        """Kind, name and UID of what made a pod, as far up as is known, and how many steps that is; of a pod that
        nothing made, its own."""
        namespace, metadata = pod.metadata.namespace, pod.metadata
        top, found = (kinds.POD.kind, metadata.name, metadata.uid, 0), Object(metadata=metadata)
        for steps in range(1, _LONGEST_CHAIN):
            owner = controller_of(found.metadata)
            if owner is None:
                break
            top = (owner.kind, owner.name, owner.uid, steps)
            above = next((cache for kind, cache in self.between.items() if kind.kind == owner.kind), None)
            higher = above.get(Key(namespace, owner.name)) if above is not None else None
            if higher is None:
                break
            found = higher
        return top

    def pods_below(self, uid: str) -> Iterator[SeenPod]:
        """Pods that name this object as their gang or stand below it in the chain of owners; a pod itself, too."""
        yield from self.pods.by_index("uid", uid)
        yield from self.pods.by_index("mark", uid)
        waiting, seen = [uid], {uid}
        while waiting:
            owner = waiting.pop()
            yield from self.pods.by_index("owner", owner)
            for cache in self.between.values():
                below = [obj.metadata.uid for obj in cache.by_index("owner", owner)]
                waiting += [one for one in below if one not in seen]
                seen.update(below)

    def controlled_by(self, uid: str) -> Iterator[tuple[Kind, Object]]:
        """Objects that this one directly controls, among the kinds we watch."""
        for pod in self.pods.by_index("owner", uid):
            yield kinds.POD, pod
        for kind, cache in self.between.items():
            for obj in cache.by_index("owner", uid):
                yield kind, obj

    def owners(self, pod: SeenPod) -> tuple[str, ...]:
        """UIDs up the chain of controllers, nearest first."""
        uid, found = owner_uid(pod), list[str]()
        while uid and len(found) < _LONGEST_CHAIN:
            found.append(uid)
            uid = self._owner_of.get(uid, "")
        return tuple(found)

    def is_open(self, owners: Sequence[str]) -> bool:
        """Whether a chain of owners may go on above what we watch: then a mark may say where it leads."""
        return bool(owners) and owners[-1] not in self._owner_of

    def _between_changed(self, kind: Kind, change: Change) -> None:
        if change.new is None:
            self._owner_of.pop(change.old.metadata.uid, None)
        else:
            self._owner_of[change.new.metadata.uid] = owner_uid(change.new)
        self._notify(kind, change)

    def _cache(self, kind: Kind, type: Any, indexes: Any) -> Cache[Any]:
        def given_up(trouble: Trouble) -> bool:
            return trouble.reason in UNREADABLE or kind in _BETTER_WITH

        report = self._awaited.report(kind, given_up)
        everywhere = kind == kinds.POD  # pods of every namespace take room
        return Cache(self.client, kind, type, everywhere=everywhere, indexes=indexes, clock=self._clock, report=report)


def _given(text: str) -> tuple[str, ...]:
    return (text,) if text else ()
