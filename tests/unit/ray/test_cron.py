"""RayCronJob: when runs are due, which of those that were missed start, and what stays of those that ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.api import kinds, kueue_names
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.ray import RaySettings, view
from shoal.controllers.ray.cron import reconciler
from shoal.controllers.ray.cron.rules import cron_problem
from shoal.controllers.ray.cron.schedule import CronSchedule, parse_schedule, parse_zone
from shoal.errors import BadInput
from shoal.sdk.rows import rows_of
from tests.conformance.rayservice_traces import ServiceStage
from tests.faults import proven
from tests.unit.ray.builders import ray_job

Json = dict[str, Any]


@pytest.fixture
async def stage() -> AsyncIterator[ServiceStage]:
    stage = ServiceStage(RaySettings())
    await stage.start()
    stage.clock.moment = parse_time("2026-05-04T10:02:00Z")
    yield stage
    await stage.stop()


def cron(schedule: str = "*/5 * * * *", labels: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCronJob",
        "metadata": {"name": "nightly", "namespace": "default", "labels": labels or {}},
        "spec": {"schedule": schedule, "jobTemplate": ray_job()["spec"], **spec},
    }


async def at(stage: ServiceStage, time: str) -> list[str]:
    """The runs that there are at that time, by their minute."""
    stage.clock.moment = parse_time(f"2026-05-04T{time}Z")
    await stage.settle()
    found = [view.annotations_of(job)["ray.io/cronjob-scheduled-timestamp"] for job in stage.objects(kinds.RAY_JOB)]
    return sorted(one[11:16] for one in found)


async def made(stage: ServiceStage, **spec: Any) -> None:
    await stage.client.create(kinds.RAY_CRON_JOB, cron(**spec), "default")
    await stage.settle()


async def ended(stage: ServiceStage, minute: str, stage_name: str = "Complete") -> None:
    for job in stage.objects(kinds.RAY_JOB):
        if view.annotations_of(job)["ray.io/cronjob-scheduled-timestamp"][11:16] == minute:
            change = {"status": {"jobDeploymentStatus": stage_name}}
            await stage.client.patch(kinds.RAY_JOB, view.name(job), "default", change, subresource="status")


@pytest.mark.parametrize(
    "schedule, zone, after, found",
    [
        ("*/15 * * * *", "UTC", "2026-05-04T10:07:30Z", "2026-05-04T10:15:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),  # 02:30 is skipped on the 29th
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),  # and comes twice in October
        ("0 9 * * mon-fri", "UTC", "2026-05-08T09:00:00Z", "2026-05-11T09:00:00Z"),
        ("0 0 29 2 *", "UTC", "2026-05-04T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("@monthly", "UTC", "2026-05-04T00:00:00Z", "2026-06-01T00:00:00Z"),
        ("@every 90s", "UTC", "2026-05-04T00:00:00Z", "2026-05-04T00:01:30Z"),
        ("0 0 30 2 *", "UTC", "2026-05-04T00:00:00Z", None),
    ],
)
def test_next_run(schedule: str, zone: str, after: str, found: str | None) -> None:
    moment = parse_schedule(schedule).next_after(parse_time(after), parse_zone(zone))
    assert (seconds_text(moment) if moment is not None else None) == found


@pytest.mark.parametrize("text", ["* * * *", "* * * * * *", "60 * * * *", "* * * * 7", "*/0 * * * *", "5-1 * * * *"])
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(BadInput):
        parse_schedule(text)
    assert cron_problem(cron(text), RaySettings()).startswith("invalid cron schedule: ")


async def test_a_run_takes_queue_and_priority_along(stage: ServiceStage) -> None:
    labels = {kueue_names.QUEUE: "team", kueue_names.PRIORITY_CLASS: "high", "other": "label"}
    await made(stage, labels=labels)
    assert await at(stage, "10:05:00") == ["10:05"]
    (job,) = stage.objects(kinds.RAY_JOB)
    assert [row["name"] for row in await rows_of(stage.client, "default")] == [view.name(job)]
    assert view.labels(job) == {
        kueue_names.QUEUE: "team",
        kueue_names.PRIORITY_CLASS: "high",
        "ray.io/cronjob-name": "nightly",
    }


@pytest.mark.parametrize("policy, runs", [("Allow", ["10:05", "10:10"]), ("Forbid", ["10:05"]), ("Replace", ["10:10"])])
async def test_a_run_that_has_not_ended(stage: ServiceStage, policy: str, runs: list[str]) -> None:
    await made(stage, concurrencyPolicy=policy)
    await at(stage, "10:05:00")
    assert await at(stage, "10:10:00") == runs


async def test_the_newest_of_what_ended_stays(stage: ServiceStage) -> None:
    await made(stage, successfulJobsHistoryLimit=1)
    for minute in ("10:05", "10:10", "10:15"):
        await at(stage, f"{minute}:00")
        await ended(stage, minute, "Failed" if minute == "10:10" else "Complete")
    assert await at(stage, "10:16:00") == ["10:10", "10:15"]


async def test_a_run_later_than_its_deadline_does_not_start(stage: ServiceStage) -> None:
    await made(stage, startingDeadlineSeconds=60)
    assert await at(stage, "10:08:00") == []
    assert await at(stage, "10:10:30") == ["10:10"]


def the_first_missed_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(self: CronSchedule, after: int, until: int, zone: Any) -> int | None:
        found = self.next_after(after, zone)
        return found if found is not None and found <= until else None

    monkeypatch.setattr(CronSchedule, "newest_between", first)


@proven(without=the_first_missed_run_starts)
async def test_f245_of_missed_runs_only_the_newest_starts(stage: ServiceStage) -> None:
    """F245: the operator was away for several runs of a RayCronJob. Holds: the newest starts, not all at once."""
    await made(stage)
    assert await at(stage, "10:31:00") == ["10:30"]


def the_suspended_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_from = reconciler._looks_from

    def without(held: Json) -> int:
        status = {key: value for key, value in (held.get("status") or {}).items() if key != "notBefore"}
        return looks_from({**held, "status": status})

    monkeypatch.setattr(reconciler, "_looks_from", without)


@proven(without=the_suspended_time_counts)
async def test_f246_runs_of_a_suspended_time_never_start(stage: ServiceStage) -> None:
    """F246: a RayCronJob is resumed after several runs were due. Holds: the next run is the next that falls due."""
    await made(stage)
    await stage.client.patch(kinds.RAY_CRON_JOB, "nightly", "default", {"spec": {"suspend": True}})
    await stage.settle()
    assert await at(stage, "10:21:00") == []
    await stage.client.patch(kinds.RAY_CRON_JOB, "nightly", "default", {"spec": {"suspend": False}})
    assert await at(stage, "10:21:30") == []
    assert await at(stage, "10:25:00") == ["10:25"]
