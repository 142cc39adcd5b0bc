"""Time and waiting, as something that is handed in.

Nothing below an entry point asks the system for the time: it asks the clock that it was given, so that tests run under a
virtual one. Moments are integers of microseconds since the epoch (for what is written down); durations and deadlines use
the monotonic reading, which never steps.
"""

from __future__ import annotations

import asyncio
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


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
