"""Where requests enter a RayService: its Services and, for incremental upgrades, Gateway and weighted route.

A Service is written only when it must lead to another cluster. An object of that name that belongs to another owner is
left alone and reported.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster.belongings import covers, service_change
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, owned_by
from shoal.controllers.ray.service import belongings
from shoal.controllers.ray.service.service_pass import ServicePass
from shoal.controllers.ray.service.service_status import ACTIVE, PENDING
from shoal.controllers.ray.service.serving import shares_of
from shoal.controllers.ray.service.steps import WHOLE, next_traffic
from shoal.controllers.ray.service.upgrade_strategy import is_incremental, step_options
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, NotFound
from shoal.kube.events import Recorder


class Entrances:
    def __init__(
        self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
    ) -> None:
        self._writer, self._caches, self._recorder = writer, caches, recorder
        self._settings, self._clock = settings, clock

    async def lead_to(self, at: ServicePass, cluster: Json) -> bool:
        """Head Service, then serve Service, lead to this cluster. False when one of them could not be written."""
        name = view.name(cluster)
        if not await self._service(at, belongings.head_service(at.service, name, self._settings), at.service):
            return False
        if is_incremental(at.service, self._settings):
            await self._follow_plain_service(at, name)
            return True
        try:
            wanted = belongings.serve_service(at.service, cluster, self._settings)
        except BadInput as error:
            at.troubles.append(str(error))
            return False
        return await self._service(at, wanted, at.service)

    async def of_each_cluster(self, at: ServicePass) -> None:
        """Incremental: a serve Service for each cluster that exists."""
        for cluster in (at.active, at.pending):
            if cluster is None or view.deleting(cluster):
                continue
            try:
                await self._service(at, belongings.serve_service(at.service, cluster, self._settings), cluster)
            except BadInput as error:
                at.troubles.append(str(error))

    async def route(self, at: ServicePass, *, pending_ready: bool, rollback: bool) -> None:
        """Gateway, and from the first promotion on the route with its weights; the status says what it routes."""
        await self._object(at, kinds.GATEWAY, belongings.gateway(at.service))
        if at.active is None:
            return
        weights = {ACTIVE: WHOLE}
        if at.pending is not None:
            weights[PENDING] = 0
            if at.part(PENDING).get("trafficRoutedPercent") is not None:
                shares = shares_of(at.status, self._clock.now())
                moved = next_traffic(shares, step_options(at.service), pending_ready=pending_ready, rollback=rollback)
                weights = {ACTIVE: moved.active.traffic, PENDING: moved.pending.traffic}
        route = belongings.http_route(at.service, {at.name(role): weight for role, weight in weights.items()})
        if not await self._object(at, kinds.HTTP_ROUTE, route):
            return
        for role, weight in weights.items():
            if at.part(role).get("trafficRoutedPercent") != weight:
                now = seconds_text(self._clock.now())
                at.part(role).update({"trafficRoutedPercent": weight, "lastTrafficMigratedTime": now})

    async def is_open(self, service: Json) -> bool:
        """Has a Gateway controller taken up both Gateway and route?"""
        gateway = await self._stored(kinds.GATEWAY, belongings.gateway_name(service), view.namespace(service))
        route = await self._stored(kinds.HTTP_ROUTE, belongings.route_name(service), view.namespace(service))
        if gateway is None or route is None:
            return False
        parents = (route.get("status") or {}).get("parents") or []
        ours = [one for one in parents if (one.get("parentRef") or {}).get("name") == view.name(gateway)]
        return _all_true((gateway.get("status") or {}).get("conditions"), "Accepted", "Programmed") and any(
            _all_true(parent.get("conditions"), "Accepted", "ResolvedRefs") for parent in ours
        )

    def endpoints(self, at: ServicePass) -> int:
        """Pods that are ready behind the serve Services of the clusters in use."""
        clusters = [name for name in (at.name(ACTIVE), at.name(PENDING)) if name]
        services = {belongings.serve_service_name(at.service, name, self._settings) for name in clusters or [""]}
        namespace = view.namespace(at.service)
        return len(set[str]().union(*(self._caches.ready_pods_behind(namespace, name) for name in services)))

    async def _follow_plain_service(self, at: ServicePass, cluster: str) -> None:
        """A serve Service from before the type became incremental keeps leading to the cluster that serves."""
        key = Key(view.namespace(at.service), names.serve_service(view.name(at.service)))
        held = self._caches.services.get(key)
        if held is None or not owned_by(held, at.service) or _leads_to(held) == cluster:
            return
        change = {"spec": {"selector": {names.CLUSTER: cluster}}}
        await self._writer.patch(kinds.SERVICE, held, change, self._caches.services)
        self._tell(at, "UpdatedService", held)

    async def _service(self, at: ServicePass, wanted: Json, owner: Json) -> bool:
        held = self._caches.services.get(Key(view.namespace(wanted), view.name(wanted)))
        verb = "Create" if held is None or view.deleting(held) else "Update"
        try:
            if held is None or view.deleting(held):
                made = await self._writer.create(kinds.SERVICE, wanted, owner, self._caches.services)
                if made and owner is at.service:  # those of a cluster go with it, and are not told of
                    self._tell(at, "CreatedService", wanted)
            elif not owned_by(held, owner):
                raise Stranger(f"Service {view.name(wanted)} exists and belongs to another owner; delete or rename it")
            elif _leads_to(held) != _leads_to(wanted):
                change = {"spec": (service_change(held, wanted) or {})["spec"]}
                await self._writer.patch(kinds.SERVICE, held, change, self._caches.services)
                self._tell(at, "UpdatedService", wanted)
        except (ApiError, Stranger) as error:
            at.warn(self._recorder, f"FailedTo{verb}Service", str(error))
            at.troubles.append(str(error))
            return False
        return True

    async def _object(self, at: ServicePass, kind: Kind, wanted: Json) -> bool:
        """Create, or bring the fields that we set to what they should be."""
        verb = "Create"
        try:
            held = await self._stored(kind, view.name(wanted), view.namespace(wanted))
            if held is None:
                if await self._writer.create(kind, wanted, at.service):
                    self._tell(at, f"Created{kind.kind}", wanted)
                return True
            verb = "Update"
            if not owned_by(held, at.service):
                raise Stranger(f"{kind.kind} {view.name(wanted)} exists and belongs to another owner; delete it")
            if not covers(held.get("spec"), wanted["spec"]):
                await self._writer.patch(kind, held, {"spec": wanted["spec"]})
                self._tell(at, f"Updated{kind.kind}", wanted)
        except (ApiError, Stranger) as error:
            at.warn(self._recorder, f"FailedTo{verb}{kind.kind}", str(error))
            at.troubles.append(f"{kind.kind} {view.name(wanted)}: {error}")
            return False
        return True

    async def _stored(self, kind: Kind, name: str, namespace: str) -> Json | None:
        try:
            return dict(await self._writer.client.get(kind, name, namespace))
        except NotFound:
            return None

    def _tell(self, at: ServicePass, reason: str, made: Json) -> None:
        verb = "Updated" if reason.startswith("Updated") else "Created"
        kind = made.get("kind") or "Service"
        self._recorder.event(at.service, "Normal", reason, f"{verb} {kind} {view.name(made)}")


def _leads_to(service: Json) -> str:
    return str((view.spec(service).get("selector") or {}).get(names.CLUSTER) or "")


def _all_true(conditions: Any, *kinds_wanted: str) -> bool:
    true = {one.get("type") for one in conditions or [] if one.get("status") == "True"}
    return true.issuperset(kinds_wanted)
