"""A fixed number of places, handed out fairly between owners.

One controller with a thousand writes waiting does not keep another's single one from going out next; where `most` is
given, not even a thousand that hang: some places are always left to the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class FairSlots:
    """At most `size` holders at a time, at most `most` of one owner; a free place goes to the next owner in turn."""

    def __init__(self, size: int, most: int | None = None) -> None:
        self.size = size
        self.most = size if most is None else most
        self.used = 0
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns: deque[str] = deque()

    @property
    def full(self) -> bool:
        """A holder of none that takes one now waits for it."""
        return self.used >= self.size

    async def take(self, owner: str) -> None:
        """Each is to be given back once, by the same owner."""
        if not self.full and self._held[owner] < self.most:  # a free place is never kept from one that waits
            self._hold(owner)
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
                self.give_back(owner)  # it was handed to us just as we gave up
            raise

    def give_back(self, owner: str) -> None:
        self.used -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        for _ in range(len(self._turns)):
            next_owner = self._turns.popleft()
            if self._held[next_owner] >= self.most:
                self._turns.append(next_owner)
            elif self._hand_to(next_owner):
                return

    def _hand_to(self, owner: str) -> bool:
        """Give the first of its waiting that still wants it the free place; False where none does."""
        queue = self._waiting[owner]
        while queue:
            place = queue.popleft()
            if place.done():  # it gave up
                continue
            if queue:
                self._turns.append(owner)
            else:
                del self._waiting[owner]
            self._hold(owner)
            place.set_result(None)
            return True
        del self._waiting[owner]
        return False

    def _hold(self, owner: str) -> None:
        self.used += 1
        self._held[owner] += 1
