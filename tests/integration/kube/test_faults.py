"""Faults of the wire and of the store, with a real server behind."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP
from shoal.api.meta import Json
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
from tests.patience import PATIENCE

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
        async with asyncio.timeout(PATIENCE):
            await cache.synced.wait()
        heard = asyncio.Event()
        cache.subscribe(lambda change: heard.set() if change.key.name == "unheard" else None)
        proxy.die()
        await client.create(CONFIG_MAP, config_map("unheard"), "default")
        async with asyncio.timeout(PATIENCE):
            await heard.wait()
        assert cache.feed.counts.lists == 1
    finally:
        await transport.close()
        await proxy.stop()


def _repeat_blindly(patch: pytest.MonkeyPatch) -> None:
    async def run(self: Writes, owner: str, send: Any, look: Any, attempts: int) -> Any:
        while True:
            try:
                return await send()
            except Unknown:
                continue

    patch.setattr(Writes, "run", run)


@proven(without=_repeat_blindly)
async def test_f050_a_lost_answer_of_a_real_server_is_looked_up(client: Client, control_plane: ControlPlane) -> None:
    """F50: the answer to a write is lost. Holds: it is read, recognised as done, and not done again."""
    inner, clock = load(control_plane.kubeconfig), Halting()
    network = FaultyTransport(inner, Rates(lost_answer=1.0), seed=1, clock=clock)
    writer = Writes(Client(network)).writer("test")

    async def written(write: Coroutine[Any, Any, Json]) -> Json:
        network.rates = Rates(lost_answer=1.0)
        network.sent.clear()
        task = asyncio.ensure_future(write)
        async with asyncio.timeout(PATIENCE):
            await clock.reached.wait()  # the write is done, its answer lost
            network.calm()
            clock.go_on()
            return await task

    made = await written(writer.create(CONFIG_MAP, config_map("once", n="1")))
    assert [method for method, _ in network.sent] == ["POST", "GET"]
    assert made["metadata"]["uid"] == (await client.get(CONFIG_MAP, "once", "default"))["metadata"]["uid"]
    changed = await written(writer.patch(CONFIG_MAP, made, {"data": {"n": "2"}}))
    assert [method for method, _ in network.sent] == ["PATCH", "GET"]
    assert changed["data"] == {"n": "2"}
    await inner.close()


class Halting(SystemClock):
    """A task that waits for a time to pass waits for the test instead."""

    def __init__(self) -> None:
        self.reached, self._passed = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.reached.set()
        await self._passed.wait()

    def go_on(self) -> None:
        self._passed.set()
        self.reached, self._passed = asyncio.Event(), asyncio.Event()


def alarm(plane: ControlPlane, action: str) -> None:
    """Tell etcd that its disk is full, or that it is not any more."""
    body = json.dumps({"action": action, "memberID": "0", "alarm": "NOSPACE"}).encode()
    url = f"http://127.0.0.1:{plane.etcd_port}/v3/maintenance/alarm"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
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
    async with asyncio.timeout(PATIENCE):
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
        async with asyncio.timeout(PATIENCE):
            await tried.wait()
            while controller.counts.failed < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert (await client.get(CONFIG_MAP, "before", "default"))["metadata"]["name"] == "before"
        assert cache.get(Key("default", "before")) is not None and cache.trouble is None
    finally:
        await asyncio.to_thread(alarm, control_plane, "DEACTIVATE")
    async with asyncio.timeout(PATIENCE):
        while not all(cache.get(key) for key in wanted):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
