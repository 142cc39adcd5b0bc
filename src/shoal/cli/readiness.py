"""When a replica of the controller is ready: it leads with all that it needs read, or it stands by for one that leads.

`/readyz` asks here. A kind that is not installed or may not be read is named with what to do; the same words are logged
once, by the cache that met it. What a part can do without (legacy groups, kinds of jobs) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.kube.cache import Cache
from shoal.kube.health import HealthServer, lease_samples

REQUIRED: dict[str, tuple[Kind, ...]] = {
    "gangs": (kinds.NODE, kinds.POD),
    "appwrapper": (kinds.APP_WRAPPER,),
    "queues": (kinds.WORKLOAD, kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE, kinds.RESOURCE_FLAVOR),
    "ray": (kinds.RAY_CLUSTER, kinds.RAY_JOB),
}
"""Kinds without which a part does nothing."""
UNREADABLE = ("KindNotInstalled", "SchemaTooOld", "Forbidden", "Unauthorized")
"""Troubles that do not pass by themselves. A server that cannot be reached for a while leaves a replica ready."""


class LeaseHolder(Protocol):
    """What is asked of a `Leadership`."""

    trouble: str | None

    @property
    def leads(self) -> bool: ...

    @property
    def term_number(self) -> int: ...


class RunningPart(msgspec.Struct, frozen=True):
    """A part while its replica leads: whether it has begun, and what it reads."""

    began: Callable[[], bool]
    caches: Callable[[], Iterable[Cache[Any]]]
    required: tuple[Kind, ...]

    def trouble(self) -> str | None:
        """What keeps it from working; None when nothing does."""
        caches = [*self.caches()]
        lasting = [one for one in caches if one.trouble is not None and one.trouble.reason in UNREADABLE]
        for cache in (one for one in lasting if one.kind in self.required):
            return cache.trouble.message if cache.trouble is not None else None
        if self.began():
            return None
        unread = [one for one in caches if not one.synced.is_set()]
        for cache in unread:
            if cache.trouble is not None and cache not in lasting:
                return cache.trouble.message
        waits = sorted({one.kind.resource for one in unread if one not in lasting})
        return f"{', '.join(waits)}: being read" if waits else "the first plan is being made"


class Readiness:
    """What `/readyz` says of one replica."""

    def __init__(self, health: HealthServer) -> None:
        self._health = health
        self._standing: LeaseHolder | None = None
        self._running: dict[str, RunningPart] = {}
        health.require("lease", self._lease)

    def stands_by(self, standing: LeaseHolder) -> None:
        self._standing = standing
        self._health.add_metrics(lambda: lease_samples(standing.leads, standing.term_number))

    def require(self, name: str) -> None:
        """A part that runs while this replica leads."""
        self._health.require(name, lambda: self._part(name))

    def runs(self, name: str, part: RunningPart) -> None:
        self._running[name] = part

    def ended(self, name: str) -> None:
        self._running.pop(name, None)

    def _lease(self) -> str | None:
        return self._standing.trouble if self._standing is not None else "the lease has not been read yet"

    def _part(self, name: str) -> str | None:
        running = self._running.get(name)
        if running is not None:
            return running.trouble()
        return "starts" if self._standing is not None and self._standing.leads else None
