"""The transport without sockets: controllers in the same process speak to the server by calling it.

Same requests, same answers, same refusals as over HTTPS; only bytes are not copied and there is no login.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from shoal.kube.transport import Request, Response, Stream
from shoal.local.apiserver.requests.call import StreamAnswer, Upgrade
from shoal.local.apiserver.requests.route import RequestUser

if TYPE_CHECKING:
    from shoal.local.apiserver.server import Server


class LocalTransport:
    def __init__(self, server: Server, user: RequestUser) -> None:
        self._server = server
        self._user = user

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        answer = await self._server.handle(_lowered(request), self._user)
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Upgrade):
            return Response(400, {}, b"this address needs a WebSocket")
        return Response(answer.status, answer.headers, b"".join([chunk async for chunk in answer.chunks]))

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        answer = await self._server.handle(_lowered(request), self._user)
        if isinstance(answer, Upgrade):
            answer = Response(400, {}, b"this address needs a WebSocket")
        if isinstance(answer, StreamAnswer):
            try:
                yield LocalStream(answer.status, answer.headers, answer.chunks)
            finally:
                close = getattr(answer.chunks, "aclose", None)
                if close is not None:
                    await close()
        else:
            yield LocalStream(answer.status, answer.headers, _once(answer.body))

    async def close(self) -> None:
        """Nothing to close: the server is not ours."""


class LocalStream:
    def __init__(self, status: int, headers: dict[str, str], chunks: AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self._chunks])


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _lowered(request: Request) -> Request:
    if all(name.islower() for name in request.headers):
        return request
    return msgspec.structs.replace(request, headers={name.lower(): value for name, value in request.headers.items()})
