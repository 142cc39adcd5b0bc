"""The seam below the client: one request in, one answer or one stream out.

The same client runs over HTTPS (`http.py`), in-process against the embedded server, and over transports that inject
faults. A transport moves bytes; it knows nothing of kinds, retries or decoding.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: bytes = b""
    guard: Callable[[], None] | None = None
    """Called directly before the first byte is sent; it raises to keep the request back."""


class Response(msgspec.Struct, frozen=True):
    """`headers` has lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


class Stream(Protocol):
    """An answer that goes on: a watch or a log. Iterates over chunks of bytes as they arrive, not over lines."""

    status: int
    headers: dict[str, str]

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def read(self) -> bytes:
        """All that is left, for error answers."""
        ...


class Transport(Protocol):
    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        """Raises `Unsent` when the request certainly did not reach the server, `Unknown` when it may have."""
        ...

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        """Open a stream. A gap longer than `idle_timeout` between chunks raises `Unknown`."""
        ...

    async def close(self) -> None: ...
