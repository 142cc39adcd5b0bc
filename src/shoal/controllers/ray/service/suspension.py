"""Suspend and resume of a RayService: what has begun is finished, whatever the spec says meanwhile."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.controllers.ray import view
from shoal.controllers.ray.caches import BY_OWNER, Caches
from shoal.controllers.ray.owned_writer import OwnedWriter, owned_by
from shoal.controllers.ray.service import belongings
from shoal.controllers.ray.service.clusters import ServiceClusters
from shoal.controllers.ray.service.service_pass import ServicePass
from shoal.controllers.ray.service.service_status import (
    ACTIVE,
    INITIALIZING,
    PENDING,
    READY,
    ROLLBACK,
    SUSPENDED,
    SUSPENDING,
    UPGRADING,
)
from shoal.controllers.ray.service.upgrade_strategy import is_incremental
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.errors import NotFound
from shoal.kube.events import Recorder

_OTHERS = (READY, UPGRADING, ROLLBACK)


class Suspension:
    def __init__(
        self,
        writer: OwnedWriter,
        caches: Caches,
        recorder: Recorder,
        settings: RaySettings,
        clusters: ServiceClusters,
    ) -> None:
        self._writer, self._caches, self._recorder = writer, caches, recorder
        self._settings, self._clusters = settings, clusters

    async def ends_pass(self, at: ServicePass) -> bool:
        """One step of the machine. False when the service runs, or begins again in this very pass."""
        conditions, asked = at.conditions, view.spec(at.service).get("suspend") is True
        if conditions.is_true(SUSPENDING):
            if await self._take_down(at):
                conditions.put(SUSPENDING, "False", "SuspendComplete")
                conditions.put(SUSPENDED, "True", "SuspendComplete")
                self._put_others(at, "SuspendComplete")
            else:
                conditions.put(SUSPENDING, "True", "SuspendInProgress")
            return True
        if conditions.is_true(SUSPENDED):
            if asked:
                return True
            conditions.put(SUSPENDED, "False", "RayServiceResumed")
            for kind in (READY, UPGRADING):
                conditions.put(kind, "False", INITIALIZING, "RayService is initializing", fresh=True)
            return False
        if not asked:
            return False
        conditions.put(SUSPENDING, "True", "SuspendRequested")
        self._put_others(at, "SuspendInProgress")
        at.status.update({ACTIVE: {}, PENDING: {}, "numServeEndpoints": 0, "serviceStatus": ""})
        return True

    def _put_others(self, at: ServicePass, reason: str) -> None:
        for kind in _OTHERS:
            at.conditions.put(kind, "False", reason)

    async def _take_down(self, at: ServicePass) -> bool:
        """Delete clusters, Services and routes; True when all are gone."""
        gone = await self._clusters.sweep(at, all_at_once=True)
        for service in self._caches.services.by_index(BY_OWNER, view.uid(at.service)):
            if not view.deleting(service):
                await self._writer.delete(kinds.SERVICE, service, self._caches.services)
                self._recorder.event(at.service, "Normal", "DeletedService", f"Deleted Service {view.name(service)}")
        gone = gone and not self._caches.services.by_index(BY_OWNER, view.uid(at.service))
        if is_incremental(at.service, self._settings):
            gone = await self.remove_routes(at) and gone
        return gone

    async def remove_routes(self, at: ServicePass) -> bool:
        """Delete Gateway and HTTPRoute; True when both are gone."""
        named = (
            (kinds.HTTP_ROUTE, belongings.route_name(at.service)),
            (kinds.GATEWAY, belongings.gateway_name(at.service)),
        )
        return all([await self._remove(at, kind, name) for kind, name in named])

    async def _remove(self, at: ServicePass, kind: Kind, name: str) -> bool:
        try:
            held = await self._writer.client.get(kind, name, view.namespace(at.service))
        except NotFound:
            return True
        if not owned_by(held, at.service):
            return True
        if not view.deleting(held):
            await self._writer.delete(kind, held)
            self._recorder.event(at.service, "Normal", f"Deleted{kind.kind}", f"Deleted {kind.kind} {name}")
        return False
