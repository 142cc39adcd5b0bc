"""`shoal why` about every kind that can wait, with and without a queue, and about what has ended: exact sentences."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import why
from shoal.sdk import gangs
from shoal.sdk.explaining import explain_to, searched_kinds
from shoal.sdk.standing import words
from tests.cluster import Cluster
from tests.unit.queues.build import job, make, name_of, true

CONTAINERS = [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "9"}}}]
TEMPLATE = {"restartPolicy": "Never", "containers": CONTAINERS}


async def told(cluster: Cluster, text: str) -> Json:
    word, _, name = text.rpartition("/")
    searched = await searched_kinds(cluster.client, word, "default", all_kinds=True)
    return await explain_to(cluster.client, searched, name, "default")


def said(found: Json, capsys: pytest.CaptureFixture[str]) -> str:
    why._print(found)
    return capsys.readouterr().out


def workload(name: str, **more: Any) -> Json:
    sets = [{"name": "main", "count": 1, "template": {"spec": TEMPLATE}}]
    spec = {"queueName": "user-queue", "podSets": sets, "active": True, **more}
    return {"apiVersion": kinds.WORKLOAD.api_version, "kind": "Workload", "metadata": {"name": name}, "spec": spec}


async def test_a_bare_workload_learns_what_is_short_and_where_it_stands(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.create(kinds.WORKLOAD, workload("bare"))
    await cluster.until(kinds.WORKLOAD, "bare", lambda one: bool((one.get("status") or {}).get("conditions")))
    for asked in ("workload/bare", "wl/bare", "workloads.kueue.x-k8s.io/bare", "bare"):
        found = await told(cluster, asked)
        assert (found["kind"], found["state"], found["reason"]) == ("Workload", "queued", "Quota"), asked
    lines = said(found, capsys).splitlines()
    assert lines[0].startswith("Workload default/bare has been queued since 20")
    assert "position 1 of 1 in ClusterQueue cluster-queue, 1 of 1 in LocalQueue user-queue" in lines[2]
    assert any(line.startswith("  would start with ") for line in lines)


async def test_the_workload_of_a_job_leads_to_the_job(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("wide", cpu="9"))
    await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool((one.get("status") or {}).get("conditions")))
    found = await told(cluster, f"workload/{name_of(made)}")
    assert (found["kind"], found["name"], found["reason"]) == ("Job", "wide", "Quota")


RAY = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": CONTAINERS}}}}
ALONE = [
    (kinds.POD, TEMPLATE),
    (kinds.JOB, {"template": {"spec": TEMPLATE}}),
    (kinds.RAY_CLUSTER, RAY),
    (kinds.RAY_SERVICE, {"serveConfigV2": "", "rayClusterConfig": RAY}),
]


@pytest.mark.parametrize("kind, spec", ALONE, ids=[kind.kind for kind, _ in ALONE])
async def test_without_a_queue_its_pods_tell(
    cluster: Cluster, kind: Kind, spec: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "alone"}, "spec": spec}
    made = await cluster.create(kind, obj)
    name = "alone"
    if kind != kinds.POD:
        owner = {"apiVersion": kind.api_version, "kind": kind.kind, "name": "alone", "uid": made["metadata"]["uid"]}
        labels = ((made["spec"].get("selector") or {}).get("matchLabels")) or {}
        name = "its-pod"
        metadata = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        await cluster.create(kinds.POD, {"metadata": metadata, "spec": TEMPLATE})
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
    await cluster.client.patch(kinds.POD, name, "default", {"status": {"conditions": [refused]}}, subresource="status")
    await cluster.settled()
    found = await told(cluster, f"{kind.kind.lower()}/alone")
    assert found["reason"] == "PodsPending", found
    assert "0/1 nodes are available" in said(found, capsys)


async def test_what_has_ended_says_how_when_and_after_how_long(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = await make(cluster, job("done", cpu="1"))
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:30Z"}
    ended = {"type": "Failed", "status": "True", "lastTransitionTime": "2030-01-01T00:01:30Z", "message": "it broke"}
    await cluster.client.patch(
        kinds.JOB, "done", "default", {"status": {**times, "conditions": [ended]}}, subresource="status"
    )
    found = await told(cluster, "job/done")
    assert found["outcome"] == "failed" and found["endedAt"] == "2030-01-01T00:01:30Z" and found["ranSeconds"] > 0
    line = said(found, capsys).splitlines()[0]
    assert line.startswith("Job default/done failed at 2030-01-01T00:01:30Z (0s ago), after it ran for "), line


@pytest.mark.parametrize(
    "state, expected",
    [
        ("QuotaReserved", "waiting with its quota reserved"),
        ("ValidationFailed", "refused"),
        ("RunningHoldCompletion", "running until its pods end"),
        ("Queued", "queued"),
        ("WaitForServeDeploymentReady", "wait for serve deployment ready"),
    ],
)
def test_no_name_of_a_state_is_printed_as_one_long_word(state: str, expected: str) -> None:
    assert words(state) == expected


def test_commands_that_change_gangs_do_not_look_for_pods() -> None:
    with pytest.raises(gangs.ShoalError, match="pod is no kind of gang"):
        gangs.kinds_called("pod")
