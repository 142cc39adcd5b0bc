"""Clients that look at a container and type into it (`kubectl attach`), and what its main process reads.

One socket in the run's directory. Every message begins with its channel: 0 what is typed (an empty one says that this
client will type), 1 and 2 output, 4 a new size of the terminal, 255 the end of what is typed. A client that does not
read holds the container up, as with every container runtime, but not for ever: then it is let go.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import socket
import struct
import termios
import time

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from typing import Any

STDIN, STDOUT, STDERR, RESIZE, CLOSE = 0, 1, 2, 4, 255
END_OF_FILE = b"\x04"  # what a terminal makes of Ctrl-D
NAME = "attach"
CHUNK = 32768
MOST_UNREAD = 1 << 20
MOST_TYPED = 1 << 16
PATIENCE = 10.0


class Streams:
    """What the container's main process gets as its own (`stdin`, `stdout`, `stderr`), and our ends of it."""

    def __init__(
        self, stdin: int, stdout: int, stderr: int, typed: int | None, read: dict[int, str], terminal: bool
    ) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.typed = typed
        self.read = read
        self.terminal = terminal

    def close_theirs(self) -> None:
        for descriptor in {self.stdin, self.stdout, self.stderr}:
            os.close(descriptor)

    def close_ours(self) -> None:
        for descriptor in {*self.read, *(() if self.typed is None else (self.typed,))}:
            os.close(descriptor)


def open_streams(plan: dict[str, Any]) -> Streams:
    if plan.get("tty"):
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        return Streams(theirs, theirs, theirs, ours, {ours: "stdout"}, True)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    typed: int | None = None
    if plan.get("stdin"):
        stdin, typed = os.pipe()
    else:
        stdin = os.open(os.devnull, os.O_RDONLY)
    for descriptor in (out_read, err_read, *((typed,) if typed is not None else ())):
        os.set_blocking(descriptor, False)
    return Streams(stdin, out_write, err_write, typed, {out_read: "stdout", err_read: "stderr"}, False)


class AttachedClient:
    """One connection that looks at the container, and what it has not read yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unread: list[bytes] = []
        self.size = 0
        self.types = False
        self.full_since: float | None = None


class Attached:
    def __init__(self, streams: Streams, once: bool) -> None:
        """`once`: what the container reads ends with the first client that types."""
        self.streams = streams
        self.once = once
        self.clients: dict[socket.socket, AttachedClient] = {}
        self.typed = b""
        self.ending = False
        self.listener: socket.socket | None = None
        with contextlib.suppress(OSError):  # on a full disk no client can attach
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.setblocking(False)
            listener.bind(NAME)  # below the working directory: its whole path may be too long for a socket
            os.chmod(NAME, 0o600)
            listener.listen(8)
            self.listener = listener

    # --- for select

    def readable(self) -> list[socket.socket]:
        found = [self.listener] if self.listener is not None else []
        return found + (list(self.clients) if len(self.typed) < MOST_TYPED else [])

    def writable(self) -> list[socket.socket | int]:
        found: list[socket.socket | int] = [connection for connection, client in self.clients.items() if client.unread]
        return [*found, self.streams.typed] if self.typed and self.streams.typed is not None else found

    def held_up(self) -> bool:
        """Whether a client reads too slowly; one that has done so for long is let go."""
        for client in list(self.clients.values()):
            if client.full_since is not None and time.monotonic() - client.full_since > PATIENCE:
                self._drop(client)
        return any(client.full_since is not None for client in self.clients.values())

    # --- both ways

    def show(self, stream: str, data: bytes) -> None:
        for client in self.clients.values():
            self._put(client, bytes([STDOUT if stream == "stdout" else STDERR]) + data)

    def take(self, connection: socket.socket, unfinished: bytes) -> None:
        """Something came from a client, or a client came; `unfinished` is the line that a terminal shows by now."""
        if connection is self.listener:
            with contextlib.suppress(OSError):
                accepted, _ = connection.accept()
                accepted.setblocking(False)
                arrived = self.clients[accepted] = AttachedClient(accepted)
                if self.streams.terminal and unfinished:
                    self._put(arrived, bytes([STDOUT]) + unfinished)
            return
        client = self.clients.get(connection)
        if client is None:
            return
        try:
            message = connection.recv(CHUNK + 16)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._drop(client)
        elif message[0] == STDIN:
            client.types = True
            self.typed += message[1:] if self.streams.typed is not None and not self.ending else b""
        elif message[0] == RESIZE and self.streams.terminal and self.streams.typed is not None:
            with contextlib.suppress(OSError, struct.error):
                width, height = struct.unpack("HH", message[1:])
                fcntl.ioctl(self.streams.typed, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        elif message[0] == CLOSE and client.types and self.once:
            self.typed += END_OF_FILE if self.streams.terminal and not self.ending else b""
            self._end_input()

    def give(self, target: socket.socket | int) -> None:
        """A client or the container can take more."""
        if not isinstance(target, int):
            if target in self.clients:  # else it went while others were listened to
                self._send(self.clients[target])
            return
        if target != self.streams.typed:  # closed while others were listened to
            return
        try:
            self.typed = self.typed[os.write(target, self.typed[:4096]) :]
        except BlockingIOError:
            return
        except OSError:  # it has closed its input
            self.typed = b""
        self._close_if_done()

    def finish(self) -> None:
        """The container has ended: what was said goes to the clients that still read."""
        for client in list(self.clients.values()):
            with contextlib.suppress(OSError):
                client.connection.settimeout(1.0)
                for message in client.unread:
                    client.connection.send(message)
            self._drop(client)
        if self.listener is not None:
            self.listener.close()

    # --- within

    def _put(self, client: AttachedClient, message: bytes) -> None:
        client.unread.append(message)
        client.size += len(message)
        self._send(client)

    def _send(self, client: AttachedClient) -> None:
        try:
            while client.unread:
                client.connection.send(client.unread[0])
                client.size -= len(client.unread.pop(0))
        except BlockingIOError:
            pass
        except OSError:
            client.unread, client.size = [], 0  # gone: the next read says so
        if client.size < MOST_UNREAD:
            client.full_since = None
        elif client.full_since is None:
            client.full_since = time.monotonic()

    def _drop(self, client: AttachedClient) -> None:
        self.clients.pop(client.connection, None)
        client.connection.close()
        if client.types and self.once and not self.streams.terminal:
            self._end_input()

    def _end_input(self) -> None:
        self.ending = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.ending and not self.typed and not self.streams.terminal and self.streams.typed is not None:
            os.close(self.streams.typed)
            self.streams.typed = None
