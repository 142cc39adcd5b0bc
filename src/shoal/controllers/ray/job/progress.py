"""Is a running RayJob at its end? Pure judgement over what Ray, the submitter and the pods say.

Every end cites its evidence in the message. What Ray itself says about the job comes before what its submitter's exit
code says; a job that Ray knew and no longer knows is lost, never submitted again under the same id.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.ray import view
from shoal.controllers.ray.job.attempt import Submitter
from shoal.controllers.ray.job.dashboard import TERMINAL, JobInfo, times
from shoal.controllers.ray.job.poller import JobObservation
from shoal.controllers.ray.pods import fault_tolerance, submission
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput
from shoal.kube.clock import Clock

GRACE_EXCEEDED = "JobDeploymentStatusTransitionGracePeriodExceeded"


class Ending(msgspec.Struct, frozen=True):
    """Complete or Failed, with the reason and a message that cites what was seen."""

    stage: str
    reason: str = ""
    message: str = ""
    job_status: str = ""
    head_lost: bool = False
    """The job went with its head: another one must not be given it."""


class Memory(msgspec.Struct):
    """What is remembered of a running attempt between looks; losing it costs time, never correctness."""

    uid: str
    head_uid: str = ""
    head_lost_since: float | None = None
    stop_since: float | None = None
    submitter_ended: float | None = None
    answers_then: int = 0
    progress_since: float | None = None
    """Since when its cluster's progress waits to be told."""
    ended_since: int | None = None
    """When the job was first seen at its end in Ray, where Ray itself does not say."""

    def new_attempt(self) -> None:
        self.head_uid, self.head_lost_since, self.stop_since, self.submitter_ended = "", None, None, None
        self.ended_since = None


class Progress(msgspec.Struct, frozen=True):
    """Status fields to take over, and the end if this is one."""

    changes: dict[str, Any]
    ending: Ending | None = None


def judge(
    job: Json,
    latest: JobObservation | None,
    submitter: Submitter | None,
    head: Json | None,
    settings: RaySettings,
    clock: Clock,
    memory: Memory,
) -> Progress:
    """One look at a running attempt."""
    held = submission.status(job)
    changes = _taken_over(job, held, latest, clock)
    known = str(changes.get("jobStatus", held.get("jobStatus")) or "")
    for ending in (
        _from_ray(job, held, known, latest, submitter, settings, clock, memory),
        _from_lost_head(job, known, head, settings, clock, memory),
        _from_lost_job(known, held, latest),
        _from_errors(changes, held, latest, settings, clock),
        _from_submitter(job, known, submitter, latest, settings, clock, memory),
    ):
        if ending is not None:
            return Progress(changes, ending)
    return Progress(changes)


def _taken_over(job: Json, held: Json, latest: JobObservation | None, clock: Clock) -> dict[str, Any]:
    """What the dashboard's latest answer changes in the status."""
    changes: dict[str, Any] = {}
    if latest is None:
        return changes
    if latest.error:
        changes["message"] = latest.error
        if not held.get("jobStatusCheckFailureStartTime"):
            changes["jobStatusCheckFailureStartTime"] = seconds_text(clock.now())
        return changes
    if held.get("jobStatusCheckFailureStartTime"):
        changes.update({"jobStatusCheckFailureStartTime": None, "message": ""})
    if latest.info is not None:
        changes["jobStatus"] = latest.info.status
        changes["message"] = latest.info.message
        moments = {key: seconds_text(moment) for key, moment in times(latest.info).items()}
        if moments and moments != (held.get("rayJobInfo") or {}):
            changes["rayJobInfo"] = moments
    elif latest.missing and submission.mode(job) == submission.INTERACTIVE and not held.get("jobStatus"):
        changes["message"] = f"Ray does not know job {held.get('jobId')} yet; submit it under that id"
    return changes


def _from_ray(
    job: Json,
    held: Json,
    known: str,
    latest: JobObservation | None,
    submitter: Submitter | None,
    settings: RaySettings,
    clock: Clock,
    memory: Memory,
) -> Ending | None:
    """Ray says the job has ended; where there is a submitter, its logs are waited for, for a while."""
    if known not in TERMINAL:
        return None
    info = latest.info if latest else None
    follows = submission.mode(job) in (submission.K8S_JOB, submission.SIDECAR)
    if not follows or submitter is not None:
        return _ended(known, info.message if info else "")
    since = _ray_end(held, info)
    if since is None:
        since = memory.ended_since = memory.ended_since or clock.now()
    if (clock.now() - since) / 1_000_000 > settings.transition_grace:
        ended = _ended(known, "")
        text = f"Ray says {known} for more than {settings.transition_grace:.0f} s, the submitter has not ended"
        return msgspec.structs.replace(ended, reason=GRACE_EXCEEDED, message=text)
    return None


def _ray_end(held: Json, info: JobInfo | None) -> int | None:
    """When the job ended in Ray: as it says now, or as it said before its dashboard went away."""
    if info is not None and info.end_time:
        return info.end_time * 1000
    stored = (held.get("rayJobInfo") or {}).get("endTime")
    return parse_time(str(stored)) if stored else None


def _ended(known: str, message: str) -> Ending:
    if known == "FAILED":
        return Ending("Failed", "AppFailed", message or "Ray says that the job failed")
    return Ending("Complete", "", message)


def _from_lost_head(
    job: Json, known: str, head: Json | None, settings: RaySettings, clock: Clock, memory: Memory
) -> Ending | None:
    """Without its head the job is gone, unless the cluster's state survives elsewhere."""
    sidecar = submission.mode(job) == submission.SIDECAR
    if head is not None and not memory.head_uid:
        memory.head_uid = view.uid(head)
    same = head is not None and view.uid(head) == memory.head_uid
    if same or known in TERMINAL or not memory.head_uid:
        memory.head_lost_since = None
        return None
    survives = fault_tolerance.enabled(
        {"metadata": view.metadata(job), "spec": view.spec(job).get("rayClusterSpec") or {}}
    )
    if survives and not sidecar:
        return None
    if memory.head_lost_since is None:
        memory.head_lost_since = clock.monotonic()
    if sidecar:
        return Ending("Failed", "AppFailed", "the head pod, which ran the submitter, is gone", _lost_status(known))
    if head is None and clock.monotonic() - memory.head_lost_since < settings.cluster_lost_grace:
        return None
    return Ending("Failed", "AppFailed", "the head pod that ran the job is gone", _lost_status(known), head_lost=True)


def _lost_status(known: str) -> str:
    return "FAILED" if known in ("PENDING", "RUNNING") else ""


def _from_lost_job(known: str, held: Json, latest: JobObservation | None) -> Ending | None:
    """Ray knew the job and does not any more: another head answers."""
    if latest is None or not latest.missing or known in ("", *TERMINAL):
        return None
    text = f"Ray no longer knows job {held.get('jobId')}, which was {known}; its head was replaced"
    return Ending("Failed", "AppFailed", text, "FAILED", head_lost=True)


def _from_errors(
    changes: dict[str, Any], held: Json, latest: JobObservation | None, settings: RaySettings, clock: Clock
) -> Ending | None:
    began = changes.get("jobStatusCheckFailureStartTime", held.get("jobStatusCheckFailureStartTime"))
    if not began:
        return None
    waited = (clock.now() - parse_time(str(began))) / 1_000_000
    if waited < settings.status_check_timeout:
        return None
    last = f": {latest.error}" if latest is not None and latest.error else ""
    text = f"no usable answer from the dashboard for {waited:.0f} s{last}"
    return Ending("Failed", "JobStatusCheckTimeoutExceeded", text)


def _from_submitter(
    job: Json,
    known: str,
    submitter: Submitter | None,
    latest: JobObservation | None,
    settings: RaySettings,
    clock: Clock,
    memory: Memory,
) -> Ending | None:
    """The submitter has ended and Ray's job has not.

    A submitter only follows the job once Ray has it: killed, evicted or cut off, it says nothing about the job, whose
    outcome stays Ray's to tell. Its exit code decides where Ray was asked since and does not know the job.
    """
    if submitter is None or known in TERMINAL:
        memory.submitter_ended = None
        return None
    if memory.submitter_ended is None:
        memory.submitter_ended = clock.monotonic()
        memory.answers_then = latest.number if latest else 0
    if latest is None or latest.number <= memory.answers_then or not latest.missing:
        return None
    if submitter.outcome == "Failed":
        return Ending("Failed", "SubmissionFailed", f"the submitter failed: {submitter.message}")
    if _age(submitter, clock, memory) > settings.submitter_grace:
        text = f"the submitter ended more than {settings.submitter_grace:.0f} s ago and the job is {known or 'unknown'}"
        return Ending("Failed", GRACE_EXCEEDED, text, "FAILED")
    return Ending("Failed", "AppFailed", "the submitter has ended, but Ray does not know the job")


def _age(submitter: Submitter, clock: Clock, memory: Memory) -> float:
    """Seconds since the submitter ended, by its own words or since we saw it."""
    seen = clock.monotonic() - (memory.submitter_ended or clock.monotonic())
    try:
        return max(seen, (clock.now() - parse_time(submitter.at)) / 1_000_000)
    except BadInput:
        return float(seen)
