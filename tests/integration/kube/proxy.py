"""A wire between client and server that can go dead without telling either side."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Proxy:
    """Passes bytes on to `port`. While `dead`, connections stay open and nothing comes through."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._alive = asyncio.Event()
        self._alive.set()
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.port = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.close_all()

    async def close_all(self) -> None:
        """Every connection ends, and new ones end at once until `reopen`; the port stays ours meanwhile."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reopen(self) -> None:
        self._closed = False

    def die(self) -> None:
        """What is open now never says another word; new connections work."""
        self._alive.clear()
        self._alive = asyncio.Event()
        self._alive.set()

    def hold(self) -> None:
        """Nothing is read from either side until `release`: the sender's buffers fill."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.close()
            return
        alive = self._alive
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(self._pass(alive, reader, far_writer), self._pass(alive, far_reader, writer))
            finally:
                writer.close()
                far_writer.close()

    async def _pass(self, alive: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await alive.wait()
                await self._open.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
