"""A transport whose process dies after a chosen write, or that loses the answer of one and lives on."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Literal

from shoal.kube.errors import Unknown
from shoal.kube.transport import Request, Response, Stream, Transport

Fate = Literal["dies", "done", "not done"]


class MortalTransport:
    """Writes are counted from 1; `at=0` never strikes. What happens to the chosen one:

    `dies`: it is done, the answer never comes, nothing follows. `done`: it is done, the answer is lost. `not done`: it
    never arrives, and no answer comes either.
    """

    def __init__(self, inner: Transport, at: int = 0, fate: Fate = "dies") -> None:
        self.inner = inner
        self.at = at
        self.fate = fate
        self.writes: list[str] = []
        self.died = asyncio.Event()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if self.died.is_set():
            await asyncio.Event().wait()
        counts = request.method != "GET" and not request.path.endswith(("/events", "reviews", "/leases"))
        counts = counts and "/events/" not in request.path and "/leases/" not in request.path
        if counts and self.fate == "not done" and len(self.writes) + 1 == self.at:
            self.writes.append(f"{request.method} {request.path}")
            raise Unknown("the connection was cut before")
        answer = await self.inner.send(request, timeout=timeout)
        if counts and answer.status < 300:
            self.writes.append(f"{request.method} {request.path}")
            if len(self.writes) == self.at and self.fate == "dies":
                self.died.set()
                await asyncio.Event().wait()
            if len(self.writes) == self.at and self.fate == "done":
                raise Unknown("the connection was cut after")
        return answer

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()
