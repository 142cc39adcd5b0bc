"""An in-memory cluster with the built-in controllers, and builders of small objects."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.local import builtin
from shoal.local.apiserver import Server
from tests.cluster import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    server = Server(None)
    await server.start()
    cluster = Cluster(server)
    cluster.start(builtin.run_all(cluster.client))
    try:
        yield cluster
    finally:
        await cluster.stop()
        await server.stop()
