"""A command that a user runs inside a container (`kubectl exec`): its streams, its terminal, its end.

And a container that runs already, to look at and to type into (`kubectl attach`, `run -it`, `debug`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import socket
import struct
import termios
from collections.abc import AsyncIterator

from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.runtime.shim import attached

STDOUT, STDERR = 1, 2


class ContainerProgram:
    """One command in a container, with pipes or with a terminal."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int | None = None) -> None:
        self._process = process
        self._terminal = terminal

    @classmethod
    async def start(cls, container: ContainerProcess, command: list[str], stdin: bool, tty: bool) -> ContainerProgram:
        environment = {"PATH": os.defpath}
        if tty:
            master, slave = pty.openpty()
            try:
                process = await asyncio.create_subprocess_exec(
                    *container.entry(command),
                    stdin=slave,
                    stdout=slave,
                    stderr=slave,
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                )
            finally:
                os.close(slave)
            os.set_blocking(master, False)
            return cls(process, master)
        process = await asyncio.create_subprocess_exec(
            *container.entry(command),
            env=environment,
            cwd="/",
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def write(self, data: bytes) -> None:
        if self._terminal is not None:
            await self._type(self._terminal, data)
        elif self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    async def _type(self, terminal: int, data: bytes) -> None:
        """All of it: a terminal takes only so much at a time, and what is pasted may be more."""
        loop = asyncio.get_running_loop()
        while data:
            try:
                data = data[os.write(terminal, data) :]
            except BlockingIOError:
                room = asyncio.Event()
                loop.add_writer(terminal, room.set)
                try:
                    await room.wait()
                finally:
                    loop.remove_writer(terminal)
            except OSError:  # the other end is closed, which is heard elsewhere
                return

    async def close_input(self) -> None:
        if self._terminal is not None:
            await self.write(b"\x04")
        elif self._process.stdin is not None:
            self._process.stdin.close()

    async def resize(self, width: int, height: int) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError, struct.error):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        if self._terminal is not None:
            async for chunk in self._terminal_output(self._terminal):
                yield STDOUT, chunk
            return
        chunks: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(16)

        async def pump(channel: int, stream: asyncio.StreamReader) -> None:
            while data := await stream.read(32768):
                await chunks.put((channel, data))
            await chunks.put((channel, b""))

        assert self._process.stdout is not None and self._process.stderr is not None
        pumps = [
            asyncio.create_task(pump(channel, stream))
            for channel, stream in ((STDOUT, self._process.stdout), (STDERR, self._process.stderr))
        ]
        try:
            left = len(pumps)
            while left:
                channel, data = await chunks.get()
                if data:
                    yield channel, data
                else:
                    left -= 1
        finally:
            for task in pumps:
                task.cancel()

    async def _terminal_output(self, terminal: int) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(terminal, ready.set)
        try:
            while True:
                await ready.wait()
                ready.clear()
                try:
                    data = os.read(terminal, 32768)
                except BlockingIOError:
                    continue
                except OSError:  # the other end is closed
                    return
                if not data:
                    return
                yield data
        finally:
            loop.remove_reader(terminal)

    async def wait(self) -> int:
        code = await self._process.wait()
        if self._terminal is not None:
            terminal, self._terminal = self._terminal, None
            os.close(terminal)
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class AttachedContainer:
    """A container that runs already: its output from now on, and its input where its manifest asks for one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    async def start(cls, container: ContainerProcess, stdin: bool) -> AttachedContainer:
        """Raises OSError when it has ended."""
        made = cls(await container.connect())
        if stdin:
            await made.write(b"")  # a client that types says so first: its going may end what the container reads
        return made

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data) or 1, attached.CHUNK):
            await self._send(attached.STDIN, data[start : start + attached.CHUNK])

    async def close_input(self) -> None:
        await self._send(attached.CLOSE, b"")

    async def resize(self, width: int, height: int) -> None:
        with contextlib.suppress(struct.error):
            await self._send(attached.RESIZE, struct.pack("HH", width, height))

    async def _send(self, channel: int, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is heard elsewhere
            await asyncio.get_running_loop().sock_sendall(self._connection, bytes([channel]) + data)

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        with contextlib.suppress(OSError):
            while message := await asyncio.get_running_loop().sock_recv(self._connection, attached.CHUNK + 16):
                yield message[0], message[1:]

    async def wait(self) -> int:
        """How the container ended is in the pod's status: attaching itself went well."""
        self._connection.close()
        return 0

    async def kill(self) -> None:
        """Detaching leaves the container as it is."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
