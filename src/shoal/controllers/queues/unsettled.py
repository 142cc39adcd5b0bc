"""Workloads for which something may be due, so that a look at them now and then costs no look at all the others.

Thousands of finished Workloads stay stored, and nothing happens to them any more; thousands wait, and nothing is due
before a plan decides about them. One look in ten is at all nevertheless: an event that was missed may have been the one
that would have said so. Called by the queue controller.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api.kind import Key

ALL_EVERY = 10


class Unsettled:
    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._looks = 0

    def update(self, key: Key, is_settled: bool) -> None:
        if is_settled:
            self._keys.discard(key)
        else:
            self._keys.add(key)

    def forget(self, key: Key) -> None:
        self._keys.discard(key)

    def next_look(self, stored: Iterable[Key]) -> list[Key]:
        """What to look at now; `stored`: all there are."""
        self._looks += 1
        return list(stored if self._looks % ALL_EVERY == 0 else self._keys)
