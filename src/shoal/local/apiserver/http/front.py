"""The HTTPS front: aiohttp's server underneath, `Server.handle` above.

Checks what only a socket has: the Host and Origin of a request (a browser page must not reach us, whatever the method),
who asks before any body is read, how much one client has under way, how large and how slow a body may be. Knows nothing
of kinds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from shoal.kube.transport import Request, Response
from shoal.local.apiserver.http import spdy_upgrade
from shoal.local.apiserver.http.connections import BODY_SECONDS, Doors, listen, send
from shoal.local.apiserver.http.fairness import Fairness
from shoal.local.apiserver.primitives.status import Refused, bad_request, too_large
from shoal.local.apiserver.requests.body import MOST_BYTES
from shoal.local.apiserver.requests.call import Answer, StreamAnswer, Upgrade
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.streams.terminals import SEPARATOR

if TYPE_CHECKING:
    from shoal.local.apiserver.server import Server

log = logging.getLogger(__name__)

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
IN_CLUSTER = frozenset(("kubernetes", "kubernetes.default", "kubernetes.default.svc"))
COMPRESS_FROM = 128 << 10  # as Kubernetes
LARGE = 1 << 20
"""Bytes from which an answer goes out in pieces, as its reader takes them."""
CHUNK = 256 << 10
SHUTDOWN_SECONDS = 2.0
PING_SECONDS = 30.0


class Front:
    def __init__(self, server: Server, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls
        self._doors: Doors | None = None
        self._listener: asyncio.Server | None = None
        self.fairness = Fairness()
        self.hosts = LOOPBACK | IN_CLUSTER | frozenset(server.hosts)

    async def start(self, host: str, port: int, listener: socket.socket | None = None) -> int:
        if host not in ("0.0.0.0", "::", ""):
            self.hosts |= {host}
        self._doors = Doors(self._answer, request_factory=_request)
        self._listener = await listen(self._doors, host, port, listener, self._tls)
        found: int = self._listener.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._listener is not None and self._doors is not None:
            self._listener.close()
            self._doors.pre_shutdown()
            await self._doors.shutdown(SHUTDOWN_SECONDS)
            self._listener = self._doors = None

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        user: RequestUser | None = None
        if self._doors is not None:
            self._doors.known(http.protocol)  # until it is answered; without good credentials it ends with that
        try:
            self._check_origin(http)
            request = self._head(http)
            certificate = http.transport.get_extra_info("peercert") if http.transport is not None else None
            user = self._server.authenticator.user(request.headers, certificate)
            if user is None:  # whatever else was sent is not read
                return _last(await self._whole(http, await self._server.handle(request, None)))
            return await self._serve(http, request, user)
        except Refused as refusal:
            refused = Response(refusal.code, {"content-type": "application/json", **refusal.headers}, refusal.encoded())
            answer = await self._whole(http, refused)
            return _last(answer) if user is None or http.can_read_body else answer

    async def _serve(self, http: web.BaseRequest, request: Request, user: RequestUser) -> web.StreamResponse:
        async with self.fairness.request(user):
            async with self.fairness.body(user, _body_size(http)):
                body = await self._body(http)
                request = msgspec.structs.replace(request, body=body) if body else request
                answer = await self.fairness.run(user, self._server.handle(request, user))
            if not isinstance(answer, (StreamAnswer, Upgrade)):
                if len(answer.body) < LARGE:
                    return await self._whole(http, answer)
                async with self.fairness.answer(user, len(answer.body)):
                    return await self._whole(http, answer)
        async with self.fairness.stream(user):
            if isinstance(answer, StreamAnswer):
                return await self._stream(http, answer)
            return await self._upgrade(http, answer)

    def _check_origin(self, http: web.BaseRequest) -> None:
        """A page in a browser can send requests here under a name of its own, but not hide that name."""
        host = host_name(http.headers.get("Host", ""))
        if host not in self.hosts:
            raise Refused(
                403,
                "Forbidden",
                f"host {host[:80]!r} is not served here; use 127.0.0.1 or localhost, or name it when "
                "starting the server",
            )
        origin = http.headers.get("Origin")
        if origin is not None and origin != f"https://{http.headers.get('Host', '')}":  # some clients name us as origin
            raise Refused(403, "Forbidden", "requests from web pages are not served")

    async def _body(self, http: web.BaseRequest) -> bytes:
        if not http.can_read_body:
            return b""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await http.read()
        except TimeoutError:
            words = f"the body of the request did not arrive in {BODY_SECONDS:.0f} seconds"
            raise Refused(408, "Timeout", words) from None
        except web.HTTPRequestEntityTooLarge:
            raise too_large(MOST_BYTES) from None
        except web.RequestPayloadError as error:
            raise bad_request(f"the body of the request cannot be read: {error}") from None

    def _head(self, http: web.BaseRequest) -> Request:
        """All of the request but its body."""
        length = http.content_length
        if length is not None and length > MOST_BYTES:
            raise too_large(MOST_BYTES)
        headers: dict[str, str] = {}
        for name, value in http.headers.items():
            name = name.lower()
            if not value.isascii():  # bytes that are no text would fail in every log
                value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            headers[name] = (
                f"{headers[name]}\n{value}" if name.startswith("impersonate-") and name in headers else value
            )
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "UnsupportedMediaType", "compressed request bodies are not read; send the body as it is")
        url = http.rel_url
        query = dict(url.query)
        if "command" in query:  # the one parameter that comes several times: exec's words
            query["command"] = SEPARATOR.join(url.query.getall("command"))
        return Request(method=http.method, path=url.raw_path, query=query, headers=headers)

    async def _whole(self, http: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        assert isinstance(answer, Response)
        body, headers = answer.body, _headers(answer.headers)
        if len(body) >= COMPRESS_FROM and "gzip" in http.headers.get("Accept-Encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers.append(("Content-Encoding", "gzip"))
            headers.append(("Vary", "Accept-Encoding"))
        if len(body) < LARGE:
            return web.Response(status=answer.status, body=body, headers=headers)
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_length = len(body)
        await response.prepare(http)
        try:
            if http.method != "HEAD":
                for start in range(0, len(body), CHUNK):
                    await send(http, response, body[start : start + CHUNK])
            await response.write_eof()
        except (ConnectionError, OSError):
            log.debug("%s went away", http.remote)
        return response

    async def _stream(self, http: web.BaseRequest, answer: StreamAnswer) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
        response.enable_chunked_encoding()
        await response.prepare(http)
        try:
            writer = response._payload_writer
            if writer is not None and hasattr(writer, "send_headers"):
                writer.send_headers()  # a quiet watch must still be seen to have begun
            async for chunk in answer.chunks:
                await send(http, response, chunk)
            await response.write_eof()
        except (ConnectionError, OSError):
            log.debug("%s went away", http.remote)
        finally:
            close: Callable[[], Awaitable[Any]] | None = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()
        return response

    async def _upgrade(self, http: web.BaseRequest, answer: Upgrade) -> web.StreamResponse:
        if spdy_upgrade.wants_spdy(http):
            return await spdy_upgrade.serve(http, answer)
        socket = web.WebSocketResponse(protocols=answer.protocols)
        if not socket.can_prepare(http):
            return web.Response(status=400, text="this address needs a WebSocket")
        await socket.prepare(http)
        pinging = asyncio.ensure_future(_ping(socket))
        try:
            await answer.run(socket)
        finally:
            pinging.cancel()
            await socket.close()
        return socket


async def _ping(socket: web.WebSocketResponse) -> None:
    """A client that is gone is found out by writing to it: while a pod does not read, nothing is read from the client.

    What it answers does not count, for it may lie behind what waits.
    """
    with contextlib.suppress(ConnectionError, RuntimeError):
        while not socket.closed:
            await asyncio.sleep(PING_SECONDS)
            await socket.ping()


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MOST_BYTES + 1
    )


def _body_size(http: web.BaseRequest) -> int:
    """The memory that a body can take."""
    if not http.can_read_body:
        return 0
    return http.content_length if http.content_length is not None else MOST_BYTES


def _last(response: web.StreamResponse) -> web.StreamResponse:
    """The connection ends with this answer."""
    if not response.prepared:
        response.force_close()
    return response


def _headers(headers: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, line) for name, value in headers.items() for line in value.split("\n")]


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
