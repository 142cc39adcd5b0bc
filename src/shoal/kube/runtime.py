"""The loop around a reconciler: a work queue, workers, retries.

A key is worked on by one worker at a time; requests for a key that is waiting coalesce; one that arrives while the
key is being worked on runs once more afterwards. An error in one key is logged, delays that key, and never ends the
loop. Keys that may be many and are no news of their own are set aside: they are worked on one at a time, with rests, so
that a new key does not wait behind them. Of keys with a rank the highest goes first in every second turn; in the others
the oldest does, so that none waits for ever.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from shoal.kube import tracing
from shoal.kube.backoff import asked_to_wait
from shoal.kube.cancelled import end_if_cancelled
from shoal.kube.clock import Clock, SystemClock, sleep_or
from shoal.kube.errors import Conflict, KubeError, LeaseLost
from shoal.kube.logs import key_text, working_on

K = TypeVar("K", bound=Hashable)
LOST_PAUSE = 1.0
"""Seconds for which a key is left alone when the lease is lost: the controller ends before."""
LONGEST_REST = 0.1
"""Seconds between two keys that were set aside, at most."""
log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Keys to work on, now or later. Each is handed out to one taker at a time."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._ready: deque[tuple[int, K]] = deque()
        self._ranked: list[tuple[int, int, K]] = []
        """The same, those with a rank, the highest first. Keys that were taken the other way are passed over."""
        self._by_rank = False
        self._waiting: dict[K, int] = {}
        """Keys to hand out, each with its number in the order of asking."""
        self._aside: dict[K, None] = {}
        """Keys that wait for `take_aside`, in order."""
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._delayed: list[tuple[float, int, K, bool]] = []
        self._due: dict[K, float] = {}
        self._order = itertools.count()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._sooner = asyncio.Event()
        self._some_aside = asyncio.Event()

    def add(self, key: K, after: float = 0.0, *, aside: bool = False, rank: int | None = None) -> None:
        """Hand the key out after so many seconds, or set it aside then; of several requests the earliest counts. With a
        `rank`, sooner than those of a lower one."""
        if after > 0:
            now = self._clock.monotonic()
            due = now + after
            if key not in self._waiting and due < self._due.get(key, float("inf")):
                self._due[key] = due
                heapq.heappush(self._delayed, (due, next(self._order), key, aside))
                first, _, next_key, _ = self._delayed[0]
                if next_key == key or first <= now:  # the latter after a lid was closed: sleeps do not count that time
                    self._sooner.set()
            return
        self._due.pop(key, None)
        if aside:
            self.set_aside(key)
            return
        self._aside.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            number = self._waiting[key] = next(self._order)
            self._ready.append((number, key))
            if rank is not None:
                heapq.heappush(self._ranked, (-rank, number, key))
            self._wake_one()

    def set_aside(self, key: K) -> None:
        """Hand the key out by `take_aside`, unless it is asked for in the usual way before."""
        if key not in self._waiting and key not in self._again:
            self._aside[key] = None
            self._some_aside.set()

    async def take(self) -> K:
        """The next key; call `done` with it afterwards."""
        while not self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._takers:
                    self._takers.remove(waiter)
                elif self._waiting:
                    self._wake_one()  # pass on the wake-up that we cannot use
                raise
        key = self._next()
        del self._waiting[key]
        if not self._waiting:
            self._ready.clear()
            self._ranked.clear()
        self._busy.add(key)
        return key

    def _next(self) -> K:
        self._by_rank = not self._by_rank
        while self._by_rank and self._ranked:
            _, number, key = heapq.heappop(self._ranked)
            if self._waiting.get(key) == number:
                return key
        while True:
            number, key = self._ready.popleft()
            if self._waiting.get(key) == number:
                return key

    async def take_aside(self) -> K:
        """The next key that was set aside; call `done` with it afterwards. For one taker alone."""
        while (key := next((one for one in self._aside if one not in self._busy), None)) is None:
            self._some_aside.clear()
            await self._some_aside.wait()
        del self._aside[key]
        self._due.pop(key, None)
        self._busy.add(key)
        return key

    def done(self, key: K) -> None:
        self._busy.discard(key)
        if self._aside:
            self._some_aside.set()
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def run(self) -> None:
        """Move delayed keys over as they fall due, until cancelled."""
        while True:
            self._sooner.clear()
            now = self._clock.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                due, _, key, aside = heapq.heappop(self._delayed)
                if self._due.get(key) == due:
                    self.add(key, aside=aside)
            while self._delayed and self._due.get(self._delayed[0][2]) != self._delayed[0][0]:
                heapq.heappop(self._delayed)  # asked for again sooner, or handed out meanwhile
            if not self._delayed:
                await self._sooner.wait()
                continue
            await sleep_or(self._sooner, self._clock, self._delayed[0][0] - now)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside)

    @property
    def idle(self) -> bool:
        """Nothing ready and nothing in work (delayed keys aside)."""
        return not self._waiting and not self._busy and not self._aside

    def _wake_one(self) -> None:
        while self._takers:
            waiter = self._takers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class Synced(Protocol):
    """What a controller reads: a cache, which is not to be believed before it has loaded once."""

    synced: asyncio.Event


class ReconcileCounts(msgspec.Struct):
    """For metrics."""

    reconciled: int = 0
    failed: int = 0


class Controller(Generic[K]):
    """Calls `reconcile(key)` for every key asked for. It returns seconds until it wants to be called again, or None."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 8,
        needs: Iterable[Synced] = (),
        clock: Clock | None = None,
        random: Random | None = None,
        first_retry: float = 0.05,
        retry_cap: float = 60.0,
        returns_aside: bool = False,
    ) -> None:
        """`returns_aside`: keys whose time has come may be many at once, and are set aside then."""
        self.name = name
        self.counts = ReconcileCounts()
        self._clock: Clock = clock or SystemClock()
        self.queue: WorkQueue[K] = WorkQueue(self._clock)
        self._reconcile, self._returns_aside = reconcile, returns_aside
        self._workers = workers
        self._needs = tuple(needs)
        self._random = random or Random()
        self._first_retry = first_retry
        self._retry_cap = retry_cap
        self._failures: dict[K, int] = {}
        self._idle_waiters: list[asyncio.Future[None]] = []

    def enqueue(self, key: K, after: float = 0.0, *, rank: int | None = None) -> None:
        self.queue.add(key, after, rank=rank)

    def set_aside(self, key: K) -> None:
        """Work on it soon, after what is asked for by `enqueue` meanwhile."""
        self.queue.set_aside(key)

    async def run(self) -> None:
        """Until cancelled; a reconcile in work is cancelled with it. Nothing starts before all it needs has synced."""
        await self._until_synced()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.queue.run())
            for _ in range(self._workers):
                tasks.create_task(self._work())
            tasks.create_task(self._work_aside())

    async def until_idle(self) -> None:
        """Wait until nothing is ready or in work."""
        while not self.queue.idle:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    async def _until_synced(self) -> None:
        for need in self._needs:
            await need.synced.wait()

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            await self._work_on(key)
            if key in self._failures:
                await self._give_way()

    async def _work_aside(self) -> None:
        """One key at a time, and after each a rest as long as it took: half of the loop at most."""
        while True:
            key = await self.queue.take_aside()
            began = self._clock.monotonic()
            await self._work_on(key)
            end_if_cancelled()
            await self._clock.sleep(min(self._clock.monotonic() - began, LONGEST_REST))

    async def _work_on(self, key: K) -> None:
        again: float | None = None
        aside = self._returns_aside
        try:
            with working_on(self.name, key), self._span(key):
                again = await self._reconcile(key)
            self.counts.reconciled += 1
            self._failures.pop(key, None)
        except Exception as error:  # this loop owns the key: whatever went wrong, the others go on
            with working_on(self.name, key):
                again, aside = self._failed(key, error), False
        finally:
            self.queue.done(key)
            if again is not None:
                self.queue.add(key, max(again, 0.0), aside=aside)
            self._tell_idle()

    def _span(self, key: K) -> AbstractContextManager[Any]:
        return tracing.span("reconcile", lambda: {"shoal.controller": self.name, "shoal.object": key_text(key)})

    async def _give_way(self) -> None:
        """Thousands of keys that fail at once, as when the lease is lost, must not keep our cancellation from us."""
        end_if_cancelled()
        await asyncio.sleep(0)

    def _failed(self, key: K, error: Exception) -> float:
        """Log and return how long to leave this key alone."""
        self.counts.failed += 1
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        step = min(self._retry_cap, self._first_retry * 2.0 ** min(failures, 30))
        wait = max(step * (0.5 + 0.5 * self._random.random()), asked_to_wait(error))
        if isinstance(error, Conflict):
            log.debug("%s %s: changed meanwhile, looking again: %s", self.name, key, error)
        elif isinstance(error, LeaseLost):
            wait = max(wait, LOST_PAUSE)  # nothing can be sent any more, and the lease says so once
            log.debug("%s %s: %s", self.name, key, error)
        elif isinstance(error, KubeError):
            log.warning("%s %s: %s (again in %.1f s)", self.name, key, error, wait)
        else:
            log.error("%s %s failed (again in %.1f s)", self.name, key, wait, exc_info=error)
        return wait

    def _tell_idle(self) -> None:
        if self.queue.idle:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
