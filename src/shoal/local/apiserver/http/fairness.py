"""No client may keep the server from the others: how much one may have under way, and of the loop's time, at once.

One event loop serves all clients, the controllers of the same process included. So each client (a user, or all service
accounts of a namespace together) has an account of seconds on the loop: it fills at a fixed rate and a request that
finds it empty waits until it is not. The administrators of the machine are not counted. Only the HTTPS front asks here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from shoal.kube.clock import Clock, SystemClock
from shoal.local.apiserver.auth.authorization import MASTERS
from shoal.local.apiserver.primitives.status import Refused, too_many_requests
from shoal.local.apiserver.requests.route import RequestUser

T = TypeVar("T")

SHARE = 0.5
"""Of the loop's time that one client may use for long."""
ALL_SHARE = 0.8
"""Of the loop's time that all clients together may: the rest is the controllers'."""
BURST = 0.5
"""Seconds on the loop that a client may use at once before it waits."""
MOST_REQUESTS = 128
"""Of one client, under way or waiting; watches and connections are counted by themselves."""
MOST_STREAMS = 512
MOST_BODY_BYTES = 12 << 20
"""Of one client's requests that are being read or waited for: four of the largest."""
MOST_ANSWER_BYTES = 64 << 20
"""Of one client's large answers that it has not read yet, unless it is a single one."""
_LEAST_WAIT = 0.001
_MOST_CLIENTS = 1024
_SERVICE_ACCOUNT = "system:serviceaccount:"


def client_of(user: RequestUser) -> str | None:
    """By what a user is counted; None for users that are not. Accounts are made at will: a namespace's count as one."""
    if MASTERS in user.groups:
        return None
    if user.name.startswith(_SERVICE_ACCOUNT):
        return user.name.rpartition(":")[0]
    return user.name


class Account:
    """Seconds on the loop, filled at a rate, never above the burst."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.left = BURST
        self.at = now

    def wait(self, now: float) -> float:
        """Seconds until it is not empty."""
        self.left = min(BURST, self.left + (now - self.at) * self.rate)
        self.at = now
        return max(-self.left / self.rate, _LEAST_WAIT) if self.left < -_LEAST_WAIT else 0.0

    def spend(self, seconds: float) -> None:
        self.left -= seconds


class _Client:
    def __init__(self, now: float) -> None:
        self.account = Account(SHARE, now)
        self.usual = 0.0  # seconds on the loop that its requests take
        self.turn = asyncio.Lock()
        self.requests = 0
        self.streams = 0
        self.body_bytes = 0
        self.answer_bytes = 0
        self.room = asyncio.Condition()


class Fairness:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock = clock or SystemClock()
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._all = Account(ALL_SHARE, clock.monotonic())

    def _client(self, user: RequestUser) -> _Client | None:
        name = client_of(user)
        if name is None:
            return None
        found = self._clients.get(name)
        if found is None:
            found = self._clients[name] = _Client(self._clock.monotonic())
            while len(self._clients) > _MOST_CLIENTS and self._forget_one():
                pass
        self._clients.move_to_end(name)
        return found

    def _forget_one(self) -> bool:
        """The client that was away longest, if it has nothing under way."""
        for name, client in self._clients.items():
            if not client.requests and not client.streams and client.account.left >= 0:
                del self._clients[name]
                return True
        return False

    @asynccontextmanager
    async def request(self, user: RequestUser) -> AsyncIterator[None]:
        """One request, from before its body is read until it is answered."""
        client = self._client(user)
        if client is None:
            yield
            return
        if client.requests >= MOST_REQUESTS:
            raise _too_many()
        client.requests += 1
        try:
            yield
        finally:
            client.requests -= 1

    @asynccontextmanager
    async def stream(self, user: RequestUser) -> AsyncIterator[None]:
        """A watch, a log that is followed, a connection to a pod: long, and mostly quiet."""
        client = self._client(user)
        if client is None:
            yield
            return
        if client.streams >= MOST_STREAMS:
            raise _too_many()
        client.streams += 1
        try:
            yield
        finally:
            client.streams -= 1

    @asynccontextmanager
    async def body(self, user: RequestUser, size: int) -> AsyncIterator[None]:
        """Room for a body in memory. Until there is some nothing is read, and the sender's own connection fills up."""
        client = self._client(user)
        if client is None or not size:
            yield
            return
        async with client.room:
            await client.room.wait_for(lambda: client.body_bytes + size <= MOST_BODY_BYTES)
            client.body_bytes += size
        try:
            yield
        finally:
            client.body_bytes -= size
            async with client.room:
                client.room.notify_all()

    @asynccontextmanager
    async def answer(self, user: RequestUser, size: int) -> AsyncIterator[None]:
        """A large answer while it goes out: readers that are slow, or never read, hold only so much."""
        client = self._client(user)
        if client is None:
            yield
            return
        if client.answer_bytes and client.answer_bytes + size > MOST_ANSWER_BYTES:
            raise _too_many()
        client.answer_bytes += size
        try:
            yield
        finally:
            client.answer_bytes -= size

    async def run(self, user: RequestUser, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of a request when its client may use the loop, and put down what it used."""
        client = self._client(user)
        if client is None:
            return await work
        accounts = (client.account, self._all)
        try:
            async with client.turn:  # one after another: each puts down what it will use before the next looks
                while (wait := max(one.wait(self._clock.monotonic()) for one in accounts)) > 0:
                    await self._clock.sleep(wait)  # others may have spent meanwhile
                expected = client.usual
                for one in accounts:
                    one.spend(expected)
        except BaseException:
            work.close()
            raise
        timed = _Timed(work, self._clock)
        try:
            return await timed
        finally:
            client.usual += (timed.used - client.usual) / 8
            for one in accounts:
                one.spend(timed.used - expected)


class _Timed(Generic[T]):
    """A coroutine and the seconds that it ran: what it waited for is not counted."""

    def __init__(self, work: Coroutine[Any, Any, T], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self.used = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        resume, value = steps.send, None
        while True:
            start = self._clock.monotonic()
            try:
                waited = resume(value)
            except StopIteration as end:
                found: T = end.value
                return found
            finally:
                self.used += self._clock.monotonic() - start
            try:
                value = yield waited
                resume = steps.send
            except BaseException as error:
                value, resume = error, steps.throw


def _too_many() -> Refused:
    return too_many_requests("too many requests, please try again later", 1)
