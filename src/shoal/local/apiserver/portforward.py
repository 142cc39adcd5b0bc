"""`kubectl port-forward`: every connection on the user's side becomes one to a port of the pod.

The client opens two streams per connection, one for data and one for errors. Pods of this machine are reached at their
address unless the node agent registers another way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from shoal.api.meta import Json
from shoal.local.apiserver import spdy

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
CHUNK = 32 << 10

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[Json, int], Awaitable[Pipe]]
"""Open a connection to a port of a pod; raises OSError."""


async def to_pod_address(pod: Json, port: int) -> Pipe:
    address = (pod.get("status") or {}).get("podIP") or "127.0.0.1"
    return await asyncio.open_connection(address, port)


class _Forwarded:
    """One connection of the user's."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.error_stream = 0
        self.data_stream = 0
        self.writer: asyncio.StreamWriter | None = None
        self.waiting: list[bytes | None] = []  # what came before the pod answered; None is the end


class Session:
    """All that goes over one WebSocket."""

    def __init__(self, pod: Json, socket: Any, connect: Connect) -> None:
        self.pod = pod
        self.socket = socket
        self.connect = connect
        self.wire = spdy.Connection(socket.send_bytes)
        self._forwarded: dict[str, _Forwarded] = {}
        self._by_stream: dict[int, _Forwarded] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            async for message in self.socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    continue
                for frame in self.wire.receive(message.data):
                    await self._handle(frame)
        except (spdy.Broken, ConnectionError):
            pass  # the client is at fault or gone: either way this is the end
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, frame: spdy.Frame) -> None:
        match frame.kind:
            case spdy.SYN_STREAM:
                await self._open(frame)
            case spdy.PING:
                await self.wire.pong(frame.data)
            case spdy.RST_STREAM:
                self._write(frame.stream, None)
            case 0:
                if frame.data:
                    self._write(frame.stream, frame.data)
                if frame.flags & spdy.FIN:
                    self._write(frame.stream, None)

    async def _open(self, frame: spdy.Frame) -> None:
        await self.wire.reply(frame.stream)
        port = frame.headers.get("port", "")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise spdy.Broken("a stream names no port")
        one = self._forwarded.setdefault(frame.headers.get("requestid", ""), _Forwarded(int(port)))
        if frame.headers.get("streamtype") == "error":
            one.error_stream = frame.stream
            return
        one.data_stream = frame.stream
        self._by_stream[frame.stream] = one
        task = asyncio.ensure_future(self._forward(one))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _write(self, stream: int, data: bytes | None) -> None:
        one = self._by_stream.get(stream)
        if one is None:
            return
        if one.writer is None:
            one.waiting.append(data)
        elif data is None:
            if one.writer.can_write_eof() and not one.writer.is_closing():
                one.writer.write_eof()
        else:
            one.writer.write(data)

    async def _forward(self, one: _Forwarded) -> None:
        try:
            reader, one.writer = await self.connect(self.pod, one.port)
            for data in one.waiting:
                self._write(one.data_stream, data)
            while chunk := await reader.read(CHUNK):
                await self.wire.data(one.data_stream, chunk)
        except OSError as error:
            words = f"error forwarding port {one.port} to pod {self.pod['metadata']['name']}: {error}"
            await self.wire.data(one.error_stream, words.encode())
        finally:
            if one.writer is not None:
                one.writer.close()
            if not self.socket.closed:
                await self.wire.data(one.data_stream, b"", last=True)
                await self.wire.data(one.error_stream, b"", last=True)
            self._by_stream.pop(one.data_stream, None)


async def run(connect: Connect, pod: Json, query: dict[str, str], socket: Any) -> None:
    await Session(pod, socket, connect).run()
