"""Plain SPDY over a connection, in the shape that terminals and port-forwarding know from WebSockets.

A real API server speaks it to nodes, and older clients to an API server: every stream of an exec (its input, output,
errors, the terminal's size, how it ended) is opened by the caller and named in a header.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from shoal.local.apiserver.streams import spdy
from shoal.local.apiserver.streams.terminals import BINARY, CLOSE, ERROR, RESIZE, STDERR, STDIN, STDOUT

CHUNK = 32 << 10
OPENING = 30.0
_CHANNELS = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}


class Message(msgspec.Struct, frozen=True):
    """What a WebSocket would have handed over."""

    data: bytes
    type: int = BINARY


class Pipe:
    """A connection after its upgrade: bytes as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def closed(self) -> bool:
        return self._writer.is_closing()

    async def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while data := await self._reader.read(CHUNK):
            yield Message(data)


class Channels:
    """The streams of one exec or attach as the numbered channels of a WebSocket."""

    def __init__(self, pipe: Pipe, expected: frozenset[str]) -> None:
        self._pipe = pipe
        self._expected = expected
        self._wire = spdy.SpdyConnection(pipe.send_bytes)
        self._frames = self._receive()
        self._streams: dict[int, int] = {}

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    async def open(self) -> None:
        """Until every stream is there that the request promised. Raises TimeoutError, Broken, or ConnectionError."""
        async with asyncio.timeout(OPENING):
            while {_CHANNELS[name] for name in self._expected} - set(self._streams):
                frame = await anext(self._frames, None)
                if frame is None:
                    raise ConnectionResetError("the caller went away")
                if frame.kind != spdy.SYN_STREAM:
                    continue
                name = frame.headers.get("streamtype", "")
                if name not in self._expected:
                    raise spdy.Broken(f"a stream of type {name[:20]!r} was not announced")
                self._streams[_CHANNELS[name]] = frame.stream
                await self._wire.reply(frame.stream)

    async def _receive(self) -> AsyncIterator[spdy.SpdyFrame]:
        async for message in self._pipe:
            for frame in self._wire.receive(message.data):
                if frame.kind == spdy.PING:
                    await self._wire.pong(frame.data)
                else:
                    yield frame

    async def send_bytes(self, data: bytes) -> None:
        stream = self._streams.get(data[0])
        if stream is not None:
            await self._wire.data(stream, data[1:])

    async def __aiter__(self) -> AsyncIterator[Message]:
        inward = {self._streams[channel]: channel for channel in (STDIN, RESIZE) if channel in self._streams}
        try:
            async for frame in self._frames:
                if frame.kind == spdy.GOAWAY:
                    return
                channel = inward.get(frame.stream)
                if channel is None:
                    continue
                if frame.kind == 0 and frame.data:
                    yield Message(bytes([channel]) + frame.data)
                if channel == STDIN and (frame.kind == spdy.RST_STREAM or frame.flags & spdy.FIN):
                    yield Message(bytes([CLOSE, STDIN]))
        except (spdy.Broken, ConnectionError):
            return  # the caller is at fault or gone: either way this is the end

    async def finish(self) -> None:
        """Nothing more will come on any stream."""
        for channel in (STDOUT, STDERR, ERROR):
            if channel in self._streams and not self.closed:
                await self._wire.data(self._streams[channel], b"", last=True)
