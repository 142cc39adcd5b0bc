"""Writing: nothing in vain, nothing twice, fair between controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.api.meta import Json
from shoal.kube import writes as writes_module
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import AlreadyExists, Conflict, Invalid, Unknown
from shoal.kube.slots import FairSlots
from shoal.kube.writes import Writer, Writes, contains, would_change
from tests.embedded import Embedded
from tests.faults import proven
from tests.faulty import FaultyTransport, Rates

from .samples import config_map


@pytest.fixture
def network(server: Embedded, clock: VirtualClock) -> FaultyTransport:
    return FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)


@pytest.fixture
def writer(network: FaultyTransport, clock: VirtualClock) -> Writer:
    return Writes(Client(network), clock=clock, random=Random(1)).writer("test")


async def passing(clock: VirtualClock, work: Awaitable[Any], seconds: float = 300) -> Any:
    """The outcome of something that waits on the virtual clock."""
    task = asyncio.ensure_future(work)
    await clock.advance(seconds)
    return await task


@pytest.mark.parametrize(
    "change, changes",
    [
        ({"data": {"n": "1"}}, False),
        ({"data": {"n": "2"}}, True),
        ({"data": {"gone": None}}, False),
        ({"data": {"n": None}}, True),
        ({"metadata": {"labels": {"app": "web"}}}, True),
        ({"metadata": {"labels": {}}}, False),
        ({"data": None}, True),
    ],
)
def test_which_patches_would_change_anything(change: Json, changes: bool) -> None:
    assert would_change(config_map("a", n="1"), change) == changes


def test_an_answer_contains_what_was_asked_for_although_the_server_added_to_it() -> None:
    wanted = {"spec": {"containers": [{"name": "main"}], "tolerations": None}}
    assert contains({"spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Always"}}, wanted)
    assert not contains({"spec": {"containers": [{"name": "main"}, {"name": "extra"}]}}, wanted)


def _every_patch_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writes_module, "would_change", lambda obj, change: True)


@proven(without=_every_patch_counts)
async def test_f061_a_write_that_changes_nothing_is_not_sent(network: FaultyTransport, writer: Writer) -> None:
    """F61: a write that changes nothing, in a loop. Holds: it never leaves the process."""
    obj = await writer.create(CONFIG_MAP, config_map("a", n="1"))
    network.sent.clear()
    for _ in range(10):
        obj = await writer.patch(CONFIG_MAP, obj, {"data": {"n": "2"}})
        obj = await writer.update(CONFIG_MAP, obj, {**obj})
    assert [method for method, _ in network.sent] == ["PATCH"]


async def test_a_change_carries_the_revision_that_it_was_decided_on(client: Client, writer: Writer) -> None:
    seen = await writer.create(CONFIG_MAP, config_map("a", n="1"))
    await client.patch(CONFIG_MAP, "a", "team", {"data": {"n": "theirs"}})
    with pytest.raises(Conflict):
        await writer.patch(CONFIG_MAP, seen, {"data": {"n": "2"}})
    with pytest.raises(Conflict):
        await writer.update(CONFIG_MAP, seen, {**seen, "data": {"n": "2"}})
    assert (await client.get(CONFIG_MAP, "a", "team"))["data"] == {"n": "theirs"}


async def test_a_delete_hits_only_that_very_object(client: Client, writer: Writer) -> None:
    ours = await writer.create(CONFIG_MAP, config_map("a"))
    await client.delete(CONFIG_MAP, "a", "team")
    theirs = await client.create(CONFIG_MAP, config_map("a"), "team")
    assert await writer.delete(CONFIG_MAP, ours) is False
    assert (await client.get(CONFIG_MAP, "a", "team"))["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert await writer.delete(CONFIG_MAP, theirs) is True
    assert await writer.delete(CONFIG_MAP, theirs) is False


async def test_a_delete_may_insist_on_the_state_that_was_seen(client: Client, writer: Writer) -> None:
    seen = await writer.create(CONFIG_MAP, config_map("a", n="1"))
    await client.patch(CONFIG_MAP, "a", "team", {"data": {"n": "2"}})
    with pytest.raises(Conflict):
        await writer.delete(CONFIG_MAP, seen, unchanged=True)


async def test_a_strangers_object_of_that_name_is_not_taken_for_ours(client: Client, writer: Writer) -> None:
    await client.create(CONFIG_MAP, config_map("a", n="theirs"), "team")
    with pytest.raises(AlreadyExists):
        await writer.create(CONFIG_MAP, config_map("a", n="ours"))


def _repeat_blindly(patch: pytest.MonkeyPatch) -> None:
    async def run(
        self: Writes, owner: str, send: Callable[[], Awaitable[Any]], look: Callable[[], Awaitable[Any]], attempts: int
    ) -> Any:
        while True:
            try:
                return await send()
            except Unknown:
                continue

    patch.setattr(Writes, "run", run)


@pytest.mark.parametrize("fault", ["lost_answer", "lost_request"])
@proven(without=_repeat_blindly)
async def test_f050_a_write_of_unknown_fate_is_looked_up_before_it_is_repeated(
    network: FaultyTransport, writer: Writer, client: Client, clock: VirtualClock, fault: str
) -> None:
    """F50: a write times out, done or not done. Holds: the next step for that key is a read; it acts once."""
    broken = Rates(**{fault: 1.0})

    async def struck(work: Awaitable[Any]) -> Any:
        """Let the first request be lost and the rest pass."""
        network.rates = broken
        network.sent.clear()
        task = asyncio.ensure_future(work)
        await clock.settle()
        network.calm()
        await clock.advance(120)
        outcome = await task
        assert [method for method, _ in network.sent][1] == "GET"
        return outcome

    obj = await struck(writer.create(CONFIG_MAP, config_map("a", n="1")))
    assert obj["metadata"]["uid"] == (await client.get(CONFIG_MAP, "a", "team"))["metadata"]["uid"]
    obj = await struck(writer.patch(CONFIG_MAP, obj, {"data": {"n": "2"}}))
    assert (await client.get(CONFIG_MAP, "a", "team"))["metadata"]["resourceVersion"] == obj["metadata"][
        "resourceVersion"
    ]
    obj = await struck(writer.update(CONFIG_MAP, obj, {**obj, "data": {"n": "3"}}))
    assert obj["data"] == {"n": "3"}
    assert await struck(writer.delete(CONFIG_MAP, obj)) is True
    assert await client.list(CONFIG_MAP) == []


async def test_after_an_unknown_fate_someone_elses_change_is_a_conflict(
    network: FaultyTransport, writer: Writer, client: Client, clock: VirtualClock
) -> None:
    obj = await writer.create(CONFIG_MAP, config_map("a", n="1"))
    network.rates = Rates(lost_request=1.0)
    task = asyncio.ensure_future(writer.patch(CONFIG_MAP, obj, {"data": {"n": "2"}}))
    await clock.settle()
    network.calm()
    await client.patch(CONFIG_MAP, "a", "team", {"data": {"n": "theirs"}})
    await clock.advance(120)
    with pytest.raises(Conflict, match="changed by another client"):
        await task


async def test_what_was_certainly_not_done_is_tried_again(
    network: FaultyTransport, writer: Writer, clock: VirtualClock
) -> None:
    network.rates = Rates(throttled=1.0)
    task = asyncio.ensure_future(writer.create(CONFIG_MAP, config_map("a")))
    await clock.advance(1.5)
    assert len(network.sent) == 2  # Retry-After was one second
    network.calm()
    await clock.advance(10)
    assert (await task)["metadata"]["name"] == "a"


async def test_it_gives_up_after_some_attempts_and_says_why(
    network: FaultyTransport, writer: Writer, clock: VirtualClock
) -> None:
    network.rates = Rates(server_error=1.0)
    with pytest.raises(Exception, match="broken"):
        await passing(clock, writer.create(CONFIG_MAP, config_map("a")))
    assert len(network.sent) <= 8


async def test_one_busy_controller_does_not_hold_up_another() -> None:
    slots = FairSlots(2)
    order: list[str] = []
    gates = {number: asyncio.Event() for number in range(10)}

    async def write(owner: str, number: int) -> None:
        await slots.take(owner)
        try:
            order.append(f"{owner}{number}")
            await gates[number].wait()
        finally:
            slots.give_back(owner)

    tasks = [asyncio.ensure_future(write("busy", number)) for number in range(9)]
    await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(write("calm", 9)))
    await asyncio.sleep(0)
    assert order == ["busy0", "busy1"] and slots.used == 2
    gates[0].set()
    gates[1].set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert order[2:] == ["busy2", "calm9"]
    for gate in gates.values():
        gate.set()
    await asyncio.gather(*tasks)
    assert slots.used == 0


class SlowServer:
    """Answers a write only when it is told to, and remembers in which order they came."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self._open: list[asyncio.Future[None]] = []

    async def write(self, name: str) -> None:
        self.came.append(name)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.append(answer)
        await answer

    async def answer(self, count: int) -> None:
        for _ in range(count):
            self._open.pop(0).set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def under_way(self) -> int:
        return len(self._open)


async def test_a_flood_of_one_controller_delays_another_by_no_more_than_its_share(client: Client) -> None:
    """Eight places. One controller has a thousand writes; another comes with ten and later a third with one."""
    server, writes = SlowServer(), Writes(client, in_flight=8)

    def start(owner: str, count: int) -> list[asyncio.Future[None]]:
        writer = writes.writer(owner)
        return [
            asyncio.ensure_future(writer.send(lambda _, name=f"{owner}{number}": server.write(name)))
            for number in range(count)
        ]

    flood = start("flood", 1000)
    await asyncio.sleep(0)
    await server.answer(0)
    assert server.under_way == 6  # a quarter is kept for others, even if none of these ever comes back
    second = start("second", 10)
    await server.answer(0)
    assert server.came[6:] == ["second0", "second1"] and server.under_way == 8
    third = start("third", 1)
    await server.answer(3)
    assert "third0" in server.came[8:11]  # next in turn, not behind a thousand
    while not all(one.done() for one in second + third):
        await server.answer(1)
    between = server.came[: server.came.index("second9")]
    assert sum(name.startswith("flood") for name in between) <= 6 + 10  # each in turn with the flood
    while server.under_way:
        await server.answer(server.under_way)
    assert all(one.done() for one in flood) and len(server.came) == 1011


async def test_writes_in_another_users_name_count_with_their_controllers(client: Client) -> None:
    server, writes = SlowServer(), Writes(client, in_flight=4)
    acting = [client.impersonating(f"user{number}") for number in range(9)]
    senders: list[Client] = []

    async def write(sender: Client) -> None:
        senders.append(sender)
        await server.write(sender.headers["Impersonate-User"])

    running = [asyncio.ensure_future(writes.writer("busy", one).send(write)) for one in acting]
    await server.answer(0)
    assert server.under_way == 3
    while server.under_way:
        await server.answer(1)
    assert senders == acting and all(one.done() for one in running)


async def test_a_change_of_this_very_object_is_made_whatever_became_of_it(client: Client, writer: Writer) -> None:
    seen = await writer.create(CONFIG_MAP, config_map("a", n="1"))
    await client.patch(CONFIG_MAP, "a", seen["metadata"]["namespace"], {"data": {"other": "x"}})
    changed = await writer.patch(CONFIG_MAP, seen, {"data": {"n": "2"}}, unchanged=False)
    assert changed["data"] == {"n": "2", "other": "x"}
    await client.delete(CONFIG_MAP, "a", seen["metadata"]["namespace"])
    await client.create(CONFIG_MAP, config_map("a", n="1"), seen["metadata"]["namespace"])
    with pytest.raises((Conflict, Invalid)):
        await writer.patch(CONFIG_MAP, seen, {"data": {"n": "3"}}, unchanged=False)


async def test_giving_up_a_place_in_the_queue_leaves_it_to_others() -> None:
    slots = FairSlots(1)
    gate = asyncio.Event()

    async def hold() -> None:
        await slots.take("a")
        await gate.wait()
        slots.give_back("a")

    first, second, third = (asyncio.ensure_future(hold()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    await asyncio.gather(first, third)
    assert slots.used == 0
