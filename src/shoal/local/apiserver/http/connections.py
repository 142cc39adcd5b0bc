"""Connections and how long they may stay without saying who they are.

Any client that reaches the port can open one; a connection that has not shown good credentials soon is closed, and
there are never more of those than a few hundred. Also what a slow reader may hold: an answer that is not taken in time
ends.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

HANDSHAKE_SECONDS = 10.0
"""For TLS."""
STRANGER_SECONDS = 10.0
"""For the headers of a first request; one without good credentials is answered, and that is all."""
IDLE_SECONDS = 180.0
"""Between requests; longer than common clients keep a connection."""
BODY_SECONDS = 60.0
"""For a whole body."""
STALL_SECONDS = 300.0
"""For a reader to take the next piece of an answer."""
MOST_STRANGERS = 256
MOST_HEADER = 16 << 10  # one line; a token with all its claims fits
MOST_HEADERS = 128


class Doors(web.Server):
    """Makes a handler for every connection and keeps those in mind that have not authenticated yet."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=MOST_HEADER,
            max_field_size=MOST_HEADER,
            max_headers=MOST_HEADERS,
            auto_decompress=False,
            **options,
        )
        self.strangers: dict[RequestHandler, None] = {}  # the oldest first

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.strangers[handler] = None
        asyncio.get_running_loop().call_later(STRANGER_SECONDS, self._show_out, handler)
        if len(self.strangers) > MOST_STRANGERS:
            self._show_out(next(iter(self.strangers)))

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self.strangers.pop(handler, None)
        super().connection_lost(handler, exc)

    def known(self, handler: RequestHandler) -> None:
        """It has sent a whole request."""
        self.strangers.pop(handler, None)

    def _show_out(self, handler: RequestHandler) -> None:
        if handler in self.strangers:
            del self.strangers[handler]
            transport = handler.transport
            handler.force_close()
            if transport is not None:
                transport.abort()  # a close would wait for a peer that does not speak


async def listen(
    doors: Doors, host: str, port: int, listener: socket.socket | None, tls: ssl.SSLContext
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    more: dict[str, Any] = {"sock": listener} if listener is not None else {"host": host, "port": port}
    return await loop.create_server(
        doors, ssl=tls, backlog=512, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=5.0, **more
    )


async def send(http: web.BaseRequest, response: web.StreamResponse, chunk: bytes) -> None:
    """One piece of an answer. A reader that takes none of it for long is cut off: what it holds is our memory."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await response.write(chunk)
    except TimeoutError:
        if http.transport is not None:
            http.transport.abort()
        raise ConnectionResetError("the reader took too long") from None
