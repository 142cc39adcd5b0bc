"""One kept connection to an API server: a request out, its answer in, then the next.

Used by `http.py` alone. A general HTTP client spends most of a write's CPU on what is never needed here (cookies,
redirects, proxies, tracing); this is what is left. It sends what it is given once and repeats nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from shoal.kube.answers import Answer, Malformed

UNREAD_LIMIT = 256 * 1024
"""Bytes of a stream that may wait for their reader before the server is made to wait."""
TAKEN_AT_ONCE = 64 * 1024
"""Bytes of the buffer that all connections to one server share: asyncio would make a new one for every read."""


class Cut(Exception):
    """The connection broke before the answer was whole. `begun`: part of the answer had come."""

    def __init__(self, why: str, begun: bool) -> None:
        super().__init__(why)
        self.begun = begun


class Connection(asyncio.BufferedProtocol):
    """`on_lost` is called once when it has ended, whichever side ended it. `buffer`: filled and read out in one go."""

    def __init__(self, on_lost: Callable[[Connection], None], buffer: memoryview) -> None:
        self.idle_since = 0.0
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._whole = True
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._unread = 0
        self._paused = False
        self._buffer = buffer

    # --- the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        answer, data = self._answer, bytes(self._buffer[:nbytes])
        if answer is None:  # said without being asked, such as 408 before a server closes
            self.abort()
            return
        try:
            answer.feed(data)
        except Malformed as error:
            self._failure = Cut(str(error), begun=True)
            self.abort()
            self._wake()
            return
        if answer.done or not self._whole:
            self._wake()
        if not self._whole:
            self._unread += len(data)
            if self._unread > UNREAD_LIMIT and not self._paused:
                self._paused = True
                assert self._transport is not None
                self._transport.pause_reading()

    def eof_received(self) -> None:
        self.lost = True  # its request waits for `connection_lost`; no other takes it

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self._answer is not None:
            if error is None:
                self._answer.end()
            if self._failure is None:
                self._failure = Cut(str(error or "the connection was closed"), self._answer.begun)
        self._wake()
        self._on_lost(self)
        self.ended.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the asker's side

    def send(self, data: bytes, *, whole: bool, most: int = 0) -> Answer:
        """Send a request. With `whole`, `wait` returns when its answer is complete, else with every bit of it.

        `most`: bytes of its body; a longer answer breaks the connection. 0: any number.
        """
        if self._transport is None or self.lost:
            raise Cut("the connection was closed", begun=False)
        self._answer = answer = Answer(most)
        self._whole = whole
        self._transport.write(data)
        return answer

    async def wait(self, until: float | None) -> None:
        """Until there is more to read. Raises `Cut`, or TimeoutError when the loop's clock passes `until`."""
        if self._failure is not None:
            raise self._failure
        waiter = self._waiter = self._loop.create_future()
        timer = None if until is None else self._loop.call_at(until, _give_up, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        assert self._answer is not None
        if self._failure is not None and not self._answer.done:
            raise self._failure

    def read_on(self) -> None:
        """The reader has taken what had come."""
        self._unread = 0
        if self._paused:
            self._paused = False
            assert self._transport is not None
            self._transport.resume_reading()

    def finish(self) -> bool:
        """Whether the connection may be kept for another request; otherwise it is ended here."""
        answer, self._answer = self._answer, None
        good = not self.lost and (answer is None or (answer.done and answer.reusable))
        assert self._transport is not None
        if good and not self._transport.get_write_buffer_size() and not self._transport.is_closing():
            self.read_on()
            self.idle_since = self._loop.time()
            return True
        self.abort()
        return False

    def abort(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.abort()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
