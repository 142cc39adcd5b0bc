"""The last line against a loop that never rests: one workload looked at hundreds of times within a second.

Whatever the cause (a server that drops what is written, a stranger that writes against us), the controller then goes on
slowly and says so, instead of keeping the API server busy. Called before every look; in sound operation it never acts.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from shoal.kube.clock import Clock

log = logging.getLogger(__name__)

MOST_LOOKS = 300
WINDOW = 1.0
PAUSE = 1.0


class LoopGuard:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[Hashable, int] = {}
        self._since = clock.monotonic()

    async def count(self, key: Hashable) -> None:
        """Count one look at this key; hold it up for a while when there were far too many."""
        moment = self._clock.monotonic()
        if moment - self._since >= WINDOW:
            self._counts.clear()
            self._since = moment
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count > MOST_LOOKS:
            if count == MOST_LOOKS + 1:
                log.error("%s was looked at %d times within a second; going on slowly", key, count)
            await self._clock.sleep(PAUSE)
