"""An in-memory cluster with one node; the AppWrapper controller runs with the settings that a test asks for.

Whatever a test does, the whole history of its cluster is judged afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.controllers import appwrapper
from tests.checker.gang_rules import judge
from tests.checker.gang_story import changes_of
from tests.cluster import Cluster, running


@pytest.fixture
async def quiet() -> AsyncIterator[Cluster]:
    """The cluster alone: 4 cpu, 8Gi, nobody who decides."""
    async with running() as started:
        await started.add_node("node-1", cpu="4", memory="8Gi")
        yield started
        found = judge(changes_of(started.server))
        assert found == [], found


@pytest.fixture
async def cluster(quiet: Cluster) -> Cluster:
    quiet.start(appwrapper.run(quiet.client))
    return quiet
