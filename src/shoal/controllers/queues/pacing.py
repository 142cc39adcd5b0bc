"""How often queues publish their numbers: at once where few change, in turns where many change all the time.

No reader follows a number that changes ten times a second, and each publication is a write that the
work itself needs. Pure but for the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.controllers.queues.counts import Address
from shoal.kube.clock import Clock

STATUS_PAUSE = 0.1
"""Seconds for which changes of a queue are collected before its status is written."""
FEW = 20
"""Up to so many queues that change all the time, none waits for the others."""
TOGETHER = 3.0
"""Statuses a second of all queues together, where many change all the time: 60 queues every 20 s."""
LONGEST = 300.0
"""Seconds that a number may be old, whatever else changes."""
EMPTY_PAUSE = 1.0
"""Seconds between two publications of a queue that is empty now: that is news of its own."""
LATELY = 30.0
"""Seconds beyond the pause between two publications, after which a queue that did not publish anything is not one of
those that change all the time."""
RECKON, RECKON_EACH = 1.0, 0.01
"""Seconds from one count of the queues that change all the time to the next, and so many more for each of them."""


class StatusPace:
    def __init__(self, clock: Clock, is_there: Callable[[Address], bool] = lambda address: True) -> None:
        """`is_there`: queues that were deleted hold up no other."""
        self._clock = clock
        self._is_there = is_there
        self._last: dict[Address, float] = {}
        """When each queue published last, for those that did lately."""
        self._spacing = 0.0
        self._reckoned = 0.0

    def published(self, address: Address) -> None:
        self._last[address] = self._clock.monotonic()

    def pause(self, address: Address, empty: bool) -> float:
        """Seconds until a queue whose numbers changed publishes them."""
        now = self._clock.monotonic()
        if now - self._reckoned >= RECKON + RECKON_EACH * len(self._last):
            self._last = {
                one: last for one, last in self._last.items() if now - last < LATELY + LONGEST and self._is_there(one)
            }
            busy = sum(now - last < LATELY + self._spacing for last in self._last.values())
            self._spacing = min(LONGEST, busy / TOGETHER) if busy > FEW else 0.0
            self._reckoned = now
        spacing = self._spacing
        if empty:
            spacing = min(spacing, EMPTY_PAUSE)
        last = self._last.get(address)
        return STATUS_PAUSE if last is None else max(STATUS_PAUSE, last + spacing - now)
