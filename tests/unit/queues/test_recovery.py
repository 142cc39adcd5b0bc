"""Queued gangs that lost pods: what is told of them, and which of them goes back when two keep each other from being
whole."""

from __future__ import annotations

import asyncio

import pytest

from shoal.api import kinds, pod_told
from shoal.api.kueue_told import PODS_MISSING
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings, recovery
from shoal.engine.line.recovery import Recovery
from shoal.kube.clock import SystemClock
from shoal.sdk import gangs
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import planned
from tests.unit.appwrapper.build import set_pod
from tests.unit.queues.build import (
    QUEUE,
    cluster_queue,
    condition,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    ray_job,
    said,
    true,
)

SECOND = 1_000_000
NODES = ("node-1", "node-2")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "GRACE", 0.1)
    monkeypatch.setattr(recovery, "COMES_BACK", 0.0)


def start(cluster: Cluster, seconds: float) -> asyncio.Task[None]:
    queues = QueueSettings(recovery_seconds=seconds, check_seconds=0.5)
    host = planned(cluster.client, AppWrapperSettings(trust_unstamped=True), queues=queues)
    return cluster.start(host.run())


async def pods_of(cluster: Cluster, name: str) -> list[str]:
    found = await cluster.client.list(kinds.POD, "default", label_selector=f"batch.kubernetes.io/job-name={name}")
    return sorted(one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"])


async def until_pods(cluster: Cluster, name: str, count: int) -> list[str]:
    async with asyncio.timeout(PATIENCE):
        while len(found := await pods_of(cluster, name)) != count:
            await cluster.settled(turns=2)
    return found


async def run_on(cluster: Cluster, name: str, *nodes: str) -> None:
    """Play the scheduler: its pods, as many as there are nodes named, run there."""
    pods = await until_pods(cluster, name, 4)
    for pod, node in zip(pods, nodes, strict=False):
        await set_pod(cluster, pod, "Running", node)


async def lose(cluster: Cluster, node: str) -> None:
    """The node is gone, and with it its pods: their owners make others."""
    await cluster.client.delete(kinds.NODE, node)
    for pod in await cluster.client.list(kinds.POD, "default"):
        if pod["spec"].get("nodeName") == node:
            await cluster.client.patch(
                kinds.POD, pod["metadata"]["name"], "default", {"status": {"phase": "Failed"}}, subresource="status"
            )
            await cluster.client.delete(kinds.POD, pod["metadata"]["name"], "default", grace_seconds=0)


async def two_with_a_part(cluster: Cluster) -> tuple[Json, Json]:
    """Jobs `first` (3 of 4 pods) and `second` (1 of 4) on the one node that is left."""
    for node in NODES:
        await cluster.add_node(node, cpu="4", memory="8Gi")
    await make(cluster, flavor(), cluster_queue(quota={"cpu": "8", "memory": "64Gi"}), local_queue())
    made = await make(cluster, lenient(job("first", 4)), lenient(job("second", 4)))
    for one in made:
        await cluster.until(kinds.WORKLOAD, name_of(one), true("Admitted"))
    await run_on(cluster, "first", *["node-1"] * 3, "node-2")
    await run_on(cluster, "second", "node-1", *["node-2"] * 3)
    await cluster.settled(turns=150)
    for one in made:  # while their pods were being made, some had no node either
        await cluster.until(kinds.WORKLOAD, name_of(one), lambda stored: not true(PODS_MISSING)(stored))
    await lose(cluster, "node-2")
    return made[0], made[1]


def lenient(made: Json) -> Json:
    made["spec"]["backoffLimit"] = 100
    return made


def no_gang_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery.Incomplete, "verdict", lambda self, now: Recovery())


@proven(without=no_gang_goes_back)
async def test_f159_of_two_gangs_that_each_have_a_part_one_goes_back(hasty: None) -> None:
    """F159: a node is lost, and of two queued jobs each keeps a part on the other. Holds: the younger goes back to the
    queue after `recovery_seconds` and says for which gang; the older gets its room."""
    async with running() as cluster:
        task = start(cluster, 1.0)
        first, second = await two_with_a_part(cluster)
        gone = await cluster.until(kinds.WORKLOAD, name_of(second), true("Evicted"))
        reason, text = said(gone, "Evicted")[1:]
        assert reason == "NodeFailures"
        assert text.startswith("3 of its 4 pods have no node")
        assert text.endswith("this for 1 s, and Job/default/first would be whole without it")
        task.cancel()  # the next has more patience than this test needs to play scheduler
        start(cluster, 300.0)
        await cluster.until(kinds.JOB, "second", lambda one: one["spec"]["suspend"] is True)
        await until_pods(cluster, "second", 0)
        for pod in await cluster.client.list(kinds.POD, "default"):
            if "deletionTimestamp" in pod["metadata"]:  # no kubelet runs here
                await cluster.client.delete(kinds.POD, pod["metadata"]["name"], "default", grace_seconds=0)
        waiting = await cluster.until(
            kinds.WORKLOAD, name_of(second), lambda one: said(one, "Admitted")[1] == "WaitingForRoom"
        )
        assert condition(waiting, PODS_MISSING) == {}
        await run_on(cluster, "first", *["node-1"] * 4)
        whole = await cluster.until(
            kinds.WORKLOAD, name_of(first), lambda one: said(one, PODS_MISSING)[1] == "AllPlaced"
        )
        assert not true("Evicted")(whole)
        await cluster.add_node("node-3", cpu="4", memory="8Gi")
        await cluster.until(kinds.JOB, "second", lambda one: one["spec"]["suspend"] is False)


async def test_get_and_why_say_how_many_pods_are_missing_and_why(hasty: None) -> None:
    async with running() as cluster:
        start(cluster, 300.0)
        first, second = await two_with_a_part(cluster)
        waits = (await until_pods(cluster, "second", 4))[-1]
        text = "0/1 nodes are available: 1 Insufficient cpu"
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
        unbound = [
            one["metadata"]["name"]
            for one in await cluster.client.list(kinds.POD, "default")
            if not one["spec"].get("nodeName")
        ]
        for name in {waits, *unbound} & set(unbound):
            change = {"status": {"phase": "Pending", "conditions": [refused]}}
            await cluster.client.patch(kinds.POD, name, "default", change, subresource="status")
        told = f"3 of its 4 pods have no node: {text}"
        await cluster.until(kinds.WORKLOAD, name_of(second), lambda one: said(one, PODS_MISSING)[2] == told)
        rows = {row["name"]: row for row in await rows_of(cluster.client, "default")}
        assert (rows["second"]["state"], rows["second"]["reason"]) == ("Incomplete", told)
        found = await why.explain_to(cluster.client, gangs.kinds_called("job"), "first", "default")
        assert (found["state"], found["message"]) == ("incomplete", f"1 of its 4 pods have no node: {text}")
        stored = await cluster.get(kinds.WORKLOAD, name_of(first))
        assert found["since"] == condition(stored, PODS_MISSING)["lastTransitionTime"]


def takes_silence_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_told, "silent_scheduler", lambda spec, conditions: "")


@proven(without=takes_silence_for_nothing)
async def test_f832_a_queued_gang_whose_scheduler_does_not_answer_says_so(hasty: None) -> None:
    """F832: the same for pods of a job that a queue has started. Holds: `shoal get` names the silent scheduler."""
    async with running() as cluster:
        start(cluster, 300.0)
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        await make(cluster, flavor(), cluster_queue(), local_queue())
        asks = job("train", 2)
        asks["spec"]["template"]["spec"]["schedulerName"] = "volcano"
        (made,) = await make(cluster, asks)
        silence = "no scheduler volcano has answered: does one run in this cluster, as its spec.schedulerName asks?"
        told = f"2 of its 2 pods have no node: {silence}"
        await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, PODS_MISSING)[2] == told)
        (row,) = await rows_of(cluster.client, "default")
        assert row["reason"] == told


def starts_its_clock_again(monkeypatch: pytest.MonkeyPatch) -> None:
    update = recovery.Incomplete.update

    def from_now(self: recovery.Incomplete, workload: Workload) -> None:
        update(self, workload)
        for uid, (_, known) in self._since.items():
            self._since[uid] = (SystemClock().now(), known)

    monkeypatch.setattr(recovery.Incomplete, "update", from_now)


@proven(without=starts_its_clock_again)
async def test_f160_how_long_a_gang_lacks_pods_outlives_the_controller(hasty: None) -> None:
    """F160: the controller is started again while gangs are incomplete. Holds: the time that they had until then
    counts."""
    async with running() as cluster:
        task = start(cluster, 300.0)
        first, second = await two_with_a_part(cluster)
        for one in (first, second):
            await cluster.until(kinds.WORKLOAD, name_of(one), true(PODS_MISSING))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for one in (first, second):
            stored = await cluster.get(kinds.WORKLOAD, name_of(one))
            conditions = stored["status"]["conditions"]
            condition(stored, PODS_MISSING)["lastTransitionTime"] = seconds_text(SystemClock().now() - 310 * SECOND)
            change = {"status": {"conditions": conditions}}
            await cluster.client.patch(kinds.WORKLOAD, name_of(one), "default", change, subresource="status")
        start(cluster, 300.0)
        gone = await cluster.until(kinds.WORKLOAD, name_of(second), true("Evicted"))
        assert said(gone, "Evicted")[1] == "NodeFailures"
        assert not true("Evicted")(await cluster.get(kinds.WORKLOAD, name_of(first)))


async def test_an_incomplete_gang_that_is_in_no_other_gangs_way_stays(hasty: None) -> None:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        await cluster.add_node("node-2", cpu="4", memory="8Gi")
        start(cluster, 0.2)
        await make(cluster, flavor(), cluster_queue(quota={"cpu": "8", "memory": "64Gi"}), local_queue())
        (made,) = await make(cluster, lenient(job("alone", 4, cpu="2")))
        await run_on(cluster, "alone", "node-1", "node-1", "node-2", "node-2")
        await lose(cluster, "node-2")
        await cluster.until(kinds.WORKLOAD, name_of(made), true(PODS_MISSING))
        await cluster.settled(turns=150)
        assert not true("Evicted")(await cluster.get(kinds.WORKLOAD, name_of(made)))
        await make(cluster, job("other", 2, cpu="1"))  # lacks quota, and both would fit on the node that is left
        await cluster.until(kinds.WORKLOAD, name_of(made), true("Evicted"))


@pytest.mark.parametrize("says_so", [False, True])
async def test_a_ray_job_with_a_living_head_goes_back_only_where_its_queue_says_so(hasty: None, says_so: bool) -> None:
    async with running() as cluster:
        for node in NODES:
            await cluster.add_node(node, cpu="2", memory="8Gi")
        start(cluster, 0.5)
        queue = cluster_queue(quota={"cpu": "4", "memory": "64Gi"})
        queue["metadata"]["annotations"] = {recovery.TAKE_BACK_HEADS: str(says_so).lower()}
        await make(cluster, flavor(), queue, local_queue())
        tune = ray_job("tune", workers=2)
        tune["spec"]["submissionMode"] = "HTTPMode"
        (made,) = await make(cluster, tune)
        name = name_of(made, "RayJob", "ray.io")
        workload = await cluster.until(kinds.WORKLOAD, name, true("Admitted"))
        for name, role, node in (
            ("head", "head", "node-1"),
            ("worker-1", "worker", "node-1"),
            ("worker-2", "worker", ""),
        ):
            pod: Json = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "labels": {"ray.io/node-type": role, QUEUE: "user-queue"},
                    "ownerReferences": [
                        {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "tune", "controller": True,
                         "uid": made["metadata"]["uid"]}
                    ],
                },
                "spec": made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"],
            }  # fmt: skip
            await cluster.create(kinds.POD, pod)
            if node:
                await set_pod(cluster, name, "Running", node)
        await cluster.client.delete(kinds.NODE, "node-2")
        await make(cluster, job("other", 1, cpu="2"))
        await cluster.until(kinds.WORKLOAD, workload["metadata"]["name"], true(PODS_MISSING))
        if says_so:
            await cluster.until(kinds.WORKLOAD, workload["metadata"]["name"], true("Evicted"))
        else:
            await cluster.settled(turns=300)
            assert not true("Evicted")(await cluster.get(kinds.WORKLOAD, workload["metadata"]["name"]))
