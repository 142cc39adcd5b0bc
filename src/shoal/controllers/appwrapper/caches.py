"""The AppWrappers and quota trees that the AppWrapper controller watches; nodes, pods and limits are the loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, QuotaSubtree
from shoal.api.kind import Key, Kind
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.trouble import Trouble

STORED = ("status.admission", "status.canrun", "status.state")
"""What a decision is read back from; with a CRD that drops it nothing may be decided."""


class WrapperCaches:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._awaited = Awaited()
        uid = {"uid": lambda obj: (obj.metadata.uid,)}
        self.wrappers: dict[Kind, Cache[AppWrapper]] = {
            kind: self._cache(kind, AppWrapper, uid, STORED) for kind in (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY)
        }
        self.subtrees: dict[Kind, Cache[QuotaSubtree]] = {
            kind: self._cache(kind, QuotaSubtree, {}) for kind in (kinds.QUOTA_SUBTREE, kinds.QUOTA_SUBTREE_LEGACY)
        }

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for cache in self.all:
                tasks.create_task(cache.run())

    @property
    def all(self) -> list[Cache[Any]]:
        return [*self.wrappers.values(), *self.subtrees.values()]

    async def synced(self) -> None:
        """Until everything was read once. Kinds that are not installed do not hold us up."""
        await self._awaited.known(self.all)

    def wrapper_by_uid(self, uid: str) -> AppWrapper | None:
        for cache in self.wrappers.values():
            for found in cache.by_index("uid", uid):
                return found
        return None

    def wrapper(self, kind: Kind, key: Key) -> AppWrapper | None:
        return self.wrappers[kind].get(key)

    def gang_of(self, namespace: str, mark: str, owners: Sequence[str]) -> str:
        """UID of the AppWrapper that a pod belongs to. The mark that we put on pod templates is believed only when such
        an AppWrapper exists in the pod's own namespace."""
        for uid in (mark, *owners) if mark else owners:
            wrapper = self.wrapper_by_uid(uid)
            if wrapper is not None and wrapper.metadata.namespace == namespace:
                return uid
        return ""

    def _cache(self, kind: Kind, type: Any, indexes: Any, requires: tuple[str, ...] = ()) -> Cache[Any]:
        def given_up(trouble: Trouble) -> bool:
            return trouble.reason in ("KindNotInstalled", "SchemaTooOld")

        report = self._awaited.report(kind, given_up)
        return Cache(self._client, kind, type, indexes=indexes, clock=self._clock, report=report, requires=requires)
