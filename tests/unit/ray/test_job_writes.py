"""How few writes bring a RayJob up: what is over before a person could have read it is not told."""

from __future__ import annotations

from shoal.api import kinds, kueue_names
from shoal.controllers.ray.job import telling
from shoal.controllers.ray.job.progress import Memory
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import ray_job

READY = {"do": "setPods", "phase": "Running", "ready": True}


def suspended(queue: str = "") -> dict:
    job = ray_job(mode="HTTPMode", suspend=True, shutdownAfterJobFinishes=True)
    if queue:
        job["metadata"]["labels"] = {kueue_names.QUEUE: queue}
    return job


def writes(stage: Stage) -> list[str]:
    """Each write of the RayJob that went through: the stage that a status tells, or that it was the object itself."""
    found = []
    for entry in stage.history.entries:
        if entry.path.endswith("/rayjobs") and entry.verb in ("update", "patch") and entry.outcome == "done":
            told = (entry.body.get("status") or {}).get("jobDeploymentStatus", "progress")
            found.append(told if entry.subresource else "object")
    return found


async def stage_of(stage: Stage) -> str | None:
    job = await stage.client.get(kinds.RAY_JOB, "train", "default")
    return (job.get("status") or {}).get("jobDeploymentStatus")


async def test_a_job_that_comes_suspended_rests_with_one_write(stage):
    await stage.client.create(kinds.RAY_JOB, suspended(), "default")
    await stage.settle()
    assert await stage_of(stage) == "Suspended"
    assert writes(stage) == ["Suspended"]
    assert not stage.objects(kinds.RAY_CLUSTER)


async def test_a_job_that_its_queue_starts_at_once_is_never_told_to_be_suspended(stage):
    await stage.client.create(kinds.RAY_JOB, suspended("team"), "default")
    await stage.settle()
    assert await stage_of(stage) is None
    await stage.client.patch(kinds.RAY_JOB, "train", "default", {"spec": {"suspend": False}})
    await stage.settle()
    assert writes(stage)[:2] == ["object", "Initializing"], "its finalizer, then the names of its attempt"
    assert "Suspended" not in writes(stage)


async def test_a_job_that_waits_in_its_queue_is_told_to_be_suspended_and_starts_later(stage):
    await stage.client.create(kinds.RAY_JOB, suspended("team"), "default")
    await stage.settle()
    stage.clock.advance(telling.QUEUED)
    await stage.settle()
    assert await stage_of(stage) == "Suspended"
    await stage.client.patch(kinds.RAY_JOB, "train", "default", {"spec": {"suspend": False}})
    await stage.settle()
    assert writes(stage)[:3] == ["Suspended", "object", "Initializing"]
    await stage.play(READY)
    await stage.settle()
    assert await stage_of(stage) == "Running"


async def test_a_resumed_job_that_cannot_work_is_refused(stage):
    await stage.client.create(kinds.RAY_JOB, suspended(), "default")
    await stage.settle()
    change = {"spec": {"suspend": False, "submissionMode": "InteractiveMode", "backoffLimit": 3}}
    await stage.client.patch(kinds.RAY_JOB, "train", "default", change)
    await stage.settle()
    assert await stage_of(stage) == "ValidationFailed"
    assert not stage.objects(kinds.RAY_CLUSTER)


def test_progress_waits_only_while_others_come_and_not_for_ever():
    memory = Memory("uid")
    assert telling.pause(memory, 100.0, 2.0, in_a_rush=False) == 0.0
    assert telling.pause(memory, 100.0, 2.0, in_a_rush=True) == 5.0
    assert telling.pause(memory, 104.0, 2.0, in_a_rush=False) == 1.0, "it was put off, and comes with what follows"
    assert telling.pause(memory, 105.0, 2.0, in_a_rush=True) == 0.0


def test_a_clock_that_is_behind_the_servers_does_not_make_it_longer():
    job = suspended("team")
    job["metadata"]["creationTimestamp"] = "2026-01-01T00:10:00Z"
    assert telling.unsaid(job, 0) == telling.QUEUED
    job["metadata"].pop("creationTimestamp")
    assert telling.unsaid(job, 0) == 0.0
