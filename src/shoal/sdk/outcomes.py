"""How far a gang has come, in one of five words that programs can rely on, whatever its kind.

Read from what its own controller and its Workload stored; nothing is worked out. `exit_code` is the driver's, where Ray
reported one.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from shoal.api.kind import Kind
from shoal.api.kueue_told import condition, holds
from shoal.api.meta import Json
from shoal.sdk import gangs

Stage = Literal["waiting", "starting", "running", "succeeded", "failed"]
ENDED: tuple[Stage, ...] = ("succeeded", "failed")
# Ray's own words, which the operator stores as the job's message.
_EXIT_CODE = re.compile(r"entrypoint command failed with exit code (-?\d+)")


class GangOutcome(msgspec.Struct, frozen=True):
    stage: Stage
    exit_code: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.stage in ENDED


def outcome_of(kind: Kind, obj: Json, workload: Json | None) -> GangOutcome:
    status = obj.get("status") or {}
    match kind.kind:
        case "RayJob":
            return _ray_job(status, workload)
        case "AppWrapper":
            return GangOutcome(_APP_WRAPPER.get(str(status.get("state") or status.get("phase") or ""), "waiting"))
        case "RayCluster":
            if status.get("state") == "ready":
                return GangOutcome("running")
            return GangOutcome("failed" if status.get("state") == "failed" else _before(workload))
        case "Job":
            for name, stage in (("Complete", "succeeded"), ("Failed", "failed")):
                if holds(obj, name):
                    return GangOutcome("succeeded" if stage == "succeeded" else "failed")
            return GangOutcome("running" if status.get("active") else _before(workload))
        case "Pod":
            return GangOutcome(_POD.get(str(status.get("phase") or ""), _before(workload)))
        case "Workload":
            workload = obj
    if workload is not None and holds(workload, "Finished"):
        reason = condition(workload, "Finished").get("reason")
        return GangOutcome("failed" if reason in ("Failed", "JobFailed", "OwnerNotFound") else "succeeded")
    if workload is not None and gangs.owner(obj) is None and _before(workload) == "starting":
        return GangOutcome("running")
    return GangOutcome(_before(workload))


_POD: dict[str, Stage] = {"Running": "running", "Succeeded": "succeeded", "Failed": "failed"}
_APP_WRAPPER: dict[str, Stage] = {
    "Running": "running",
    "RunningHoldCompletion": "running",
    "Dispatched": "starting",
    "Resuming": "starting",
    "Completed": "succeeded",
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Deleted": "failed",
}


def _ray_job(status: Json, workload: Json | None) -> GangOutcome:
    deployment, job = status.get("jobDeploymentStatus"), status.get("jobStatus")
    if deployment == "Complete":
        return GangOutcome("succeeded", 0) if job in (None, "", "SUCCEEDED") else _failed(status)
    if deployment in ("Failed", "ValidationFailed"):
        return _failed(status)
    if deployment == "Running" and job in ("RUNNING", "SUCCEEDED", "FAILED", "STOPPED"):
        return GangOutcome("running")
    if deployment in ("Initializing", "Running", "Waiting", "Retrying"):
        return GangOutcome("starting")
    return GangOutcome(_before(workload))


def _failed(status: Json) -> GangOutcome:
    found = _EXIT_CODE.search(str(status.get("message") or ""))
    return GangOutcome("failed", int(found[1]) if found else None)


def _before(workload: Json | None) -> Stage:
    """Of a gang that does not run: has it been let go?"""
    started = workload is not None and holds(workload, "Admitted") and not holds(workload, "Evicted")
    return "starting" if started else "waiting"
