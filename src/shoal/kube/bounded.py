"""A transport for servers that are not trusted: what one of them answers costs this process a bounded amount.

A hub wraps the way to each of its members in one. Size, depth and speed of answers are limited here, bytes on the wire
and unpacked ones in `http.py`, the objects that are kept in `cache.py`, time by the client. An answer beyond a limit is
never decoded; the request counts as one of unknown fate.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from shoal.kube.errors import Unknown
from shoal.kube.transport import Request, Response, Stream, Transport

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class AnswerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of Kubernetes have at most 3 MiB and a depth of some twenty."""

    body: int = 64 << 20
    """Bytes of one answer, packed or unpacked: a page of a thousand objects."""
    line: int = 8 << 20
    """Bytes of one event of a watch."""
    depth: int = 100
    """How deep objects and lists may lie in each other."""
    speed: int = 16 << 20
    """Bytes per second, over all answers of one server, once `burst` is used up."""
    burst: int = 128 << 20
    """Bytes that come at any speed."""
    held: int = 256 << 20
    """Bytes of the objects of one kind that are kept."""


class BoundedTransport:
    """`inner`, with limits on what comes back. Everything that goes out is as it was."""

    def __init__(self, inner: Transport, limits: AnswerLimits) -> None:
        self.inner = inner
        self.limits = limits
        self._flow = _Flow(limits)
        self._waiting: set[asyncio.Timeout] = set()

    def end_watches(self) -> None:
        """The server was silent, and answers again: a watch from before may never hear of it. Each goes on from where
        it was."""
        now = asyncio.get_running_loop().time()
        for one in self._waiting:
            one.reschedule(now)

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        answer = await self.inner.send(request, timeout=timeout)
        if len(answer.body) > self.limits.body:
            raise Unknown(f"the answer to {request.method} {request.path} has more than {self.limits.body} bytes")
        _check_depth(answer.body, self.limits.depth, request)
        await self._flow.passed(len(answer.body))
        return answer

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
            endable = self._waiting if "watch" in request.query else set[asyncio.Timeout]()
            yield _BoundedStream(stream, self.limits, self._flow, request, endable)

    async def close(self) -> None:
        await self.inner.close()


class _BoundedStream:
    """Hands on whole lines, each within its limits."""

    def __init__(
        self, inner: Stream, limits: AnswerLimits, flow: _Flow, request: Request, waiting: set[asyncio.Timeout]
    ) -> None:
        self.status, self.headers = inner.status, inner.headers
        self._inner, self._limits, self._flow, self._request = inner, limits, flow, request
        self._waiting = waiting

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        waiting = 0
        chunks = aiter(self._inner)
        while (chunk := await self._next(chunks)) is not None:
            await self._flow.passed(len(chunk))
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                parts.append(line)
                yield self._checked(b"".join(parts)) + b"\n"
                parts, waiting = [], 0
            parts.append(rest)
            waiting += len(rest)
            if waiting > self._limits.line:
                self._refuse()
        if waiting:
            yield self._checked(b"".join(parts))

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout(None) as end:
                self._waiting.add(end)
                try:
                    return await anext(chunks, None)
                finally:
                    self._waiting.discard(end)
        except TimeoutError:
            raise Unknown(f"the answer to {self._request.method} {self._request.path} is asked for again") from None

    async def read(self) -> bytes:
        found = b""
        async for line in self:
            found += line
            if len(found) > self._limits.line:
                self._refuse()
        return found

    def _checked(self, line: bytes) -> bytes:
        if len(line) > self._limits.line:
            self._refuse()
        _check_depth(line, self._limits.depth, self._request)
        return line

    def _refuse(self) -> None:
        raise Unknown(f"the answer to {self._request.method} {self._request.path} has a line of more than "
                      f"{self._limits.line} bytes")  # fmt: skip


class _Flow:
    """How much came lately; who brings more than its share has to wait."""

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._level, self._at = 0.0, 0.0

    async def passed(self, count: int) -> None:
        now = asyncio.get_running_loop().time()
        self._level = max(0.0, self._level - (now - self._at) * self._limits.speed) + count
        self._at = now
        if self._level > self._limits.burst:
            await asyncio.sleep((self._level - self._limits.burst) / self._limits.speed)


def _check_depth(body: bytes, most: int, request: Request) -> None:
    if not within_depth(body, most):
        raise Unknown(f"the answer to {request.method} {request.path} is nested deeper than {most} levels")


def within_depth(body: bytes, most: int) -> bool:
    """Whether no more than `most` objects and lists lie in each other.

    Brackets alone are looked at, a level at a time, at the speed of a search. Only where those in texts are in the way
    is the body read word by word.
    """
    brackets = body.translate(None, _NO_BRACKETS)
    for _ in range(most):
        if not brackets:
            return True
        fewer = brackets.replace(b"{}", b" ").replace(b"[]", b" ").replace(b" ", b"")
        if len(fewer) == len(brackets):
            break
        brackets = fewer
    if not brackets:
        return True
    depth = 0
    for token in _TOKENS.finditer(body):
        first = token[0][:1]
        if first in (b"{", b"["):
            depth += 1
            if depth > most:
                return False
        elif first in (b"}", b"]"):
            depth -= 1
    return True
