"""The work queue and the loop around reconcilers."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

from shoal.kube.clock import VirtualClock
from shoal.kube.errors import TooManyRequests
from shoal.kube.runtime import Controller, WorkQueue

from .conftest import Start


async def test_requests_for_a_waiting_key_coalesce(clock: VirtualClock, start: Start) -> None:
    calls: list[str] = []

    async def reconcile(key: str) -> None:
        calls.append(key)

    controller = Controller("test", reconcile, clock=clock)
    for _ in range(5):
        controller.enqueue("a")
    controller.enqueue("b")
    start(controller.run())
    await controller.until_idle()
    assert calls == ["a", "b"]


async def test_one_worker_per_key_and_once_more_when_asked_meanwhile(clock: VirtualClock, start: Start) -> None:
    gate = asyncio.Event()
    running: list[str] = []
    finished: list[str] = []

    async def reconcile(key: str) -> None:
        assert key not in running, "two workers on one key"
        running.append(key)
        await gate.wait()
        running.remove(key)
        finished.append(key)

    controller = Controller("test", reconcile, workers=4, clock=clock)
    start(controller.run())
    controller.enqueue("a")
    await clock.settle()
    controller.enqueue("a")
    controller.enqueue("a")
    controller.enqueue("b")
    await clock.settle()
    assert sorted(running) == ["a", "b"]
    gate.set()
    await controller.until_idle()
    assert sorted(finished) == ["a", "a", "b"]


async def test_a_new_key_does_not_wait_behind_those_that_were_set_aside(clock: VirtualClock, start: Start) -> None:
    calls: list[str] = []

    async def reconcile(key: str) -> None:
        calls.append(key)
        if key == "aside-3":
            controller.enqueue("new")
            controller.enqueue("aside-9")

    controller = Controller("test", reconcile, clock=clock)
    aside = [f"aside-{at}" for at in range(10)]
    for key in aside:
        controller.set_aside(key)
    start(controller.run())
    await controller.until_idle()
    assert calls.index("new") == 4 and calls.index("aside-9") == 5
    assert sorted(calls) == sorted([*aside, "new"])


async def test_keys_set_aside_are_worked_on_one_at_a_time_with_rests(clock: VirtualClock, start: Start) -> None:
    began: list[tuple[str, float]] = []

    async def reconcile(key: str) -> None:
        began.append((key, clock.monotonic()))
        await clock.sleep({"short": 0.02, "long": 60.0}.get(key, 0.0))

    controller = Controller("test", reconcile, clock=clock)
    for key in ("short", "long", "last"):
        controller.set_aside(key)
    start(controller.run())
    await clock.settle()
    await clock.advance(100)
    assert [key for key, _ in began] == ["short", "long", "last"]
    assert [round(at, 2) for _, at in began] == [0.0, 0.04, 60.14], "as long as it took, and no longer than 0.1 s"


async def test_a_key_set_aside_while_it_is_worked_on_is_worked_on_once_more(clock: VirtualClock, start: Start) -> None:
    gate = asyncio.Event()
    calls: list[str] = []

    async def reconcile(key: str) -> None:
        calls.append(key)
        await gate.wait()

    controller = Controller("test", reconcile, clock=clock)
    start(controller.run())
    controller.enqueue("a")
    await clock.settle()
    controller.set_aside("a")
    await clock.settle()
    assert calls == ["a"]
    gate.set()
    await controller.until_idle()
    assert calls == ["a", "a"]


async def test_a_reconcile_may_ask_to_be_called_again(clock: VirtualClock, start: Start) -> None:
    at: list[float] = []

    async def reconcile(key: str) -> float | None:
        at.append(clock.monotonic())
        return 30.0 if len(at) < 3 else None

    controller = Controller("test", reconcile, clock=clock)
    start(controller.run())
    controller.enqueue("a")
    await clock.advance(200)
    assert at == [0.0, 30.0, 60.0]


async def test_the_earliest_of_several_delays_counts_and_now_beats_all(clock: VirtualClock, start: Start) -> None:
    at: list[float] = []

    async def reconcile(key: str) -> None:
        at.append(clock.monotonic())

    controller = Controller("test", reconcile, clock=clock)
    start(controller.run())
    controller.enqueue("a", after=50)
    controller.enqueue("a", after=10)
    controller.enqueue("a", after=20)
    await clock.advance(100)
    assert at == [10.0]
    controller.enqueue("a", after=50)
    controller.enqueue("a")
    await clock.advance(100)
    assert at == [10.0, 100.0]


async def test_errors_delay_their_key_only_and_the_delay_grows(clock: VirtualClock, start: Start) -> None:
    bad: list[float] = []
    good: list[float] = []

    async def reconcile(key: str) -> None:
        if key == "bad":
            bad.append(clock.monotonic())
            raise ValueError("broken")
        good.append(clock.monotonic())

    controller = Controller("test", reconcile, workers=1, clock=clock, random=Random(1))
    start(controller.run())
    controller.enqueue("bad")
    controller.enqueue("good")
    await clock.advance(600)
    assert good == [0.0]
    gaps = [later - earlier for earlier, later in pairwise(bad)]
    assert gaps[0] < 0.06 and 30 <= gaps[-1] <= 60
    assert len(bad) < 30


async def test_the_wait_that_the_server_asked_for_is_kept(clock: VirtualClock, start: Start) -> None:
    at: list[float] = []

    async def reconcile(key: str) -> None:
        at.append(clock.monotonic())
        if len(at) == 1:
            raise TooManyRequests(429, "TooManyRequests", "slow down", retry_after=17)

    controller = Controller("test", reconcile, clock=clock)
    start(controller.run())
    controller.enqueue("a")
    await clock.advance(100)
    assert at == [0.0, 17.0]


async def test_every_second_turn_is_the_highest_rank_s_and_the_others_are_the_oldest_s(clock: VirtualClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock)
    for key in ("a", "b", "c"):
        queue.add(key)
    for key, rank in (("low", 1), ("high", 9), ("middle", 5)):
        queue.add(key, rank=rank)
    taken = [await queue.take() for _ in range(len(queue))]
    assert taken == ["high", "a", "middle", "b", "low", "c"]
    assert len(queue) == 0
    queue.add("low", rank=1)
    for key in taken:
        queue.done(key)
    assert [await queue.take() for _ in range(len(queue))] == ["low"]  # asked for again while it was in work
