"""Faults of the wire and of the store, with a real server behind."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Unknown
from shoal.kube.feed import FeedSettings
from shoal.kube.kubeconfig import load
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes
from tests.controlplane.plane import ControlPlane
from tests.faults import proven
from tests.faulty import FaultyTransport, Rates

from .conftest import Start, config_map
from .proxy import Proxy

pytestmark = pytest.mark.controlplane


def _no_idle_limit(patch: pytest.MonkeyPatch) -> None:
    whole = Client.watch

    def watch(self: Client, *arguments: Any, idle_timeout: float | None = None, **options: Any) -> Any:
        return whole(self, *arguments, idle_timeout=None, **options)

    patch.setattr(Client, "watch", watch)


@proven(without=_no_idle_limit)
async def test_f051_a_dead_connection_under_a_real_watch_is_noticed(
    client: Client, control_plane: ControlPlane, start: Start, tmp_path: Path
) -> None:
    """F51: a connection dies without an end. Holds: noticed within the idle limit, resumed without a new list."""
    proxy = Proxy(control_plane.port)
    await proxy.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(control_plane.kubeconfig.read_text().replace(str(control_plane.port), str(proxy.port)))
    transport = load(kubeconfig)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, namespace="default", settings=FeedSettings(idle_limit=2.0))
    start(cache.run())
    try:
        async with asyncio.timeout(20):
            await cache.synced.wait()
        heard = asyncio.Event()
        cache.subscribe(lambda change: heard.set() if change.key.name == "unheard" else None)
        proxy.die()
        await client.create(CONFIG_MAP, config_map("unheard"), "default")
        async with asyncio.timeout(8):
            await heard.wait()
        assert cache.feed.counts.lists == 1
    finally:
        await transport.close()
        await proxy.stop()


def _repeat_blindly(patch: pytest.MonkeyPatch) -> None:
    async def run(self: Writes, owner: str, send: Any, look: Any) -> Any:
        while True:
            try:
                return await send()
            except Unknown:
                continue

    patch.setattr(Writes, "run", run)


@proven(without=_repeat_blindly)
async def test_f050_a_lost_answer_of_a_real_server_is_looked_up(client: Client, control_plane: ControlPlane) -> None:
    """F50: the answer to a write is lost. Holds: it is read, recognised as done, and not done again."""
    inner = load(control_plane.kubeconfig)
    network = FaultyTransport(inner, Rates(lost_answer=1.0), seed=1, clock=SystemClock())
    writer = Writes(Client(network, timeout=1.0)).writer("test")
    task = asyncio.ensure_future(writer.create(CONFIG_MAP, config_map("once", n="1")))
    await asyncio.sleep(0.5)
    network.calm()
    made = await task
    assert [method for method, _ in network.sent] == ["POST", "GET"]
    assert made["metadata"]["uid"] == (await client.get(CONFIG_MAP, "once", "default"))["metadata"]["uid"]

    network.rates = Rates(lost_answer=1.0)
    network.sent.clear()
    task = asyncio.ensure_future(writer.patch(CONFIG_MAP, made, {"data": {"n": "2"}}))
    await asyncio.sleep(0.5)
    network.calm()
    changed = await task
    assert [method for method, _ in network.sent] == ["PATCH", "GET"]
    assert changed["data"] == {"n": "2"}
    await inner.close()


def alarm(plane: ControlPlane, action: str) -> None:
    """Tell etcd that its disk is full, or that it is not any more."""
    body = json.dumps({"action": action, "memberID": "0", "alarm": "NOSPACE"}).encode()
    url = f"http://127.0.0.1:{plane.etcd_port}/v3/maintenance/alarm"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200


def _a_failed_key_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "_failed", lambda self, key, error: None)


@proven(without=_a_failed_key_is_forgotten)
async def test_f059_a_full_store_stops_writes_only_and_loses_nothing(
    client: Client, control_plane: ControlPlane, start: Start
) -> None:
    """F59: the store is full. Holds: reading goes on; what was to be written is written once there is room."""
    await client.create(CONFIG_MAP, config_map("before"), "default")
    cache: Cache[Any] = Cache(client, CONFIG_MAP, namespace="default")
    start(cache.run())
    async with asyncio.timeout(20):
        await cache.synced.wait()
    writer = Writes(client, attempts=2).writer("test")
    tried = asyncio.Event()

    async def reconcile(key: Key) -> None:
        tried.set()
        if cache.get(key) is None:
            await writer.create(CONFIG_MAP, config_map(key.name, key.namespace))

    controller: Controller[Key] = Controller("test", reconcile, needs=[cache])
    start(controller.run())
    await asyncio.to_thread(alarm, control_plane, "ACTIVATE")
    try:
        wanted = [Key("default", f"wanted-{number}") for number in range(5)]
        for key in wanted:
            controller.enqueue(key)
        async with asyncio.timeout(20):
            await tried.wait()
            while controller.counts.failed < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert (await client.get(CONFIG_MAP, "before", "default"))["metadata"]["name"] == "before"
        assert cache.get(Key("default", "before")) is not None and cache.trouble is None
    finally:
        await asyncio.to_thread(alarm, control_plane, "DEACTIVATE")
    async with asyncio.timeout(15):
        while not all(cache.get(key) for key in wanted):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
