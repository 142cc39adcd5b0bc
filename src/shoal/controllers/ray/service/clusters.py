"""The RayClusters of a RayService: made, brought up to date in place, and deleted once unused.

A name is stored in the status before its cluster is made, so a crash never leaves two for one place.
"""

from __future__ import annotations

from random import Random

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, merge_patch
from shoal.controllers.ray.service import belongings, spec_changes
from shoal.controllers.ray.service.service_pass import ServicePass
from shoal.controllers.ray.service.service_status import ACTIVE, PENDING, UPGRADING
from shoal.controllers.ray.service.serving import ServeApplications
from shoal.controllers.ray.service.steps import WHOLE
from shoal.controllers.ray.service.upgrade_strategy import is_incremental
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError
from shoal.kube.events import Recorder

DELAY = 60
"""Seconds for which an unused cluster stays, where the spec names none."""


class ServiceClusters:
    def __init__(
        self,
        writer: OwnedWriter,
        caches: Caches,
        recorder: Recorder,
        settings: RaySettings,
        clock: Clock,
        serving: ServeApplications,
        random: Random | None = None,
    ) -> None:
        self._writer, self._caches, self._recorder, self._serving = writer, caches, recorder, serving
        self._settings, self._clock, self._random = settings, clock, random or Random()

    async def sweep(self, at: ServicePass, *, all_at_once: bool = False) -> bool:
        """Delete what is unused and due, or everything; True when no cluster is left.

        A cluster that has served lets go of its connections as soon as it is unused, and ends Serve before its pods.
        """
        used = () if all_at_once else (at.name(ACTIVE), at.name(PENDING))
        left, doomed, now = False, dict[str, int](), self._clock.now()
        written = view.spec(at.service).get("rayClusterDeletionDelaySeconds")
        delay = DELAY if written is None else int(written)
        for cluster in self._caches.clusters_of(at.service):
            left = True
            if view.name(cluster) in used or view.deleting(cluster):
                continue
            due = at.memory.doomed.get(view.uid(cluster), now + delay * 1_000_000)
            doomed[view.uid(cluster)] = due
            if not all_at_once:
                await self._let_go(at, cluster, is_due=due <= now)
            if all_at_once or due <= now:
                await self.delete(at.service, cluster)
        at.memory.doomed = doomed
        at.memory.released &= doomed.keys()
        return not left or not self._caches.clusters_of(at.service)

    async def _let_go(self, at: ServicePass, cluster: Json, *, is_due: bool) -> None:
        uid = view.uid(cluster)
        if is_due:
            await self._serving.retire(cluster)
        elif uid not in at.memory.released and await self._serving.release(cluster):
            at.memory.released.add(uid)

    async def delete(self, service: Json, cluster: Json) -> None:
        name = view.name(cluster)
        try:
            await self._writer.delete(kinds.RAY_CLUSTER, cluster, self._caches.clusters)
        except ApiError as error:
            self._recorder.event(service, "Warning", "FailedToDeleteRayCluster", f"RayCluster {name}: {error}")
            raise
        self._recorder.event(service, "Normal", "DeletedRayCluster", f"Deleted RayCluster {name}")

    async def bring_about(self, at: ServicePass) -> None:
        """The pending cluster exists; both are what groups appended to the spec make of them."""
        if at.name(PENDING) and at.pending is None:
            await self._create(at)
            return
        upgrading = at.conditions.is_true(UPGRADING)
        for cluster, is_active in ((at.active, True), (at.pending, False)):
            if cluster is None or view.deleting(cluster) or (is_active and upgrading):
                continue
            if spec_changes.in_place(at.service, cluster, self._settings, is_active=is_active):
                await self._update(at, cluster)
        at.find_clusters(self._caches)

    def prepare(self, at: ServicePass) -> None:
        """Name the next cluster; it is made once that is stored."""
        suffix = names.suffix(view.uid(at.service), self._random.getrandbits(64))
        at.status[PENDING] = {"rayClusterName": f"{view.name(at.service)}-{suffix}"}
        at.pending = None
        if is_incremental(at.service, self._settings):
            at.status[PENDING]["targetCapacity"] = 0 if at.active is not None else WHOLE

    async def _create(self, at: ServicePass) -> None:
        active = at.name(ACTIVE) if at.active is not None else ""
        wanted = belongings.cluster_of(at.service, at.name(PENDING), self._settings, active_cluster=active)
        try:
            if await self._writer.create(kinds.RAY_CLUSTER, wanted, at.service, self._caches.clusters):
                told = f"Created RayCluster {view.name(wanted)}"
                self._recorder.event(at.service, "Normal", "CreatedRayCluster", told)
        except (ApiError, Stranger) as error:
            at.warn(self._recorder, "FailedToCreateRayCluster", str(error))
            at.troubles.append(f"RayCluster {view.name(wanted)} cannot be created: {error}")
        at.find_clusters(self._caches)

    async def _update(self, at: ServicePass, cluster: Json) -> None:
        wanted = belongings.cluster_of(at.service, view.name(cluster), self._settings)
        spec = wanted["spec"]
        spec.pop("suspend", None)
        if "suspend" in view.spec(cluster):
            spec["suspend"] = view.spec(cluster)["suspend"]  # a queue's, once the cluster is there
        if view.autoscaling({"spec": spec}):
            _keep_counts(spec, cluster)
        change: Json = {
            "metadata": {
                "labels": wanted["metadata"]["labels"],
                "annotations": wanted["metadata"]["annotations"],
            },
            "spec": merge_patch({"spec": view.spec(cluster)}, {"spec": spec})["spec"],
        }
        try:
            await self._writer.patch(kinds.RAY_CLUSTER, cluster, change, self._caches.clusters)
        except ApiError as error:
            at.warn(self._recorder, "FailedToUpdateRayCluster", str(error))
            at.troubles.append(f"RayCluster {view.name(cluster)} cannot be updated: {error}")
            return
        self._recorder.event(at.service, "Normal", "UpdatedRayCluster", f"Updated RayCluster {view.name(cluster)}")


def _keep_counts(spec: Json, cluster: Json) -> None:
    """How many workers there are is the autoscaler's business, where it runs."""
    held = {view.group_name(group): group for group in view.groups(cluster)}
    for group in spec.get("workerGroupSpecs") or []:
        before = held.get(view.group_name(group)) or {}
        for field in ("replicas", "scaleStrategy"):
            if field in before:
                group[field] = before[field]
