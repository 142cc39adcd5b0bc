"""A transport that fails on purpose, from a seed.

Requests: refused connection, 409, 429 with Retry-After, 500, and timeouts with the write done or not done. Watches:
events cut (also in the middle of a line), delayed, doubled, swapped, lost, silence, and 410. `calm()` ends all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import msgspec

from shoal.kube.clock import Clock
from shoal.kube.errors import Unknown, Unsent
from shoal.kube.transport import Request, Response, Stream, Transport


class Rates(msgspec.Struct, frozen=True):
    """Chance of each fault, per request or per event."""

    unsent: float = 0.0
    conflict: float = 0.0
    throttled: float = 0.0
    server_error: float = 0.0
    lost_answer: float = 0.0
    """Done, but the answer never came."""
    lost_request: float = 0.0
    """Not done, and no answer either."""
    slow: float = 0.0
    cut: float = 0.0
    cut_in_line: float = 0.0
    delayed: float = 0.0
    doubled: float = 0.0
    swapped: float = 0.0
    dropped: float = 0.0
    silence: float = 0.0
    gone: float = 0.0


class FaultyTransport:
    def __init__(self, inner: Transport, rates: Rates, *, seed: int, clock: Clock) -> None:
        self.inner = inner
        self.rates = rates
        self.happened: dict[str, int] = {}
        self.sent: list[tuple[str, str]] = []
        self._random = Random(seed)
        self._clock = clock

    def calm(self) -> None:
        self.rates = Rates()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        self.sent.append((request.method, request.path))
        writes = request.method != "GET"
        if self._strikes("slow"):
            await self._clock.sleep(self._random.uniform(0.1, 3.0))
        if refusal := self._refusal():
            return refusal
        if writes and self._strikes("conflict"):
            return _status(409, "Conflict", "changed meanwhile (injected)")
        if self._strikes("lost_request"):
            await self._clock.sleep(timeout or 30)
            raise Unknown("timeout, not done (injected)")
        if self._strikes("lost_answer"):
            await self.inner.send(request, timeout=timeout)
            await self._clock.sleep(timeout or 30)
            raise Unknown("timeout, done (injected)")
        return await self.inner.send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        self.sent.append(("WATCH", request.path))
        if refusal := self._refusal():
            yield RefusedStream(refusal)
            return
        if "resourceVersion" in request.query and self._strikes("gone"):
            yield RefusedStream(_status(410, "Expired", "too old resource version (injected)"))
            return
        async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield _FaultyStream(stream, self, idle_timeout)

    async def close(self) -> None:
        await self.inner.close()

    def _refusal(self) -> Response | None:
        if self._strikes("unsent"):
            raise Unsent("connection refused (injected)")
        if self._strikes("throttled"):
            return _status(429, "TooManyRequests", "slow down (injected)", {"retry-after": "1"})
        if self._strikes("server_error"):
            return _status(500, "InternalError", "broken (injected)")
        return None

    def _strikes(self, fault: str) -> bool:
        if self._random.random() >= getattr(self.rates, fault):
            return False
        self.happened[fault] = self.happened.get(fault, 0) + 1
        return True


class _FaultyStream:
    def __init__(self, inner: Stream, transport: FaultyTransport, idle_timeout: float | None) -> None:
        self._inner = inner
        self._transport = transport
        self._idle = idle_timeout
        self.status = inner.status
        self.headers = inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        strikes, random, clock = self._transport._strikes, self._transport._random, self._transport._clock
        kept: bytes | None = None
        async for chunk in self._lines():
            if strikes("silence"):
                await clock.sleep(self._idle or 600)
                raise Unknown("idle too long (injected)")
            if strikes("delayed"):
                await clock.sleep(random.uniform(0.05, 2.0))
            if strikes("cut_in_line"):
                yield chunk[: random.randrange(1, len(chunk))]
                return
            if strikes("cut"):
                return
            if strikes("dropped"):
                continue
            if kept is None and strikes("swapped"):
                kept = chunk
                continue
            yield chunk
            if strikes("doubled"):
                yield chunk
            if kept is not None:
                yield kept
                kept = None

    async def _lines(self) -> AsyncIterator[bytes]:
        """Faults strike single events; a server may send several at once."""
        async for chunk in self._inner:
            for line in chunk.splitlines(keepends=True):
                yield line

    async def read(self) -> bytes:
        return await self._inner.read()


class RefusedStream:
    """A stream that is one refusal: what a watch gets that the server does not open."""

    def __init__(self, answer: Response) -> None:
        self.status, self.headers, self._body = answer.status, answer.headers, answer.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def read(self) -> bytes:
        return self._body


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return Response(code, headers or {}, msgspec.json.encode(body))
