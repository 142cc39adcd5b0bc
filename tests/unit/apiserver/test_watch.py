"""Watches: ordered, unique, gapless, resumable, and their bookmarks promise only what was delivered (I26)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, EVENT, EVENTS_EVENT, POD
from shoal.kube.client import Client
from shoal.kube.errors import Gone
from shoal.kube.transport import Request
from shoal.local.apiserver import Server
from tests.patience import PATIENCE
from tests.unit.apiserver.builders import config_map, pod
from tests.unit.apiserver.conftest import ManualClock, turns


class Watch:
    """A watch that runs in the background and remembers what it saw."""

    def __init__(
        self, client: Client, kind: Kind = CONFIG_MAP, namespace: str | None = "default", **options: Any
    ) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.bookmarks: list[int] = []
        self.error: Exception | None = None
        self._run = asyncio.ensure_future(self._follow(client, kind, namespace, options))

    async def _follow(self, client: Client, kind: Kind, namespace: str | None, options: dict[str, Any]) -> None:
        try:
            async for event in client.watch(kind, namespace, **options):
                metadata = msgspec.json.decode(event.object)["metadata"]
                revision = int(metadata["resourceVersion"])
                if event.type == "BOOKMARK":
                    self.bookmarks.append(revision)
                else:
                    self.seen.append((event.type, metadata["name"], revision))
        except Gone as error:
            self.error = error

    async def events(self) -> list[tuple[str, str]]:
        await turns()
        return [(kind, name) for kind, name, _ in self.seen]

    async def ended(self) -> list[tuple[str, str]]:
        """What it saw until it ended by itself, which it must within seconds."""
        await asyncio.wait_for(self._run, PATIENCE)
        return await self.events()

    async def stop(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)


async def test_changes_arrive_in_order(client: Client) -> None:
    watch = Watch(client, resource_version="1")
    await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "1"}})
    await client.delete(CONFIG_MAP, "a", "default")
    assert await watch.events() == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    revisions = [revision for _, _, revision in watch.seen]
    assert revisions == sorted(set(revisions))
    await watch.stop()


async def test_resuming_from_any_event_gives_exactly_the_rest(client: Client) -> None:
    watch = Watch(client, resource_version="1")
    for index in range(10):
        await client.create(CONFIG_MAP, config_map(f"c{index % 3}-{index}"), "default")
        if index % 2:
            await client.delete(CONFIG_MAP, f"c{index % 3}-{index}", "default")
    await turns()
    for position, (_, _, revision) in enumerate(watch.seen):
        again = Watch(client, resource_version=str(revision))
        await turns()
        assert again.seen == watch.seen[position + 1 :]
        await again.stop()
    await watch.stop()


async def test_streaming_list_ends_with_its_bookmark(client: Client) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default")
    watch = Watch(client, send_initial_events=True)
    assert await watch.events() == [("ADDED", "a")]
    assert len(watch.bookmarks) == 1
    await client.create(CONFIG_MAP, config_map("b"), "default")
    assert await watch.events() == [("ADDED", "a"), ("ADDED", "b")]
    await watch.stop()


async def test_bookmarks_come_by_the_minute_and_promise_what_was_told(client: Client, clock: ManualClock) -> None:
    watch = Watch(client, resource_version="1")
    made = await client.create(CONFIG_MAP, config_map("a"), "default")
    await clock.advance(61)
    assert watch.bookmarks == [int(made["metadata"]["resourceVersion"])]
    await client.create(POD, pod("p"), "default")  # another kind: the revision goes on, this watch has nothing to tell
    await clock.advance(61)
    assert watch.bookmarks[1] == watch.bookmarks[0] + 1
    await watch.stop()


async def test_timeout_ends_a_watch(client: Client, clock: ManualClock) -> None:
    watch = Watch(client, resource_version="1", timeout_seconds=30)
    await clock.advance(31)
    await watch.ended()
    assert watch.error is None


async def test_selectors_turn_changes_into_arrivals_and_departures(client: Client) -> None:
    watch = Watch(client, label_selector="color=red", resource_version="1")
    await client.create(CONFIG_MAP, {"metadata": {"name": "a", "labels": {"color": "blue"}}}, "default")
    await client.patch(CONFIG_MAP, "a", "default", {"metadata": {"labels": {"color": "red"}}})
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "1"}})
    await client.patch(CONFIG_MAP, "a", "default", {"metadata": {"labels": {"color": "blue"}}})
    await client.delete(CONFIG_MAP, "a", "default")
    assert await watch.events() == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    await watch.stop()


async def test_forgotten_history_is_gone(server: Server, client: Client) -> None:
    for index in range(4):
        await client.create(CONFIG_MAP, config_map(f"c{index}"), "default")
    server.storage.collection("configmaps").compact(2)
    with pytest.raises(Gone):
        async for _ in client.watch(CONFIG_MAP, "default", resource_version="1"):
            pass


async def test_a_watcher_that_falls_behind_is_told_to_start_again(server: Server, client: Client) -> None:
    events = client.watch(CONFIG_MAP, "default", resource_version="1")
    await client.create(CONFIG_MAP, config_map("first"), "default")
    assert (await anext(events)).type == "ADDED"
    for index in range(4):
        await client.create(CONFIG_MAP, config_map(f"c{index}"), "default")
    server.storage.collection("configmaps").compact(4)
    with pytest.raises(Gone):
        while True:
            await anext(events)


async def test_other_namespaces_are_not_told(client: Client) -> None:
    everywhere, here = Watch(client, namespace=None, resource_version="1"), Watch(client, resource_version="1")
    await client.create(CONFIG_MAP, config_map("a"), "kube-system")
    assert await everywhere.events() == [("ADDED", "a")] and await here.events() == []
    await everywhere.stop()
    await here.stop()


async def test_events_are_seen_under_both_groups(client: Client) -> None:
    watch = Watch(client, kind=EVENTS_EVENT, resource_version="1")
    await client.create(
        EVENT,
        {
            "metadata": {"name": "e"},
            "message": "hello",
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Why",
            "type": "Normal",
        },
        "default",
    )
    assert await watch.events() == [("ADDED", "e")]
    assert (await client.get(EVENTS_EVENT, "e", "default"))["note"] == "hello"
    await watch.stop()


async def test_stopping_the_server_ends_watches(server: Server, client: Client) -> None:
    watch = Watch(client, resource_version="1")
    await turns()
    server.reader.stop()
    assert await watch.ended() == []


async def test_a_watch_without_initial_events_begins_now(client: Client, server: Server) -> None:
    await client.create(CONFIG_MAP, config_map("before"), "default")
    query = {"watch": "1", "sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    request = Request(method="GET", path="/api/v1/namespaces/default/configmaps", query=query)
    async with server.transport().stream(request) as chunks:
        await client.create(CONFIG_MAP, config_map("after"), "default")
        first = await anext(aiter(chunks))
    assert b'"after"' in first and b'"before"' not in first


async def test_the_old_way_to_watch_one_object(client: Client, server: Server) -> None:
    for name in ("one", "other"):
        await client.create(CONFIG_MAP, config_map(name), "default")
    request = Request(method="GET", path="/api/v1/watch/namespaces/default/configmaps/one")
    async with server.transport().stream(request) as chunks:
        first = await anext(aiter(chunks))
    assert b'"one"' in first and b'"other"' not in first
