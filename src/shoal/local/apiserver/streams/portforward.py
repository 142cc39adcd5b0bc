"""`kubectl port-forward`: every connection on the user's side becomes one to a port of the pod.

The client opens two streams per connection, one for data and one for errors. Pods of this machine are reached at their
address unless the node agent registers another way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from shoal.api.meta import Json
from shoal.local.apiserver.streams import ray_bearer, spdy
from shoal.local.apiserver.streams.terminals import BINARY

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
CHUNK = 32 << 10
MOST_WAITING = 1 << 20
"""Bytes that a pod has not taken yet, of one connection."""
MOST_CONNECTIONS = 256
"""Of one client to one pod at once."""
STALLED = 10.0
"""Seconds that one connection may hold up the others."""

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[Json, int], Awaitable[Pipe]]
"""Open a connection to a port of a pod; raises OSError."""
TokenOf = Callable[[int], str]
"""The token that requests to a port of the pod get on the way; empty for none."""


async def to_pod_address(pod: Json, port: int) -> Pipe:
    address = (pod.get("status") or {}).get("podIP") or "127.0.0.1"
    return await asyncio.open_connection(address, port)


class _Forwarded:
    """One connection of the user's."""

    def __init__(self, request: str, port: int) -> None:
        self.request = request
        self.port = port
        self.error_stream = 0
        self.data_stream = 0
        self.waiting: deque[bytes | None] = deque()  # for the pod; None is the end
        self.size = 0
        self.over = False
        self.came = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    def put(self, data: bytes | None) -> None:
        if self.over:
            return
        self.waiting.append(data)
        self.size += len(data or b"")
        self.came.set()
        if self.size > MOST_WAITING:
            self.room.clear()

    async def take(self) -> bytes | None:
        while not self.waiting:
            self.came.clear()
            await self.came.wait()
        data = self.waiting.popleft()
        self.size -= len(data or b"")
        if self.size <= MOST_WAITING:
            self.room.set()
        return data

    def drop(self) -> None:
        """Nothing is taken any more."""
        self.over = True
        self.waiting.clear()
        self.size = 0
        self.room.set()


class Session:
    """All that goes over one WebSocket."""

    def __init__(self, pod: Json, socket: Any, connect: Connect, token_of: TokenOf) -> None:
        self.pod = pod
        self.socket = socket
        self.connect = connect
        self.token_of = token_of
        self.wire = spdy.SpdyConnection(socket.send_bytes)
        self._forwarded: dict[str, _Forwarded] = {}
        self._by_stream: dict[int, _Forwarded] = {}
        self._tasks: dict[asyncio.Task[None], _Forwarded] = {}

    async def run(self) -> None:
        try:
            async for message in self.socket:
                if message.type != BINARY:
                    continue
                for frame in self.wire.receive(message.data):
                    await self._handle(frame)
        except (spdy.Broken, ConnectionError):
            pass  # the client is at fault or gone: either way this is the end
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, frame: spdy.SpdyFrame) -> None:
        match frame.kind:
            case spdy.SYN_STREAM:
                await self._open(frame)
            case spdy.PING:
                await self.wire.pong(frame.data)
            case spdy.RST_STREAM:
                await self._write(frame.stream, None)
            case 0:
                if frame.data:
                    await self._write(frame.stream, frame.data)
                if frame.flags & spdy.FIN:
                    await self._write(frame.stream, None)

    async def _open(self, frame: spdy.SpdyFrame) -> None:
        await self.wire.reply(frame.stream)
        port = frame.headers.get("port", "")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise spdy.Broken("a stream names no port")
        request = frame.headers.get("requestid", "")
        if request not in self._forwarded and len(self._forwarded) >= MOST_CONNECTIONS:
            raise spdy.Broken("too many connections at once")
        one = self._forwarded.setdefault(request, _Forwarded(request, int(port)))
        if frame.headers.get("streamtype") == "error":
            one.error_stream = frame.stream
            return
        if one.data_stream:
            raise spdy.Broken("a connection has two streams of data")
        one.data_stream = frame.stream
        self._by_stream[frame.stream] = one
        task = asyncio.ensure_future(self._forward(one))
        self._tasks[task] = one
        task.add_done_callback(self._tasks.pop)

    async def _write(self, stream: int, data: bytes | None) -> None:
        """Towards the pod. When a pod does not read, nothing more is read from the client either.

        That holds up the client's other connections to this pod, which share the way; so the one that waits is ended
        after a while, unless it is alone.
        """
        one = self._by_stream.get(stream)
        if one is None:
            return
        one.put(data)
        while not one.room.is_set():
            try:
                async with asyncio.timeout(STALLED):
                    await one.room.wait()
            except TimeoutError:
                if len(self._tasks) > 1:
                    self._end(one)

    def _end(self, one: _Forwarded) -> None:
        for task, whose in self._tasks.items():
            if whose is one:
                task.cancel()
        one.drop()

    async def _forward(self, one: _Forwarded) -> None:
        writer: asyncio.StreamWriter | None = None
        sending: asyncio.Task[None] | None = None
        try:
            reader, writer = await self.connect(self.pod, one.port)
            token = self.token_of(one.port)
            bearer = ray_bearer.RayBearer(token) if token else None
            sending = asyncio.ensure_future(_send(one, writer, bearer))
            while chunk := await reader.read(CHUNK):
                await self.wire.data(one.data_stream, chunk)
        except OSError as error:
            words = f"error forwarding port {one.port} to pod {self.pod['metadata']['name']}: {error}"
            await self.wire.data(one.error_stream, words.encode())
        finally:
            self._by_stream.pop(one.data_stream, None)
            self._forwarded.pop(one.request, None)
            one.drop()
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            if writer is not None:
                writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
            if not self.socket.closed:
                await self.wire.data(one.data_stream, b"", last=True)
                await self.wire.data(one.error_stream, b"", last=True)


async def _send(one: _Forwarded, writer: asyncio.StreamWriter, bearer: ray_bearer.RayBearer | None) -> None:
    """What came from the client, as fast as the pod takes it."""
    try:
        while True:
            data = await one.take()
            if data is None:
                if bearer is not None:
                    writer.write(bearer.end())
                if writer.can_write_eof() and not writer.is_closing():
                    writer.write_eof()
                return
            writer.write(bearer.feed(data) if bearer is not None else data)
            await writer.drain()
    except OSError:
        pass  # the pod has closed it, which its reader hears
    finally:
        one.drop()


def no_token(port: int) -> str:
    return ""


async def run(connect: Connect, pod: Json, socket: Any, token_of: TokenOf = no_token) -> None:
    await Session(pod, socket, connect, token_of).run()
