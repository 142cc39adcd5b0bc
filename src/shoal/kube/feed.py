"""Keeps a cache filled: list once, then watch for ever, resuming where it was cut.

A watch that ends, goes silent or is cut is resumed from the last revision; only 410 leads to a new list, whose
difference is applied. A kind that is not installed and a missing permission are named and waited for. Nothing here
ends but by being cancelled, and nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from random import Random
from typing import Any, Protocol

import msgspec

from shoal.api.kind import Key, Kind
from shoal.api.labels import INITIAL_EVENTS_END
from shoal.kube.backoff import Backoff
from shoal.kube.cancelled import end_if_cancelled
from shoal.kube.client import Client, RawList, WatchEvent
from shoal.kube.clock import Clock
from shoal.kube.errors import (
    ApiError,
    Gone,
    KubeError,
    NotFound,
    SchemaTooOld,
    StaleList,
    TooManyRequests,
    Unauthorized,
    Unknown,
    Unsent,
)
from shoal.kube.revisions import RevisionMark, newer, read_mark
from shoal.kube.schemas import missing_fields
from shoal.kube.second_ask import ended, first_answer
from shoal.kube.trouble import Trouble, describe

log = logging.getLogger(__name__)

PAGE = 1000
STALE_LISTS_UNTIL_BELIEVED = 3
BROKEN_LINES_UNTIL_RELIST = 3
LOOKS_FOR_A_NEW_KIND, LATER = 15, 30.0
"""A kind that is not served is asked for so often within its first minute, then every so many seconds."""


class FeedSettings(msgspec.Struct, frozen=True):
    """Seconds. A real server sends a bookmark about every minute, so 90 s of silence mean a dead connection."""

    idle_limit: float = 90.0
    watch_for: float = 480.0
    compare_every: float = 600.0
    compare_grace: float = 5.0
    retry_cap: float = 8.0
    page_limit: float = 75.0
    """For a page of a list, after one that took too long: an API server works on a request for a minute at most. To
    give up before it does, again and again, only makes one that is busy busier, and a controller that starts then
    never begins. The first time a connection may as well be dead."""
    second_ask: float = 8.0
    """After so long without an answer a page is asked for a second time, beside the first: that request may be lost."""
    silence_limit: float = 3.0
    """For the initial events of a streaming list: a server that does not know them sends no end mark."""
    stream_limit: float = 60.0
    """For all initial events: where changes keep coming, a stream without an end mark is never silent."""
    streaming_lists: bool = True
    quiet: bool = False
    """Troubles are the caller's to tell: a right that a visitor lacks is nothing for our log."""


class FeedCounts(msgspec.Struct):
    lists: int = 0
    watches: int = 0
    events: int = 0
    gone: int = 0
    repairs: int = 0


class Sink(Protocol):
    """What a feed fills. `take` and `drop` return the object's mark, or None when not even that can be read."""

    undecodable: dict[Key, str]

    def take(self, raw: msgspec.Raw, *, listed_at: str = "", forced: bool = False) -> RevisionMark | None: ...
    def drop(self, raw: msgspec.Raw) -> RevisionMark | None: ...
    def keep_only(self, listed: set[Key], revision: str, *, forced: bool = False) -> None: ...
    def revision_of(self, key: Key) -> str | None: ...
    def __iter__(self) -> Iterator[Key]: ...


class Feed:
    def __init__(
        self,
        client: Client,
        kind: Kind,
        sink: Sink,
        *,
        namespace: str | None,
        label_selector: str,
        field_selector: str,
        clock: Clock,
        random: Random,
        settings: FeedSettings,
        report: Callable[[Trouble], None] | None = None,
        requires: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.counts = FeedCounts()
        self.trouble: Trouble | None = None
        self.revision = ""
        """Where the watch goes on from; empty means that a list is due."""
        self._client = client
        self._sink = sink
        self._namespace = namespace
        self._labels = label_selector
        self._fields = field_selector
        self._clock = clock
        self._random = random
        self._settings = settings
        self._report = report
        self._streaming = settings.streaming_lists
        self._backoff = Backoff(random, cap=settings.retry_cap)
        self._listing = asyncio.Lock()
        self._seen = "0"
        self._stale_lists = 0
        self._broken_lines = 0
        self._late = False
        """The last page of a list was not answered in time."""
        self._loaded = False
        self._unchecked = requires

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_for_ever())
            tasks.create_task(self._compare_for_ever())

    async def _follow_for_ever(self) -> None:
        while True:
            end_if_cancelled()
            try:
                if self._unchecked:
                    await self._check_schema()
                if self.revision:
                    await self._watch()
                elif self._streaming:
                    await self._load_by_stream()
                else:
                    await self.load()
            except Gone:
                self.counts.gone += 1
                self.revision = ""
                if self._backoff.failures:  # the second in a row: a server that cannot keep its own history
                    await self._clock.sleep(self._backoff.after())
                self._backoff.failures += 1
            except msgspec.MsgspecError as error:
                await self._skip_broken_line(error)
            except KubeError as error:
                self._name_trouble(error)
                end_if_cancelled()
                pause = self._backoff.after(error)
                if isinstance(error, NotFound) and self._backoff.failures > LOOKS_FOR_A_NEW_KIND:
                    pause = max(pause, LATER)
                await self._clock.sleep(pause)

    async def _check_schema(self) -> None:
        missing = await missing_fields(self._client, self.kind, self._unchecked)
        if missing:
            raise SchemaTooOld(
                f"the CRD of {self.kind.resource} ({self.kind.version}) on the server is older than this program: it "
                f"drops {', '.join(missing)}. Nothing is done with this kind until it is updated: run shoal install, "
                "or update the program that brings the kind."
            )
        self._unchecked = ()

    # --- listing

    async def load(self) -> None:
        """One full list, page by page, its difference applied."""
        async with self._listing:
            listed: set[Key] = set()
            seen = self._seen
            page = await self._page(limit=PAGE)
            revision = page.metadata.resource_version
            forced = self._is_restored(revision, seen)
            whole = False
            while True:
                for raw in page.items or ():
                    if mark := self._sink.take(raw, listed_at=revision, forced=forced):
                        listed.add(mark.key)
                if not page.metadata.continue_:
                    break
                try:
                    page = await self._page(limit=PAGE, continue_=page.metadata.continue_)
                except Gone:
                    if whole:
                        raise
                    whole, listed = True, set()  # the list took longer than the server's history: all in one answer
                    page = await self._page(limit=0)
                    revision = page.metadata.resource_version
            self.counts.lists += 1
            self._finish_list(listed, revision, forced=forced)

    async def _page(self, *, limit: int, continue_: str = "", metadata_only: bool = False) -> RawList:
        """No resourceVersion is asked for, so that the answer is never older than the request."""

        def ask(timeout: float) -> Coroutine[Any, Any, RawList]:
            return self._client.list_raw(
                self.kind,
                self._namespace,
                label_selector=self._labels,
                field_selector=self._fields,
                limit=limit,
                continue_=continue_,
                metadata_only=metadata_only,
                timeout=timeout,
            )

        usual, asked_at = self._client.timeout, self._clock.monotonic()
        limit_seconds = max(usual, self._settings.page_limit) if self._late else usual
        try:
            page = await first_answer(
                ask, limit_seconds, after=self._settings.second_ask, clock=self._clock, told=self._told_late
            )
        except (Unknown, Unsent):
            self._late = self._clock.monotonic() - asked_at >= usual
            raise
        self._late = False
        return page

    def _told_late(self) -> None:
        said = logging.DEBUG if self._settings.quiet else logging.WARNING
        seconds = self._settings.second_ask
        log.log(said, "%s: no answer to a list for %.0f s; asking a second time", self.kind.resource, seconds)

    def _is_restored(self, revision: str, seen: str) -> bool:
        """A list older than what we had `seen` before we asked is not believed at once; when it stays so, a backup was
        restored. What the watch brought while a busy server made the list is no sign of that."""
        if not newer(seen, revision):
            self._stale_lists = 0
            return False
        self._stale_lists += 1
        if self._stale_lists <= STALE_LISTS_UNTIL_BELIEVED:
            raise StaleList(
                f"{self.kind.resource}: the server's list (revision {revision}) is older than what it already "
                f"told us ({seen}); asking again"
            )
        log.warning(
            "%s: the server went back from revision %s to %s and stays there; taking its state as it is",
            self.kind.resource,
            seen,
            revision,
        )
        return True

    def _finish_list(self, listed: set[Key], revision: str, *, forced: bool = False) -> None:
        self._sink.keep_only(listed, revision, forced=forced)
        if forced:
            self.revision, self._seen = revision, revision
            self._stale_lists = 0
        self._reached(revision)
        self._loaded = True
        self._set_trouble(None)

    async def _load_by_stream(self) -> None:
        """A list sent as watch events, which then goes on as the watch. A plain list takes its place where it must."""
        self._loaded = False
        follow = asyncio.ensure_future(self._watch(initial=True))
        try:
            if await self._has_no_end(follow):
                self._streaming = False
            else:
                await asyncio.wait({follow})  # not itself: our cancellation must not become the error it ends with
                follow.result()
        except (ApiError, StaleList) as error:
            if self._loaded or not _means_no_streaming(error):
                raise
            self._streaming = False
        finally:
            await ended(follow)
        if not self._loaded:
            log.debug("%s: the list was not streamed to its end; listing by pages", self.kind.resource)
            await self.load()

    async def _has_no_end(self, follow: asyncio.Future[None]) -> bool:
        """Wait for the end of the initial events or of the watch; True when that does not come."""
        until = self._clock.monotonic() + self._settings.stream_limit
        while not self._loaded and not follow.done():
            before = self.counts.events
            pause = asyncio.ensure_future(self._clock.sleep(self._settings.silence_limit))
            await asyncio.wait({follow, pause}, return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
            silent = self.counts.events == before or self._clock.monotonic() >= until
            if silent and not follow.done() and not self._loaded:
                return True
        return False

    # --- watching

    async def _watch(self, *, initial: bool = False) -> None:
        """One watch. Returns when the server ends it or it goes silent: the next goes on from the last revision."""
        started = self._clock.monotonic()
        before, reached = self.counts.events, self.revision
        listed: set[Key] | None = set() if initial else None
        self.counts.watches += 1
        try:
            async with aclosing(self._events(initial)) as events:
                async for event in events:
                    self.counts.events += 1
                    self._broken_lines = 0
                    if listed is not None and self._take_initial(event, listed):
                        listed = None
                    elif listed is None:
                        self._take(event)
        except Unknown as error:
            if self.counts.events == before and self._clock.monotonic() - started < 1.0:
                raise
            log.debug("%s: resuming the watch at %s: %s", self.kind.resource, self.revision, error)
        # A bookmark of where we are already is no progress: a server that is stopping sends one and ends, at once.
        if self.revision != reached or self._clock.monotonic() - started >= 1.0:
            self._backoff.reset()
        else:
            await self._clock.sleep(self._backoff.after())

    def _events(self, initial: bool) -> AsyncGenerator[WatchEvent, None]:
        return self._client.watch(
            self.kind,
            self._namespace,
            resource_version="" if initial else self.revision,
            label_selector=self._labels,
            field_selector=self._fields,
            timeout_seconds=round(self._settings.watch_for * (0.5 + 0.5 * self._random.random())) or 1,
            send_initial_events=initial,
            idle_timeout=self._settings.idle_limit,
            opened=None if initial else self._opened,
        )

    def _opened(self) -> None:
        self._set_trouble(None)

    def _take(self, event: WatchEvent) -> None:
        match event.type:
            case "ADDED" | "MODIFIED":
                mark = self._sink.take(event.object)
            case "DELETED":
                mark = self._sink.drop(event.object)
            case "BOOKMARK":
                mark = read_mark(event.object)
            case other:
                log.debug("%s: a watch event of unknown type %s", self.kind.resource, other)
                return
        if mark is not None:
            self._reached(mark.resource_version)

    def _take_initial(self, event: WatchEvent, listed: set[Key]) -> bool:
        """One event of a streaming list; True when it was the last."""
        if event.type == "BOOKMARK":
            mark = read_mark(event.object)
            if (mark.annotations or {}).get(INITIAL_EVENTS_END) != "true":
                return False
            if newer(self._seen, mark.resource_version):
                self._streaming = False  # let the plain list find out whether the store was restored
                raise StaleList(f"{self.kind.resource}: the streamed list is older than what was already seen")
            self.counts.lists += 1
            self._finish_list(listed, mark.resource_version)
            return True
        taken = self._sink.drop(event.object) if event.type == "DELETED" else self._sink.take(event.object)
        if taken is not None:
            (listed.discard if event.type == "DELETED" else listed.add)(taken.key)
        return False

    def _reached(self, revision: str) -> None:
        if revision and (not self.revision or newer(revision, self.revision)):
            self.revision = revision
        if newer(revision, self._seen):
            self._seen = revision

    async def _skip_broken_line(self, error: msgspec.MsgspecError) -> None:
        """A line cut in the middle is sent again on resuming; one that stays broken is passed by with a list."""
        self._broken_lines += 1
        log.debug("%s: a line of the watch cannot be read: %s", self.kind.resource, error)
        if self._broken_lines >= BROKEN_LINES_UNTIL_RELIST:
            self._broken_lines = 0
            self.revision = ""
        await self._clock.sleep(self._backoff.after())

    # --- comparing

    async def _compare_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._settings.compare_every * (0.75 + 0.5 * self._random.random()))
            if self.revision:
                try:
                    await self.compare()
                except (KubeError, msgspec.MsgspecError) as error:
                    log.debug("%s: the comparison is left for later: %s", self.kind.resource, error)

    async def compare(self) -> int:
        """Hold the server's revisions against ours; list again when they differ and stay so. Returns how many."""
        suspects = await self._believed_differences()
        if not suspects:
            return 0
        await self._clock.sleep(self._settings.compare_grace)  # what the watch is about to deliver is no loss
        lost = [key for key, held in suspects.items() if self._sink.revision_of(key) == held]
        if not lost:
            return 0
        self.counts.repairs += 1
        log.warning(
            "%s: %d objects differ from the server's although the watch is up (first %s); listing again",
            self.kind.resource,
            len(lost),
            min(lost),
        )
        await self.load()
        return len(lost)

    async def catch_up(self) -> None:
        """Make sure that nothing acknowledged before this call is missing: compare, and list where it differs."""
        if await self._believed_differences():
            await self.load()

    async def _believed_differences(self) -> Mapping[Key, str | None]:
        """A watch does not notice that the store went back behind its revision: it waits there. A list does."""
        while True:
            try:
                return await self._differences()
            except StaleList as error:
                log.debug("%s", error)
                await self._clock.sleep(self._settings.compare_grace)

    async def _differences(self) -> Mapping[Key, str | None]:
        seen = self._seen
        page = await self._page(limit=PAGE, metadata_only=True)
        revision = page.metadata.resource_version
        restored = self._is_restored(revision, seen)
        listed: set[Key] = set()
        suspects: dict[Key, str | None] = {}
        while True:
            for raw in page.items or ():
                mark = read_mark(raw)
                listed.add(mark.key)
                held = self._sink.revision_of(mark.key)
                differs = restored or held is None or newer(mark.resource_version, held)
                if differs and mark.key not in self._sink.undecodable:
                    suspects[mark.key] = held
            if not page.metadata.continue_:
                break
            page = await self._page(limit=PAGE, continue_=page.metadata.continue_, metadata_only=True)
        for key in self._sink:
            held = self._sink.revision_of(key)
            if key not in listed and held is not None and (restored or not newer(held, revision)):
                suspects[key] = held
        return suspects

    # --- saying what is wrong

    def _name_trouble(self, error: KubeError) -> None:
        if isinstance(error, NotFound):
            self.revision = ""
        self._set_trouble(describe(error, self.kind, self._namespace))

    def _set_trouble(self, trouble: Trouble | None) -> None:
        if trouble == self.trouble:
            return
        before, self.trouble = self.trouble, trouble
        if trouble is None:
            assert before is not None
            said = logging.DEBUG if self._settings.quiet else logging.INFO
            log.log(said, "%s: reading again (was: %s)", self.kind.resource, before.reason)
        elif before is None or before.reason != trouble.reason:
            log.log(logging.DEBUG if self._settings.quiet else logging.WARNING, "%s", trouble.message)
            if self._report is not None:
                self._report(trouble)


def _means_no_streaming(error: BaseException) -> bool:
    """Any answer that could come from a server without streaming lists; a plain list then names what is wrong."""
    return isinstance(error, (ApiError, StaleList)) and not isinstance(error, (TooManyRequests, Unauthorized, NotFound))
