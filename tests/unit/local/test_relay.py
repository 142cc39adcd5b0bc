"""A relay of connections keeps what is under way, whatever the collector of garbage does."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

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
