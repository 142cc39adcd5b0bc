"""The cache as controllers use it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP, POD
from shoal.api.meta import Json, Object, Part
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.compact import cutter
from shoal.kube.feed import FeedSettings
from shoal.kube.transport import Request, Stream, Transport
from tests.embedded import Embedded
from tests.faults import proven

from .conftest import Start
from .samples import bound_to, config_map, pod


class PodSpec(Part):
    node_name: str = ""


class Pod(Object):
    spec: PodSpec = PodSpec()


def names(cache: Cache[object]) -> list[str]:
    return sorted(key.name for key in cache)


async def test_it_holds_what_the_server_holds_and_follows_changes(
    client: Client, clock: VirtualClock, start: Start
) -> None:
    await client.create(CONFIG_MAP, config_map("a", colour="red"), "team")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)
    seen: list[Change] = []
    cache.subscribe(seen.append)
    start(cache.run())
    await cache.synced.wait()
    assert cache.get(Key("team", "a"))["data"] == {"colour": "red"}

    await client.patch(CONFIG_MAP, "a", "team", {"data": {"colour": "blue"}})
    await client.create(CONFIG_MAP, config_map("b"), "team")
    await client.delete(CONFIG_MAP, "a", "team")
    await clock.settle()

    assert [(change.kind, change.key.name) for change in seen] == [
        ("added", "a"), ("changed", "a"), ("added", "b"), ("removed", "a")
    ]  # fmt: skip
    assert seen[1].old["data"] == {"colour": "red"} and seen[1].new["data"] == {"colour": "blue"}
    assert seen[3].new is None
    assert names(cache) == ["b"]


def removals_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.kube.cache.REMEMBERED_FOR", 1e9)


@proven(without=removals_are_never_forgotten)
async def test_f710_removed_objects_are_forgotten_after_a_while(
    client: Client, clock: VirtualClock, start: Start
) -> None:
    """F710: objects come and go for days, in every cache. Holds: a cache remembers those that were removed within the
    last half hour, and none that went before."""
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    for number in range(12):
        await client.create(CONFIG_MAP, config_map(f"of-{number}"), "team")
        await clock.settle()
        await client.delete(CONFIG_MAP, f"of-{number}", "team")
        await clock.advance(600)
    assert names(cache) == [] and 0 < cache.remembered <= 4


async def test_a_late_subscriber_is_told_what_is_there(client: Client, clock: VirtualClock, start: Start) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "team")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    seen: list[Change] = []
    end = cache.subscribe(seen.append)
    assert [change.key.name for change in seen] == ["a"]
    end()
    await client.delete(CONFIG_MAP, "a", "team")
    await clock.settle()
    assert len(seen) == 1


async def test_typed_objects_and_indexes(client: Client, clock: VirtualClock, start: Start) -> None:
    for name, node in [("a", "n1"), ("b", ""), ("c", "n2")]:
        await client.create(POD, pod(name, node=node), "team")
    cache = Cache(client, POD, Pod, clock=clock, indexes={"node": lambda pod: [pod.spec.node_name]})
    start(cache.run())
    await cache.synced.wait()
    assert [found.metadata.name for found in cache.by_index("node", "")] == ["b"]
    assert cache.get(Key("team", "a")).kind == "Pod"

    await client.create(POD, bound_to("n2"), "team", name="b", subresource="binding")
    await clock.settle()
    assert [found.metadata.name for found in cache.by_index("node", "n1")] == ["a"]
    assert cache.by_index("node", "") == []
    assert sorted(found.metadata.name for found in cache.by_index("node", "n2")) == ["b", "c"]
    assert cache.by_index("node", "elsewhere") == []


async def test_selectors_and_namespaces_narrow_it(client: Client, clock: VirtualClock, start: Start) -> None:
    await client.create(CONFIG_MAP, config_map("a", labels={"app": "web"}), "team")
    await client.create(CONFIG_MAP, config_map("b"), "team")
    await client.create(CONFIG_MAP, config_map("c", namespace="default", labels={"app": "web"}), "default")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock, namespace="team", label_selector="app=web")
    start(cache.run())
    await cache.synced.wait()
    assert names(cache) == ["a"]
    await client.patch(CONFIG_MAP, "a", "team", {"metadata": {"labels": {"app": "db"}}})
    await clock.settle()
    assert names(cache) == []  # it left the selection


@pytest.mark.parametrize("streaming", [True, False])
async def test_it_loads_from_servers_with_and_without_streaming_lists(
    server: Embedded, client: Client, clock: VirtualClock, start: Start, streaming: bool
) -> None:
    server.streaming_lists = streaming
    for number in range(3):
        await client.create(CONFIG_MAP, config_map(f"c{number}"), "team")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    await client.create(CONFIG_MAP, config_map("later"), "team")
    await clock.settle()
    assert len(cache) == 4
    assert cache.feed.counts.lists == 1


async def test_long_lists_come_in_pages(client: Client, clock: VirtualClock, start: Start) -> None:
    for number in range(2100):
        await client.create(CONFIG_MAP, config_map(f"c{number}"), "team")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock, settings=FeedSettings(streaming_lists=False))
    start(cache.run())
    await cache.synced.wait()
    assert len(cache) == 2100


async def test_a_deleted_and_remade_object_is_removed_then_added(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "team")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    seen: list[Change] = []
    cache.subscribe(seen.append)
    await client.delete(CONFIG_MAP, "a", "team")
    await client.create(CONFIG_MAP, config_map("a"), "team")
    await clock.settle()
    assert [change.kind for change in seen] == ["added", "removed", "added"]


async def test_raw_fields_keep_only_their_own_object_alive(client: Client, clock: VirtualClock, start: Start) -> None:
    class Templated(Object):
        spec: msgspec.Raw = msgspec.Raw(b"{}")

    await client.create(POD, pod("a"), "team")
    cache = Cache(client, POD, Templated, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    held = cache.get(Key("team", "a"))
    assert msgspec.json.decode(held.spec)["containers"][0]["name"] == "main"

    written = await client.patch(POD, "a", "team", {"spec": {"activeDeadlineSeconds": 60}})
    cache.note_write(written)  # a dictionary, into a cache of types with undecoded parts
    assert msgspec.json.decode(cache.get(Key("team", "a")).spec)["activeDeadlineSeconds"] == 60


async def test_equal_parts_of_objects_can_be_stored_once(client: Client, clock: VirtualClock, start: Start) -> None:
    for name in ("a", "b"):
        await client.create(POD, pod(name, labels={"app": "ray"}), "team")
    cache = Cache(client, POD, Pod, clock=clock, share=True)
    start(cache.run())
    await cache.synced.wait()
    first, second = (cache.get(Key("team", name)) for name in ("a", "b"))
    assert first.spec is second.spec and first.metadata.namespace is second.metadata.namespace
    assert (first.metadata.name, second.metadata.name) == ("a", "b")
    assert first.metadata.labels == second.metadata.labels == {"app": "ray"}
    await client.create(POD, bound_to("n2"), "team", name="a", subresource="binding")
    await clock.settle()
    assert cache.get(Key("team", "a")).spec.node_name == "n2" and second.spec.node_name == ""


async def test_texts_of_dictionaries_can_be_stored_once(client: Client, clock: VirtualClock, start: Start) -> None:
    for name in ("a", "b"):
        await client.create(POD, pod(name, labels={"app": "ray"}), "team")
    cache: Cache[dict] = Cache(client, POD, clock=clock, share=True)
    start(cache.run())
    await cache.synced.wait()
    first, second = (cache.get(Key("team", name)) for name in ("a", "b"))
    assert first["metadata"]["labels"]["app"] is second["metadata"]["labels"]["app"]
    assert first["spec"]["containers"][0]["image"] is second["spec"]["containers"][0]["image"]
    assert first["spec"] is not second["spec"]  # what a reader might change by mistake stays its object's own
    assert first == await client.get(POD, "a", "team") | {"metadata": first["metadata"]}


async def test_dictionaries_are_held_without_what_no_controller_reads(
    client: Client, clock: VirtualClock, start: Start
) -> None:
    await client.patch(CONFIG_MAP, "a", "team", config_map("a", n="1"), patch_type="apply")
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)
    start(cache.run())
    await cache.synced.wait()
    assert "managedFields" not in cache.get(Key("team", "a"))["metadata"]
    written = await client.patch(CONFIG_MAP, "a", "team", config_map("a", n="2"), patch_type="apply")
    cache.note_write(written)
    assert cache.get(Key("team", "a"))["data"] == {"n": "2"}
    assert "managedFields" not in cache.get(Key("team", "a"))["metadata"]
    assert "managedFields" in written["metadata"]  # the caller's own


def test_an_undecoded_part_keeps_only_itself_alive() -> None:
    class Templated(Object):
        spec: msgspec.Raw = msgspec.Raw(b"{}")
        others: tuple[msgspec.Raw, ...] = ()

    cut = cutter(Templated)
    assert cut is not None and cutter(Pod) is None
    tracemalloc.start()
    message = msgspec.json.encode({"spec": {"a": 1}, "others": [{"b": 2}], "long": "x" * 10_000_000})
    held = cut(msgspec.json.decode(message, type=Templated))
    del message
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bytes(held.spec) == b'{"a":1}' and bytes(held.others[0]) == b'{"b":2}'
    assert kept < 1_000_000


async def test_a_failing_subscriber_does_not_stop_the_others(client: Client, clock: VirtualClock, start: Start) -> None:
    cache: Cache[dict] = Cache(client, CONFIG_MAP, clock=clock)

    def bad(change: Change) -> None:
        raise RuntimeError("mine")

    seen: list[Change] = []
    cache.subscribe(bad)
    cache.subscribe(seen.append)
    start(cache.run())
    await cache.synced.wait()
    await client.create(CONFIG_MAP, config_map("a"), "team")
    await clock.settle()
    assert [change.key.name for change in seen] == ["a"]


class Stopping(Transport):
    """A server that answers every watch with a bookmark of where it is and ends it, as one does that shuts down."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.opened = inner, 0
        self.send, self.close = inner.send, inner.close

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        self.opened += 1
        if self.opened > 100:
            await asyncio.Event().wait()
        mark = {"resourceVersion": request.query["resourceVersion"]}
        yield Lines([{"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": mark}}])


class Lines(Stream):
    status = 200
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, events: list[Json]) -> None:
        self._lines = [msgspec.json.encode(event) + b"\n" for event in events]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line


async def test_a_server_that_ends_every_watch_at_once_is_asked_less_and_less(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    transport = Stopping(server.transport())
    settings = FeedSettings(streaming_lists=False)
    cache: Cache[dict] = Cache(Client(transport), CONFIG_MAP, clock=clock, settings=settings)
    start(cache.run())
    await cache.synced.wait()
    await clock.settle()
    assert transport.opened == 1
    await clock.advance(30.0)
    assert 2 < transport.opened < 20


class Mute(Transport):
    """A server that accepts every watch and says nothing; leaving one takes a moment."""

    def __init__(self, inner: Transport) -> None:
        self.send, self.close = inner.send, inner.close
        self.leaving, self.left = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        try:
            await asyncio.Event().wait()
            yield Lines([])
        finally:
            self.leaving.set()
            await self.left.wait()


async def test_a_cache_that_is_cancelled_while_it_leaves_a_silent_watch_ends(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    """After a pause of the whole process, the silence of a watch and the end of a lease come at the same moment."""
    transport = Mute(server.transport())
    cache: Cache[dict] = Cache(Client(transport), CONFIG_MAP, clock=clock)
    running = asyncio.ensure_future(cache.run())
    await clock.advance(10.0)
    await transport.leaving.wait()
    running.cancel()
    transport.left.set()
    await clock.settle()
    assert running.cancelled()
