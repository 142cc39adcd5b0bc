"""The start gate: how many Ray nodes of this machine may be starting at one time.

A raylet gives its own agent 15 s to come up and nothing can lengthen that; when too many start at once on few cores,
all of them fail. Admission of a gang is not affected: its pods are bound together and pass here one by one.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

HEAD_WEIGHT, WORKER_WEIGHT = 2, 1


class StartGate:
    """First come, first served, by weight. A holder leaves when it is ready, has ended, or has waited too long."""

    def __init__(self, width: int | None = None) -> None:
        self.width = width if width is not None else 2 * (os.cpu_count() or 1)
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def starting(self) -> int:
        return self._used

    async def enter(self, weight: int) -> None:
        weight = min(weight, self.width)
        if not self._waiting and self._used + weight <= self.width:
            self._used += weight
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(weight)
            else:
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
            raise

    def leave(self, weight: int) -> None:
        self._used -= min(weight, self.width)
        while self._waiting:
            wanted, turn = self._waiting[0]
            if self._used + wanted > self.width:
                return
            self._waiting.popleft()
            if not turn.done():
                self._used += wanted
                turn.set_result(None)
