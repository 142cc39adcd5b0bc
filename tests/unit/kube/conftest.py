"""A server in memory, a clock that stands still, and running tasks that end with the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from tests.embedded import Embedded

from .site import EmbeddedSite

Start = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def server(clock: VirtualClock) -> AsyncIterator[Embedded]:
    one = await Embedded(clock).start("team")
    yield one
    await one.stop()


@pytest.fixture
def client(server: Embedded) -> Client:
    return Client(server.transport())


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Run something in the background until the test ends."""
    tasks: list[asyncio.Task[Any]] = []

    def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def site(server: Embedded, clock: VirtualClock, start: Start) -> EmbeddedSite:
    return EmbeddedSite(server, clock, start)
