"""A server in memory and a client to it, for every test here."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.kube.client import Client
from shoal.kube.history import History, RecordingTransport
from shoal.local.apiserver import Server
from tests.checker import assert_holds

START = 1_700_000_000_000_000


class ManualClock:
    """Time that stands still until `advance`."""

    def __init__(self) -> None:
        self.wall = START
        self.elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.elapsed + seconds, self._count, waiting))
        await waiting

    async def advance(self, seconds: float) -> None:
        """Let time pass; every task that was waiting for it has run before this returns."""
        await turns()
        until = self.elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, waiting = heapq.heappop(self._sleepers)
            self.wall += int((at - self.elapsed) * 1_000_000)
            self.elapsed = at
            if not waiting.done():
                waiting.set_result(None)
            await turns()
        self.wall += int((until - self.elapsed) * 1_000_000)
        self.elapsed = until
        await turns()


async def turns(count: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    one = Server(None, clock=clock)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
def client(server: Server, clock: ManualClock) -> Iterator[Client]:
    """Every request is recorded; when the test has ended, the whole history must hold the invariants of a store."""
    history = History()
    yield Client(RecordingTransport(server.transport(), history, replica="test", clock=clock))
    assert_holds(history.entries)


@pytest.fixture
def plain_client(server: Server) -> Client:
    """Not recorded: for requests that no careful client would send."""
    return Client(server.transport())
