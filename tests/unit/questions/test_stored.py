"""What is stored on a queued job as its reason: true of what is stored now, and enough for a person by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.queues import reasons
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import pod, set_pod
from tests.unit.queues.build import cluster_queue, condition, job, make, name_of, true


def says(text: str) -> Callable[[Json], bool]:
    return lambda workload: text in condition(workload, "QuotaReserved").get("message", "")


def never_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: reasons.Reasons) -> None:
        return None

    monkeypatch.setattr(reasons.Reasons, "run", nothing)
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


async def holder(cluster: Cluster, name: str, cpu: str) -> Json:
    (made,) = await make(cluster, job(name, cpu=cpu))
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    return made


async def stop(cluster: Cluster, policy: str) -> None:
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"stopPolicy": policy}})


@proven(without=never_looks_again)
async def test_f169_stopped_ends_when_the_queue_is_resumed(cluster: Cluster) -> None:
    """F169: several equal jobs wait in a stopped ClusterQueue, which is resumed while its quota is taken. Holds: none
    of them goes on saying that it is stopped; each says what is short."""
    await holder(cluster, "runs", "4")
    await stop(cluster, "Hold")
    made = await make(cluster, *(job(f"waits-{number}", cpu="2") for number in range(3)))
    for one in made:
        await cluster.until(kinds.WORKLOAD, name_of(one), says("is stopped"))
    await stop(cluster, "None")
    for one in made:
        await cluster.until(kinds.WORKLOAD, name_of(one), says("insufficient unused quota for cpu"))


async def test_every_equal_job_is_told_what_is_short(cluster: Cluster) -> None:
    """As Kueue only the first of equal jobs would be; "an equivalent workload recently failed" helps no user."""
    await holder(cluster, "runs", "3")
    for one in await make(cluster, *(job(f"equal-{number}", cpu="2") for number in range(4))):
        await cluster.until(kinds.WORKLOAD, name_of(one), says("insufficient unused quota for cpu"))


@proven(without=never_looks_again)
async def test_f171_a_stored_reason_follows_its_cause_though_nothing_can_start(cluster: Cluster) -> None:
    """F171: quota that a waiting job lacks becomes less, then more, and never enough. Holds: the stored reason says how
    much is missing now, for every one of those that wait, without an edit or a restart."""
    await holder(cluster, "large", "2")
    waiting = await make(cluster, *(job(f"waits-{number}", cpu="4") for number in range(3)))
    for one in waiting:
        await cluster.until(kinds.WORKLOAD, name_of(one), says("2 more needed"))
    await holder(cluster, "small", "1")
    for one in waiting:
        await cluster.until(kinds.WORKLOAD, name_of(one), says("3 more needed"))
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, cluster_queue(quota={"cpu": "5"}))
    for one in waiting:
        await cluster.until(kinds.WORKLOAD, name_of(one), says("2 more needed"))


async def test_a_job_with_quota_is_told_how_much_room_is_missing_now(cluster: Cluster) -> None:
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, cluster_queue(quota={"cpu": "40"}))
    (made,) = await make(cluster, job("waits", cpu="17"))

    def lacks(text: str) -> Callable[[Json], bool]:
        return lambda workload: text in condition(workload, "Admitted").get("message", "")

    await cluster.until(kinds.WORKLOAD, name_of(made), lacks("17 cpu needed, 16 free"))
    await cluster.create(kinds.POD, pod("stranger", cpu="3"))
    await set_pod(cluster, "stranger", "Running")
    await cluster.until(kinds.WORKLOAD, name_of(made), lacks("17 cpu needed, 13 free"))
