"""Time and waiting, as something that is handed in.

Nothing below an entry point asks the system for the time: it asks the clock that it was given, so that tests run
under a virtual one. Moments are integers of microseconds since the epoch (for what is written down); durations and
deadlines use the monotonic reading, which never steps.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Wall time in microseconds since the epoch. Only for texts and for comparison with other stored texts."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back and go on while the machine sleeps (boot time). Only for durations."""
        ...

    async def sleep(self, seconds: float) -> None: ...


async def sleep_or(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Until the event is set, or for so many seconds."""
    ways = {asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(event.wait())}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in ways:
            one.cancel()


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that stands still until it is told to move; for simulations and tests.

    Wall and monotonic time can be set apart (`step_wall`), as they are on a machine whose clock is corrected.
    """

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self._wall = start
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> int:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._count, waiter))
        await waiter

    def step_wall(self, seconds: float) -> None:
        """Correct the wall clock; durations do not notice."""
        self._wall += round(seconds * 1_000_000)

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, waking sleepers in order and letting each get as far as it can."""
        end = self._monotonic + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, waiter = heapq.heappop(self._sleepers)
            if waiter.done():
                continue
            self._move(due)
            waiter.set_result(None)
            await self.settle()
        self._move(end)
        await self.settle()

    async def settle(self, turns: int = 40) -> None:
        """Let every task that can go on without time passing do so."""
        for _ in range(turns):
            await asyncio.sleep(0)

    def _move(self, monotonic: float) -> None:
        self._wall += round((monotonic - self._monotonic) * 1_000_000)
        self._monotonic = monotonic
