"""The judge of queues finds each lie, and lets an honest life pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checker.queue_rules import judge_queues
from tests.checker.test_gang_rules import Story

Json = dict[str, Any]


def queue() -> Json:
    resources = [{"name": "cpu", "nominalQuota": "4"}]
    return {
        "metadata": {"name": "q", "uid": "q"},
        "spec": {
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": "nodes"}]},
        },
    }


def job(name: str = "a", *, runs: bool = False) -> Json:
    labels = {"kueue.x-k8s.io/queue-name": "user-queue"}
    return {"metadata": {"name": name, "uid": f"job-{name}", "labels": labels}, "spec": {"suspend": not runs}}


def workload(name: str = "a", *true: str, check: str = "Ready", cpu: str = "3") -> Json:
    conditions = [{"type": one, "status": "True"} for one in true]
    status: Json = {"conditions": conditions, "admissionChecks": [{"name": "nodes", "state": check}]}
    if "QuotaReserved" in true:
        entry = {"name": "main", "count": 1, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": cpu}}
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": [entry]}
    owner = {"uid": f"job-{name}", "controller": True}
    return {"metadata": {"name": f"w-{name}", "uid": f"w-{name}", "ownerReferences": [owner]}, "status": status}


def request(number: int = 1, name: str = "a") -> Json:
    owner = {"uid": f"w-{name}", "controller": True}
    return {"metadata": {"name": f"w-{name}-nodes-{number}", "uid": f"r{number}", "ownerReferences": [owner]}}


def pod() -> Json:
    owner = {"uid": "job-a", "controller": True}
    return {"metadata": {"name": "p", "uid": "p", "ownerReferences": [owner]}, "status": {"phase": "Running"}}


def begun() -> Story:
    return Story().put("clusterqueues", queue()).put("jobs", job()).put("workloads", workload())


ADMITTED = ("QuotaReserved", "Admitted")


def test_an_honest_life_passes() -> None:
    story = begun().put("workloads", workload("a", "QuotaReserved", check="Pending"))
    story.put("provisioningrequests", request()).put("workloads", workload("a", *ADMITTED)).put("jobs", job(runs=True))
    story.put("pods", pod()).drop("pods", "p").put("workloads", workload("a", *ADMITTED, "Finished"))
    story.drop("provisioningrequests", "w-a-nodes-1")
    assert judge_queues(story.changes, quiet=True) == []


LIES: dict[str, tuple[Story, str]] = {
    "it runs before it is admitted": (begun().put("jobs", job(runs=True)), "I5"),
    "it runs with quota alone": (
        begun().put("workloads", workload("a", "QuotaReserved")).put("jobs", job(runs=True)),
        "I5",
    ),
    "it runs again while it is evicted": (
        begun().put("workloads", workload("a", *ADMITTED, "Evicted")).put("jobs", job(runs=True)),
        "I5",
    ),
    "two have what is there for one": (
        begun()
        .put("workloads", workload("a", "QuotaReserved"))
        .put("workloads", workload("b", "QuotaReserved", cpu="1001m")),
        "I8",
    ),
    "its quota is given away under its pods": (
        begun().put("workloads", workload("a", *ADMITTED)).put("pods", pod()).put("workloads", workload("a")),
        "I11",
    ),
    "admitted without quota": (begun().put("workloads", workload("a", "Admitted")), "I20"),
    "its end was not the end": (
        begun().put("workloads", workload("a", *ADMITTED, "Finished")).put("workloads", workload("a", *ADMITTED)),
        "I20",
    ),
    "admitted before its nodes are there": (begun().put("workloads", workload("a", *ADMITTED, check="Pending")), "I38"),
    "two requests at the same time": (
        begun().put("provisioningrequests", request(1)).put("provisioningrequests", request(2)),
        "I39",
    ),
    "a request after the end": (
        begun().put("workloads", workload("a", *ADMITTED, "Finished")).put("provisioningrequests", request()),
        "I39",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(lie: str) -> None:
    story, number = LIES[lie]
    assert any(f" {number}:" in found for found in judge_queues(story.changes))


def test_a_request_that_is_left_is_found_at_rest() -> None:
    story = begun().put("workloads", workload("a", "QuotaReserved")).put("provisioningrequests", request())
    story.put("workloads", workload("a", *ADMITTED, "Finished"))
    assert judge_queues(story.changes) == []
    assert any("I39" in found for found in judge_queues(story.changes, quiet=True))
