"""A cluster in memory for the tests beside this file: an API server, and the parts of a node that a test begins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import msgspec
import pytest

from shoal.api.crds import load_crds
from shoal.local.apiserver import Server
from tests.stocked import start_with
from tests.unit.local.parts import Cluster


@cache
def _definitions() -> list[bytes]:
    wanted = ("ProvisioningRequest", "PodGroup", "Workload")
    return [msgspec.json.encode(crd) for crd in load_crds() if crd["spec"]["names"]["kind"] in wanted]


@asynccontextmanager
async def in_memory() -> AsyncIterator[Cluster]:
    """An API server in memory; a test begins the parts it wants. Afterwards no node holds more than it offers."""
    server = Server(None)
    await start_with(server, _definitions())
    found = Cluster(server)
    yield found
    await found.assert_no_node_is_overfull()
    await found.end()
    await server.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with in_memory() as found:
        yield found
