"""Where the rows of reading are walked: the same steps on the embedded server and on a real one.

`test_reading.py` holds the walks; each suite gives them a `site` of its own. Here is what a site must offer, and the
one in memory, on a virtual clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from shoal.api.kind import Kind
from shoal.api.kinds import CRD
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from tests.embedded import Embedded
from tests.faulty import FaultyTransport, Rates

from .samples import crd


class Site(Protocol):
    client: Client
    """Whose way to the server is never disturbed."""
    reader: Client
    """Whose way may be; caches read by it unless told otherwise."""
    namespace: str

    def cache(self, kind: Kind, type: Any = dict, *, by: Client | None = None, **options: Any) -> Cache[Any]:
        """One that runs until the test ends."""
        ...

    async def until(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        """Until a change or a report to one of the caches makes it true."""
        ...

    async def synced(self, cache: Cache[Any], seconds: float = 20.0) -> None: ...

    async def install(self, kind: Kind) -> None:
        """Until it is served."""
        ...

    def forgetting(self) -> AbstractAsyncContextManager[None]:
        """The reader is cut off inside; afterwards the server has forgotten what happened meanwhile."""
        ...


class EmbeddedSite:
    namespace = "team"

    def __init__(self, server: Embedded, clock: VirtualClock, start: Callable[[Any], Any]) -> None:
        self.client = Client(server.transport())
        self._network = FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)
        self.reader = Client(self._network)
        self._server, self._clock, self._start = server, clock, start

    def cache(self, kind: Kind, type: Any = dict, *, by: Client | None = None, **options: Any) -> Cache[Any]:
        cache: Cache[Any] = Cache(by or self.reader, kind, type, clock=self._clock, **options)
        self._start(cache.run())
        return cache

    async def until(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        end = self._clock.monotonic() + seconds
        while not holds():
            assert self._clock.monotonic() < end, f"not within {seconds} s"
            await self._clock.advance(0.5)

    async def synced(self, cache: Cache[Any], seconds: float = 20.0) -> None:
        await self.until(cache.synced.is_set, seconds)

    async def install(self, kind: Kind) -> None:
        await self.client.create(CRD, crd(kind))

    @asynccontextmanager
    async def forgetting(self) -> AsyncIterator[None]:
        self._network.rates = Rates(unsent=1.0)
        self._server.cut_watches()
        await self._clock.advance(1)
        yield
        self._server.compact()
        self._network.calm()
