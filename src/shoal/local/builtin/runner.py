"""All built-in controllers in one task group, over one set of caches of the server's objects."""

from __future__ import annotations

import asyncio
import random

from shoal.api import kinds
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.writes import Writes
from shoal.local.builtin.caches import ObjectCaches
from shoal.local.builtin.collector import GarbageCollector
from shoal.local.builtin.context import WorkloadContext
from shoal.local.builtin.daemon_sets import DaemonSetController
from shoal.local.builtin.deployments import DeploymentController
from shoal.local.builtin.disruption import DisruptionController
from shoal.local.builtin.endpoints import EndpointsController
from shoal.local.builtin.gateways import GatewayController
from shoal.local.builtin.jobs import JobController
from shoal.local.builtin.namespaces import NamespaceController
from shoal.local.builtin.pod_cleanup import PodCleanup
from shoal.local.builtin.replica_sets import ReplicaSetController
from shoal.local.builtin.stateful_sets import StatefulSetController


async def run_all(
    client: Client, clock: Clock | None = None, *, root_ca: str = "", chance: random.Random | None = None
) -> None:
    """Until cancelled. `root_ca` is the PEM text of the server's CA, which every namespace gets for its pods."""
    clock = clock or SystemClock()
    chance = chance or random.Random()
    caches = ObjectCaches(client, clock)
    writes = Writes(client, clock=clock, random=chance)

    contexts: list[WorkloadContext] = []

    def context(name: str) -> WorkloadContext:
        contexts.append(WorkloadContext(caches, writes, name, chance))
        return contexts[-1]

    parts = (
        caches,
        GarbageCollector(caches),
        NamespaceController(caches, root_ca),
        ReplicaSetController(context("replicaset-controller")),
        ReplicaSetController(context("replication-controller"), kinds.REPLICATION_CONTROLLER),
        DeploymentController(context("deployment-controller")),
        JobController(context("job-controller")),
        StatefulSetController(context("statefulset-controller")),
        DaemonSetController(context("daemonset-controller")),
        EndpointsController(context("endpoint-controller")),
        DisruptionController(context("disruption-controller")),
        PodCleanup(context("pod-garbage-collector")),
        GatewayController(context("gateway-controller"), writes.writer("gateway-controller")),
    )
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part.run())
    finally:
        for one in contexts:
            await one.events.close()
