"""Bytes from one connection to another, both ways, until both have ended."""

from __future__ import annotations

import asyncio

_UNDER_WAY: set[asyncio.Future[tuple[None, None]]] = set()
"""The loop alone holds a connection whose one end has been closed too weakly: it would vanish with the next collection
of garbage, and with it the answer that is still to come."""


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
    """Hand a connection on to another address."""
    try:
        far_reader, far_writer = await asyncio.open_connection(*target)
    except OSError:
        writer.close()
        return
    await relay_streams(reader, writer, far_reader, far_writer)


async def relay_streams(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    both = asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    _UNDER_WAY.add(both)
    try:
        await both
    finally:
        _UNDER_WAY.discard(both)
        for end in (writer, far_writer):
            end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # what broke at one end is broken for the other, which may wait with its next request for a sign
        writer.transport.abort()
