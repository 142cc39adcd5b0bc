"""A relay of connections keeps what is under way, and lets neither end wait for one that is broken."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from typing import Any

import pytest

from shoal.local.nodes.sandbox import relay
from tests.faults import proven
from tests.patience import PATIENCE


class Forgetful(set[Any]):
    def add(self, one: Any) -> None: ...


@proven(without=lambda patch: patch.setattr(relay, "_UNDER_WAY", Forgetful()))
async def test_f643_an_answer_arrives_after_the_client_has_closed_its_side() -> None:
    """F643: a client closes its side of a relayed connection and waits for the answer, while garbage is collected.
    Holds: the answer arrives, and no task of the relay vanishes."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        asked.set()
        await answer.wait()
        writer.write(b"answer")
        writer.close()

    distant = await asyncio.start_server(far, "127.0.0.1", 0)
    target = distant.sockets[0].getsockname()
    near = await asyncio.start_server(lambda r, w: relay.relay(r, w, target), "127.0.0.1", 0)
    async with distant, near, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*near.sockets[0].getsockname())
        writer.write_eof()
        await asked.wait()
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect()
        answer.set()
        assert await reader.read() == b"answer"
        writer.close()


def one_end_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)

    monkeypatch.setattr(relay, "_copy", copy)
    monkeypatch.setattr("tests.unit.local.test_relay.PATIENCE", 0.5)


@proven(without=one_end_is_not_told)
async def test_f781_a_client_learns_at_once_that_the_pod_behind_a_relay_is_gone() -> None:
    """F781: a pod is killed while clients keep idle connections to it through a Service. Holds: they see them broken
    then, and not when the next request is lost."""

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        await writer.drain()
        held: socket.socket = writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, as a killed process does
        writer.transport.abort()

    distant = await asyncio.start_server(far, "127.0.0.1", 0)
    target = distant.sockets[0].getsockname()
    near = await asyncio.start_server(lambda r, w: relay.relay(r, w, target), "127.0.0.1", 0)
    async with distant, near:
        reader, writer = await asyncio.open_connection(*near.sockets[0].getsockname())
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
