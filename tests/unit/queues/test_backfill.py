"""Backfill in a queue: what the front waits for is lent to jobs that may leave again, and that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings, backfill
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    ray_job,
    said,
    true,
)

BACKFILLED = "shoal.dev/Backfilled"
WRAPPERS = AppWrapperSettings(trust_unstamped=True)


HIGH = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "high"},
    "value": 9,
}


def decide(cluster: Cluster) -> asyncio.Task[None]:
    cluster.rules = rules_of(WRAPPERS, QueueSettings())
    return cluster.start(planned(cluster.client, WRAPPERS, queues=QueueSettings()).run())


@pytest.fixture
async def cluster(quiet: Cluster) -> Cluster:
    decide(quiet)
    return quiet


def false(kind: str) -> Callable[[Json], bool]:
    return lambda one: said(one, kind)[0] == "False"


def filling(**annotations: str) -> Json:
    """A strict queue of four cores in which jobs may fill what the front waits for."""
    made = cluster_queue(queueingStrategy="StrictFIFO")
    made["metadata"]["annotations"] = {"shoal.dev/backfill": "true", **annotations}
    return made


def first(name: str, pods: int) -> Json:
    """Before all others, whatever second they are made in."""
    return job(name, pods, labels={"kueue.x-k8s.io/priority-class": "high"})


def drainable(name: str, pods: int = 1) -> Json:
    made = job(name, pods)
    made["metadata"]["annotations"] = {"shoal.dev/drainable": "true"}
    return made


async def with_a_front(cluster: Cluster) -> Json:
    """Three of four cores are taken, and the front needs all four."""
    (long,) = await make(cluster, job("long", 3))
    await cluster.until(kinds.WORKLOAD, name_of(long), true("Admitted"))
    (front,) = await make(cluster, first("front", 4))
    await cluster.until(kinds.WORKLOAD, name_of(front), false("QuotaReserved"))
    return front


async def test_a_drainable_job_fills_and_leaves_for_the_front(cluster: Cluster) -> None:
    await make(cluster, flavor(), HIGH, filling(), local_queue())
    front = await with_a_front(cluster)
    (small,) = await make(cluster, drainable("small"))
    filled = await cluster.until(kinds.WORKLOAD, name_of(small), true("Admitted"))
    assert said(filled, BACKFILLED)[:2] == ("True", "Backfilled")
    await complete(cluster, "long", 3)
    await cluster.until(kinds.WORKLOAD, name_of(front), true("Admitted"))
    left = await cluster.get(kinds.WORKLOAD, name_of(small))
    assert said(left, "Preempted")[:2] == ("True", "InClusterQueue")
    assert "started by backfill" in said(left, "Preempted")[2]
    assert not true("QuotaReserved")(left) and not true(BACKFILLED)(left)
    await complete(cluster, "front", 4)
    again = await cluster.until(kinds.WORKLOAD, name_of(small), true("Admitted"))
    assert not true(BACKFILLED)(again), "now it is its turn"


async def test_a_job_with_a_limit_fills_when_it_ends_in_time(cluster: Cluster) -> None:
    def limited(name: str, pods: int, seconds: int) -> Json:
        return job(name, pods, labels={"kueue.x-k8s.io/max-exec-time-seconds": str(seconds)})

    await make(cluster, flavor(), HIGH, filling(), local_queue())
    (long,) = await make(cluster, limited("long", 3, 1000))
    await cluster.until(kinds.WORKLOAD, name_of(long), true("Admitted"))
    others = await make(cluster, first("front", 4), limited("too-long", 1, 2000))
    (timely,) = await make(cluster, limited("timely", 1, 500))
    filled = await cluster.until(kinds.WORKLOAD, name_of(timely), true("Admitted"))
    assert true(BACKFILLED)(filled)
    for one in others:
        assert not true("QuotaReserved")(await cluster.get(kinds.WORKLOAD, name_of(one)))


async def test_a_ray_job_fills_where_its_queue_drains(cluster: Cluster) -> None:
    await make(cluster, flavor(), HIGH, filling(**{"shoal.dev/drain-seconds": "1"}), local_queue())
    (long,) = await make(cluster, job("long", 2))
    await cluster.until(kinds.WORKLOAD, name_of(long), true("Admitted"))
    await make(cluster, first("front", 4))
    (ray,) = await make(cluster, ray_job("ray", 0))
    assert true(BACKFILLED)(await cluster.until(kinds.WORKLOAD, name_of(ray, "RayJob", "ray.io"), true("Admitted")))


async def test_when_its_turn_comes_that_is_stored(cluster: Cluster) -> None:
    await make(cluster, flavor(), HIGH, filling(), local_queue())
    await with_a_front(cluster)
    (small,) = await make(cluster, drainable("small"))
    await cluster.until(kinds.WORKLOAD, name_of(small), true(BACKFILLED))
    await cluster.client.delete(kinds.JOB, "front", "default")
    kept = await cluster.until(kinds.WORKLOAD, name_of(small), false(BACKFILLED))
    assert said(kept, BACKFILLED)[1] == "TurnCame" and true("Admitted")(kept)


async def test_without_the_annotation_jobs_wait_behind_the_front(cluster: Cluster) -> None:
    await make(cluster, flavor(), HIGH, cluster_queue(queueingStrategy="StrictFIFO"), local_queue())
    await with_a_front(cluster)
    (small,) = await make(cluster, drainable("small"))
    held = await cluster.until(kinds.WORKLOAD, name_of(small), false("QuotaReserved"))
    assert not true("Admitted")(held)


def stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "note_reservation", lambda draft, reservation: None)


@proven(without=stores_nothing)
async def test_f642_the_next_leader_knows_which_jobs_fill(quiet: Cluster) -> None:
    """F642: the controller dies while a job runs by backfill. Holds: for the next one it still leaves as soon as the
    front can start."""
    first = decide(quiet)
    await make(quiet, flavor(), HIGH, filling(), local_queue())
    front = await with_a_front(quiet)
    (small,) = await make(quiet, drainable("small"))
    await quiet.until(kinds.WORKLOAD, name_of(small), true("Admitted"))
    first.cancel()
    decide(quiet)
    await complete(quiet, "long", 3)
    await quiet.until(kinds.WORKLOAD, name_of(small), true("Evicted"))
    await quiet.until(kinds.WORKLOAD, name_of(front), true("Admitted"))
