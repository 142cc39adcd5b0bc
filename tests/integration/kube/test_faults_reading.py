"""What reading survives, with a real server behind: the walks of the unit tests, and what only a real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, CRD, NAMESPACE
from shoal.api.meta import Object
from shoal.kube.client import Client
from shoal.kube.feed import Feed, FeedSettings
from shoal.kube.history import History, RecordingTransport
from shoal.kube.kubeconfig import load
from shoal.kube.schemas import missing_fields
from shoal.kube.trouble import Trouble
from tests.checker import assert_holds
from tests.controlplane.plane import ControlPlane
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.kube.test_faults_cache import one_watch_only
from tests.unit.kube.test_reading import TestReading  # noqa: F401 (collected here, over the site below)

from .conftest import Start, config_map, widget_crd
from .proxy import Proxy
from .site import RealSite

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def site(
    client: Client,
    control_plane: ControlPlane,
    hands: ThreadPoolExecutor,
    start: Start,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[RealSite]:
    """A namespace of the test's own; what the reader is told is judged as well."""
    proxy = Proxy(control_plane.port)
    await proxy.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(control_plane.kubeconfig.read_text().replace(str(control_plane.port), str(proxy.port)))
    transport, history = load(kubeconfig), History()
    reader = Client(RecordingTransport(transport, history, replica="reader"))
    namespace = request.node.name.split("_")[1]
    await client.create(NAMESPACE, {"metadata": {"name": namespace}})

    async def restart() -> None:
        for step in (control_plane.kill_apiserver, control_plane.restart_apiserver):
            await asyncio.get_running_loop().run_in_executor(hands, step)

    yield RealSite(client, reader, proxy, namespace, start, restart)
    await transport.close()
    await proxy.stop()
    assert_holds(history.entries)


# --- F67


def _no_schema_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Feed) -> None:
        self._unchecked = ()

    patch.setattr(Feed, "_check_schema", nothing)


@proven(without=_no_schema_is_looked_at)
async def test_f067_a_kind_whose_crd_drops_what_we_store_is_left_alone_until_it_is_updated(
    site: RealSite, client: Client
) -> None:
    """F67: the CRD on the server is older than we are. Holds: the fields it drops are named and the kind is not read;
    updated, it joins without a restart."""
    lever = Kind("example.test", "v1", "Lever", "levers")
    old = widget_crd(lever)
    text = {"type": "string"}
    schema = {"type": "object", "properties": {"status": {"type": "object", "properties": {"state": text}}}}
    old["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    await client.create(CRD, old)
    await until_described(client, lever)
    reports: list[Trouble] = []
    needed, settings = ("status.state", "status.plan"), FeedSettings(retry_cap=0.5)
    cache = site.cache(lever, requires=needed, settings=settings, report=reports.append)
    await site.until(lambda: cache.trouble is not None)
    assert [report.reason for report in reports] == ["SchemaTooOld"]
    assert "levers.example.test (v1)" in reports[0].message
    assert "drops status.plan. Nothing is done with this kind" in reports[0].message
    assert not cache.synced.is_set()
    schema["properties"]["status"]["properties"]["plan"] = {**text}  # type: ignore[index]
    versions = [{**old["spec"]["versions"][0], "schema": {"openAPIV3Schema": schema}}]
    await client.patch(CRD, lever.resource, None, {"spec": {"versions": versions}})
    await site.synced(cache)
    assert cache.trouble is None


async def until_described(client: Client, kind: Kind) -> None:
    """A server publishes the schema of a new kind a moment after it serves it."""
    async with asyncio.timeout(PATIENCE):
        while not await missing_fields(client, kind, ["status.nothing"]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


# --- F52


@proven(without=one_watch_only)
async def test_f052_a_watcher_that_a_real_server_cuts_for_being_slow_misses_nothing(
    site: RealSite, control_plane: ControlPlane
) -> None:
    """F52: a burst of 2,000 is more than the watcher reads; the server ends its watch. Holds: none is missing."""
    count, payload = 2000, "x" * 8000
    writer = load(control_plane.kubeconfig)
    cache = site.cache(CONFIG_MAP, Object, namespace=site.namespace)
    await site.synced(cache)
    site.proxy.hold()
    numbers = iter(range(count))

    async def create() -> None:
        for number in numbers:
            made = config_map(f"c{number}", site.namespace, text=payload)
            await Client(writer).create(CONFIG_MAP, made, site.namespace)

    await asyncio.gather(*(create() for _ in range(24)))
    site.proxy.release()
    await site.until(lambda: len(cache) == count)
    counts = cache.feed.counts
    assert counts.watches >= 2, "the server did not cut the watch: the burst was too small to prove anything"
    assert counts.lists == 1 + counts.gone
    await writer.close()
