"""How long a RayJob may take: from its start to its end, and to the moment it runs. Pure; called by the reconciler."""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import view
from shoal.controllers.ray.job.progress import Ending
from shoal.controllers.ray.pods import submission
from shoal.controllers.ray.waits import sooner

ACTIVE, PRE_RUNNING = "activeDeadlineSeconds", "preRunningDeadlineSeconds"


def passed(job: Json, now: int, *, before_running: bool) -> Ending | None:
    """The end of a job that is late, in the words that say which limit it was."""
    active = _left(job, ACTIVE, now)
    if active is not None and active <= 0:
        limit = view.spec(job)[ACTIVE]
        return Ending("Failed", "DeadlineExceeded", f"the job was not done {limit} s after its start")
    early = _left(job, PRE_RUNNING, now) if before_running else None
    if early is not None and early <= 0:
        limit = view.spec(job)[PRE_RUNNING]
        return Ending("Failed", "PreRunningDeadlineExceeded", f"the job was not running {limit} s after its start")
    return None


def left(job: Json, now: int, *, before_running: bool) -> float | None:
    """Seconds until the next limit; None where there is none."""
    return sooner(_left(job, ACTIVE, now), _left(job, PRE_RUNNING, now) if before_running else None)


def _left(job: Json, field: str, now: int) -> float | None:
    limit, began = view.spec(job).get(field), submission.status(job).get("startTime")
    if limit is None or not began:
        return None
    return float(limit) - (now - parse_time(str(began))) / 1_000_000
