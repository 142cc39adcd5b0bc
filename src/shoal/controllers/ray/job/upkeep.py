"""What a running attempt of a RayJob has beside its cluster: a Service that leads to it, and a submitter.

Called by the reconciler at every look at a running job, so that what a user deletes comes back. Never touches one of
that name that belongs to another owner.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.ray import services, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import pod_group
from shoal.controllers.ray.cluster.belongings import service_change
from shoal.controllers.ray.cluster.gang_marks import gang_of, mark
from shoal.controllers.ray.job.dashboard import TERMINAL
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, key_of, owned_by
from shoal.controllers.ray.pods import auth, submission
from shoal.controllers.ray.settings import VOLCANO, YUNIKORN, RaySettings
from shoal.errors import BadInput
from shoal.kube.errors import ApiError
from shoal.kube.events import Recorder


class JobUpkeep:
    def __init__(self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings) -> None:
        self._writer, self._caches, self._recorder, self._settings = writer, caches, recorder, settings

    async def service(self, job: Json, cluster: Json) -> None:
        """`<job>-head-svc` leads to the head of the current attempt."""
        if view.spec(job).get("clusterSelector"):
            return
        wanted = services.job_head_service(job, cluster, self._settings)
        held = self._caches.services.get(key_of(wanted))
        if held is None:
            if await self._writer.create(kinds.SERVICE, wanted, job, self._caches.services):
                self._recorder.event(job, "Normal", "CreatedService", f"Created Service {view.name(wanted)}")
            return
        change = service_change(held, wanted) if owned_by(held, job) else None
        if change is not None:
            await self._writer.patch(kinds.SERVICE, held, change, self._caches.services)
            self._recorder.event(
                job, "Normal", "UpdatedService", f"Service {view.name(wanted)} leads to {view.name(cluster)}"
            )

    async def submitter(self, job: Json, cluster: Json) -> None:
        if submission.mode(job) != submission.K8S_JOB or submission.status(job).get("jobStatus") in TERMINAL:
            return
        if self._caches.submitters.get(key_of(job)) is not None:
            return
        try:
            wanted = submission.submitter_job(job, cluster, self._settings)
            if not view.spec(job).get("clusterSelector"):
                mark(wanted["spec"]["template"], gang_of(cluster, job))  # it uses the gang's room, so it counts there
            auth.name_secret(wanted["spec"]["template"]["metadata"], cluster, self._settings)
            if self._settings.batch_scheduler in (VOLCANO, YUNIKORN):
                pod_group.join(wanted["spec"]["template"], cluster, self._settings, "submitter")
            if await self._writer.create(kinds.JOB, wanted, job, self._caches.submitters):
                self._recorder.event(
                    job, "Normal", "CreatedRayJobSubmitter", f"Created submitter Job {view.name(wanted)}"
                )
        except (ApiError, Stranger, BadInput) as error:
            self._recorder.event(job, "Warning", "FailedToCreateRayJobSubmitter", str(error))
            raise
