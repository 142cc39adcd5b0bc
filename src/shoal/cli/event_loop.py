"""The event loop of a controller: asyncio's own, that takes up together what comes within a few milliseconds.

A busy API server sends each event by itself, and on busy cores it costs more to wake up for one than to handle it: what
the controller burns so, the API server lacks. A controller that has little to do never waits. Called by
`shoal controller`; nothing depends on it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    Selector = selectors.EpollSelector
else:
    Selector = selectors.DefaultSelector

T = TypeVar("T")

RATE = 200.0
"""Times a second that it wakes up where there is always something to do. A write takes two or three: with 60, a
controller that may send 50 requests a second sent fewer."""
BURST = 60.0
"""Times that it wakes up without a pause after a rest."""


class GatheringSelector(Selector):
    """Waits a moment before it looks, once it has looked very often."""

    def __init__(
        self,
        rate: float = RATE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._rate = rate
        self._now = now
        self._sleep = sleep
        self._left = BURST
        self._looked_at = now()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)  # there is work: nothing to gather for
        now = self._now()
        self._left = min(BURST, self._left + (now - self._looked_at) * self._rate)
        self._looked_at = now
        if self._left < 1:
            pause = (1 - self._left) / self._rate
            if timeout is not None:
                pause = min(pause, timeout)
                timeout -= pause
            self._sleep(pause)
        self._left -= 1
        return super().select(timeout)


def run_gathering(work: Coroutine[Any, Any, T], rate: float = RATE) -> T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(GatheringSelector(rate))) as runner:
        return runner.run(work)
