"""Legal histories by chance: hurried clients and controllers at a real server, over a network that delays each request
on its way there and back, loses answers and cuts watches, while the clock stands, runs and steps. The checker says
nothing; and says something as soon as the server lies in one of these histories.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from shoal.api.kinds import POD
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, Unknown
from shoal.kube.history import History, HistoryEntry, RecordingTransport
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.local.apiserver import Server
from tests.checker import Record, check, from_audit

SEEDS = int(os.environ.get("SHOAL_CHECKER_SEEDS", "4"))
NAMES = ("a", "b", "c")
START = 1_700_000_000_900_000
"""Shortly before a full second."""
Lie = Callable[[list[HistoryEntry]], list[HistoryEntry]]


class StrayClock:
    """Mostly stands still, runs a little, and now and then steps either way."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = START

    def now(self) -> int:
        self._now += self._random.choice((0, 0, 0, 1, 40_000))
        if self._random.random() < 0.01:
            self._now += self._random.choice((-1, 1)) * 3_000_000
        return self._now

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SlowNetwork:
    """Every request waits a few turns on its way there, and its answer on the way back; some answers get lost."""

    def __init__(self, inner: Transport, random: Random) -> None:
        self._inner = inner
        self.random = random

    async def wait(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 2, 5, 20))):
            await asyncio.sleep(0)

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await self.wait()
        lost = self.random.random()
        if lost < 0.03:
            raise Unknown("lost on the way there")
        answer = await self._inner.send(request, timeout=timeout)
        await self.wait()
        if lost > 0.97:
            raise Unknown("lost on the way back")
        return answer

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        await self.wait()
        async with self._inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield _SlowStream(stream, self)

    async def close(self) -> None:
        await self._inner.close()


class _SlowStream:
    def __init__(self, inner: Stream, network: SlowNetwork) -> None:
        self._inner = inner
        self._network = network
        self.status = inner.status
        self.headers = inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            await self._network.wait()
            yield chunk
            if self._network.random.random() < 0.05:
                return

    async def read(self) -> bytes:
        return await self._inner.read()


class Hurried:
    """One writer who keeps the manners that I31 asks for: after an unknown outcome it looks first."""

    def __init__(self, client: Client, clock: StrayClock, random: Random) -> None:
        self._client = client
        self._clock = clock
        self._random = random

    async def work(self, steps: int) -> None:
        deeds = (self._create, self._create, self._label, self._turn, self._replace, self._delete, self._list)
        for _ in range(steps):
            name = self._random.choice(NAMES)
            try:
                await self._random.choice(deeds)(name)
            except Unknown:
                await self._look(name)
            except KubeError:
                continue

    async def _look(self, name: str) -> Json | None:
        while True:
            try:
                return await self._client.get(POD, name, "default")
            except Unknown:
                continue
            except KubeError:
                return None

    async def _create(self, name: str) -> None:
        finalizers = ["example.test/held"] if self._random.random() < 0.3 else []
        spec = {"containers": [{"name": "main", "image": "none"}]}
        metadata = {"name": name, "namespace": "default", "finalizers": finalizers}
        await self._client.create(POD, {"metadata": metadata, "spec": spec}, "default")

    async def _label(self, name: str) -> None:
        """Without looking, and always something new."""
        await self._client.patch(
            POD, name, "default", {"metadata": {"labels": {"x": str(self._random.getrandbits(60))}}}
        )

    async def _turn(self, name: str) -> None:
        """A condition by the rules: a time never falls, never precedes the object, and moves with its value."""
        found = await self._client.get(POD, name, "default")
        held = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
        before = held.get("Ready") or {"status": "False", "lastTransitionTime": ""}
        created = found["metadata"]["creationTimestamp"]
        time = max(seconds_text(self._clock.now()), before.get("lastTransitionTime") or "", created)
        turned = {"type": "Ready", "status": "True" if before["status"] == "False" else "False"}
        status = {"conditions": [{**turned, "lastTransitionTime": time}]}
        body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "status": status}
        await self._client.patch(POD, name, "default", body, subresource="status")

    async def _replace(self, name: str) -> None:
        found = await self._client.get(POD, name, "default")
        found["metadata"].setdefault("annotations", {})["n"] = str(self._random.getrandbits(60))
        if self._random.random() < 0.5:
            found["metadata"].pop("finalizers", None)
        await self._client.update(POD, found, name, "default")

    async def _delete(self, name: str) -> None:
        found = await self._client.get(POD, name, "default")
        uid = found["metadata"]["uid"]
        await self._client.delete(POD, name, "default", uid=uid, grace_seconds=self._random.choice((0, 30)))

    async def _list(self, name: str) -> None:
        await self._client.request("GET", POD.path("default" if self._random.random() < 0.5 else None))


async def onlooker(client: Client) -> None:
    """Follows everything, from the beginning whenever its watch was cut."""
    while True:
        try:
            async for _ in client.watch(POD, "default", send_initial_events=True):
                pass
        except KubeError:
            pass
        await asyncio.sleep(0)


async def storm(seed: int, folder: Path) -> tuple[list[HistoryEntry], list[Record]]:
    """The history as three replicas recorded it, and as the server's audit log tells it."""
    random = Random(seed)
    clock = StrayClock(random)
    server = Server(None, clock=clock, audit_log=folder / "audit.log")
    await server.start()
    history = History()
    clients = [
        Client(RecordingTransport(SlowNetwork(server.transport(), random), history, replica=name, clock=clock))
        for name in ("r1", "r2", "r3")
    ]
    watching = [asyncio.ensure_future(onlooker(client)) for client in clients]
    try:
        await asyncio.gather(*(Hurried(client, clock, random).work(40) for client in clients))
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await server.stop()
    return history.entries, from_audit(folder / "audit.log", agents=("shoal",))


def passed_over(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """A watch that goes on behind an event that it never delivered."""
    written = {entry.new["metadata"]["resourceVersion"] for entry in entries if entry.verb == "patch" and entry.new}
    for place, entry in enumerate(entries):
        later = [one for one in entries[place + 1 :] if one.watch == entry.watch]
        if entry.event == "MODIFIED" and later and entry.new["metadata"]["resourceVersion"] in written:
            return [*entries[:place], *entries[place + 1 :]]
    return entries


def told_twice(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """A watch that delivers an event again."""
    for place, entry in enumerate(entries):
        if entry.event == "MODIFIED":
            return [*entries[: place + 1], entry, *entries[place + 1 :]]
    return entries


def read_too_old(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """A read that finds what was there before a write that had been acknowledged."""
    for place, read in enumerate(entries):
        for write in entries[:place]:
            before = write.old
            changed = write.verb == "patch" and write.new is not None and before is not None
            if read.verb == "get" and read.new and changed and write.finished < read.order and write.uid == read.uid:
                return [*entries[:place], msgspec.structs.replace(read, new=before), *entries[place + 1 :]]
    return entries


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_happened_legally_is_let_pass(seed: int, tmp_path: Path) -> None:
    recorded, told = await storm(seed, tmp_path)
    assert [str(one) for one in check(recorded)] == []
    assert [str(one) for one in check(told)] == []


@pytest.mark.parametrize("invariant, lie", [("I26", passed_over), ("I26", told_twice), ("I29", read_too_old)])
async def test_one_lie_in_such_a_storm_is_found(invariant: str, lie: Lie, tmp_path: Path) -> None:
    for seed in range(20):
        recorded, _ = await storm(seed, tmp_path)
        if lie(recorded) is not recorded:  # else nothing happened that this lie is about
            break
    assert {one.invariant for one in check(lie(recorded))} == {invariant}
