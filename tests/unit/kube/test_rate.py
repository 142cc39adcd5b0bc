"""A limit on requests a second: a burst at once, then one after the other, in order; the fence holds after the wait."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import LeaseLost
from shoal.kube.lease import FencedTransport, Term
from shoal.kube.rate import RateLimitedTransport, RequestRate, rate_limited
from shoal.kube.transport import Request, Response


class Recording:
    """Answers everything, and remembers when what was asked."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.asked: list[tuple[float, str]] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        self.asked.append((round(self._clock.monotonic(), 3), request.path.rsplit("/", 1)[-1]))
        return Response(200, {}, b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"}}')

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> Any:
        self.asked.append((round(self._clock.monotonic(), 3), "watch"))
        yield None

    async def close(self) -> None: ...


async def ask(client: Client, *names: str) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(client.get(CONFIG_MAP, name, "default")) for name in names]


async def test_a_burst_goes_at_once_and_the_rest_in_order() -> None:
    clock = VirtualClock()
    recording = Recording(clock)
    client = rate_limited(Client(recording), RequestRate(10, 3, clock))
    asked = await ask(client, *"abcdef")
    await clock.advance(1)
    await asyncio.gather(*asked)
    assert recording.asked == [(0.0, "a"), (0.0, "b"), (0.0, "c"), (0.1, "d"), (0.2, "e"), (0.3, "f")]


async def test_after_a_rest_there_is_a_burst_again_and_no_more() -> None:
    clock = VirtualClock()
    recording = Recording(clock)
    client = rate_limited(Client(recording), RequestRate(10, 2, clock))
    first = await ask(client, *"ab")
    await clock.advance(60)
    second = await ask(client, *"cde")
    await clock.advance(1)
    await asyncio.gather(*first, *second)
    assert [when for when, _ in recording.asked] == [0.0, 0.0, 60.0, 60.0, 60.1]


async def test_reports_let_later_requests_go_first_for_a_while() -> None:
    clock = VirtualClock()
    recording = Recording(clock)
    transport = RateLimitedTransport(recording, RequestRate(1, 1, clock))
    event = Request(method="POST", path="/api/v1/namespaces/default/events")
    asked = [asyncio.create_task(transport.send(event))]
    await clock.settle()
    asked.append(asyncio.create_task(transport.send(event)))
    for number in range(9):
        asked.append(asyncio.create_task(transport.send(Request(method="GET", path=f"/api/v1/{number}"))))
        await clock.advance(1)
    await clock.advance(20)
    await asyncio.gather(*asked)
    assert [name for _, name in recording.asked] == ["events", *"01234", "events", *"5678"]


async def test_a_request_that_is_given_up_takes_no_turn() -> None:
    clock = VirtualClock()
    recording = Recording(clock)
    client = rate_limited(Client(recording), RequestRate(10, 1, clock))
    asked = await ask(client, *"abc")
    await clock.settle()
    asked[1].cancel()
    await clock.advance(1)
    assert recording.asked == [(0.0, "a"), (0.1, "c")]


async def test_opening_a_watch_takes_a_turn() -> None:
    clock = VirtualClock()
    recording = Recording(clock)
    transport = RateLimitedTransport(recording, RequestRate(10, 1, clock))

    async def watch() -> None:
        async with transport.stream(Request(method="GET", path="/api/v1/pods")):
            pass

    await transport.send(Request(method="GET", path="/api/v1/a"))
    opened = asyncio.create_task(watch())
    await clock.advance(1)
    await opened
    assert recording.asked == [(0.0, "a"), (0.1, "watch")]


async def test_a_write_whose_term_ended_while_it_waited_is_not_sent() -> None:
    clock = VirtualClock()
    recording = Recording(clock)
    term = Term(1, deadline=0.05, clock=clock)
    client = rate_limited(Client(FencedTransport(recording, term)), RequestRate(10, 1, clock))
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
    first = asyncio.create_task(client.create(CONFIG_MAP, made, "default"))
    second = asyncio.create_task(client.create(CONFIG_MAP, made, "default"))
    await clock.advance(1)
    await first
    with pytest.raises(LeaseLost):
        await second
    assert len(recording.asked) == 1
