"""A member cluster that lies and floods: what it can make the hub pay. Its answers come over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache

from shoal.api.kinds import NAMESPACE, WORKLOAD
from shoal.controllers.multicluster import member
from shoal.kube.bounded import AnswerLimits
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.errors import Overfull, Unknown
from shoal.kube.http import HttpTransport
from tests.attacks.attack import Room, Succeeded
from tests.patience import PATIENCE

MIB = 1 << 20
LIMITS = AnswerLimits(body=2 * MIB, line=MIB, depth=50, speed=64 * MIB, burst=8 * MIB, held=4 * MIB)
PAID = 24 * MIB
"""What the hub may need for one answer, all copies of it together."""
ENDLESS = 64 * MIB
"""Where even an endless answer ends: a hub that has taken so much would take any amount."""
OBJECT = b'{"metadata":{"name":"%d","namespace":"n","uid":"u%d","resourceVersion":"%d","annotations":{"a":"%s"}}}'

Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Liar:
    """An API server that answers every request in the way that is set."""

    def __init__(self) -> None:
        self.answer: Answering | None = None
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            assert self.answer is not None
            await self.answer(writer)
        writer.close()

    def client(self) -> Client:
        """As a hub's member has it."""
        transport = HttpTransport(f"http://127.0.0.1:{self.port}", most=LIMITS.body)
        return Client(member.BoundedTransport(transport, LIMITS), timeout=PATIENCE / 60)


@asynccontextmanager
async def liar() -> AsyncIterator[Liar]:
    made = Liar()
    packed()
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def sized(writer: asyncio.StreamWriter, body: bytes, *headers: str, length: int | None = None) -> None:
    lines = "".join(f"{line}\r\n" for line in headers)
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {length or len(body)}\r\n{lines}\r\n".encode() + body)
    await writer.drain()


async def endless(writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(ENDLESS // len(piece)):
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()


@cache
def packed() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return b"".join([*(packer.compress(b" " * MIB) for _ in range(256)), packer.flush()])


async def bomb(writer: asyncio.StreamWriter) -> None:
    await sized(writer, packed(), "content-encoding: gzip")


async def deep(writer: asyncio.StreamWriter) -> None:
    await sized(writer, b'{"metadata":' + b'{"a":' * 900 + b"1" + b"}" * 901)


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


ANSWERS: dict[str, Answering] = {
    "an answer that never ends": lambda writer: endless(writer, b"x" * 65536),
    "a length of a hundred gigabytes": lambda writer: sized(writer, b"", length=100_000_000_000),
    "a quarter of a megabyte that unpacks to 256 MiB": bomb,
    "objects in objects, 900 deep": deep,
    "a byte now and then": drip,
}


async def refused(one: Liar, answer: Answering) -> str:
    """How the hub ends a request that is answered so, and what it needed for that."""
    one.answer = answer
    client = one.client()
    tracemalloc.start()
    try:
        found = await client.get(NAMESPACE, "kube-system")
    except Unknown as error:
        return _within(str(error))
    finally:
        tracemalloc.stop()
        await client.transport.close()
    raise Succeeded(f"it was taken: {str(found)[:80]}")


async def watched(one: Liar, piece: bytes) -> str:
    """How a watch ends that is answered with this over and over."""
    one.answer = lambda writer: endless(writer, piece)
    client = one.client()
    tracemalloc.start()
    try:
        async for _ in client.watch(WORKLOAD):
            pass
    except Unknown as error:
        return _within(str(error))
    finally:
        tracemalloc.stop()
        await client.transport.close()
    raise Succeeded("the watch ended by itself")


async def listed(one: Liar) -> str:
    """How a cache ends that gets page after page of ever new objects."""
    made = 0

    async def page(writer: asyncio.StreamWriter) -> None:
        nonlocal made
        items = [OBJECT % (number, number, number + 1, b"x" * 1024) for number in range(made, made + 500)]
        made += 500
        body = b'{"metadata":{"resourceVersion":"9","continue":"%d"},"items":[%s]}' % (made, b",".join(items))
        await sized(writer, body, "connection: close")

    one.answer = page
    client = one.client()
    kept: Cache[dict[str, object]] = Cache(client, WORKLOAD, most=LIMITS.held)
    try:
        await kept.feed.load()
    except Overfull as error:
        return f"{error} ({made} were sent, {len(kept)} kept)"
    finally:
        await client.transport.close()
    raise Succeeded(f"{len(kept)} objects were kept")


def _within(ending: str) -> str:
    peak = tracemalloc.get_traced_memory()[1]
    if peak > PAID:
        raise Succeeded(f"it cost {peak // MIB} MiB: {ending}")
    return f"{ending} ({peak // MIB} MiB)"


ROOM = Room("the hub, as a member cluster that lies and floods", liar)
for _what, _answer in ANSWERS.items():
    ROOM.attack("a member", f"answers with {_what}")(lambda one, answer=_answer: refused(one, answer))  # type: ignore[misc]


@ROOM.attack("a member", "sends an event of its watch that never ends")
async def endless_line(one: Liar) -> str:
    return await watched(one, b"x" * 65536)


@ROOM.attack("a member", "sends events whose objects are 900 deep")
async def deep_events(one: Liar) -> str:
    return await watched(one, b'{"type":"ADDED","object":' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"\n")


@ROOM.attack("a member", "has ever more copies, page after page")
async def pages(one: Liar) -> str:
    return await listed(one)
