"""Exec, attach and port-forward for clients that speak plain SPDY: client-go's SPDY executor, kubectl before 1.31.

Called by the front when a request for a stream asks for this upgrade. The connection is taken over from aiohttp as a
WebSocket is: its bytes go to a reader of ours from then on. What the streams mean is `streams`' business.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any, cast

from aiohttp import web

from shoal.local.apiserver.primitives.status import Refused
from shoal.local.apiserver.requests.call import Upgrade
from shoal.local.apiserver.streams import spdy
from shoal.local.apiserver.streams.channels import Channels, Pipe

UPGRADE = "SPDY/3.1"
VERSION = "X-Stream-Protocol-Version"
TERMINAL, FORWARD = "v4.channel.k8s.io", "portforward.k8s.io"
PING_SECONDS = 30.0
CHUNK = 32 << 10


def wants_spdy(http: web.BaseRequest) -> bool:
    return http.headers.get("Upgrade", "").lower() == UPGRADE.lower()


class _Fed:
    """What aiohttp hands the bytes of a taken connection to."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._reader.feed_eof()


async def serve(http: web.BaseRequest, answer: Upgrade) -> web.StreamResponse:
    """Until either side is done. Raises Refused where no version of the streams is known to both."""
    forwards = not answer.streams
    wanted = FORWARD if forwards else TERMINAL
    offered = [one.strip() for line in http.headers.getall(VERSION, ()) for one in line.split(",")]
    if wanted not in offered and (offered or not forwards):
        known = {f"X-Accepted-{VERSION.removeprefix('X-')}s": wanted}
        words = f"unable to upgrade: unable to negotiate protocol: client supports {offered}, server accepts [{wanted}]"
        raise Refused(403, "Forbidden", words, headers=known)
    response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", "Upgrade": UPGRADE, VERSION: wanted})
    response.force_close()
    pipe = await _taken(http, response)
    pinging = asyncio.ensure_future(_ping(pipe))
    try:
        if forwards:
            await answer.run(pipe)
        else:
            channels = Channels(pipe, answer.streams)
            await channels.open()
            await answer.run(channels)
            await channels.finish()
    except (spdy.Broken, ConnectionError, TimeoutError):
        pass  # the client is at fault or gone: either way this is the end
    finally:
        pinging.cancel()
    return response


async def _taken(http: web.BaseRequest, response: web.StreamResponse) -> Pipe:
    """The connection as bytes, once the client was told that they are its own."""
    transport, protocol, loop = http.transport, http.protocol, asyncio.get_running_loop()
    if transport is None:
        raise ConnectionResetError("the client went away")
    reader = asyncio.StreamReader(limit=CHUNK, loop=loop)
    reader.set_transport(transport)
    protocol.set_parser(cast(Any, _Fed(reader)))
    await response.prepare(http)
    headers = getattr(response._payload_writer, "send_headers", None)
    if headers is not None:
        headers()  # else they would wait for a body
    return Pipe(reader, asyncio.StreamWriter(transport, cast(Any, protocol), reader, loop))


async def _ping(pipe: Pipe) -> None:
    """A client that is gone is found out by writing to it. Our numbers are even: what answers them is no question."""
    with contextlib.suppress(ConnectionError, RuntimeError):
        number = 0
        while not pipe.closed:
            await asyncio.sleep(PING_SECONDS)
            number = number + 2 & 0x7FFFFFFF
            await pipe.send_bytes(struct.pack(">HHII", 0x8003, spdy.PING, 4, number))
