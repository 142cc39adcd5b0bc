"""The rows of reading on a real server: caches read through a wire that can be held, cut and brought back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from shoal.api.kind import Kind
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.trouble import Trouble
from tests.patience import PATIENCE

from .conftest import Start, install
from .proxy import Proxy


class RealSite:
    """What `tests/unit/kube/site.py` asks for, in real time."""

    def __init__(
        self,
        client: Client,
        reader: Client,
        proxy: Proxy,
        namespace: str,
        start: Start,
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        self.client, self.reader, self.proxy, self.namespace = client, reader, proxy, namespace
        self._start, self._restart = start, restart
        self._moved = asyncio.Event()

    def cache(
        self,
        kind: Kind,
        type: Any = dict,
        *,
        by: Client | None = None,
        report: Callable[[Trouble], None] = lambda trouble: None,
        **options: Any,
    ) -> Cache[Any]:
        def told(trouble: Trouble) -> None:
            report(trouble)
            self._moved.set()

        cache: Cache[Any] = Cache(by or self.reader, kind, type, report=told, **options)
        cache.subscribe(lambda change: self._moved.set())
        self._start(cache.run())
        return cache

    async def until(self, holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(max(seconds, PATIENCE)):
            while not holds():
                self._moved.clear()
                await self._moved.wait()

    async def synced(self, cache: Cache[Any], seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(max(seconds, PATIENCE)):
            await cache.synced.wait()

    async def install(self, kind: Kind) -> None:
        await install(self.client, kind)

    @asynccontextmanager
    async def forgetting(self) -> AsyncIterator[None]:
        await self.proxy.close_all()
        yield
        await self._restart()
        self.proxy.reopen()
