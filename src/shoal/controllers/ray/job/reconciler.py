"""The RayJob reconciler: one attempt at a time from cluster to submission to end, then clean-up.

The state lives in the status; what is stored decides what is created, so a crash between any two writes is recovered by
the next look. Names of an attempt are stored before anything is made; a retry gets new ones. Nothing here waits for a
dashboard: answers come from the poller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.log_text import headline
from shoal.api.meta import Json
from shoal.api.ray_gang import condition_of, is_admitted, without_condition
from shoal.api.times import seconds_text
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import start_gate, status
from shoal.controllers.ray.cluster.reconciler import is_ours
from shoal.controllers.ray.job import cleanup, deadlines, telling
from shoal.controllers.ray.job.attempt import Attempt, remove_attempt
from shoal.controllers.ray.job.dashboard import TERMINAL
from shoal.controllers.ray.job.poller import Poller
from shoal.controllers.ray.job.progress import Ending, Memory, judge
from shoal.controllers.ray.job.upkeep import JobUpkeep
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, key_of
from shoal.controllers.ray.pods import submission
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.job_rules import problems_of_job, problems_of_job_metadata, problems_of_job_status
from shoal.controllers.ray.waits import sooner
from shoal.errors import BadInput
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError, NotFound
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)

NEW, INITIALIZING, WAITING, RUNNING = "", "Initializing", "Waiting", "Running"
COMPLETE, FAILED, SUSPENDING, SUSPENDED = "Complete", "Failed", "Suspending", "Suspended"
RETRYING, INVALID = "Retrying", "ValidationFailed"
PERIOD = 3.0
_SUBMIT_YOURSELF = "the cluster is ready; submit a job to it and write its submission id into spec.jobId"
_FINAL_REASONS = ("DeadlineExceeded", "JobStatusCheckTimeoutExceeded")


class JobReconciler:
    def __init__(
        self,
        writer: OwnedWriter,
        caches: Caches,
        recorder: Recorder,
        poller: Poller,
        settings: RaySettings,
        clock: Clock,
        random: Random | None = None,
        in_a_rush: Callable[[], bool] = lambda: False,
    ) -> None:
        self._writer, self._caches, self._recorder, self._poller = writer, caches, recorder, poller
        self._settings, self._clock, self._in_a_rush = settings, clock, in_a_rush
        self._attempt = Attempt(writer, caches, poller, settings)
        self._upkeep = JobUpkeep(writer, caches, recorder, settings)
        self._random = random or Random()
        self._memory: dict[Key, Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        job = self._caches.jobs.get(key)
        if job is None:
            self._forget(key)
            return None
        if not is_ours(job):
            return None
        memory = self._remembered(key, job)
        if view.deleting(job):
            return await self._finish(job, memory)
        stage = str(submission.status(job).get("jobDeploymentStatus") or "")
        if _may_begin(job, stage) or (stage == INVALID and not self._seen(job)):
            problems = problems_of_job(job, self._settings)  # only at the start: an edit never disturbs what runs
            if problems:
                return await self._refuse(job, problems)
        match stage:
            case "" | "New":
                return await self._begin(job)
            case "Initializing":
                return await self._initialize(job, memory)
            case "Waiting":
                return await self._wait_for_id(job)
            case "Running":
                return await self._follow(job, memory)
            case "Suspending" | "Retrying":
                return await self._withdraw(job, memory, stage)
            case "Suspended":
                return await self._resume(job)
            case "ValidationFailed":
                return None if self._seen(job) else await self._write(job, {"jobDeploymentStatus": NEW, "reason": ""})
            case _:
                return await self._clean_up(job)

    # --- stages

    async def _begin(self, job: Json) -> float | None:
        """Fix the names of this attempt before anything is made. A job that comes suspended, as all that a queue holds,
        has no attempt yet."""
        if view.spec(job).get("suspend") is True:
            left = telling.unsaid(job, self._clock.now())
            return left if left > 0 else await self._write(job, {"jobDeploymentStatus": SUSPENDED})
        if names.JOB_FINALIZER not in (view.metadata(job).get("finalizers") or []):
            held = view.metadata(job).get("finalizers") or []
            job = await self._writer.set_finalizers(kinds.RAY_JOB, job, [*held, names.JOB_FINALIZER], self._caches.jobs)
        now = self._clock.now()
        selector = (view.spec(job).get("clusterSelector") or {}).get(names.CLUSTER)
        chosen = names.suffix(view.uid(job), self._random.getrandbits(64))
        interactive = submission.mode(job) == submission.INTERACTIVE
        given = str(view.spec(job).get("jobId") or "")
        job_id = "" if interactive else given or f"{view.name(job)}-{chosen}"
        return await self._write(
            job,
            {
                "jobDeploymentStatus": INITIALIZING,
                "jobId": job_id,
                "rayClusterName": selector or f"{view.name(job)}-{chosen}",
                "startTime": seconds_text(now),
                "jobStatus": "",
                "reason": "",
                "message": "",
                "failed": int(submission.status(job).get("failed") or 0),
                "succeeded": int(submission.status(job).get("succeeded") or 0),
            },
        )

    async def _initialize(self, job: Json, memory: Memory) -> float | None:
        if view.spec(job).get("suspend") is True:
            return await self._write(job, {"jobDeploymentStatus": SUSPENDING})
        late = deadlines.passed(job, self._clock.now(), before_running=True)
        if late is not None:
            return await self._end(job, late)
        cluster = self._attempt.cluster(job)
        if cluster is None:
            return await self._create_cluster(job)
        state = (cluster.get("status") or {}).get("state")
        copied = cluster.get("status") or {}
        if state != "ready" or view.deleting(cluster):
            wait = await self._tell_progress(job, memory, copied, status.why_not_ready(cluster))
            return sooner(wait, deadlines.left(job, self._clock.now(), before_running=True))
        interactive = submission.mode(job) == submission.INTERACTIVE
        return await self._write(
            job,
            {
                "jobDeploymentStatus": WAITING if interactive else RUNNING,
                "dashboardURL": self._attempt.dashboard_url(cluster),
                "rayClusterStatus": copied,
                "message": _SUBMIT_YOURSELF if interactive else "",
            },
        )

    async def _tell_progress(self, job: Json, memory: Memory, copied: Json, why: str) -> float | None:
        """Copy the status of a cluster that is not ready. While others come at the same time that waits a while: most
        clusters are ready by then, which is told at once."""
        changes = {"rayClusterStatus": copied, "message": why}
        if telling.changed(job, changes) is not None:
            now, delay = self._clock.monotonic(), self._settings.status_delay
            left = telling.pause(memory, now, delay, self._in_a_rush())
            if left > 0:
                return left
        memory.progress_since = None
        await self._write_if_changed(job, changes)
        return None

    async def _create_cluster(self, job: Json) -> float | None:
        if view.spec(job).get("clusterSelector"):
            name = submission.status(job).get("rayClusterName")
            message = f"RayCluster {view.namespace(job)}/{name} of spec.clusterSelector does not exist"
            self._recorder.event(job, "Warning", "RayClusterNotFound", message)
            await self._write_if_changed(job, {"message": message})
            return sooner(30.0, deadlines.left(job, self._clock.now(), before_running=True))
        if start_gate.holds_job(job, self._settings):  # the planning loop says when; that wakes it
            return deadlines.left(job, self._clock.now(), before_running=True)
        cluster = submission.cluster_of(job, self._settings)
        try:
            if await self._writer.create(kinds.RAY_CLUSTER, cluster, job, self._caches.clusters):
                self._recorder.event(job, "Normal", "CreatedRayCluster", f"Created RayCluster {view.name(cluster)}")
        except (ApiError, Stranger) as error:
            self._recorder.event(job, "Warning", "FailedToCreateRayCluster", str(error))
            await self._write_if_changed(job, {"message": f"the RayCluster cannot be created: {error}"})
            raise
        return deadlines.left(job, self._clock.now(), before_running=True)

    async def _wait_for_id(self, job: Json) -> float | None:
        if view.spec(job).get("suspend") is True:
            return await self._write(job, {"jobDeploymentStatus": SUSPENDING})
        late = deadlines.passed(job, self._clock.now(), before_running=True)
        if late is not None:
            return await self._end(job, late)
        given = str(view.spec(job).get("jobId") or "")
        if given:
            return await self._write(job, {"jobDeploymentStatus": RUNNING, "jobId": given, "message": ""})
        return deadlines.left(job, self._clock.now(), before_running=True)

    async def _follow(self, job: Json, memory: Memory) -> float | None:
        """Running: keep submitter and Service, take over what Ray says, and judge whether this is the end."""
        cluster = self._attempt.cluster(job)
        suspend = view.spec(job).get("suspend") is True
        late = deadlines.passed(job, self._clock.now(), before_running=False)
        if (suspend or late is not None) and not self._stopped(job, cluster, memory):
            return min(1.0, self._settings.stop_timeout)
        if suspend:
            return await self._write(job, {"jobDeploymentStatus": SUSPENDING})
        if late is not None:
            stopped = bool(submission.status(job).get("jobStatus"))
            return await self._end(job, late, job_status="STOPPED" if stopped else "")
        if cluster is None or view.deleting(cluster):
            return await self._lost(job, "its RayCluster was deleted")
        await self._upkeep.service(job, cluster)
        try:
            await self._upkeep.submitter(job, cluster)
        except (ApiError, Stranger, BadInput) as error:
            await self._write_if_changed(job, {"message": f"the submitter cannot be created: {error}"})
            raise
        await self._attempt.follow(job, cluster)
        progress = judge(
            job,
            self._poller.latest(key_of(job)),
            self._attempt.submitter(job, cluster),
            self._attempt.head(cluster),
            self._settings,
            self._clock,
            memory,
        )
        copied = cluster.get("status") or {}
        changes: dict[str, Any] = {**progress.changes}
        if telling.differs(submission.status(job).get("rayClusterStatus") or {}, copied):
            changes["rayClusterStatus"] = copied
        if progress.ending is not None:
            if progress.ending.head_lost:
                await self._attempt.pause_submitter(job)
            return await self._end(job, progress.ending, **changes)
        await self._write_if_changed(job, changes)
        return sooner(PERIOD, deadlines.left(job, self._clock.now(), before_running=False))

    async def _lost(self, job: Json, why: str) -> float | None:
        await self._attempt.pause_submitter(job)
        return await self._end(job, Ending(FAILED, "ClusterLost", f"the Ray job is lost: {why}"))

    async def _end(self, job: Json, ending: Ending, job_status: str = "", **changes: Any) -> float | None:
        """Write the end of an attempt, or the start of the next one."""
        if job_status:
            changes["jobStatus"] = job_status
        if ending.job_status:
            changes["jobStatus"] = ending.job_status
        held = submission.status(job)
        changes["message"] = ending.message or changes.get("message") or held.get("message") or ""
        counts = {"failed": int(held.get("failed") or 0), "succeeded": int(held.get("succeeded") or 0)}
        if ending.stage == FAILED:
            counts["failed"] += 1
        elif (changes.get("jobStatus") or held.get("jobStatus")) == "SUCCEEDED":
            counts["succeeded"] += 1
        changes.update({**counts, "reason": ending.reason})
        limit = int(view.spec(job).get("backoffLimit") or 0)
        if ending.stage == FAILED:
            why = headline(changes["message"], 900)
            told = f"Attempt {counts['failed']} of {limit + 1} failed ({ending.reason}): {why}"
            self._recorder.event(job, "Warning", "RayJobAttemptFailed", told)
        if ending.stage == FAILED and ending.reason not in _FINAL_REASONS and counts["failed"] <= limit:
            return await self._write(job, {**changes, "jobDeploymentStatus": RETRYING})
        self._poller.forget(key_of(job))
        if condition_of(job) and not is_admitted(job):
            changes["conditions"] = without_condition(job) or None  # it waits no more
        changes.update({"jobDeploymentStatus": ending.stage, "endTime": seconds_text(self._clock.now())})
        return await self._write(job, changes)

    async def _withdraw(self, job: Json, memory: Memory, stage: str) -> float | None:
        """Suspending or retrying: take back what this attempt made, and wait until it is gone."""
        self._poller.forget(key_of(job))
        if not await remove_attempt(job, self._attempt, self._recorder):
            return PERIOD
        self._poller.forget_stops(key_of(job))
        memory.new_attempt()
        suspended = stage == SUSPENDING  # once it is resumed it asks for room again; a retry keeps what it has
        asks_again = {"conditions": without_condition(job) or None} if suspended and condition_of(job) else {}
        return await self._write(
            job,
            {
                **asks_again,
                "jobDeploymentStatus": SUSPENDED if suspended else NEW,
                "jobId": "",
                "rayClusterName": "",
                "dashboardURL": "",
                "jobStatus": "",
                "reason": "",
                "message": "",
                "rayJobInfo": {},
                "rayClusterStatus": {},
                "jobStatusCheckFailureStartTime": None,
            },
        )

    async def _resume(self, job: Json) -> float | None:
        return None if view.spec(job).get("suspend") is True else await self._begin(job)

    async def _clean_up(self, job: Json) -> float | None:
        """Complete or Failed: what the deletion rules say, one step per pass."""
        self._poller.forget(key_of(job))
        await self._attempt.end_submitter(job, self._clock.now())
        cluster = self._attempt.cluster(job)
        if cluster is not None:
            self._attempt.forget(cluster)
        done = set()
        if cluster is None or view.deleting(cluster):
            done |= {cleanup.CLUSTER, cleanup.WORKERS}
        elif all(group.get("suspend") is True for group in view.groups(cluster)):
            done.add(cleanup.WORKERS)
        step = cleanup.next_step(job, done, self._clock.now(), self._settings)
        if step.policy == cleanup.SELF:
            await self._writer.delete(kinds.RAY_JOB, job)
            return None
        if step.policy == cleanup.CLUSTER and cluster is not None:
            await self._writer.delete(kinds.RAY_CLUSTER, cluster, self._caches.clusters)
            self._recorder.event(job, "Normal", "DeletedRayCluster", f"Deleted RayCluster {view.name(cluster)}")
            return 0.0
        if step.policy == cleanup.WORKERS and cluster is not None:
            groups = [{**group, "suspend": True} for group in view.groups(cluster)]
            change = {"spec": {"workerGroupSpecs": groups}}
            await self._writer.patch(kinds.RAY_CLUSTER, cluster, change, self._caches.clusters)
            self._recorder.event(job, "Normal", "UpdatedRayCluster", f"Removed the workers of {view.name(cluster)}")
            return 0.0
        return step.wait

    async def _finish(self, job: Json, memory: Memory) -> float | None:
        """Deletion: a courtesy stop, bounded; then the finalizer goes whatever came of it."""
        held = view.metadata(job).get("finalizers") or []
        if names.JOB_FINALIZER not in held:
            return None
        state = submission.status(job)
        cluster = self._attempt.cluster(job)
        unfinished = state.get("jobStatus") not in TERMINAL and state.get("jobId")  # a sidecar may be ahead of us
        if unfinished and cluster is not None and not self._stopped(job, cluster, memory, limit=5.0):
            return 1.0
        kept = [finalizer for finalizer in held if finalizer != names.JOB_FINALIZER]
        try:
            await self._writer.set_finalizers(kinds.RAY_JOB, job, kept, self._caches.jobs)
        except NotFound:
            pass
        return None

    # --- parts

    def _stopped(self, job: Json, cluster: Json | None, memory: Memory, limit: float | None = None) -> bool:
        """Ask Ray to stop the job. True once it was asked, or when nothing is there to ask, or after the time limit."""
        now = self._clock.monotonic()
        if memory.stop_since is None:
            memory.stop_since = now
        if cluster is None or not submission.submission_id(job) or submission.status(job).get("jobStatus") in TERMINAL:
            return True
        target = self._attempt.target(job, cluster)
        if target is None or self._poller.stop_job(key_of(job), target):
            return True
        return now - memory.stop_since >= (self._settings.stop_timeout if limit is None else limit)

    async def _refuse(self, job: Json, problems: list[str]) -> float | None:
        kind = "InvalidRayJobSpec"
        if problems_of_job_metadata(job):
            kind = "InvalidRayJobMetadata"
        elif problems == problems_of_job_status(job):
            kind = "InvalidRayJobStatus"
        message = "; ".join(problems)
        if submission.status(job).get("message") != message:
            self._recorder.event(job, "Warning", kind, message)
        await self._write_if_changed(job, {"jobDeploymentStatus": INVALID, "reason": INVALID, "message": message})
        return None

    def _seen(self, job: Json) -> bool:
        return int(submission.status(job).get("observedGeneration") or 0) == view.generation(job)

    async def _write(self, job: Json, changes: Json) -> float | None:
        """Store the next stage and come straight back to act on it."""
        before = submission.status(job).get("jobDeploymentStatus") or ""
        await self._write_if_changed(job, changes)
        after = changes.get("jobDeploymentStatus", before)
        if after != before:
            reason = f" ({changes['reason']})" if changes.get("reason") else ""
            log.info("RayJob %s: %s -> %s%s", key_of(job), before or "new", after or "new", reason)
        return 0.0

    async def _write_if_changed(self, job: Json, changes: Json) -> None:
        new = telling.changed(job, changes)
        if new is not None:
            await self._writer.write_status(kinds.RAY_JOB, job, new, self._clock.now(), self._caches.jobs, stamp="")

    def _remembered(self, key: Key, job: Json) -> Memory:
        held = self._memory.get(key)
        if held is None or held.uid != view.uid(job):
            self._forget(key)
            held = self._memory[key] = Memory(view.uid(job))
        return held

    def _forget(self, key: Key) -> None:
        self._memory.pop(key, None)
        self._poller.forget(key)
        self._poller.forget_stops(key)


def _may_begin(job: Json, stage: str) -> bool:
    """Is it new, or resumed?"""
    return stage in (NEW, "New") or (stage == SUSPENDED and view.spec(job).get("suspend") is not True)
