"""What one pass over a RayService works on: the object as read, its next status, and the clusters that it names."""

from __future__ import annotations

import msgspec

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.owned_writer import owned_by
from shoal.controllers.ray.service.service_status import ACTIVE, PENDING, ServiceConditions, cluster_name
from shoal.kube.events import Recorder


class ServiceMemory(msgspec.Struct):
    """What is remembered of a RayService between passes; after a restart configurations go out once more."""

    uid: str
    sent: dict[str, str] = {}
    """By cluster: the configuration that it got last."""
    doomed: dict[str, int] = {}
    """By UID of an unused cluster: when it is deleted."""
    released: set[str] = set()
    """UIDs of those that were asked to let go of their connections."""
    told: dict[str, str] = {}
    """By reason: warnings of the last pass, which are not told again while they stay the same."""
    wrote: float | None = None
    """When the status was last written, by the clock that only goes on."""
    expects_endpoints: bool = False
    """The Services lead to the first cluster, and the status waits one pass for the pods behind them."""
    told_empty: set[str] = set()
    """Clusters that got an empty configuration, which is sent in every pass."""


class ServicePass(msgspec.Struct):
    service: Json
    status: Json
    conditions: ServiceConditions
    memory: ServiceMemory
    active: Json | None = None
    pending: Json | None = None
    troubles: list[str] = []
    progresses: bool = False
    """Nothing is wrong: the next cluster is on its way."""
    warned: dict[str, str] = {}

    def warn(self, recorder: Recorder, reason: str, message: str) -> None:
        """Tell it once, not every two seconds: a flood of one event would cost the user the others."""
        self.warned[reason] = message
        if self.memory.told.get(reason) != message:
            recorder.event(self.service, "Warning", reason, message)

    def find_clusters(self, caches: Caches) -> None:
        self.active, self.pending = (self._cluster(caches, role) for role in (ACTIVE, PENDING))

    def part(self, role: str) -> Json:
        found: Json = self.status.setdefault(role, {})
        return found

    def name(self, role: str) -> str:
        return cluster_name(self.status, role)

    def promote(self) -> None:
        """The pending cluster serves from now on."""
        self.status[ACTIVE], self.status[PENDING] = self.part(PENDING), {}
        self.active, self.pending = self.pending, None

    def _cluster(self, caches: Caches, role: str) -> Json | None:
        found = caches.clusters.get(Key(view.namespace(self.service), self.name(role)))
        return found if found is not None and owned_by(found, self.service) else None


def begin_pass(service: Json, memory: ServiceMemory, now: int) -> ServicePass:
    status = view.clone(service.get("status") or {})
    return ServicePass(service, status, ServiceConditions(status, view.generation(service), now), memory)
