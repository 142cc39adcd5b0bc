"""The wait for a cache before the first decision: until it was read once, or until it is clear that it cannot be.

A kind that is not installed, or that we may not read, must not hold up all others; it joins when that changes. Called
by controllers that keep several caches and start when all of them are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from shoal.api.kind import Kind
from shoal.kube.cache import Cache
from shoal.kube.trouble import Trouble


class Awaited:
    """Remembers which kinds cannot be read; `report` goes to their caches."""

    def __init__(self) -> None:
        self._absent: dict[Kind, asyncio.Event] = {}

    def report(self, kind: Kind, given_up: Callable[[Trouble], bool]) -> Callable[[Trouble], None]:
        """What a cache of this kind tells its troubles; after one for which `given_up` is true, `known` goes on."""
        absent = self._absent.setdefault(kind, asyncio.Event())

        def heard(trouble: Trouble) -> None:
            if given_up(trouble):
                absent.set()

        return heard

    async def known(self, caches: Iterable[Cache[Any]]) -> None:
        """Until each of these was read once, or was given up."""
        await asyncio.gather(*(self._known(cache) for cache in caches))

    async def _known(self, cache: Cache[Any]) -> None:
        absent = self._absent.get(cache.kind)
        waits = [asyncio.ensure_future(event.wait()) for event in (cache.synced, absent) if event is not None]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
