"""The queue controller dies after every single write while an elastic Ray cluster grows, shrinks and grows again."""

from __future__ import annotations

from functools import partial

import pytest

from shoal.api import kinds
from shoal.api.gang import DRAIN_SECONDS
from tests.chaos.mortal import Fate
from tests.chaos.test_queues_killed import differences
from tests.cluster import Cluster
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    said,
    true,
    usage,
)
from tests.unit.queues.elastic_build import is_gated, is_open, pod, running


async def walk(cluster: Cluster, drain: str = "0") -> dict[str, object]:
    """It grows by two workers, loses them to a job that needs their quota, and gets one back when that one ends."""
    queue = cluster_queue()
    queue["metadata"]["annotations"] = {DRAIN_SECONDS: drain}
    await make(cluster, flavor(), queue, local_queue())
    of = await running(cluster)
    for name in ("more-0", "more-1"):
        await pod(cluster, of, name)
        await cluster.until(kinds.POD, name, is_open)
        await cluster.client.patch(kinds.POD, name, "default", {"status": {"phase": "Running"}}, subresource="status")
    (other,) = await make(cluster, job("other", 2))
    await cluster.until(kinds.WORKLOAD, name_of(other), true("Admitted"))
    left = set(await cluster.names(kinds.POD)) & {"more-0", "more-1", "ray-floor-0"}
    await pod(cluster, of, "again")
    await cluster.settled()
    gated = is_gated(await cluster.get(kinds.POD, "again"))
    await complete(cluster, "other", 2)
    await cluster.until(kinds.POD, "again", is_open)
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: usage(one).get("cpu") == "3")
    await cluster.settled()
    ray = await cluster.get(kinds.WORKLOAD, name_of(of, "RayCluster", "ray.io"))
    stored = await cluster.get(kinds.RAY_CLUSTER, "ray")
    return {
        "left": len(left),  # which of equal workers goes does not matter
        "gated": gated,
        "ray": (said(ray, "Admitted")[:2], said(ray, "Evicted")),
        "suspended": stored["spec"]["suspend"],
        "pods": sum(not name.startswith("other") for name in await cluster.names(kinds.POD)),
    }


@pytest.mark.parametrize("fate", ["dies", "done", "not done"])
async def test_growth_and_its_end_are_the_same_whatever_happens_to_a_write(fate: Fate) -> None:
    """Killed after any write, or any one lost on its way or on its way back: the end of a calm walk, quota never
    exceeded at rest."""
    assert await differences(fate, walk) == []


async def test_workers_that_are_marked_to_leave_go_whoever_leads_then() -> None:
    """Killed after any write, the marks on pods among them, where their queue gives workers a second."""
    assert await differences("dies", partial(walk, drain="1")) == []
