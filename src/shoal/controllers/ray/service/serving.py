"""Ray Serve on the clusters of a RayService: which heads take requests, which applications run, how much of each.

Nothing here ends a pass: a dashboard that does not answer is noted, and the rest of the status is told all the same.
"""

from __future__ import annotations

import logging

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import status as cluster_status
from shoal.controllers.ray.cluster_token import read_token
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, checked_address
from shoal.controllers.ray.owned_writer import OwnedWriter, key_of
from shoal.controllers.ray.pods import auth, builder, fault_tolerance
from shoal.controllers.ray.service import applications
from shoal.controllers.ray.service.serve_api import ServeApi
from shoal.controllers.ray.service.service_pass import ServicePass
from shoal.controllers.ray.service.service_status import ACTIVE, PENDING
from shoal.controllers.ray.service.steps import WHOLE, ClusterShare, UpgradeShares, next_capacities
from shoal.controllers.ray.service.upgrade_strategy import is_incremental, step_options
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)


class ServeApplications:
    def __init__(
        self,
        writer: OwnedWriter,
        caches: Caches,
        recorder: Recorder,
        api: ServeApi,
        settings: RaySettings,
        clock: Clock,
    ) -> None:
        self._writer, self._caches, self._recorder, self._api = writer, caches, recorder, api
        self._settings, self._clock = settings, clock
        self._tokens: dict[str, str] = {}

    async def label_head(self, at: ServicePass, cluster: Json) -> None:
        """A head is an endpoint while its Serve proxy says that it is well."""
        heads = self._heads(cluster)
        if not heads:
            return  # why there is none, the cluster says
        if len(heads) > 1:
            at.troubles.append(f"RayCluster {view.name(cluster)} has {len(heads)} head pods")
            return
        head = heads[0]
        excluded = view.spec(at.service).get("excludeHeadPodFromServeSvc") is True
        wanted = "true" if not excluded and await self._takes_requests(head, cluster) else "false"
        if view.labels(head).get(names.SERVE) == wanted:
            return
        told = f"{names.SERVE}={wanted} on head pod {view.name(head)}"
        try:
            await self._writer.patch(
                kinds.POD, head, {"metadata": {"labels": {names.SERVE: wanted}}}, self._caches.pods
            )
        except ApiError as error:
            at.warn(self._recorder, "FailedToUpdateHeadPodServeLabel", f"{told}: {error}")
            at.troubles.append(f"{told} cannot be set: {error}")
            return
        self._recorder.event(at.service, "Normal", "UpdatedHeadPodServeLabel", f"Set {told}")

    async def ask(self, at: ServicePass, role: str, *, submit: bool) -> bool:
        """Take over what Serve says about a cluster, sending the configuration where due. True when all of it runs."""
        cluster, part = (at.active if role == ACTIVE else at.pending), at.part(role)
        before = part.pop("applicationStatuses", {})
        if cluster is None or not self.head_is_ready(cluster):
            return False
        try:
            target = await self._dashboard(cluster)
            found = await self._api.applications(target)
        except DashboardError as error:
            self._tokens.pop(view.uid(cluster), None)  # read again: it may have been rotated
            part["applicationStatuses"] = before
            at.troubles.append(str(error))
            return False
        stored = applications.statuses(found)
        if stored:
            part["applicationStatuses"] = stored
        config = str(view.spec(at.service).get("serveConfigV2") or "")
        if submit and applications.must_submit(at.memory.sent.get(view.name(cluster)), config, found):
            await self._submit(at, role, cluster, target, config)
            return False  # what was asked is older than what was just sent
        return applications.is_ready(stored)

    async def step_capacity(self, at: ServicePass, *, rollback: bool) -> None:
        """Let Serve grow on one cluster or shrink on the other, as far as the traffic has followed."""
        shares = shares_of(at.status, self._clock.now())
        wanted = next_capacities(shares, step_options(at.service), rollback=rollback)
        for role, cluster, old, new in (
            (PENDING, at.pending, shares.pending, wanted.pending),
            (ACTIVE, at.active, shares.active, wanted.active),
        ):
            if cluster is None or old.capacity == new.capacity:
                continue
            told = f"target_capacity of RayCluster {view.name(cluster)} is {new.capacity}"
            try:
                if self.head_is_ready(cluster):
                    await self._apply_capacity(at, cluster, new.capacity)
                elif role == ACTIVE or not rollback:
                    return
            except (DashboardError, BadInput) as error:
                at.warn(self._recorder, "FailedToUpdateTargetCapacity", f"{told}: {error}")
                at.troubles.append(f"{told} cannot be set: {error}")
                return
            at.part(role)["targetCapacity"] = new.capacity
            self._recorder.event(at.service, "Normal", "UpdatedServeTargetCapacity", told)

    async def release(self, cluster: Json) -> bool:
        """Have clients that kept connections to a cluster that serves no more come back by new ones, which lead to the
        next: a request that is on its way when a proxy ends would be lost. True when nothing is left to be asked."""
        if not self._has_own_serve(cluster):
            return True
        try:
            await self._api.release(await self._dashboard(cluster), f"shoal-release-{view.uid(cluster)}")
        except DashboardError as error:
            log.info("RayCluster %s is not asked yet to close its connections: %s", key_of(cluster), error)
            return False
        return True

    async def retire(self, cluster: Json) -> None:
        """End Serve before the pods of a cluster that serves no more: of pods that are killed, the proxies answer on
        with errors for the seconds in which all else of Ray has ended already."""
        if not self._has_own_serve(cluster):
            return
        try:
            await self._api.shut_down(await self._dashboard(cluster))
        except DashboardError as error:
            log.info("Serve of RayCluster %s ends with its pods: %s", key_of(cluster), error)

    def head_is_ready(self, cluster: Json) -> bool:
        return cluster_status.condition_status(cluster, cluster_status.HEAD_READY) == "True"

    def _has_own_serve(self, cluster: Json) -> bool:
        """What Serve stores may not be shared with the next cluster: its end would erase that one's, too."""
        return self.head_is_ready(cluster) and not fault_tolerance.shares_storage(cluster)

    def forget(self, cluster: Json) -> None:
        self._tokens.pop(view.uid(cluster), None)

    async def _submit(self, at: ServicePass, role: str, cluster: Json, target: DashboardTarget, config: str) -> None:
        capacity = at.part(role).get("targetCapacity") if is_incremental(at.service, self._settings) else None
        try:
            await self._api.apply(target, applications.request_body(config, capacity))
        except (DashboardError, BadInput) as error:
            at.warn(self._recorder, "FailedToUpdateServeApplications", str(error))
            at.troubles.append(str(error))
            return
        if config:
            at.memory.sent[view.name(cluster)] = config
        elif view.name(cluster) in at.memory.told_empty:
            return
        else:
            at.memory.told_empty.add(view.name(cluster))
        told = f"Sent spec.serveConfigV2 to RayCluster {view.name(cluster)}"
        self._recorder.event(at.service, "Normal", "UpdatedServeApplications", told)

    async def _apply_capacity(self, at: ServicePass, cluster: Json, capacity: int) -> None:
        """With the configuration that the cluster has: another one would be an upgrade of its own."""
        target = await self._dashboard(cluster)
        sent = at.memory.sent.get(view.name(cluster))
        if sent is not None:
            body = applications.request_body(sent, capacity)
        else:
            body = deployed_body(await self._api.applications(target), capacity)
        await self._api.apply(target, body)

    async def _takes_requests(self, head: Json, cluster: Json) -> bool:
        address = str((head.get("status") or {}).get("podIP") or "")
        port = view.container_port(view.ray_container(view.head(cluster)), "serve", 8000)
        proxy = f"/api/v1/namespaces/{view.namespace(head)}/pods/{view.name(head)}:{port}/proxy"
        try:
            return await self._api.is_healthy(DashboardTarget(checked_address(address, port), "", proxy=proxy))
        except DashboardError:
            return False

    async def _dashboard(self, cluster: Json) -> DashboardTarget:
        """Where to ask, made from the cluster itself. Raises DashboardError where there is no such port."""
        service = view.head_service_name(cluster)
        held = self._caches.services.get(Key(view.namespace(cluster), service)) or {}
        ports = {port.get("name"): port.get("port") for port in (held.get("spec") or {}).get("ports") or []}
        if "dashboard" not in ports:
            raise DashboardError(f"dashboard port is not found on Service {service}")
        host = builder.head_host(cluster, self._settings)
        if self._settings.dashboard_by_pod_address:
            heads = self._heads(cluster)
            host = str((heads[0].get("status") or {}).get("podIP") or "") if heads else ""
        token = ""
        if auth.uses_token(cluster, self._settings):
            token = self._tokens.get(view.uid(cluster)) or await read_token(self._writer.client, cluster)
            self._tokens[view.uid(cluster)] = token
        proxy = f"/api/v1/namespaces/{view.namespace(cluster)}/services/{service}:dashboard/proxy"
        return DashboardTarget(checked_address(host, int(ports["dashboard"])), "", token, proxy=proxy)

    def _heads(self, cluster: Json) -> list[Json]:
        return [
            pod
            for pod in self._caches.pods_of(cluster)
            if view.labels(pod).get(names.NODE_TYPE) == names.HEAD and not view.deleting(pod)
        ]


def shares_of(status: Json, now: int) -> UpgradeShares:
    """What a status says about capacity and traffic; an active cluster serves whole unless it says otherwise."""
    return UpgradeShares(_share(status.get(ACTIVE) or {}, WHOLE, now), _share(status.get(PENDING) or {}, 0, now))


def deployed_body(found: Json, capacity: int) -> bytes:
    """The configuration that a cluster reports of itself, with another capacity. Raises BadInput where it has none."""
    deployed = [one.get("deployed_app_config") for one in found.values()]
    if not deployed or not all(isinstance(one, dict) for one in deployed):
        raise BadInput("the configuration that the cluster got is not known")
    return msgspec.json.encode({"applications": deployed, "target_capacity": capacity})


def _share(part: Json, usual: int, now: int) -> ClusterShare:
    capacity, traffic, moved = (
        part.get(field) for field in ("targetCapacity", "trafficRoutedPercent", "lastTrafficMigratedTime")
    )
    return ClusterShare(
        usual if capacity is None else int(capacity),
        usual if traffic is None else int(traffic),
        (now - parse_time(str(moved))) / 1_000_000 if moved else None,
    )
