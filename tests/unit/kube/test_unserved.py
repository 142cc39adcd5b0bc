"""A kind that the server does not know is asked for often at first, then now and then, and read once it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shoal.api.kinds import RAY_CLUSTER
from shoal.api.meta import Object
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response, Stream
from tests.replay import LoopClock, skipping

UNKNOWN = b'{"kind":"Status","code":404,"reason":"NotFound","message":"not served here"}'


class _Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.headers, self._body = status, dict[str, str](), body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body
        await asyncio.Event().wait()

    async def read(self) -> bytes:
        return self._body


class Server:
    """Serves RayClusters from the moment `since` on; `asked`: when it was."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.asked: list[float] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        return Response(404, {}, UNKNOWN)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        now = asyncio.get_running_loop().time()
        self.asked.append(now)
        mark = b'{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}'
        served = now >= self.since
        yield _Answer(200, b'{"type":"BOOKMARK","object":%s}\n' % mark) if served else _Answer(404, UNKNOWN)

    async def close(self) -> None:
        return None


def test_a_kind_that_is_not_served_costs_few_requests_and_is_read_within_half_a_minute_of_its_installation() -> None:
    async def work() -> tuple[Server, float]:
        server = Server(since=asyncio.get_running_loop().time() + 600)
        cache: Cache[Object] = Cache(Client(server, manager="test"), RAY_CLUSTER, Object, clock=LoopClock())
        running = asyncio.ensure_future(cache.run())
        await cache.synced.wait()
        running.cancel()
        return server, asyncio.get_running_loop().time()

    server, known = skipping(work())
    assert known - server.since <= 30
    begun = server.asked[0]
    assert len([at for at in server.asked if at - begun < 60]) >= 10
    assert len([at for at in server.asked if 120 <= at - begun < 600]) <= 480 / 30 + 1
