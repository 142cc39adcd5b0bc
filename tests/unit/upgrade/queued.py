"""Queues as a release left them: beside `stored.py`, for RayJobs that a ClusterQueue holds.

`python -m tests.unit.upgrade.queued` writes what this version stores (a RayJob that runs and one that waits for quota)
to `releases/queues/<version>.json`, once per release.
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal import __version__
from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers import ray
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.unit.queues.build import cluster_queue, counts, flavor, local_queue, make, ray_job
from tests.unit.upgrade.stored import RELEASES, objects

QUEUES = RELEASES / "queues"
KEPT = (
    kinds.NODE, kinds.RESOURCE_FLAVOR, kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE, kinds.WORKLOAD,
    kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.POD, kinds.SERVICE,
)  # fmt: skip


def start_controllers(cluster: Cluster) -> None:
    loop = planned(cluster.client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    cluster.start(loop.run())
    cluster.start(ray.run(cluster.client, ray.RaySettings()))


async def walk() -> list[Json]:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="8", memory="16Gi")
        start_controllers(cluster)
        await make(cluster, flavor(), cluster_queue(), local_queue(), ray_job("runs", 2))
        await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (0, 1, 1))
        await make(cluster, ray_job("waits", 2))
        await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (1, 1, 1))
        await cluster.until(kinds.RAY_JOB, "runs", lambda one: one["status"].get("rayClusterName"))
        await cluster.settled()
        return await objects(cluster, KEPT)


if __name__ == "__main__":
    made = asyncio.run(walk())
    QUEUES.mkdir(exist_ok=True)
    path = QUEUES / f"{__version__}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    print(f"{len(made)} objects in {path}")
