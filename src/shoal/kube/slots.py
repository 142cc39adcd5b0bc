"""A fixed number of places, handed out fairly between owners.

One controller with a thousand writes waiting does not keep another's single one from going out next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """At most `size` holders at a time; a place that falls free goes to the next owner in turn."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns: deque[str] = deque()

    @property
    def full(self) -> bool:
        """Whoever takes one now waits for it."""
        return self.used >= self.size or bool(self._turns)

    @asynccontextmanager
    async def held(self, owner: str) -> AsyncIterator[None]:
        await self.take(owner)
        try:
            yield
        finally:
            self.give_back()

    async def take(self, owner: str) -> None:
        """Each is to be given back once."""
        if not self.full:
            self.used += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if owner not in self._waiting:
            self._waiting[owner] = deque()
            self._turns.append(owner)
        self._waiting[owner].append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back()  # it was handed to us just as we gave up
            raise

    def give_back(self) -> None:
        while self._turns:
            owner = self._turns.popleft()
            queue = self._waiting[owner]
            place = queue.popleft()
            if queue:
                self._turns.append(owner)
            else:
                del self._waiting[owner]
            if not place.done():
                place.set_result(None)  # the place passes on; the number in use stays
                return
        self.used -= 1
