"""A limit on requests a second, for API servers that many programs share.

`shoal controller --kube-api-qps` puts it around the transport of the leader, above the fence: a request that waits for
its turn has not been sent, and is checked against the lease once it is its turn. The lease itself is renewed past it.
Requests go in the order in which they were asked for, as those of client-go do; events and the numbers of queues let
what starts and stops gangs go first, for a few seconds each.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.transport import Request, Response, Stream, Transport

YIELDS = 5.0
"""Seconds by which a report lets later requests go first."""
REPORTS = ("/events", "queues/status")


class RequestRate:
    """`qps` requests a second on average; after a rest, `burst` of them at once."""

    def __init__(self, qps: float, burst: int, clock: Clock | None = None) -> None:
        self._every = 1.0 / qps
        self._ahead = (max(burst, 1) - 1) * self._every
        self._clock = clock or SystemClock()
        self._due = self._clock.monotonic()
        """When the next request would go if there were no burst."""
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._letting: asyncio.Task[None] | None = None

    async def turn(self, yields: float = 0.0) -> None:
        """Until it is this request's turn: as if it had been asked for `yields` seconds later."""
        now = self._clock.monotonic()
        if not self._waiting and self._wait(now) <= 0:
            self._take(now)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waiting, (now + yields, self._count, turn))
        if self._letting is None or self._letting.done():
            self._letting = asyncio.create_task(self._let_go())
        await turn

    def _wait(self, now: float) -> float:
        return self._due - self._ahead - now

    def _take(self, now: float) -> None:
        self._due = max(self._due, now) + self._every

    async def _let_go(self) -> None:
        while self._waiting:
            wait = self._wait(self._clock.monotonic())
            if wait > 0:
                await self._clock.sleep(wait)
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # its request was given up
                self._take(self._clock.monotonic())
                turn.set_result(None)


class RateLimitedTransport:
    def __init__(self, inner: Transport, rate: RequestRate) -> None:
        self.inner = inner
        self._rate = rate

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await self._rate.turn(YIELDS if request.path.endswith(REPORTS) else 0.0)
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self._streamed(request, idle_timeout)

    @asynccontextmanager
    async def _streamed(self, request: Request, idle_timeout: float | None) -> AsyncIterator[Stream]:
        await self._rate.turn()
        async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield stream

    async def close(self) -> None:
        await self.inner.close()


def rate_limited(client: Client, rate: RequestRate) -> Client:
    """The same client, every request in its turn."""
    return client.through(RateLimitedTransport(client.transport, rate))
