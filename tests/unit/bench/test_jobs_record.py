"""The bench of jobs finds quota that was exceeded, however shortly, and counts requests by who asked."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest

from shoal.api.kinds import POD, WORKLOAD

BENCH = str(Path(__file__).parents[3] / "bench")


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path, BENCH])  # last: the folder has a module named as one of Python's
    import jobs_record

    return jobs_record


def pod(record, name: str, revision: int, *, phase: str = "Pending", node: str = "", job: str = "job-0"):
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "uid": name,
                "resourceVersion": str(revision),
                "labels": {"batch.kubernetes.io/job-name": job},
            },
            "spec": {
                "nodeName": node,
                "containers": [{"resources": {"requests": {"cpu": "500m"}}}],
                "initContainers": [{"resources": {"requests": {"cpu": "200m"}}}],
            },
            "status": {"phase": phase},
        },
        record.Seen,
    )


def workload(record, name: str, revision: int, cpu: str = "", finished: bool = False, done: int = 0):
    status: dict = {"conditions": [{"type": "Finished", "status": "True"}] if finished else []}
    if cpu:
        status["admission"] = {"podSetAssignments": [{"name": "main", "count": 3, "resourceUsage": {"cpu": cpu}}]}
    if done:
        status["reclaimablePods"] = [{"name": "main", "count": done}]
    metadata = {"name": name, "uid": name, "resourceVersion": str(revision)}
    return msgspec.convert({"metadata": metadata, "status": status}, record.Seen)


def test_the_highest_use_is_found_in_the_order_of_revisions_whatever_the_watches_said_first(record):
    kept = record.Record(None, ["job-0"])
    for revision, name, phase in ((5, "a", "Running"), (9, "b", "Running"), (8, "a", "Succeeded")):
        kept._note(POD, "MODIFIED", pod(record, name, revision, phase=phase))
    assert record.highest(kept.entries) == {"pods": 500}
    kept._note(POD, "ADDED", pod(record, "c", 7))
    assert record.highest(kept.entries) == {"pods": 1000}, "between 7 and 8 there were two"
    kept._note(POD, "DELETED", pod(record, "c", 6))
    assert record.highest(kept.entries)["pods"] == 1000


def test_a_workload_holds_quota_from_its_admission_to_its_end(record):
    kept = record.Record(None, [])
    for event in (
        workload(record, "one", 1),
        workload(record, "one", 2, "1500m"),
        workload(record, "two", 4, "1500m"),
        workload(record, "one", 3, "1500m", finished=True),
    ):
        kept._note(WORKLOAD, "MODIFIED", event)
    assert record.highest(kept.entries) == {"workloads.kueue.x-k8s.io": 1500}


def test_quota_of_pods_that_are_done_is_free_for_others(record):
    kept = record.Record(None, [])
    for event in (
        workload(record, "one", 1, "1500m"),
        workload(record, "one", 2, "1500m", done=2),
        workload(record, "two", 3, "1000m"),
    ):
        kept._note(WORKLOAD, "MODIFIED", event)
    assert record.highest(kept.entries) == {"workloads.kueue.x-k8s.io": 1500}


def test_a_run_ends_with_the_last_pod_of_the_last_job_and_names_pods_that_are_too_many(record):
    async def seen() -> None:
        kept = record.Record(None, ["job-0"])
        for number in range(3):
            assert not kept.done.is_set()
            kept._note(POD, "MODIFIED", pod(record, f"p{number}", 10 + number, node="n"))
        assert kept.done.is_set() and kept.unbound == []
        kept._note(POD, "MODIFIED", pod(record, "p3", 20, node="n"))
        kept._note(POD, "MODIFIED", pod(record, "other", 21, node="n", job="stranger"))
        assert kept.strangers == {"p3", "other"}

    asyncio.run(seen())


def test_a_ray_pod_belongs_to_the_job_that_its_cluster_is_named_after(record):
    assert record.job_of({"ray.io/cluster": "ray-12-x7k2p"}) == "ray-12"
    assert record.job_of({"batch.kubernetes.io/job-name": "job-3"}) == "job-3"
    assert record.job_of({"batch.kubernetes.io/job-name": "ray-12"}) == ""


def test_requests_are_counted_by_user_and_refused_ones_by_their_code(record, tmp_path):
    def line(user: str, verb: str, code: int, at: str, **about: str) -> str:
        moment = f"2026-01-01T00:00:{at}.000000Z"
        event = {"stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "objectRef": about}
        more = {"requestURI": "/x", "responseStatus": {"code": code}, "requestReceivedTimestamp": moment}
        return json.dumps({**event, **more})

    log = tmp_path / "audit.log"
    log.write_text(
        "\n".join(
            [
                line("shoal", "patch", 200, "01", resource="workloads", subresource="status"),
                line("shoal", "patch", 409, "02", resource="jobs"),
                line("shoal", "create", 201, "09", resource="subjectaccessreviews"),
                line("admin", "create", 201, "03", resource="jobs"),
            ]
        )
        + "\n"
    )
    (asked,) = record.requests(log, ["shoal"]).values()
    assert asked == {"patch workloads/status": 1, "patch jobs (409)": 1, "create subjectaccessreviews": 1}
    assert sum(record.writes(asked).values()) == 2, "a question stores nothing"
    assert sum(record.requests(log, ["shoal"], since="2026-01-01T00:00:02").get("shoal", {}).values()) == 2
