"""The RayCronJob reconciler: makes a RayJob when one is due, and removes the oldest that have ended.

KubeRay's fields and names. Where KubeRay would start every missed run at once, Kubernetes' CronJob is followed: of
several missed runs only the newest starts, one that is later than its deadline never does, and a resumed schedule
begins with the next run. The name of a RayJob is fixed by its run: a crash before it is stored makes no second one.
"""

from __future__ import annotations

import logging
from datetime import tzinfo

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import BY_OWNER, Caches
from shoal.controllers.ray.cron.rules import cron_problem
from shoal.controllers.ray.cron.schedule import CronSchedule, parse_schedule, parse_zone
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, key_of
from shoal.controllers.ray.settings import CRON_JOBS, RaySettings
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError
from shoal.kube.events import Recorder

log = logging.getLogger(__name__)

_SECOND = 1_000_000
_ENDED = ("Complete", "Failed", "ValidationFailed")
_COPIED = (kueue_names.QUEUE, kueue_names.PRIORITY_CLASS)


class RayCronJobReconciler:
    def __init__(
        self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
    ) -> None:
        self._writer, self._caches, self._recorder = writer, caches, recorder
        self._settings, self._clock = settings, clock
        self._told: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> float | None:
        cron = self._caches.cron_jobs.get(key)
        if cron is None:
            self._told.pop(key, None)
            return None
        if view.deleting(cron) or not self._settings.gate(CRON_JOBS):
            return None
        problem = cron_problem(cron, self._settings)
        if problem:
            if self._told.get(key) != problem:
                self._recorder.event(cron, "Warning", "InvalidRayCronJobSpec", f"{key}: {problem}")
            self._told[key] = problem
            return None
        self._told.pop(key, None)
        status = cron.get("status") or {}
        if view.spec(cron).get("suspend") is True:
            if status.get("suspended") is not True:
                self._recorder.event(cron, "Normal", "SuspendedRayCronJob", "No RayJobs are made while suspended")
                await self._store(cron, suspended=True)
            await self._prune(cron)
            return None
        if status.get("suspended") is True:
            await self._store(cron, suspended=None, notBefore=seconds_text(self._clock.now()))
            return 0.0
        await self._prune(cron)
        return await self._run_due(cron)

    async def _run_due(self, cron: Json) -> float | None:
        spec, now = view.spec(cron), self._clock.now()
        schedule = parse_schedule(str(spec["schedule"]))
        zone = parse_zone(spec.get("timeZone") or self._settings.time_zone)
        since = _looks_from(cron)
        deadline = spec.get("startingDeadlineSeconds")
        oldest = since if deadline is None else max(since, now - int(deadline) * _SECOND)
        due = _newest(schedule, since, oldest, now, zone)
        if due is not None:
            if not await self._make_room(cron):
                return _wait(schedule.next_after(now, zone), now)
            await self._create(cron, due)
            await self._store(cron, lastScheduleTime=seconds_text(due))
            since = due
        counted = _last_tick(schedule, since, now) if schedule.every else max(since, now)
        return _wait(schedule.next_after(counted, zone), now)

    async def _make_room(self, cron: Json) -> bool:
        """May another run start beside those that have not ended?"""
        policy = view.spec(cron).get("concurrencyPolicy") or "Allow"
        running = [job for job in self._jobs(cron) if _stage(job) not in _ENDED]
        if policy == "Allow" or not running:
            return True
        if policy == "Forbid":
            told = f"RayJob {view.name(running[0])} of an earlier run has not ended"
            self._recorder.event(cron, "Normal", "JobAlreadyActive", told)
            return False
        for job in running:
            if not view.deleting(job):
                await self._writer.delete(kinds.RAY_JOB, job, self._caches.jobs)
        return True

    async def _create(self, cron: Json, due: int) -> None:
        job = run_of(cron, due)
        try:
            await self._writer.create(kinds.RAY_JOB, job, cron, self._caches.jobs)
        except (ApiError, Stranger) as error:
            self._recorder.event(cron, "Warning", "FailedToCreateRayJob", str(error))
            raise
        log.info("RayCronJob %s: RayJob %s", key_of(cron), view.name(job))

    async def _prune(self, cron: Json) -> None:
        """Of the runs that ended well and of those that did not, the newest stay."""
        for field, usual, stages in (
            ("successfulJobsHistoryLimit", 3, ("Complete",)),
            ("failedJobsHistoryLimit", 1, ("Failed", "ValidationFailed")),
        ):
            written = view.spec(cron).get(field)
            limit = usual if written is None else int(written)
            ended = [job for job in self._jobs(cron) if _stage(job) in stages and not view.deleting(job)]
            for job in ended[: max(0, len(ended) - limit)]:
                await self._writer.delete(kinds.RAY_JOB, job, self._caches.jobs)

    def _jobs(self, cron: Json) -> list[Json]:
        """Its runs, oldest first."""
        found = self._caches.jobs.by_index(BY_OWNER, view.uid(cron))
        return sorted(found, key=lambda job: view.annotations_of(job).get(names.CRON_TICK, ""))

    async def _store(self, cron: Json, **changes: object) -> None:
        held = self._caches.cron_jobs.get(key_of(cron)) or cron
        status = {**(held.get("status") or {}), **changes}
        new = {key: value for key, value in status.items() if value is not None}
        await self._writer.write_status(
            kinds.RAY_CRON_JOB, held, new, self._clock.now(), self._caches.cron_jobs, stamp=""
        )


def run_of(cron: Json, due: int) -> Json:
    """The RayJob of one run. Queue and priority are the RayCronJob's: a template has no labels of its own."""
    labels = {key: value for key, value in view.labels(cron).items() if key in _COPIED}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": f"{view.name(cron)}-{due // (60 * _SECOND)}",
            "namespace": view.namespace(cron),
            "labels": {**labels, names.CRON_NAME: view.name(cron)},
            "annotations": {names.CRON_TICK: seconds_text(due)},
            "ownerReferences": [view.owner_reference(cron, "ray.io/v1", "RayCronJob")],
        },
        "spec": view.clone(view.spec(cron).get("jobTemplate") or {}),
    }


def _looks_from(cron: Json) -> int:
    status = cron.get("status") or {}
    told = (view.metadata(cron).get("creationTimestamp"), status.get("lastScheduleTime"), status.get("notBefore"))
    return max(parse_time(str(moment)) for moment in told if moment)


def _newest(schedule: CronSchedule, since: int, oldest: int, now: int, zone: tzinfo) -> int | None:
    found = schedule.newest_between(since, now, zone)
    return found if found is not None and found >= oldest else None


def _last_tick(schedule: CronSchedule, since: int, now: int) -> int:
    """An interval counts from the last run, also from those that were missed."""
    return since + max(0, (now - since) // schedule.every) * schedule.every


def _stage(job: Json) -> str:
    return str((job.get("status") or {}).get("jobDeploymentStatus") or "")


def _wait(moment: int | None, now: int) -> float | None:
    return None if moment is None else max(0.0, (moment - now) / _SECOND)
