"""The embedded API server in memory, and what tests of this layer do to it and to the way there.

Watches end without a word, history is forgotten, a collection is refused or not served, lists are not streamed, and an
idle connection is given up by the clock that the test holds. Faults by chance are `faulty.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import msgspec

from shoal.api.kind import Kind
from shoal.api.kinds import NAMESPACE
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import Unknown
from shoal.kube.history import parse_path
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.local.apiserver import Server
from tests.faulty import RefusedStream
from tests.stocked import start_with


class Embedded:
    """Shared state; `transport()` gives any number of connections to it."""

    def __init__(self, clock: Clock, chance: Random | None = None) -> None:
        self.clock = clock
        self.server = Server(None, clock=clock, chance=chance)
        self.refusals: dict[str, tuple[int, str, str]] = {}
        """Collections such as `api/v1/pods` that answer with this code, reason and message."""
        self.streaming_lists = True
        self._watches: dict[asyncio.Event, None] = {}  # cut in the order they were opened

    async def start(self, *namespaces: str, definitions: Sequence[bytes] = ()) -> Embedded:
        await start_with(self.server, definitions)
        client = Client(self.server.transport())
        for name in namespaces:
            await client.create(NAMESPACE, {"metadata": {"name": name}})
        return self

    async def stop(self) -> None:
        await self.server.stop()

    def transport(self) -> Transport:
        return Door(self)

    def revisions(self, kind: Kind) -> list[int]:
        """Of every object there is."""
        resource = self.server.registry.find(kind.group, kind.plural)
        assert resource is not None
        return [record.revision for record in resource.collection.records()]

    def snapshot(self, kind: Kind) -> dict[tuple[str, str], Json]:
        """The truth to compare a cache with, by namespace and name."""
        resource = self.server.registry.find(kind.group, kind.plural)
        assert resource is not None
        records = resource.collection.records()
        return {(record.namespace, record.name): msgspec.json.decode(record.raw) for record in records}

    def on_change(self, kind: Kind, function: Callable[[str, Json], None]) -> None:
        """Call with ADDED, MODIFIED or DELETED and the object at every revision, before anyone else hears of it."""
        resource = self.server.registry.find(kind.group, kind.plural)
        assert resource is not None
        resource.collection.listeners.append(lambda event: function(event.type, msgspec.json.decode(event.record.raw)))

    def cut_watches(self) -> None:
        """End every watch silently, as a server does to watchers that fall behind."""
        for watch in tuple(self._watches):
            watch.set()

    def compact(self) -> None:
        """Forget history: watches from an older revision answer 410."""
        for collection in self.server.storage.collections.values():
            collection.compact(len(collection.events))

    def forget(self, kind: Kind) -> None:
        """Lose what was acknowledged, as no server may."""
        resource = self.server.registry.find(kind.group, kind.plural)
        assert resource is not None
        resource.collection.objects.clear()
        resource.collection._sorted = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[asyncio.Event]:
        """One open watch; the event is set when it is to end."""
        cut = asyncio.Event()
        self._watches[cut] = None
        try:
            yield cut
        finally:
            del self._watches[cut]


class Door:
    """A connection to an `Embedded`."""

    def __init__(self, embedded: Embedded) -> None:
        self.embedded = embedded

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await asyncio.sleep(0)
        refusal = self._refusal(request)
        return refusal or await self.embedded.server.transport().send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        await asyncio.sleep(0)
        if refusal := self._refusal(request):
            yield RefusedStream(refusal)
            return
        async with (
            self.embedded.watching() as cut,
            self.embedded.server.transport().stream(request) as stream,
        ):
            yield _Watch(stream, cut, self.embedded.clock, idle_timeout)

    async def close(self) -> None:
        return None

    def _refusal(self, request: Request) -> Response | None:
        found = self.embedded.refusals.get(parse_path(request.path).collection)
        if found is None and request.query.get("sendInitialEvents") == "true" and not self.embedded.streaming_lists:
            found = (422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature is on")
        if found is None:
            return None
        code, reason, message = found
        status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        return Response(code, {}, msgspec.json.encode(status))


class _Watch:
    def __init__(self, inner: Stream, cut: asyncio.Event, clock: Clock, idle: float | None) -> None:
        self._inner, self._cut, self._clock, self._idle = inner, cut, clock, idle
        self.status, self.headers = inner.status, inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._inner)
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            while (chunk := await self._next(chunks, cut)) is not None:
                yield chunk
        finally:
            cut.cancel()

    async def _next(self, chunks: AsyncIterator[bytes], cut: asyncio.Future[bool]) -> bytes | None:
        chunk = asyncio.ensure_future(anext(chunks, None))
        idle = asyncio.ensure_future(self._clock.sleep(self._idle)) if self._idle is not None else None
        try:
            await asyncio.wait({chunk, cut, *([idle] if idle else [])}, return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                return None
            if chunk.done():
                return chunk.result()
            raise Unknown("the stream was idle too long")
        finally:
            for waiting in (chunk, idle):
                if waiting is not None and not waiting.done():
                    waiting.cancel()
                    await asyncio.wait({waiting})

    async def read(self) -> bytes:
        return await self._inner.read()
