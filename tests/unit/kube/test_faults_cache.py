"""What the cache survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP, POD
from shoal.kube import feed
from shoal.kube.backoff import Backoff
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import Forbidden, Unknown, Unsent
from shoal.kube.feed import Feed, FeedSettings
from shoal.kube.runtime import Controller
from shoal.kube.second_ask import first_answer
from shoal.kube.transport import Request, Response, Stream
from shoal.kube.writes import Writes
from tests.embedded import Door, Embedded
from tests.faults import proven
from tests.faulty import FaultyTransport, Rates

from .conftest import Start
from .samples import config_map, pod


def assert_equal(cache: Cache[Any], server: Embedded) -> None:
    truth = {Key(*key): obj["metadata"]["resourceVersion"] for key, obj in server.snapshot(CONFIG_MAP).items()}
    assert {key: cache.get(key)["metadata"]["resourceVersion"] for key in cache} == truth


# --- F41


def _start_at_once(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: object) -> None:
        return None

    patch.setattr(Controller, "_until_synced", at_once)


@proven(without=_start_at_once)
async def test_f041_nothing_is_decided_before_all_inputs_are_there(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F41: the first decision comes before all inputs are in the cache. Holds: none is made until each has synced."""
    await client.create(CONFIG_MAP, config_map("queue"), "team")
    await client.create(POD, pod("running"), "team")
    server.refusals["api/v1/pods"] = (429, "TooManyRequests", "storage is (re)initializing")
    queues: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock)
    pods: Cache[Any] = Cache(client, POD, clock=clock)
    pods_at_decision: list[int] = []

    async def decide(key: Key) -> None:
        pods_at_decision.append(len(pods))

    controller: Controller[Key] = Controller("decide", decide, needs=[queues, pods], clock=clock)
    queues.subscribe(lambda change: controller.enqueue(change.key))
    for work in (queues.run(), pods.run(), controller.run()):
        start(work)
    await clock.advance(30)
    assert queues.synced.is_set() and not pods.synced.is_set()
    del server.refusals["api/v1/pods"]
    await clock.advance(30)
    assert pods_at_decision == [1]


# --- F51, F52


class HalfOpen(Door):
    """While `dead`, open watches swallow everything and never end, like a connection whose other side is gone."""

    dead = False

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        async with super().stream(request, idle_timeout=idle_timeout) as stream:
            yield _Swallowing(stream, self, idle_timeout)


class _Swallowing:
    def __init__(self, inner: Stream, transport: HalfOpen, idle: float | None) -> None:
        self.inner, self.transport, self.idle = inner, transport, idle
        self.status, self.headers = inner.status, inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self.inner:
            if self.transport.dead:
                await self.transport.embedded.clock.sleep(self.idle if self.idle is not None else 1e9)
                raise_idle()
            yield chunk

    async def read(self) -> bytes:
        return await self.inner.read()


def raise_idle() -> None:
    from shoal.kube.errors import Unknown

    raise Unknown("idle too long")


def _no_idle_limit(patch: pytest.MonkeyPatch) -> None:
    whole = Client.watch

    def watch(self: Client, *arguments: Any, idle_timeout: float | None = None, **options: Any) -> Any:
        return whole(self, *arguments, idle_timeout=None, **options)

    patch.setattr(Client, "watch", watch)


@proven(without=_no_idle_limit)
async def test_f051_a_watch_that_goes_silent_is_resumed(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F51: a watch goes silent without an end. Holds: resumed within the idle limit, without a new list."""
    transport = HalfOpen(server)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await clock.advance(1)
    transport.dead = True
    await client.create(CONFIG_MAP, config_map("unheard"), "team")
    await clock.advance(5)
    assert len(cache) == 0
    transport.dead = False
    await clock.advance(90)
    assert len(cache) == 1
    assert cache.feed.counts.lists == 1


def one_watch_only(patch: pytest.MonkeyPatch) -> None:
    async def once(self: Feed) -> None:
        await self.load()
        await self._watch()
        await asyncio.Event().wait()

    patch.setattr(Feed, "_follow_for_ever", once)


@proven(without=one_watch_only)
async def test_f052_watches_cut_under_a_burst_lose_nothing(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F52: the server cuts watchers under a burst without an error. Holds: resumed at once, none of 2,000 missing."""
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    random = Random(52)
    for number in range(2000):
        await client.create(CONFIG_MAP, config_map(f"c{number}"), "team")
        if random.random() < 0.02:
            server.cut_watches()
            await clock.advance(0.2)
    await clock.advance(5)
    assert len(cache) == 2000
    assert cache.feed.counts.watches > 20 and cache.feed.counts.lists == 1


# --- F54, F55, F56


class Stale(Door):
    """Answers lists from an old picture while `old` is set, as a server with a stale cache would."""

    old: Response | None = None
    queries: list[dict[str, str]]

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        self.queries = [*getattr(self, "queries", []), request.query]
        if self.old is not None and request.path.endswith("/configmaps"):
            return self.old
        return await super().send(request, timeout=timeout)


def _every_list_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feed, "_is_restored", lambda self, revision, seen: True)


@proven(without=_every_list_is_believed)
async def test_f054_a_list_older_than_what_was_seen_is_not_believed(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F54: after a restart the first list is older than what we already saw. Holds: nothing live looks deleted."""
    server.streaming_lists = False
    transport = Stale(server)
    network = FaultyTransport(transport, Rates(), seed=1, clock=clock)
    cache: Cache[Any] = Cache(Client(network), CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    assert "resourceVersion" not in transport.queries[0]  # "0" would allow any age
    transport.queries.clear()
    before = await transport.send(Request(method="GET", path="/api/v1/configmaps"))
    await client.create(CONFIG_MAP, config_map("live"), "team")
    await clock.advance(1)
    assert len(cache) == 1

    network.rates = Rates(unsent=1.0)
    server.cut_watches()
    await clock.advance(1)
    await client.create(CONFIG_MAP, config_map("another"), "team")
    server.compact()
    transport.old = before
    network.calm()
    while "limit" not in transport.queries[-1]:
        await clock.advance(0.1)
    assert cache.get(Key("team", "live")) is not None
    transport.old = None
    await clock.advance(30)
    assert_equal(cache, server)


async def test_a_store_restored_from_a_backup_is_believed_after_some_time(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    await client.create(CONFIG_MAP, config_map("kept"), "team")
    backup = await Embedded(clock).start("team")
    old = await Client(backup.transport()).create(CONFIG_MAP, config_map("kept"), "team")
    for number in range(20):
        await client.create(CONFIG_MAP, config_map(f"lost{number}"), "team")
    transport = Door(server)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    transport.embedded = backup
    server.cut_watches()
    await clock.advance(1)
    assert len(cache) == 21  # not at once
    await clock.advance(1500)
    assert [key.name for key in cache] == ["kept"]
    assert cache.get(Key("team", "kept"))["metadata"]["uid"] == old["metadata"]["uid"]
    await backup.stop()


class Busy(Door):
    """A server that works on a list while others write, so that the watch is ahead of each list when it comes."""

    written = 0
    lists = 0
    clock: VirtualClock

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        answer = await super().send(request, timeout=timeout)
        if request.path.endswith("/configmaps"):
            self.lists += 1
            self.written += 1
            await Client(Door(self.embedded)).create(CONFIG_MAP, config_map(f"new{self.written}"), "team")
            await self.clock.settle()
        return answer


def _compares_with_what_came_meanwhile(patch: pytest.MonkeyPatch) -> None:
    judged = Feed._is_restored
    patch.setattr(Feed, "_is_restored", lambda self, revision, seen: judged(self, revision, self._seen))


@proven(without=_compares_with_what_came_meanwhile)
async def test_f860_a_list_that_the_watch_overtook_is_no_older_state_of_the_server(
    server: Embedded, client: Client, clock: VirtualClock, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """F860: an API server works on a list for so long that the watch is ahead of it when it comes, each time. Holds:
    that is no restored backup; nothing that is held goes back to an older revision."""
    await client.create(CONFIG_MAP, config_map("first"), "team")
    transport = Busy(server)
    transport.clock = clock
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    went_back: list[str] = []

    def watch(change: Change) -> None:
        if change.old is not None and change.kind != "added":
            went_back.append(f"{change.kind} {change.key}")

    cache.subscribe(watch)
    await clock.advance(3600)
    assert transport.lists >= 4
    assert went_back == []
    assert "went back" not in caplog.text
    assert_equal(cache, server)


def _own_writes_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "note_write", lambda self, obj: None)


@proven(without=_own_writes_are_not_noted)
async def test_f055_our_own_write_is_seen_before_the_watch_brings_it(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    """F55: our own cache has not seen our own write. Holds: reads see it, late older events do not undo it."""
    transport = FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)
    client = Client(transport)
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    transport.rates = Rates(delayed=1.0)  # the watch lags behind
    first = await client.create(CONFIG_MAP, config_map("a", n="1"), "team")
    second = await client.patch(CONFIG_MAP, "a", "team", {"data": {"n": "2"}})
    cache.note_write(second)
    assert cache.get(Key("team", "a"))["data"] == {"n": "2"}
    seen: list[str] = []
    cache.subscribe(lambda change: seen.append((change.new or {}).get("data", {}).get("n")))
    cache.note_write(first)  # answers may be noted late
    await clock.advance(30)
    assert seen == ["2"]

    cache.note_delete(second)
    await clock.advance(1)
    assert cache.get(Key("team", "a")) is None


def _every_list_knows_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.kube.cache.newer", lambda left, right: False)


@proven(without=_every_list_knows_all)
async def test_f055_a_list_begun_before_our_create_does_not_remove_it(client: Client, clock: VirtualClock) -> None:
    """F55: an answer older than our own create arrives after it. Holds: what we made stays."""
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock)
    before = str(int((await client.list_raw(CONFIG_MAP)).metadata.resource_version))
    cache.note_write(await client.create(CONFIG_MAP, config_map("mine"), "team"))
    cache.keep_only(set(), before)
    assert cache.get(Key("team", "mine")) is not None


def _names_are_identity(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "_is_another", lambda self, old, mark: False)


@proven(without=_names_are_identity)
async def test_f056_deleted_and_made_again_between_two_looks_is_another_object(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F56: deleted and recreated between two looks. Holds: the UID tells; old one removed, new one added."""
    old = await client.create(CONFIG_MAP, config_map("a"), "team")
    transport = FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    seen: list[Change] = []
    cache.subscribe(seen.append)
    seen.clear()
    transport.rates = Rates(unsent=1.0)
    server.cut_watches()
    await clock.advance(1)
    await client.delete(CONFIG_MAP, "a", "team")
    new = await client.create(CONFIG_MAP, config_map("a"), "team")
    server.compact()
    transport.calm()
    await clock.advance(60)
    assert [(change.kind, (change.old or change.new)["metadata"]["uid"]) for change in seen] == [
        ("removed", old["metadata"]["uid"]),
        ("added", new["metadata"]["uid"]),
    ]


# --- F57, F58


def _never_compare(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Feed) -> int:
        return 0

    patch.setattr(Feed, "compare", nothing)


@proven(without=_never_compare)
async def test_f057_events_lost_doubled_and_swapped_by_the_store_are_found(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F57: events are lost, doubled or reordered by the store itself. Holds: a cheap comparison finds and repairs."""
    transport = FaultyTransport(server.transport(), Rates(), seed=57, clock=clock)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    transport.rates = Rates(dropped=0.3, doubled=0.2, swapped=0.2)
    for number in range(200):
        name = f"c{number % 40}"
        if (Key("team", name)) in server_keys(server):
            await (client.delete if number % 3 else touch(client))(CONFIG_MAP, name, "team")
        else:
            await client.create(CONFIG_MAP, config_map(name), "team")
    await clock.settle()
    transport.calm()
    await clock.advance(2000)
    assert_equal(cache, server)
    assert cache.feed.counts.repairs >= 1


def _what_one_list_left_out_is_gone_for_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "_is_disproved", lambda self, removal, listed_at: False)


@proven(without=_what_one_list_left_out_is_gone_for_good)
async def test_f057_what_a_list_had_lost_comes_back_with_the_next(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F57: a list comes without some of its items. Holds: they look deleted only until the comparison finds them."""
    for number in range(5):
        await client.create(CONFIG_MAP, config_map(f"c{number}"), "team")
    transport = FaultyTransport(server.transport(), Rates(), seed=3, clock=clock)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    transport.rates = Rates(gone=1.0, dropped=0.4)
    server.cut_watches()
    await clock.advance(5)
    transport.calm()
    assert len(cache) < 5
    await clock.advance(2000)
    assert_equal(cache, server)


def touch(client: Client) -> Any:
    async def change(kind: Any, name: str, namespace: str) -> None:
        await client.patch(kind, name, namespace, {"data": {"touched": "yes"}})

    return change


def server_keys(server: Embedded) -> set[Key]:
    return {Key(*key) for key in server.snapshot(CONFIG_MAP)}


async def test_the_comparison_costs_no_list_while_all_is_well(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "team")
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await clock.advance(3600)
    assert cache.feed.counts.lists == 1 and cache.feed.counts.repairs == 0


def _no_back_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Backoff, "after", lambda self, error=None: 0.05)


@pytest.mark.parametrize("fault", ["throttled", "server_error", "unsent"])
@proven(without=_no_back_off)
async def test_f058_a_storm_of_refusals_is_met_with_patience(
    server: Embedded, client: Client, clock: VirtualClock, start: Start, fault: str
) -> None:
    """F58: storms of 429, 5xx or refused connections. Holds: few requests, Retry-After kept, progress resumes."""
    transport = FaultyTransport(server.transport(), Rates(**{fault: 1.0}), seed=1, clock=clock)
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await clock.advance(60)
    assert 5 <= len(transport.sent) <= 30
    assert cache.trouble is not None
    transport.calm()
    await client.create(CONFIG_MAP, config_map("a"), "team")
    await clock.advance(10)
    assert len(cache) == 1 and cache.trouble is None


def _every_failure_is_repeated_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "_failed", lambda self, key, error: self.enqueue(key, 0.05))


@proven(without=_every_failure_is_repeated_at_once)
async def test_f058_a_write_that_is_denied_is_not_tried_in_a_hot_loop(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    """F58: every write of one kind is answered 403. Holds: its keys are tried ever more rarely, others go on at once,
    and once allowed the work is done."""
    transport = FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)
    writer = Writes(Client(transport), clock=clock).writer("test")
    server.refusals["api/v1/pods"] = (403, "Forbidden", 'User "shoal" cannot create resource "pods"')

    async def reconcile(key: Key) -> None:
        if key.name == "denied":
            await writer.create(POD, pod("denied"))
        else:
            await writer.create(CONFIG_MAP, config_map(key.name))

    controller: Controller[Key] = Controller("test", reconcile, clock=clock, random=Random(1))
    start(controller.run())
    controller.enqueue(Key("team", "denied"))
    await clock.advance(600)
    assert 5 <= transport.sent.count(("POST", "/api/v1/namespaces/team/pods")) <= 25
    controller.enqueue(Key("team", "other"))
    await clock.advance(0.1)
    assert ("team", "other") in server.snapshot(CONFIG_MAP)
    server.refusals.clear()
    await clock.advance(61)
    assert ("team", "denied") in server.snapshot(POD)


class Slow(Door):
    """A server that answers a list after 50 seconds."""

    clock: VirtualClock

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method == "GET" and "limit" in request.query and timeout is not None:
            await self.clock.sleep(min(timeout, 50))
            if timeout < 50:
                raise Unsent("no answer in time")
        return await super().send(request, timeout=timeout)


def _gives_up_as_with_any_request(patch: pytest.MonkeyPatch) -> None:
    listed = Client.list_raw

    async def hurried(self: Client, *given: Any, **named: Any) -> Any:
        return await listed(self, *given, **{**named, "timeout": None})

    patch.setattr(Client, "list_raw", hurried)


@proven(without=_gives_up_as_with_any_request)
async def test_f863_a_list_is_waited_for_as_long_as_a_server_works_on_it(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F863: an API server is so busy that a list takes most of a minute. Holds: it is waited for; to give up and ask
    again would make the server busier, and a controller that starts then would never begin."""
    await client.create(CONFIG_MAP, config_map("first"), "team")
    server.streaming_lists = False
    transport = Slow(server)
    transport.clock = clock
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await clock.advance(120)
    assert cache.synced.is_set()
    assert_equal(cache, server)


class Losing(Door):
    """A server, or something on the way to it, that never answers the first so many lists, streamed or in pages."""

    clock: VirtualClock
    lost = 0

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method == "GET" and "limit" in request.query and timeout is not None and self.lost:
            self.lost -= 1
            await self.clock.sleep(timeout)
            raise Unknown("no answer in time")
        return await super().send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        if "sendInitialEvents" in request.query and self.lost:
            self.lost -= 1
            await self.clock.sleep(idle_timeout or 1e9)
            raise Unknown("idle too long")
        async with super().stream(request, idle_timeout=idle_timeout) as stream:
            yield stream


def _asks_once(patch: pytest.MonkeyPatch) -> None:
    async def once(ask: Any, limit: float, **rest: Any) -> Any:
        return await ask(limit)

    patch.setattr(feed, "first_answer", once)


@proven(without=_asks_once)
@pytest.mark.parametrize(("lost", "seconds"), [(2, 11), (3, 41)])
async def test_f874_lists_that_are_never_answered_do_not_keep_a_controller_from_starting(
    server: Embedded, client: Client, clock: VirtualClock, start: Start, lost: int, seconds: float
) -> None:
    """F874: at the start the API server never answers the first list of a kind, nor the second. Holds: each is asked
    for once more beside the first after some seconds, so that the controller begins; before, after minutes."""
    await client.create(CONFIG_MAP, config_map("first"), "team")
    transport = Losing(server)
    transport.clock, transport.lost = clock, lost
    cache: Cache[Any] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    start(cache.run())
    await clock.advance(seconds + 1)
    assert cache.synced.is_set()
    assert_equal(cache, server)


async def test_a_refusal_is_an_answer_and_the_second_request_ends_with_it(clock: VirtualClock) -> None:
    ended: list[int] = []
    told: list[float] = []

    async def ask(limit: float) -> str:
        turn = len(told)
        try:
            await clock.sleep(2 if turn else 1e9)
        finally:
            ended.append(turn)
        raise Forbidden("no", {}, 403)

    asked = asyncio.ensure_future(
        first_answer(ask, 30, after=8, clock=clock, told=lambda: told.append(clock.monotonic()))
    )
    await clock.advance(11)
    assert isinstance(asked.exception(), Forbidden)
    assert (sorted(ended), told) == ([0, 1], [8])


MATCH = "resourceVersionMatch"


class Unknowing(Door):
    """A server that passes over what it does not know: it sends all objects as they are, and never an end mark."""

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        known = {name: value for name, value in request.query.items() if name not in ("sendInitialEvents", MATCH)}
        plain = msgspec.structs.replace(request, query=known)
        async with super().stream(plain, idle_timeout=idle_timeout) as stream:
            yield stream


def _waits_while_events_come(patch: pytest.MonkeyPatch) -> None:
    whole = Feed.__init__

    def patient(self: Feed, *given: Any, settings: FeedSettings, **named: Any) -> None:
        whole(self, *given, settings=msgspec.structs.replace(settings, stream_limit=1e9), **named)

    patch.setattr(Feed, "__init__", patient)


@proven(without=_waits_while_events_come)
async def test_f875_a_streamed_list_without_an_end_is_left_although_changes_keep_coming(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F875: a server does not know streamed lists and sends no end mark, and objects of the kind keep changing. Holds:
    after a minute a plain list takes its place; else the cache would never count as read, and nothing would start."""
    cache: Cache[Any] = Cache(Client(Unknowing(server)), CONFIG_MAP, clock=clock)
    start(cache.run())
    for turn in range(70):
        await client.create(CONFIG_MAP, config_map(f"number-{turn}"), "team")
        await clock.advance(1)
    assert cache.synced.is_set()
    assert_equal(cache, server)
