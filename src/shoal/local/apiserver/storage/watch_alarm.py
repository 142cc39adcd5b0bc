"""When a waiting watch looks up: something changed, or its time has come. Used by `verbs/reading.py` alone."""

from __future__ import annotations

import asyncio

from shoal.kube.clock import Clock
from shoal.local.apiserver.storage.collection import Collection


class Alarm:
    """Wakes a waiting watch after a while of the injected clock, reusing one sleeper for many waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sleeper: asyncio.Task[None] | None = None

    def set(self, seconds: float) -> None:
        if self._sleeper is None or self._sleeper.done():
            self._sleeper = asyncio.ensure_future(self._clock.sleep(seconds))

    async def wait(self, collection: Collection) -> bool:
        """Until something changes there. True when the time came first."""
        assert self._sleeper is not None
        change = collection.changed()
        try:
            await asyncio.wait((change, self._sleeper), return_when=asyncio.FIRST_COMPLETED)
            return not change.done()
        finally:
            if not change.done():
                collection.forget(change)

    def cancel(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
