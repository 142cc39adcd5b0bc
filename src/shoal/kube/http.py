"""The HTTPS transport: aiohttp underneath, bytes above.

Knows which failures leave a write's fate open: a refused connection never reached the server, a cut or a timeout
may have.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from shoal.kube.errors import Unknown, Unsent
from shoal.kube.transport import Request, Response, Stream

TokenSource = Callable[[], Awaitable[str]]


class HttpTransport:
    """One API server over HTTPS. `token` is asked before every request, so that rotating credentials just work."""

    def __init__(
        self, server: str, *, tls: ssl.SSLContext | None = None, token: TokenSource | None = None, connections: int = 64
    ) -> None:
        self.server = server.rstrip("/")
        self._tls = tls
        self._token = token
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        session = self._opened()
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with session.request(
                request.method,
                self._url(request),
                headers=await self._headers(request),
                data=request.body or None,
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
                return Response(answer.status, _lowered(answer.headers), body)
        except aiohttp.ClientConnectorError as error:
            raise Unsent(f"cannot reach {self.server}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unknown(
                f"no answer from {self.server} to {request.method} {request.path}: {error or 'timeout'}"
            ) from error

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        session = self._opened()
        limit = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=idle_timeout)
        try:
            async with session.request(
                request.method,
                self._url(request),
                headers=await self._headers(request),
                data=request.body or None,
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                yield HttpStream(answer, self.server)
        except aiohttp.ClientConnectorError as error:
            raise Unsent(f"cannot reach {self.server}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise Unknown(f"{self.server} cut the stream {request.path}: {error or 'idle too long'}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, limit_per_host=self._connections, ssl=self._tls or True)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True)
        return self._session

    def _url(self, request: Request) -> URL:
        return URL(self.server + request.path, encoded=True).with_query(request.query)

    async def _headers(self, request: Request) -> CIMultiDict[str]:
        headers: CIMultiDict[str] = CIMultiDict()
        for name, value in request.headers.items():
            for one in value.split("\n"):
                headers.add(name, one)
        if self._token is not None and "authorization" not in headers:
            headers["Authorization"] = f"Bearer {await self._token()}"
        return headers


class HttpStream:
    """A streaming answer."""

    def __init__(self, answer: aiohttp.ClientResponse, server: str) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = _lowered(answer.headers)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.content.iter_any():
            yield chunk

    async def read(self) -> bytes:
        return await self._answer.read()


def _lowered(headers: object) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}  # type: ignore[attr-defined]
