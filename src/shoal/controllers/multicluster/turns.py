"""How many AppWrappers wait for one member at a time: one that swallows packets leaves the hub's hands to the others.

The hub looks at many AppWrappers at once, and each look may ask its member. Where as many as may already wait, one more
waits a moment, and not at all while the oldest has had no answer for long: it is looked at again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shoal.kube.clock import Clock, sleep_or
from shoal.kube.errors import Unsent

MOST = 16
LONG = 1.0
"""Seconds in which a member answers that is well."""


class MemberTurns:
    def __init__(self, name: str, clock: Clock, most: int = MOST) -> None:
        self._name, self._clock, self._most = name, clock, most
        self._begun: dict[object, float] = {}
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises Unsent where there is none now."""
        while len(self._begun) >= self._most:
            await self._wait()
        this = object()
        self._begun[this] = self._clock.monotonic()
        try:
            yield
        finally:
            del self._begun[this]
            self._freed.set()

    async def _wait(self) -> None:
        """For one to end, for as long as the oldest may take."""
        left = LONG - (self._clock.monotonic() - min(self._begun.values()))
        if left <= 0:
            raise Unsent(f"cluster {self._name} has not answered {len(self._begun)} requests for {LONG:g} s")
        self._freed.clear()
        await sleep_or(self._freed, self._clock, left)
