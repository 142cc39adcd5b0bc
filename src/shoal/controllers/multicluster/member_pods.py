"""Nodes and pods of one member, and which of its pods belong to gangs of the hub.

A pod belongs to a copy that stands above it in its chain of owners: an AppWrapper's, a Job's, or a RayJob's by way of
its RayCluster. Where that chain or the copy arrives after the pod, the pod is told again. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.multicluster.room import MemberRoom
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.planning.caches import UNREADABLE, Followed
from shoal.controllers.planning.pods import GangPod, SeenPod, mark_of, owner_uid, read_fact, refusals, silent_scheduler
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock

_BETWEEN = (kinds.JOB, kinds.RAY_CLUSTER)
"""Kinds that stand between a copy and its pods."""
_LONGEST_CHAIN = 8

CopyOf = Callable[[str], str]
"""UID at the hub of the gang whose copy has this UID in the member; empty where it is none."""


class MemberPods:
    """`copy_of` knows the copies; `changed()` tells of other room."""

    def __init__(
        self,
        client: Client,
        settings: ClusterSettings,
        clock: Clock,
        awaited: Awaited,
        copy_of: CopyOf,
        changed: Callable[[], None],
    ) -> None:
        self._client, self._clock, self._awaited, self._copy_of = client, clock, awaited, copy_of
        self._most = settings.answers.held
        self._nodes: Cache[Json] = self._cache(kinds.NODE, dict)
        by_owner = {"owner": lambda pod: _given(owner_uid(pod)), "mark": lambda pod: _given(mark_of(pod))}
        self._pods: Cache[SeenPod] = self._cache(kinds.POD, SeenPod, indexes=by_owner)
        self._between: dict[Kind, Cache[Followed]] = {
            kind: self._cache(kind, Followed, indexes={"owner": lambda obj: _given(owner_uid(obj))})
            for kind in _BETWEEN
        }
        self._owner_of: dict[str, str] = {}
        self.room = MemberRoom(self._nodes, self._pods, clock, self.gang_of, changed)

    @property
    def caches(self) -> list[Cache[Any]]:
        return [self._nodes, self._pods, *self._between.values()]

    def subscribe(self) -> None:
        for cache in self._between.values():
            cache.subscribe(self._between_changed)
        self.room.subscribe()

    def watch(self, tell: Callable[[str], None]) -> None:
        """`tell(uid)` of every change of a pod that names this gang itself."""

        def changed(change: Change) -> None:
            if uid := mark_of(change.new or change.old):
                tell(uid)

        self._pods.subscribe(changed)

    def follow(self, tell: Callable[[Change], None]) -> None:
        """`tell` of every change of any pod, those that are there included."""
        self._pods.subscribe(tell)

    async def caught_up(self) -> None:
        """Until all that was there before this call is known here."""
        if self._pods.synced.is_set():
            await self._pods.catch_up()

    def of_gang(self, uid: str, seen: int) -> tuple[GangPod, ...]:
        """Those that name this gang themselves. `seen`: when; a member's clock is never compared with ours."""
        return tuple(
            GangPod(
                fact=read_fact(pod, uid),
                refusals=refusals(pod),
                silent_scheduler=silent_scheduler(pod),
                unbound_since=seen,
                seen_since=seen,
            )
            for pod in self._pods.by_index("mark", uid)
        )

    def gang_of(self, pod: SeenPod) -> str:
        """UID at the hub of the gang that this pod belongs to; empty where it is none of the hub's."""
        return self.gang_above(owner_uid(pod)) or (self._copy_of(mark_of(pod)) if mark_of(pod) else "")

    def gang_above(self, uid: str) -> str:
        """UID at the hub of the gang whose copy has this UID here, or stands above the object that has it."""
        for _ in range(_LONGEST_CHAIN):
            if found := self._copy_of(uid) if uid else "":
                return found
            uid = self._owner_of.get(uid, "")
        return ""

    def uids_in(self, namespace: str) -> set[str]:
        """Of pods of the hub's gangs, and of what stands between them and a copy."""
        pods = [one for one in self._pods.list() if one.metadata.namespace == namespace and self.gang_of(one)]
        between = [one for cache in self._between.values() for one in cache.list() if self.gang_above(one.metadata.uid)]
        return {one.metadata.uid for one in (*pods, *between)}

    def copy_changed(self, uid: str) -> None:
        """Whose the pods below this object are may be known only now."""
        self.room.refresh(self._below(uid))

    def _below(self, uid: str) -> Iterator[SeenPod]:
        yield from self._pods.by_index("mark", uid)
        waiting, seen = [uid], {uid}
        while waiting:
            owner = waiting.pop()
            yield from self._pods.by_index("owner", owner)
            below = [obj.metadata.uid for cache in self._between.values() for obj in cache.by_index("owner", owner)]
            waiting += [one for one in below if one not in seen]
            seen.update(below)

    def _between_changed(self, change: Change) -> None:
        found = change.new or change.old
        if change.new is None:
            self._owner_of.pop(found.metadata.uid, None)
            return
        before = self._owner_of.get(found.metadata.uid)
        self._owner_of[found.metadata.uid] = owner_uid(found)
        if before != owner_uid(found):
            self.copy_changed(found.metadata.uid)

    def _cache(self, kind: Kind, type: Any, **options: Any) -> Cache[Any]:
        report = self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE)
        return Cache(self._client, kind, type, clock=self._clock, most=self._most, report=report, **options)


def _given(text: str) -> tuple[str, ...]:
    return (text,) if text else ()
