"""What time does to Jobs and pods, under a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.api import kinds
from shoal.api.times import seconds_text
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import NotFound
from shoal.local import builtin
from shoal.local.apiserver import Server
from tests.cluster import Cluster
from tests.unit.builtin.objects import container, job, pods_of, report


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    server = Server(None, clock=clock)
    await server.start()
    cluster = Cluster(server)
    cluster.start(builtin.run_all(cluster.client, clock))
    try:
        yield cluster
    finally:
        await cluster.stop()
        await server.stop()


def condition(obj, kind):
    return next((c for c in obj["status"].get("conditions", ()) if c["type"] == kind and c["status"] == "True"), None)


async def test_a_job_past_its_deadline_fails_and_its_pods_go(cluster, clock):
    await cluster.create(kinds.JOB, job(activeDeadlineSeconds=30))
    await cluster.until(kinds.JOB, "j", lambda o: o["status"].get("active") == 1)
    await clock.advance(29)
    await cluster.settled(5)
    assert condition(await cluster.get(kinds.JOB, "j"), "Failed") is None
    await clock.advance(2)
    failed = await cluster.until(kinds.JOB, "j", lambda o: condition(o, "Failed"))
    assert condition(failed, "Failed")["reason"] == "DeadlineExceeded"
    assert await pods_of(cluster, **{"job-name": "j"}) == []


async def test_a_finished_job_goes_when_its_time_is_over(cluster, clock):
    await cluster.create(kinds.JOB, job(ttlSecondsAfterFinished=60))
    await cluster.until(kinds.JOB, "j", lambda o: o["status"].get("active") == 1)
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    await report(cluster, pod, "Succeeded")
    await cluster.until(kinds.JOB, "j", lambda o: condition(o, "Complete"))
    await clock.advance(58)
    await cluster.settled(5)
    assert await cluster.get(kinds.JOB, "j")
    await clock.advance(3)
    await cluster.settled(5)
    with pytest.raises(NotFound):
        await cluster.get(kinds.JOB, "j")
    assert await pods_of(cluster, **{"job-name": "j"}) == []


async def test_each_failure_doubles_the_wait_for_the_next_pod(cluster, clock):
    await cluster.create(kinds.JOB, job(backoffLimit=3))
    for failures, wait in enumerate((10, 20)):
        await cluster.until(kinds.JOB, "j", lambda o: o["status"].get("active") == 1)
        [pod] = [p for p in await pods_of(cluster, **{"job-name": "j"}) if p["status"]["phase"] == "Pending"]
        ended = {
            "name": "c",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": seconds_text(clock.now())}},
        }
        await report(cluster, pod, "Failed", containerStatuses=[ended])
        await cluster.until(kinds.JOB, "j", lambda o, n=failures + 1: o["status"].get("failed") == n)
        await clock.advance(wait - 2)
        await cluster.settled(5)
        assert "active" not in (await cluster.get(kinds.JOB, "j"))["status"]
        await clock.advance(3)
    await cluster.until(kinds.JOB, "j", lambda o: o["status"].get("active") == 1)


async def test_pods_of_a_node_that_stays_away_are_failed_and_removed(cluster, clock):
    await cluster.add_node("n")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "finalizers": ["test.example/look"]},
        "spec": {"nodeName": "n", "containers": [container()]},
    }
    await cluster.create(kinds.POD, pod)
    await cluster.client.delete(kinds.NODE, "n")
    await clock.advance(30)
    await cluster.settled(5)
    assert (await cluster.get(kinds.POD, "p"))["status"]["phase"] == "Pending"
    await clock.advance(15)
    gone = await cluster.until(kinds.POD, "p", lambda o: o["metadata"].get("deletionTimestamp"))
    assert gone["status"]["phase"] == "Failed"
    assert condition(gone, "DisruptionTarget")["reason"] == "DeletionByPodGC"


async def test_available_means_ready_for_long_enough(cluster, clock):
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 1,
            "minReadySeconds": 20,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container()]}},
        },
    }
    await cluster.create(kinds.REPLICA_SET, owner)
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("replicas") == 1)
    [pod] = await pods_of(cluster, app="x")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": seconds_text(clock.now())}
    await cluster.client.patch(
        kinds.POD,
        pod["metadata"]["name"],
        "default",
        {"status": {"phase": "Running", "conditions": [ready]}},
        subresource="status",
    )
    found = await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("readyReplicas") == 1)
    assert "availableReplicas" not in found["status"]
    await clock.advance(21)
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("availableReplicas") == 1)


async def test_a_rollout_that_stands_still_is_called_so(cluster, clock):
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 1,
            "progressDeadlineSeconds": 60,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container()]}},
        },
    }
    await cluster.create(kinds.DEPLOYMENT, deployment)
    await cluster.until(kinds.DEPLOYMENT, "x", lambda o: o["status"].get("updatedReplicas") == 1)
    await clock.advance(50)
    await cluster.settled(5)
    [moving] = [
        c for c in (await cluster.get(kinds.DEPLOYMENT, "x"))["status"]["conditions"] if c["type"] == "Progressing"
    ]
    assert (moving["status"], moving["reason"]) == ("True", "ReplicaSetUpdated")
    await clock.advance(15)
    await cluster.until(
        kinds.DEPLOYMENT,
        "x",
        lambda o: any(
            c["reason"] == "ProgressDeadlineExceeded" and c["status"] == "False" for c in o["status"]["conditions"]
        ),
    )
    await cluster.settled(5)
    [pod] = await pods_of(cluster, app="x")
    await report(cluster, pod)
    await cluster.until(
        kinds.DEPLOYMENT,
        "x",
        lambda o: any(
            c["reason"] == "NewReplicaSetAvailable" and c["status"] == "True" for c in o["status"]["conditions"]
        ),
    )
