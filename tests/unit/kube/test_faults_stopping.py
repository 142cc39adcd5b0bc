"""Whatever leads ends when its term is over: no cancellation is lost, however the requests under way end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube import feed, lease
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import LeaseLost, Unknown
from shoal.kube.feed import FeedSettings
from shoal.kube.lease import StillLeading, Term
from shoal.kube.runtime import Controller
from shoal.kube.transport import Request, Stream
from tests.embedded import Door, Embedded
from tests.faults import proven
from tests.faulty import Rates

from .conftest import Start
from .test_lease import Replica


class FailsWhenCancelled(Door):
    """A watch that ends with an error of its connection when its reader is cancelled, the first time."""

    failed = False

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        try:
            async with super().stream(request, idle_timeout=idle_timeout) as stream:
                yield stream
        except (asyncio.CancelledError, GeneratorExit):
            if self.failed:
                raise
            self.failed = True
            raise Unknown("the connection was cut") from None


def goes_on_after_an_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feed, "end_if_cancelled", lambda: None)


@proven(without=goes_on_after_an_error)
async def test_f178_a_watch_that_fails_as_it_is_cancelled_ends(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    """F178: a controller loses its lease, and its watches end with an error of their connections at that moment.
    Holds: they end all the same; a later term finds nothing of the earlier one still there."""
    assert await ends_when_cancelled(server, clock, start, streaming=False)


async def test_a_streamed_list_that_fails_as_it_is_cancelled_ends(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    assert await ends_when_cancelled(server, clock, start, streaming=True)


async def ends_when_cancelled(server: Embedded, clock: VirtualClock, start: Start, *, streaming: bool) -> bool:
    client = Client(FailsWhenCancelled(server))
    settings = FeedSettings(streaming_lists=streaming)
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock, settings=settings)
    running = start(cache.run())
    await clock.advance(5)
    assert cache.synced.is_set()
    running.cancel()
    await clock.advance(60)
    return running.done()


def stands_by(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "STOP_LIMIT", float("inf"))


@proven(without=stands_by)
async def test_f179_what_does_not_stop_with_its_term_ends_the_process(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    """F179: something goes on although its term is over, so that this process would never lead again.
    Holds: a minute later it ends with a reason, and is started again by what runs it."""
    replica = Replica(server, "first", clock)

    async def deaf(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()  # heard only when it is said twice

    leading = start(replica.leadership.run(deaf))
    await clock.advance(1)
    replica.network.rates = Rates(unsent=1.0)
    await clock.advance(lease.LeaseSettings().duration + 70)
    assert leading.done()
    assert isinstance(leading.exception(), StillLeading) and "did not stop within 60 s" in str(leading.exception())


def never_gives_way(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: object) -> None:
        return None

    patch.setattr(Controller, "_give_way", at_once)


@proven(without=never_gives_way)
async def test_f178_thousands_of_keys_that_fail_do_not_keep_a_controller_from_ending(clock: VirtualClock) -> None:
    """F178: the lease is lost with thousands of writes due. Holds: not all of them are tried before the end."""
    tried: list[int] = []
    begun = asyncio.Event()

    async def reconcile(key: int) -> None:
        tried.append(key)
        begun.set()
        raise LeaseLost("not sent")

    controller: Controller[int] = Controller("test", reconcile, workers=2, clock=clock)
    for number in range(5_000):
        controller.enqueue(number)
    running = asyncio.ensure_future(controller.run())
    await begun.wait()
    running.cancel()
    await asyncio.wait({running})
    assert len(tried) < 10
