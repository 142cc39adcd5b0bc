"""A WebSocket to an API server, with the credential of a transport: what forwarding a port of a pod needs.

Used by a hub, which passes on what its users send to pods in other clusters. The transport that `http.py` makes knows
the server and the credential; the socket is aiohttp's, loaded when one is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from shoal.kube.errors import Unsent
from shoal.kube.http import HttpTransport
from shoal.kube.transport import Request, Transport

OPEN_SECONDS = 15.0
MOST = 8 << 20
"""Bytes of one message."""


@asynccontextmanager
async def web_socket(transport: Transport, request: Request, protocol: str) -> AsyncIterator[Any]:
    """Open while the block lasts. Raises Unsent where the server does not open it, or the transport leads to none."""
    way = innermost(transport)
    if not isinstance(way, HttpTransport):
        raise Unsent("no WebSocket leads there")
    from aiohttp import ClientError, ClientSession, ClientTimeout

    tls, name, headers = await way.credential()
    async with ClientSession(timeout=ClientTimeout(total=None, connect=OPEN_SECONDS)) as session:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                socket = await session.ws_connect(
                    way.server + request.path,
                    params=request.query,
                    protocols=(protocol,),
                    headers=headers,
                    ssl=tls if tls is not None else True,
                    server_hostname=name or None,
                    max_msg_size=MOST,
                )
        except (ClientError, OSError, TimeoutError) as error:
            raise Unsent(f"no WebSocket for {request.path}: {str(error) or 'no answer in time'}") from error
        try:
            yield socket
        finally:
            await socket.close()


def innermost(transport: Transport) -> Transport:
    """Below all that only limits, counts or checks what goes through."""
    while (inner := getattr(transport, "inner", None)) is not None:
        transport = inner
    return transport


async def relay(one: Any, other: Any) -> None:
    """Pass on every binary message, both ways, until either side has ended."""
    ways = [asyncio.ensure_future(_pass_on(*way)) for way in ((one, other), (other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(source: Any, target: Any) -> None:
    async for message in source:
        if isinstance(message.data, bytes):
            await target.send_bytes(message.data)
