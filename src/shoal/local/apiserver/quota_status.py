"""Keeps `status.used` of resource quotas in step with the pods they count, as the API server of Kubernetes does.

Follows the collections themselves; a namespace without quotas costs one look-up per change of a pod.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shoal.api.meta import Json
from shoal.api.quantity import Quantity, parse
from shoal.errors import BadInput
from shoal.local.apiserver.call import decoded
from shoal.local.apiserver.collection import Event
from shoal.local.apiserver.limits import in_scope, is_counted, total
from shoal.local.apiserver.resources import Registry
from shoal.local.apiserver.status import Refused
from shoal.local.apiserver.storage import WriteFailed

log = logging.getLogger(__name__)

Write = Callable[[str, str, Json], Awaitable[None]]
"""Set the status of a quota: namespace, name, status."""


class QuotaStatus:
    def __init__(self, registry: Registry, write: Write) -> None:
        pods, quotas = registry.find("", "pods"), registry.find("", "resourcequotas")
        assert pods is not None and quotas is not None
        self._pods = pods.collection
        self._quotas = quotas.collection
        self._write = write
        self._stale: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._pods.listeners.append(self._changed)
        self._quotas.listeners.append(self._changed)
        self._stale.update(self._quotas.objects)
        self._begin()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self, event: Event) -> None:
        if event.record.namespace in self._quotas.objects:
            self._stale.add(event.record.namespace)
            self._begin()

    def _begin(self) -> None:
        if self._stale and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._catch_up())

    async def _catch_up(self) -> None:
        while self._stale:
            namespace = self._stale.pop()
            pods = [pod for pod in map(decoded, self._pods.records(namespace)) if is_counted(pod)]
            for record in self._quotas.records(namespace):
                quota = decoded(record)
                status = settled(quota, pods)
                if quota.get("status") == status or quota["metadata"].get("deletionTimestamp"):
                    continue
                try:
                    await self._write(namespace, record.name, status)
                except (Refused, WriteFailed) as error:
                    log.warning("the status of quota %s/%s is not up to date: %s", namespace, record.name, error)


def settled(quota: Json, pods: list[Json]) -> Json:
    """The status that a quota deserves. Resources that are not of pods show nothing used."""
    spec = quota.get("spec") or {}
    hard = spec.get("hard") or {}
    used = total([pod for pod in pods if in_scope(pod, spec)])
    shown = {}
    for name, limit in hard.items():
        try:
            style = parse(limit).format
        except BadInput:
            style = "decimal"
        shown[name] = str(Quantity(used.get(name, 0), style))
    return {"hard": dict(hard), "used": shown}
