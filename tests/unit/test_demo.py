"""The demo's stand-in for kubectl: the same words for the few requests that the demo makes, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from demo.without_kubectl import StandIn

from shoal.api import kinds
from shoal.errors import ShoalError
from tests.cluster import Cluster, running

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(with_builtin=False) as started:
        await started.server.serve()
        started.server.write_kubeconfig(tmp_path / "kubeconfig")
        yield started


async def test_it_applies_lists_waits_and_deletes(cluster: Cluster, tmp_path: Path) -> None:
    stand_in = StandIn(str(tmp_path / "kubeconfig"))
    await cluster.add_node("node-1")

    async def kubectl(*arguments: str) -> str:
        return await asyncio.to_thread(stand_in, *arguments)

    applied = await kubectl("apply", "-f", str(ROOT / "samples/appwrapper/raycluster.yaml"))
    assert applied == "appwrapper.workload.codeflare.dev/first created\n"
    assert await kubectl("get", "appwrapper", "-o", "name") == "appwrapper/first\n"
    heads, row = (await kubectl("get", "nodes")).splitlines()
    assert heads.split()[:2] == ["NAME", "STATUS"] and row.split()[:2] == ["node-1", "Ready"]
    waiting = asyncio.ensure_future(kubectl("wait", "appwrapper/first", "--for=jsonpath={.status.state}=Running"))
    running_now = {"status": {"state": "Running"}}
    await cluster.client.patch(kinds.APP_WRAPPER, "first", "default", running_now, subresource="status")
    assert await waiting == ""
    deleted = await kubectl("delete", "appwrapper", "first")
    assert deleted == 'appwrapper.workload.codeflare.dev "first" deleted\n'
    assert await cluster.names(kinds.APP_WRAPPER) == []
    with pytest.raises(ShoalError, match="does not know kubectl describe"):
        await kubectl("describe", "node", "node-1")
