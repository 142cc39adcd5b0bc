"""An in-memory cluster with one node, one queue of four cores, and the queue controller in the loop that plans."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueController, QueueSettings
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make


@pytest.fixture
async def quiet() -> AsyncIterator[Cluster]:
    """The cluster alone: 16 cores, no controller that decides."""
    async with running() as started:
        await started.add_node("node-1", cpu="16", memory="64Gi")
        yield started


def decide(cluster: Cluster, settings: QueueSettings | None = None) -> QueueController:
    """Start deciding; the controller is returned for a look inside."""
    own, other = AppWrapperSettings(trust_unstamped=True, obtain=True), settings or QueueSettings()
    made = planned(cluster.client, own, queues=other)
    cluster.start(made.run())
    cluster.rules = rules_of(own, other)
    return made.queues


@pytest.fixture
async def cluster(quiet: Cluster) -> Cluster:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    return quiet
