"""What the planning loop tells history, and how it is read: a thread of its own writes, so that no plan waits for it.

The loop calls `seen` at every fact; only what changes the row of a gang is passed on. While the database does not
answer, what was seen waits here, bounded: the newest look at each gang, which is enough to go on from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from shoal.controllers.planning.history.lengths import RunFacts, lengths
from shoal.controllers.planning.history.notices import Notices
from shoal.controllers.planning.history.records import GangFacts, RunRecord, Sighting, sighting
from shoal.controllers.planning.history.store import HistoryQuery, HistoryStore, HistoryTotal, HistoryTrouble
from shoal.engine.explain import RunLength
from shoal.engine.model import Gang
from shoal.kube.clock import Clock
from shoal.remembered import Remembered

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_WAITING = 50_000
"""Looks that wait for the database; beyond that the oldest are lost, and that is logged."""
RETRY_FIRST, RETRY_MOST = 1.0, 60.0
PRUNE_EVERY = 3600.0
PAUSE = 0.25
"""Seconds between two writes: what a busy queue sees meanwhile goes in one, and of a short gang only its last row."""
MANY, LONG_PAUSE = 20, 5.0
"""Looks in one write from which on the next write is so far away: readers never wait for it, they write themselves."""
VERY_MANY, LONGEST_PAUSE = 500, 15.0
"""The same: most gangs that wait or run for less than this cost one row, written once."""
BATCH = 2_000
MOST_ALIKE = 10_000
"""Values that many gangs have in common, kept once; then it starts over."""
ENDED = ("finished",)
"""All that is kept of a look at a gang that is over: there may be very many."""


class GangHistory:
    """`run` until cancelled. Reading works at any time."""

    def __init__(self, store: HistoryStore, clock: Clock, notices: Notices | None = None) -> None:
        self._store = store
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._known: dict[str, tuple[Any, ...]] = {}
        """By UID: what its last look was about."""
        self.facts: dict[str, RunFacts] = {}
        """By UID of a gang that is not over: what the length of its run is looked up by."""
        self._alike: Remembered[Any, Any] = Remembered(MOST_ALIKE)
        """What many gangs have in common, once."""
        self._looks: list[Sighting] = []
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._one_write = asyncio.Lock()
        self._running = False
        self.on_change: list[Callable[[RunRecord], None]] = []
        """Called with every row that was stored."""
        self.notices = notices
        if notices is not None:
            self.on_change.append(notices.stored)

    # --- from the planning loop

    def seen(self, gang: Gang, facts: Callable[[], GangFacts]) -> None:
        """A fact about a gang; `facts` is called only where its row changes."""
        ended = gang.state == "finished"
        mark = ENDED if ended else (gang.state, gang.admitted_at, gang.queue, bool(gang.stopping_for), gang.priority)
        if self._known.get(gang.uid) == mark:
            return
        self._known[gang.uid] = self._shared(mark)
        told = facts()
        if ended:
            self.facts.pop(gang.uid, None)
        else:
            self.facts[gang.uid] = self._shared(RunFacts(gang.namespace, told.user, gang.queue, told.limit))
        if self.notices is not None:
            self.notices.told(gang.uid, told.notify)
        self._add(sighting(gang, told, self._clock.now()))

    def _shared(self, value: T) -> T:
        shared: T = self._alike.shared(value, value)
        return shared

    def gone(self, uid: str) -> None:
        self.facts.pop(uid, None)
        if self._known.pop(uid, None) is not None:
            self._add(Sighting(uid=uid, stage="ended", at=self._clock.now()))

    def _add(self, look: Sighting) -> None:
        self._looks.append(look)
        if len(self._looks) > MOST_WAITING:
            del self._looks[: MOST_WAITING // 10]
            log.warning("the history loses looks at gangs: the database does not take them")
        self._idle.clear()
        self._news.set()

    # --- the thread

    async def run(self) -> None:
        """Write what was seen, for ever. The first write also closes what ended while no controller ran."""
        pause, pruned = RETRY_FIRST, 0.0
        while True:
            try:
                if not self._running:
                    there, now = list(self._known), self._clock.now()
                    await self.in_thread(partial(self._store.close_missing, there, now))
                    self._running = True
                written = await self._write_all()
                if not pruned or self._clock.monotonic() - pruned > PRUNE_EVERY:
                    pruned, now = self._clock.monotonic(), self._clock.now()
                    await self.in_thread(partial(self._store.prune, now))
            except HistoryTrouble as error:
                log.warning("%s; it is tried again in %d s", error, pause)
                await self._clock.sleep(pause)
                pause = min(RETRY_MOST, pause * 2)
                continue
            pause = RETRY_FIRST
            await self._news.wait()
            await self._clock.sleep(_pause(written))

    async def _write_all(self) -> int:
        """What was seen so far; returns how many looks. Raises HistoryTrouble."""
        written = 0
        async with self._one_write:
            self._news.clear()
            while self._looks:
                batch = self._looks[:BATCH]
                changed = await self.in_thread(partial(self._store.write, batch))
                del self._looks[: len(batch)]
                written += len(batch)
                for row in changed:
                    for call in self.on_change:
                        call(row)
            self._idle.set()
        return written

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def written(self) -> None:
        """Until all that was seen so far is stored."""
        await self._idle.wait()

    async def _read(self, work: Callable[[], T]) -> T:
        """What was seen before the question is in the answer. Raises HistoryTrouble."""
        if self._running and self._looks:
            await self._write_all()
        return await self.in_thread(work)

    async def close(self) -> None:
        await self.in_thread(self._store.close)
        self._thread.shutdown(wait=False)

    # --- reading

    async def runs(self, query: HistoryQuery) -> list[RunRecord]:
        """Rounds of gangs of all namespaces. Raises HistoryTrouble."""
        return await self._read(lambda: self._store.runs(query))

    async def totals(self, query: HistoryQuery) -> list[HistoryTotal]:
        now = self._clock.now()
        return await self._read(lambda: self._store.totals(query, now))

    async def lengths(self) -> Callable[[Gang], RunLength | None]:
        """How long each gang that is there is expected to run. Raises HistoryTrouble."""
        keys = {one.key for one in self.facts.values()}
        earlier = await self._read(lambda: {key: self._store.durations(*key) for key in keys})
        return lengths(dict(self.facts), earlier, self._clock.now())


def _pause(written: int) -> float:
    """Seconds until the next write, after one of so many looks."""
    if written < MANY:
        return PAUSE
    return LONG_PAUSE if written < VERY_MANY else LONGEST_PAUSE
