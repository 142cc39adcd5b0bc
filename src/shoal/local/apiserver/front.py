"""The HTTPS front: aiohttp's server underneath, `Server.handle` above.

Checks what only a socket has: the Host and Origin of a request (a browser page must not reach us, whatever the method),
the client's certificate, the size of a body before it is read. Knows nothing of kinds.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from shoal.kube.transport import Request, Response
from shoal.local.apiserver.body import MOST_BYTES
from shoal.local.apiserver.call import StreamAnswer, Upgrade
from shoal.local.apiserver.status import Refused, bad_request, too_large
from shoal.local.apiserver.terminals import SEPARATOR

if TYPE_CHECKING:
    from shoal.local.apiserver.server import Server

log = logging.getLogger(__name__)

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
IN_CLUSTER = frozenset(("kubernetes", "kubernetes.default", "kubernetes.default.svc"))
COMPRESS_FROM = 128 << 10  # as Kubernetes


class Front:
    def __init__(self, server: Server, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls
        self._runner: web.ServerRunner | None = None
        self.hosts = LOOPBACK | IN_CLUSTER | frozenset(server.hosts)

    async def start(self, host: str, port: int, listener: socket.socket | None = None) -> int:
        if host not in ("0.0.0.0", "::", ""):
            self.hosts |= {host}
        self._runner = web.ServerRunner(
            web.Server(
                self._answer,
                request_factory=_request,
                handler_cancellation=True,
                access_log=None,
                keepalive_timeout=3600.0,
            ),
            shutdown_timeout=2.0,
        )
        await self._runner.setup()
        site: web.BaseSite = (
            web.SockSite(self._runner, listener, ssl_context=self._tls, backlog=512)
            if listener is not None
            else web.TCPSite(self._runner, host, port, ssl_context=self._tls, backlog=512)
        )
        await site.start()
        found: int = self._runner.addresses[0][1]
        return found

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            self._check_origin(http)
            request = await self._read(http)
        except Refused as refusal:
            return web.Response(status=refusal.code, body=refusal.encoded(), content_type="application/json")
        certificate = http.transport.get_extra_info("peercert") if http.transport is not None else None
        user = self._server.authenticator.user(request.headers, certificate)
        answer = await self._server.handle(request, user)
        if isinstance(answer, StreamAnswer):
            return await self._stream(http, answer)
        if isinstance(answer, Upgrade):
            return await self._upgrade(http, answer)
        return await self._whole(http, answer)

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

    async def _read(self, http: web.BaseRequest) -> Request:
        length = http.content_length
        if length is not None and length > MOST_BYTES:
            raise too_large(MOST_BYTES)
        try:
            body = await http.read() if http.can_read_body else b""
        except web.HTTPRequestEntityTooLarge:
            raise too_large(MOST_BYTES) from None
        except web.RequestPayloadError as error:
            raise bad_request(f"the body of the request cannot be read: {error}") from None
        headers: dict[str, str] = {}
        for name, value in http.headers.items():
            name = name.lower()
            if not value.isascii():  # bytes that are no text would fail whoever writes them down
                value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            headers[name] = (
                f"{headers[name]}\n{value}" if name.startswith("impersonate-") and name in headers else value
            )
        if headers.get("content-encoding") == "gzip":
            raise Refused(415, "UnsupportedMediaType", "compressed request bodies are not read; send the body as it is")
        url = http.rel_url
        query = dict(url.query)
        if "command" in query:  # the one parameter that comes several times: exec's words
            query["command"] = SEPARATOR.join(url.query.getall("command"))
        return Request(method=http.method, path=url.raw_path, query=query, headers=headers, body=body)

    async def _whole(self, http: web.BaseRequest, answer: Response) -> web.StreamResponse:
        body, headers = answer.body, _headers(answer.headers)
        if len(body) >= COMPRESS_FROM and "gzip" in http.headers.get("Accept-Encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers.append(("Content-Encoding", "gzip"))
            headers.append(("Vary", "Accept-Encoding"))
        return web.Response(status=answer.status, body=body, headers=headers)

    async def _stream(self, http: web.BaseRequest, answer: StreamAnswer) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
        response.enable_chunked_encoding()
        await response.prepare(http)
        try:
            writer = response._payload_writer
            if writer is not None and hasattr(writer, "send_headers"):
                writer.send_headers()  # a quiet watch must still be seen to have begun
            async for chunk in answer.chunks:
                await response.write(chunk)
            await response.write_eof()
        except (ConnectionError, OSError):
            log.debug("%s went away", http.remote)
        finally:
            close: Callable[[], Awaitable[Any]] | None = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()
        return response

    async def _upgrade(self, http: web.BaseRequest, answer: Upgrade) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=answer.protocols, heartbeat=30.0)
        if not socket.can_prepare(http):
            return web.Response(status=400, text="this address needs a WebSocket")
        await socket.prepare(http)
        try:
            await answer.run(socket)
        finally:
            await socket.close()
        return socket


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MOST_BYTES + 1
    )


def _headers(headers: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, line) for name, value in headers.items() for line in value.split("\n")]


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
