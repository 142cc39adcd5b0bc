"""The HTTPS transport: aiohttp underneath, bytes above.

Knows which failures leave a write's fate open: a refused connection never reached the server, a cut or a timeout may
have. A write goes out at most once, and a request's guard is asked after the connection stands, directly before the
first byte.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from shoal import __version__
from shoal.kube.errors import KubeError, Unknown, Unsent
from shoal.kube.transport import Request, Response, Stream

TokenSource = Callable[[], Awaitable[str]]

CONNECT_LIMIT = 15.0
AGENT = f"shoal/{__version__}"


class HttpTransport:
    """One API server over HTTPS. `token` is asked before every request, so that rotating credentials just work."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        token: TokenSource | None = None,
        connections: int = 128,
        headers: Mapping[str, str] | None = None,
        server_name: str = "",
    ) -> None:
        self.server = server.rstrip("/")
        self._tls = tls
        self._token = token
        self._connections = connections
        self._fixed_headers = {"User-Agent": AGENT, **(headers or {})}
        self._server_name = server_name or None
        self._sessions: tuple[aiohttp.ClientSession, aiohttp.ClientSession] | None = None
        """Without and with a guard to ask (asking costs a little at every step), over the same connections."""

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        limit = _limit(timeout)
        try:
            return await self._once(request, limit)
        except aiohttp.ServerDisconnectedError as error:
            if request.method == "GET":  # a kept connection that the server had closed: reading again harms nobody
                return await self._read_again(request, limit)
            raise Unknown(f"{self.server} closed the connection during {request.method} {request.path}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._named(error, request) from error

    async def _read_again(self, request: Request, limit: aiohttp.ClientTimeout) -> Response:
        try:
            return await self._once(request, limit)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._named(error, request) from error

    async def _once(self, request: Request, limit: aiohttp.ClientTimeout) -> Response:
        async with self._request(request, await self._headers(request), limit) as answer:
            return Response(answer.status, _lowered(answer.headers), await answer.read())

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT, sock_read=idle_timeout)
        try:
            async with self._request(request, await self._headers(request), limit) as answer:
                yield HttpStream(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise self._named(error, request) from error

    async def close(self) -> None:
        if self._sessions is not None:
            for session in self._sessions:
                await session.close()
            self._sessions = None

    def _request(
        self, request: Request, headers: Mapping[str, str], limit: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._opened(request.guard is not None).request(
            request.method,
            self._url(request),
            headers=headers,
            data=request.body or None,
            timeout=limit,
            allow_redirects=False,
            server_hostname=self._server_name,
            trace_request_ctx=request.guard,
        )

    def _named(self, error: BaseException, request: Request) -> KubeError:
        """What happened, in words, and whether the request can have reached the server."""
        what = f"{request.method} {request.path}"
        if isinstance(error, (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError)):
            return Unsent(f"the certificate of {self.server} is not accepted: {error}. Check certificate-authority in "
                          "the kubeconfig, or renew the server's certificate.")  # fmt: skip
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            return Unsent(f"cannot reach {self.server}: {error}")
        if isinstance(error, TimeoutError):
            return Unknown(f"no answer from {self.server} to {what} in time")
        return Unknown(f"{self.server} broke off during {what}: {error or type(error).__name__}")

    def _opened(self, guarded: bool) -> aiohttp.ClientSession:
        if self._sessions is None or self._sessions[0].closed:
            connector = aiohttp.TCPConnector(limit=0, limit_per_host=self._connections, ssl=self._tls or True)
            jar = aiohttp.DummyCookieJar()  # API servers set none, and looking costs at every request
            plain = aiohttp.ClientSession(connector=connector, cookie_jar=jar)
            asking = aiohttp.ClientSession(
                connector=connector, connector_owner=False, cookie_jar=jar, trace_configs=[_guarded()]
            )
            for session in (plain, asking):
                # aiohttp sends PUT and DELETE a second time when a kept connection breaks; we must know.
                session._retry_connection = False
            self._sessions = (plain, asking)
        return self._sessions[guarded]

    def _url(self, request: Request) -> URL:
        query = f"?{_encoded(*request.query.items())}" if request.query else ""
        return URL(f"{self.server}{request.path}{query}", encoded=True)

    async def _headers(self, request: Request) -> Mapping[str, str]:
        headers = {**self._fixed_headers, **request.headers}
        if self._token is not None and "Authorization" not in headers:
            token = await self._token()
            if token:  # an exec plug-in may give a certificate instead
                headers["Authorization"] = f"Bearer {token}"
        if not any("\n" in value for value in headers.values()):
            return headers
        several: CIMultiDict[str] = CIMultiDict()
        for name, value in headers.items():
            for one in value.split("\n"):
                several.add(name, one)
        return several


class HttpStream:
    """A streaming answer."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = _lowered(answer.headers)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.content.iter_any():
            yield chunk

    async def read(self) -> bytes:
        return await self._answer.read()


def _guarded() -> aiohttp.TraceConfig:
    """Ask the request's guard once its connection stands: what waited for one may have lost its right to be sent."""

    async def ask(session: aiohttp.ClientSession, context: SimpleNamespace, parameters: Any) -> None:
        guard = context.trace_request_ctx
        if guard is not None:
            guard()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(ask)
    trace.on_connection_reuseconn.append(ask)
    return trace


@lru_cache(256)
def _encoded(*query: tuple[str, str]) -> str:
    """Nearly every write has the same one."""
    return urlencode(query, quote_via=quote)


@lru_cache(64)
def _limit(seconds: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_LIMIT)


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
