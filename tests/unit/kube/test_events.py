"""Events: sent in the background, repeated ones counted, floods thinned."""

from __future__ import annotations

import asyncio

import pytest

from shoal.api.kinds import EVENT, POD
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.events import Recorder
from tests.faults import proven

from .samples import pod


async def test_repeated_events_are_counted(client: Client, clock: VirtualClock) -> None:
    about = await client.create(POD, pod("a"), "team")
    recorder = Recorder(client, "shoal", clock=clock)
    recorder.event(about, "Normal", "Held", "3 CPUs short")
    await clock.advance(5)
    recorder.event(about, "Normal", "Held", "3 CPUs short")
    recorder.event(about, "Normal", "Held", "2 CPUs short")
    await recorder.flush()
    found = await client.list(EVENT, "team")
    by_message = {event["message"]: event for event in found}
    assert {message: event["count"] for message, event in by_message.items()} == {"3 CPUs short": 2, "2 CPUs short": 1}
    counted = by_message["3 CPUs short"]
    assert counted["involvedObject"]["uid"] == about["metadata"]["uid"]
    assert counted["firstTimestamp"] != counted["lastTimestamp"]
    await recorder.close()


def nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.kube.events.KEPT", 1e9)
    monkeypatch.setattr("shoal.kube.events.SIMILAR_WINDOW", 1e9)
    monkeypatch.setattr("shoal.kube.events.REFILL", 1e9)


@proven(without=nothing_is_forgotten)
async def test_f587_events_of_objects_that_are_gone_are_not_remembered(client: Client, clock: VirtualClock) -> None:
    """F587: objects come and go for days, each with its events. Holds: what a recorder remembers of one is forgotten
    once the server keeps its events no longer; an event within that time is counted, not sent again."""
    recorder = Recorder(client, "shoal", clock=clock)
    for name in ("a", "b", "c"):
        about = await client.create(POD, pod(name), "team")
        for _ in range(2):
            recorder.event(about, "Normal", "Held", "3 CPUs short")
            await recorder.flush()
            await clock.advance(1500)
        assert {one["count"] for one in await client.list(EVENT, "team")} == {2}
        await clock.advance(3 * 3600)
    assert recorder.remembered <= 3
    await recorder.close()


async def test_a_flood_about_one_object_is_thinned(client: Client, clock: VirtualClock) -> None:
    about = await client.create(POD, pod("a"), "team")
    recorder = Recorder(client, "shoal", clock=clock)
    for number in range(200):
        recorder.event(about, "Warning", "Failed", f"attempt {number}")
    await recorder.flush()
    found = await client.list(EVENT, "team")
    assert len(found) == 11  # ten texts, then one that is counted
    assert sum(event["count"] for event in found) == 25
    assert recorder.dropped == 175
    await recorder.close()


async def test_events_give_way_to_what_is_more_urgent(client: Client, clock: VirtualClock) -> None:
    """In a rush they wait, with the moment they tell of; not for ever, though."""
    about = await client.create(POD, pod("a"), "team")
    quiet = asyncio.Event()

    async def calm() -> None:
        await quiet.wait()

    recorder = Recorder(client, "shoal", clock=clock, calm=calm)
    recorder.event(about, "Normal", "Held", "first")
    await clock.advance(9)
    assert await client.list(EVENT, "team") == []
    await clock.advance(1)
    await recorder.flush()
    recorder.event(about, "Normal", "Held", "second")
    await clock.advance(1)
    assert [event["message"] for event in await client.list(EVENT, "team")] == ["first"]
    quiet.set()
    await recorder.flush()
    assert {event["message"] for event in await client.list(EVENT, "team")} == {"first", "second"}
    await recorder.close()


async def test_a_flood_of_events_does_not_wait(client: Client, clock: VirtualClock) -> None:
    """More than half a queue is sent at once; the rest gives way again."""
    pods = [await client.create(POD, pod(f"a{number}"), "team") for number in range(510)]
    asked = asyncio.Event()

    async def never_calm() -> None:
        asked.set()
        await asyncio.Event().wait()

    recorder = Recorder(client, "shoal", clock=clock, calm=never_calm)
    for about in pods:
        recorder.event(about, "Normal", "Held", "3 CPUs short")
    await asked.wait()
    assert len(await client.list(EVENT, "team")) == 9  # the tenth left five hundred behind it
    await recorder.close()


def _names_by_chance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "_name", lambda self, about, same: f"{about['name']}.{id(self):x}")


@proven(without=_names_by_chance)
async def test_f046_events_are_counted_on_after_a_restart(client: Client, clock: VirtualClock) -> None:
    """F46: counts are in memory only. Holds: a restarted recorder goes on from what is stored."""
    about = await client.create(POD, pod("a"), "team")
    for _ in range(3):
        recorder = Recorder(client, "shoal", clock=clock)
        recorder.event(about, "Normal", "Held", "3 CPUs short")
        recorder.event(about, "Normal", "Held", "3 CPUs short")
        await recorder.flush()
        await recorder.close()
    assert [event["count"] for event in await client.list(EVENT, "team")] == [6]
