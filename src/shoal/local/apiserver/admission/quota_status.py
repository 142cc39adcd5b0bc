"""Keeps `status.used` of resource quotas in step with what they count, as Kubernetes' own controller does.

Follows every write of the storage; in a namespace without quotas that costs one look-up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shoal.api.meta import Json
from shoal.api.quantity import NANO, Quantity, parse
from shoal.errors import BadInput
from shoal.local.apiserver.admission.quota import counter_of, used_by
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.primitives.status import Refused
from shoal.local.apiserver.requests.call import decoded
from shoal.local.apiserver.storage.collection import StoredEvent
from shoal.local.apiserver.storage.store import WriteFailed

log = logging.getLogger(__name__)

Write = Callable[[str, str, Json], Awaitable[None]]
"""Set the status of a quota: namespace, name, status."""


class QuotaUsage:
    def __init__(self, registry: Registry, write: Write) -> None:
        quotas = registry.find("", "resourcequotas")
        assert quotas is not None
        self._storage = registry.storage
        self._quotas = quotas.collection
        self._write = write
        self._stale: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._storage.followers.append(self._changed)
        self._stale.update(self._quotas.objects)
        self._begin()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self, resource: str, event: StoredEvent) -> None:
        if event.record.namespace in self._quotas.objects:
            self._stale.add(event.record.namespace)
            self._begin()

    def _begin(self) -> None:
        if self._stale and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._catch_up())

    async def _catch_up(self) -> None:
        while self._stale:
            namespace = self._stale.pop()
            for record in self._quotas.records(namespace):
                quota = decoded(record)
                status = self._settled(quota, namespace)
                if quota.get("status") == status or quota["metadata"].get("deletionTimestamp"):
                    continue
                try:
                    await self._write(namespace, record.name, status)
                except (Refused, WriteFailed) as error:
                    log.warning("the status of quota %s/%s is not up to date: %s", namespace, record.name, error)

    def _settled(self, quota: Json, namespace: str) -> Json:
        """The status that a quota deserves."""
        spec = quota.get("spec") or {}
        hard = spec.get("hard") or {}
        used: dict[str, int] = {}
        for resource in {counter_of(name) for name in hard}:
            collection = self._storage.collections.get(resource)
            if collection is not None:
                used.update(used_by(resource, spec, collection.records(namespace)))
        return {"hard": dict(hard), "used": {name: _shown(used.get(name, 0), str(hard[name])) for name in hard}}


def _shown(nano: int, limit: str) -> str:
    """Written in the style of the limit."""
    try:
        style = parse(limit).format
    except BadInput:
        style = "decimal"
    return str(Quantity(nano, style if nano % NANO == 0 else "decimal"))
