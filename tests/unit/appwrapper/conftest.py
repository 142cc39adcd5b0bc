"""An in-memory cluster with one node and the AppWrapper controller."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.controllers import appwrapper
from tests.cluster import Cluster, running


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as started:
        await started.add_node("node-1", cpu="4", memory="8Gi")
        started.start(appwrapper.run(started.client))
        yield started
