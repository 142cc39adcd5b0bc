"""A transport that lets a test step in: before a request is sent, or after its answer came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from shoal.kube.transport import Request, Response, Stream, Transport

Before = Callable[[Request], Awaitable[Response | None]]
After = Callable[[Request, Response], Awaitable[None]]


async def _pass(request: Request) -> None:
    return None


async def _leave(request: Request, response: Response) -> None:
    return None


class Meddler:
    """`before` may answer itself or raise; `after` may raise once the request was carried out. `drops` keeps watch
    events away. `sent` lists writes."""

    def __init__(
        self,
        inner: Transport,
        before: Before = _pass,
        after: After = _leave,
        drops: Callable[[bytes], bool] = lambda chunk: False,
    ) -> None:
        self.inner = inner
        self.drops = drops
        self.before = before
        self.after = after
        self.sent: list[tuple[str, str]] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method != "GET":
            self.sent.append((request.method, request.path))
        answer = await self.before(request)
        if answer is not None:
            return answer
        answer = await self.inner.send(request, timeout=timeout)
        await self.after(request, answer)
        return answer

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield _Lossy(stream, self)

    async def close(self) -> None:
        await self.inner.close()

    def count(self, method: str, ending: str) -> int:
        return sum(1 for sent, path in self.sent if sent == method and path.endswith(ending))


class _Lossy:
    """A watch that leaves out what the test wants to keep from the reader."""

    def __init__(self, inner: Stream, meddler: Meddler) -> None:
        self._inner = inner
        self._meddler = meddler
        self.status = inner.status
        self.headers = inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            if not self._meddler.drops(chunk):
                yield chunk

    async def read(self) -> bytes:
        return await self._inner.read()


def refusal(code: int, reason: str, message: str) -> Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return Response(code, {"content-type": "application/json"}, msgspec.json.encode(body))
