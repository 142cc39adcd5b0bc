"""Many writers, watchers that come and go: the histories keep their promises (I26, I28, I29, I30)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, Conflict, NotFound
from shoal.local.apiserver import Server
from tests.unit.apiserver.builders import config_map


class Follower:
    """Keeps a copy by watching, gives up its connection now and then, and resumes from the last revision it saw."""

    def __init__(self, client: Client, chance: random.Random, label_selector: str = "") -> None:
        self.client = client
        self.chance = chance
        self.selector = label_selector
        self.copy: dict[str, str] = {}
        self.revision = 0
        self.known = 0  # the newest revision that an event or a bookmark has brought
        self._moved = asyncio.Event()

    async def run(self) -> None:
        listed = await self.client.list_raw(CONFIG_MAP, "default", label_selector=self.selector)
        self.revision = self.known = int(listed.metadata.resource_version)
        self.copy = {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in map(msgspec.json.decode, listed.items or ())
        }
        while True:
            left = self.chance.randrange(1, 40)
            async for event in self.client.watch(
                CONFIG_MAP,
                "default",
                resource_version=str(self.revision),
                label_selector=self.selector,
                timeout_seconds=1,
            ):
                self._take(event.type, msgspec.json.decode(event.object)["metadata"])
                left -= 1
                if left == 0:
                    break

    async def reaches(self, revision: int) -> None:
        while self.known < revision:
            self._moved.clear()
            await self._moved.wait()

    def _take(self, kind: str, metadata: dict[str, Any]) -> None:
        revision = int(metadata["resourceVersion"])
        name = metadata.get("name", "")
        self.known = max(self.known, revision)
        self._moved.set()
        if kind == "BOOKMARK":
            assert revision >= self.revision, "a bookmark went back"
            self.revision = revision
            return
        assert revision > self.revision, f"event {revision} came after {self.revision}: doubled or out of order"
        self.revision = revision
        if kind == "ADDED":
            assert name not in self.copy, f"{name} was added twice"
            self.copy[name] = str(revision)
        elif kind == "MODIFIED":
            assert name in self.copy, f"{name} changed but was never added: an event is missing"
            self.copy[name] = str(revision)
        else:
            assert name in self.copy, f"{name} was deleted but is not there: an event is missing"
            del self.copy[name]


class Writer:
    """Writes at random, and checks what it is told."""

    def __init__(self, client: Client, chance: random.Random, seen: set[int]) -> None:
        self.client = client
        self.chance = chance
        self.seen = seen

    async def run(self, count: int) -> None:
        for _ in range(count):
            name = f"c{self.chance.randrange(12)}"
            try:
                await self._once(name)
            except (AlreadyExists, NotFound, Conflict):
                pass

    async def _once(self, name: str) -> None:
        match self.chance.randrange(5):
            case 0 | 1:
                color = self.chance.choice(("red", "blue"))
                made = await self.client.create(
                    CONFIG_MAP, {"metadata": {"name": name, "labels": {"color": color}}}, "default"
                )
                await self._acknowledged(name, made)
            case 2:
                body = {
                    "metadata": {"labels": {"color": self.chance.choice(("red", "blue"))}},
                    "data": {"x": str(self.chance.random())},
                }
                await self._acknowledged(name, await self.client.patch(CONFIG_MAP, name, "default", body))
            case 3:
                await self.client.delete(CONFIG_MAP, name, "default")
            case _:
                old = await self.client.get(CONFIG_MAP, name, "default")
                await asyncio.sleep(0)
                changed = await self.client.update(
                    CONFIG_MAP, {**old, "data": {"y": str(self.chance.random())}}, name, "default"
                )
                assert int(changed["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
                await self._acknowledged(name, changed)

    async def _acknowledged(self, name: str, made: dict[str, Any]) -> None:
        revision = int(made["metadata"]["resourceVersion"])
        assert revision not in self.seen, "a revision was given out twice"
        self.seen.add(revision)
        listed = await self.client.list_raw(CONFIG_MAP, "default")
        assert int(listed.metadata.resource_version) >= revision, "a read begun after the write does not know of it"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("durable", [True, False], ids=["disk", "memory"])
async def test_copies_by_watching_equal_the_server(tmp_path: Path, seed: int, durable: bool) -> None:
    chance = random.Random(seed)
    server = Server(tmp_path if durable else None)
    await server.start()
    client = Client(server.transport())
    followers = [
        Follower(client, random.Random(chance.random()), selector) for selector in ("", "", "color=red", "color!=red")
    ]
    following = [asyncio.ensure_future(follower.run()) for follower in followers]
    seen: set[int] = set()
    await asyncio.gather(*(Writer(client, random.Random(chance.random()), seen).run(60) for _ in range(6)))
    last = await client.create(
        CONFIG_MAP, {**config_map("last"), "metadata": {"name": "last", "labels": {"color": "red"}}}, "default"
    )
    other = await client.create(
        CONFIG_MAP, {**config_map("other"), "metadata": {"name": "other", "labels": {"color": "blue"}}}, "default"
    )
    for follower, task in zip(followers, following, strict=True):
        final = last if follower.selector == "color=red" else other
        arrival = asyncio.ensure_future(follower.reaches(int(final["metadata"]["resourceVersion"])))
        await asyncio.wait((arrival, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        listed = await client.list_raw(CONFIG_MAP, "default", label_selector=follower.selector)
        truth = {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in map(msgspec.json.decode, listed.items or ())
        }
        assert follower.copy == truth
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    await server.stop()
