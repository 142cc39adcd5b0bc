"""An in-memory cluster with one node, one queue of four cores, and the queue controller in the loop that plans."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.queues import QueueController, QueueSettings
from tests.checker.at_rest import Rules
from tests.cluster import Cluster, running
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make


@pytest.fixture
async def quiet() -> AsyncIterator[Cluster]:
    """The cluster alone: 16 cores, nobody who decides."""
    async with running() as started:
        await started.add_node("node-1", cpu="16", memory="64Gi")
        yield started


def decide(cluster: Cluster, settings: QueueSettings | None = None) -> QueueController:
    """Start deciding; the controller is returned for a look inside."""
    guest = QueueController(cluster.client, settings or QueueSettings())
    host = AppWrapperController(cluster.client, AppWrapperSettings(trust_unstamped=True, obtain=True), guest=guest)
    cluster.start(host.run())
    chosen = settings or QueueSettings()
    cluster.rules = Rules(
        supply=chosen.supply,
        fair_sharing=chosen.fair_sharing,
        partial_admission=chosen.partial_admission,
        blocks_until_ready=chosen.decisions.wait_for_pods_ready,
        ray=False,
    )
    return guest


@pytest.fixture
async def cluster(quiet: Cluster) -> Cluster:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    return quiet
