"""A member with nothing of ours: a real server with its own scheduler and KWOK nodes gets the wrapped objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from shoal.api import kinds
from tests.controlplane.plane import ControlPlane
from tests.integration.clusters.test_app_wrappers import become_hub
from tests.integration.clusters.test_real_server import embedded, real
from tests.integration.conftest import judged
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, job
from tests.unit.clusters.test_app_wrappers import backs_off, is_sent


@pytest.fixture(scope="module")
def bare_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("bare") / "state"
    fresh = ControlPlane(folder, controllers=True, scheduler=True, kwok=True, jobs_go_on=True, audit=True)
    with contextmanager(judged)(fresh) as started:
        started.add_node("node-1", cpu="4", memory="64Gi")
        yield started


@pytest.mark.not_at_rest("the hub has no nodes; what is where is asserted")
async def test_a_real_server_without_shoal_runs_what_an_app_wrapper_wraps(
    bare_plane: ControlPlane, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        hub, _ = await stack.enter_async_context(embedded(tmp_path))
        there = await stack.enter_async_context(real(bare_plane))
        await become_hub(hub, bare=bare_plane.kubeconfig)
        await hub.create(kinds.APP_WRAPPER, app_wrapper("one", job("one", cpu="3"), config_map("one")))
        assert is_sent(await hub.until(kinds.APP_WRAPPER, "one", dispatched))
        started = await there.until(kinds.JOB, "one", lambda one: one["spec"].get("suspend") is not True)
        assert started["metadata"]["labels"]["shoal.dev/hub"]
        await there.until(kinds.JOB, "one", lambda one: (one.get("status") or {}).get("active") == 1)
        await hub.until(kinds.APP_WRAPPER, "one", lambda one: (one.get("status") or {}).get("running") == 1)
        assert "one" in await there.names(kinds.CONFIG_MAP)
        await hub.create(kinds.APP_WRAPPER, app_wrapper("two", job("two", cpu="3")))
        await hub.until(kinds.APP_WRAPPER, "two", backs_off)
        assert await there.names(kinds.JOB) == ["one"]
        assert await hub.names(kinds.JOB) == []
        await hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await hub.until_gone(kinds.APP_WRAPPER, "one")
        await there.until_gone(kinds.JOB, "one")
        assert is_sent(await hub.until(kinds.APP_WRAPPER, "two", dispatched))
        await there.until(kinds.JOB, "two", lambda one: (one.get("status") or {}).get("active") == 1)
        assert "one" not in await there.names(kinds.CONFIG_MAP)
        await hub.client.delete(kinds.APP_WRAPPER, "two", "default")
        await hub.until_gone(kinds.APP_WRAPPER, "two")
        await there.until_gone(kinds.JOB, "two")
