"""Ray is asked before its workers are taken, and has the time that the queue gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from shoal.api import kinds
from shoal.api.gang import LEAVES_FOR
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.queues import QueueSettings, elastic
from shoal.controllers.queues.draining import Draining
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of, true
from tests.unit.queues.elastic_build import is_open, pod, running, told

WRAPPERS = AppWrapperSettings(trust_unstamped=True)
DRAIN = "shoal.dev/drain-seconds"


class FakeRay:
    """Which workers are idle, and what it was told. `late`: so often it does not know its workers yet."""

    def __init__(self, *idle: str, late: int = 0) -> None:
        self.idle_pods = frozenset(idle)
        self.late = late
        self.drained: dict[str, int] = {}
        self.heard = asyncio.Event()

    async def idle(self, cluster: Key) -> frozenset[str]:
        return self.idle_pods

    async def drain(self, cluster: Key, pods: Sequence[str], until: int) -> bool:
        assert cluster == Key("default", "ray")
        if self.late:
            self.late -= 1
            return False
        self.drained |= dict.fromkeys(pods, until)
        self.heard.set()
        return True

    async def close(self) -> None: ...

    async def until_told(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.heard.wait()


def decide(cluster: Cluster, ray: FakeRay) -> asyncio.Task[None]:
    cluster.rules = rules_of(WRAPPERS, QueueSettings())
    return cluster.start(planned(cluster.client, WRAPPERS, queues=QueueSettings(), ray=ray).run())


def patient(seconds: int, **more: object) -> Json:
    """A queue of four cores whose Ray clusters have so long."""
    made = cluster_queue(**more)
    made["metadata"]["annotations"] = {DRAIN: str(seconds)}
    return made


async def works(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.client.patch(kinds.POD, name, "default", {"status": {"phase": "Running"}}, subresource="status")


async def grown(cluster: Cluster) -> Json:
    """A cluster with two workers more than it was admitted with; all of them run."""
    of = await running(cluster)
    for name in ("more-0", "more-1"):
        await pod(cluster, of, name)
        await cluster.until(kinds.POD, name, is_open)
    await works(cluster, "ray-floor-0", "more-0", "more-1")
    return of


def asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draining, "seconds", lambda self, workload: 0.0)


@proven(without=asks_nothing)
async def test_f502_a_worker_that_has_to_leave_is_told_and_has_its_time(quiet: Cluster) -> None:
    """F502: a grown cluster has to shrink while its workers are busy. Holds: Ray is told which workers go and when,
    that is stored on them first, and no worker is deleted before that moment."""
    ray = FakeRay()
    decide(quiet, ray)
    await make(quiet, flavor(), patient(2), local_queue())
    await grown(quiet)
    (other,) = await make(quiet, job("other", 2))
    await ray.until_told()
    marked = await quiet.get(kinds.POD, "more-0")
    preemptor = await quiet.get(kinds.WORKLOAD, name_of(other))
    assert marked["metadata"]["annotations"][LEAVES_FOR].startswith(preemptor["metadata"]["uid"] + "@")
    assert not true("Admitted")(preemptor)
    await quiet.until(kinds.WORKLOAD, name_of(other), true("Admitted"))
    assert set(ray.drained) == {"more-0", "more-1"}
    assert not {"more-0", "more-1"} & set(await quiet.names(kinds.POD))


def asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Draining.ask

    async def once(self: Draining, uid: str, pods: Iterable[SeenPod], until: int) -> bool:
        await ask(self, uid, pods, until)
        return True

    monkeypatch.setattr(Draining, "ask", once)


@proven(without=asks_once)
async def test_f754_ray_is_told_again_of_workers_that_its_dashboard_does_not_know_yet(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F754: a worker that joined Ray a moment ago has to leave, and the dashboard answers with what it knew before.
    Holds: Ray is told once it knows the worker, within the time that the queue gives."""
    monkeypatch.setattr(elastic, "RETRY_PAUSE", 0.2)
    ray = FakeRay(late=2)
    decide(quiet, ray)
    await make(quiet, flavor(), patient(4), local_queue())
    await grown(quiet)
    (other,) = await make(quiet, job("other", 2))
    await quiet.until(kinds.WORKLOAD, name_of(other), true("Admitted"))
    assert set(ray.drained) == {"more-0", "more-1"}


async def test_idle_workers_leave_before_busy_ones(quiet: Cluster) -> None:
    ray = FakeRay("ray-floor-0")
    decide(quiet, ray)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    await grown(quiet)
    (other,) = await make(quiet, job("other", 1))
    await quiet.until(kinds.WORKLOAD, name_of(other), true("Admitted"))
    left = {"ray-floor-0", "more-0", "more-1"} & set(await quiet.names(kinds.POD))
    assert left == {"more-0", "more-1"}, "any worker of a pod set will do where quota is short"
    assert ray.drained == {}, "its queue gives no time"


async def test_the_next_leader_takes_what_the_last_one_has_marked(quiet: Cluster) -> None:
    first = decide(quiet, FakeRay())
    await make(quiet, flavor(), patient(3), local_queue())
    await grown(quiet)
    (other,) = await make(quiet, job("other", 2))
    await quiet.until(kinds.POD, "more-0", lambda one: LEAVES_FOR in one["metadata"]["annotations"])
    await quiet.until(kinds.POD, "more-1", lambda one: LEAVES_FOR in one["metadata"]["annotations"])
    first.cancel()
    second = FakeRay()
    decide(quiet, second)
    await quiet.until(kinds.WORKLOAD, name_of(other), true("Admitted"))
    names = set(await quiet.names(kinds.POD))
    assert not {"more-0", "more-1"} & names and {"ray-head", "ray-floor-0"} <= names
    assert len(await told(quiet, "Shrunk")) == 2


@proven(without=asks_nothing)
async def test_f503_a_preempted_cluster_is_told_before_it_is_stopped(quiet: Cluster) -> None:
    """F503: a Ray cluster is preempted. Holds: the eviction is stored, Ray is told that the workers go, and the cluster
    is suspended only when the time of its queue is over."""
    ray = FakeRay()
    decide(quiet, ray)
    may = {"withinClusterQueue": "LowerPriority"}
    high = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"},
            "value": 100}  # fmt: skip
    await make(quiet, flavor(), patient(2, preemption=may), local_queue(), high)
    of = await running(quiet)
    await works(quiet, "ray-floor-0")
    await make(quiet, job("other", 4, labels={"kueue.x-k8s.io/priority-class": "high"}))
    await ray.until_told()
    workload = await quiet.get(kinds.WORKLOAD, name_of(of, "RayCluster", "ray.io"))
    assert condition(workload, "Evicted")["reason"] == "Preempted"
    assert (await quiet.get(kinds.RAY_CLUSTER, "ray"))["spec"]["suspend"] is False
    await quiet.until(kinds.RAY_CLUSTER, "ray", lambda one: one["spec"]["suspend"] is True)
    assert set(ray.drained) == {"ray-floor-0"}
    for name in ("ray-head", "ray-floor-0"):  # as the Ray operator does
        await quiet.client.delete(kinds.POD, name, "default", grace_seconds=0)
    await quiet.until(kinds.JOB, "other", lambda one: one["spec"]["suspend"] is False)
