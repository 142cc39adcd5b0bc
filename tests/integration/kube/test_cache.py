"""The cache against a real API server that is killed while it works."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP
from shoal.api.meta import Json, Object
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from shoal.kube.writes import Writer, Writes
from tests.controlplane.plane import ControlPlane

from .conftest import Start, config_map

pytestmark = pytest.mark.controlplane


async def until_equal(cache: Cache[Object], client: Client, namespace: str, seconds: float = 60) -> None:
    """Wait until the cache holds exactly what the server holds."""
    truth: dict[Key, str] = {}
    held: dict[Key, str] = {}
    try:
        async with asyncio.timeout(seconds):
            while True:
                listed = await client.list(cache.kind, namespace, type=Object)
                truth = {Key(namespace, obj.metadata.name): obj.metadata.resource_version for obj in listed}
                held = {key: obj.metadata.resource_version for key in cache if (obj := cache.get(key))}
                if truth == held:
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        different = {key for key in truth.keys() | held.keys() if truth.get(key) != held.get(key)}
        pytest.fail(f"{len(different)} of {len(truth)} objects differ, for example {sorted(different)[:3]}")


class Changes:
    """A stream of creates, changes and deletes that goes on through outages."""

    def __init__(self, client: Client, writer: Writer, count: int) -> None:
        self._client = client
        self._writer = writer
        self._count = count
        self._random = Random(4)
        self._live: dict[str, Json] = {}
        self._places = asyncio.Semaphore(16)
        self._done = 0
        self._moved = asyncio.Condition()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._one(number))

    async def reached(self, count: int) -> None:
        async with self._moved, asyncio.timeout(120):
            await self._moved.wait_for(lambda: self._done >= count)

    async def _one(self, number: int) -> None:
        async with self._places:
            pick = self._random.random()
            name = self._random.choice(sorted(self._live)) if self._live and pick < 0.6 else f"c{number}"
            obj = self._live.pop(name, None)
            while True:
                try:
                    obj = await self._write(name, obj, pick, number)
                    break
                except (Conflict, AlreadyExists):
                    obj = await self._look(name)
                except KubeError:
                    await asyncio.sleep(0.3)
            if obj is not None:
                self._live[name] = obj
        async with self._moved:
            self._done += 1
            self._moved.notify_all()

    async def _write(self, name: str, obj: Json | None, pick: float, number: int) -> Json | None:
        if obj is None:
            return await self._writer.create(CONFIG_MAP, config_map(name, n=str(number)))
        if pick < 0.2:
            await self._writer.delete(CONFIG_MAP, obj)
            return None
        return await self._writer.patch(CONFIG_MAP, obj, {"data": {"n": str(number)}})

    async def _look(self, name: str) -> Json | None:
        while True:
            try:
                return await self._client.get(CONFIG_MAP, name, "default")
            except NotFound:
                return None
            except KubeError:
                await asyncio.sleep(0.3)


async def test_nothing_is_lost_when_server_and_store_are_killed_during_5000_changes(
    client: Client, control_plane: ControlPlane, hands: ThreadPoolExecutor, start: Start
) -> None:
    loop = asyncio.get_running_loop()
    cache = Cache(client, CONFIG_MAP, Object, namespace="default")
    start(cache.run())
    async with asyncio.timeout(60):
        await cache.synced.wait()
    changes = Changes(client, Writes(client, attempts=30).writer("test"), 5000)
    changing = start(changes.run())

    await changes.reached(1000)
    await loop.run_in_executor(hands, control_plane.kill_apiserver)
    await asyncio.sleep(1)
    cpu, wall = time.thread_time(), time.monotonic()
    await asyncio.sleep(3)
    share = (time.thread_time() - cpu) / (time.monotonic() - wall)
    await loop.run_in_executor(hands, control_plane.restart_apiserver)
    assert share < 0.05, f"{share:.1%} of a core while the server was down"

    await changes.reached(2500)
    await loop.run_in_executor(hands, control_plane.kill_etcd)
    await asyncio.sleep(2)
    await loop.run_in_executor(hands, control_plane.restart_etcd)

    await changes.reached(4000)
    await loop.run_in_executor(hands, control_plane.kill_apiserver)
    await loop.run_in_executor(hands, control_plane.restart_apiserver)
    async with asyncio.timeout(120):
        await changing
    await until_equal(cache, client, "default")
    counts = cache.feed.counts
    print(f"client CPU while down {share:.2%}; {counts}")
    assert counts.lists <= 1 + counts.gone
    assert counts.repairs == 0


async def test_many_caches_share_one_connection_pool(client: Client, start: Start) -> None:
    caches = [Cache(client, CONFIG_MAP, Object, namespace=f"n{number}") for number in range(60)]
    for cache in caches:
        start(cache.run())
    async with asyncio.timeout(60):
        for cache in caches:
            await cache.synced.wait()
        await client.list(CONFIG_MAP)  # there is a connection left for others
    assert [len(cache) for cache in caches] == [0] * 60  # nothing is in those namespaces
