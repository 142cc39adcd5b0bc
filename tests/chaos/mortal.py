"""A transport whose process dies after a chosen write: the write is done, the answer never comes, nothing follows."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from shoal.kube.transport import Request, Response, Stream, Transport


class MortalTransport:
    """Writes are counted from 1; `dies_after=0` never dies."""

    def __init__(self, inner: Transport, dies_after: int = 0) -> None:
        self.inner = inner
        self.dies_after = dies_after
        self.writes: list[str] = []
        self.died = asyncio.Event()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if self.died.is_set():
            await asyncio.Event().wait()
        answer = await self.inner.send(request, timeout=timeout)
        if request.method == "GET" or "/events" in request.path or request.path.endswith("reviews"):
            return answer
        if answer.status < 300:
            self.writes.append(f"{request.method} {request.path}")
            if len(self.writes) == self.dies_after:
                self.died.set()
                await asyncio.Event().wait()
        return answer

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()
