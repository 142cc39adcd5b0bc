"""All built-in controllers in one task group, over one census of the server's objects."""

from __future__ import annotations

import asyncio
import random

from shoal.api import kinds
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.writes import Writes
from shoal.local.builtin.census import Census
from shoal.local.builtin.collector import Collector
from shoal.local.builtin.daemon_sets import DaemonSets
from shoal.local.builtin.deployments import Deployments
from shoal.local.builtin.disruption import Disruption
from shoal.local.builtin.endpoints import Endpoints
from shoal.local.builtin.jobs import Jobs
from shoal.local.builtin.namespaces import Namespaces
from shoal.local.builtin.pod_cleanup import PodCleanup
from shoal.local.builtin.replica_sets import ReplicaSets
from shoal.local.builtin.stateful_sets import StatefulSets
from shoal.local.builtin.workbench import Workbench


async def run_all(
    client: Client, clock: Clock | None = None, *, root_ca: str = "", chance: random.Random | None = None
) -> None:
    """Until cancelled. `root_ca` is the PEM text of the server's CA, which every namespace gets for its pods."""
    clock = clock or SystemClock()
    chance = chance or random.Random()
    census = Census(client, clock)
    writes = Writes(client, clock=clock, random=chance)

    benches: list[Workbench] = []

    def bench(name: str) -> Workbench:
        benches.append(Workbench(census, writes, name, chance))
        return benches[-1]

    parts = (
        census,
        Collector(census),
        Namespaces(census, root_ca),
        ReplicaSets(bench("replicaset-controller")),
        ReplicaSets(bench("replication-controller"), kinds.REPLICATION_CONTROLLER),
        Deployments(bench("deployment-controller")),
        Jobs(bench("job-controller")),
        StatefulSets(bench("statefulset-controller")),
        DaemonSets(bench("daemonset-controller")),
        Endpoints(bench("endpoint-controller")),
        Disruption(bench("disruption-controller")),
        PodCleanup(bench("pod-garbage-collector")),
    )
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part.run())
    finally:
        for one in benches:
            await one.events.close()
