"""The event loop of a controller: what comes within a moment is taken up together, and a rest makes it quick again."""

from __future__ import annotations

import asyncio
import selectors
import socket

import pytest

from shoal.cli import event_loop
from shoal.cli.event_loop import BURST, GatheringSelector, run_gathering


class Passing:
    """Time that passes only while it is slept."""

    def __init__(self) -> None:
        self.moment = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.moment += seconds


def readable() -> socket.socket:
    """A socket on which something has come."""
    there, here = socket.socketpair()
    there.send(b"x")
    there.close()
    return here


def test_it_pauses_only_once_it_has_looked_very_often() -> None:
    time, here = Passing(), readable()
    with GatheringSelector(40.0, time.now, time.sleep) as selector, here:
        selector.register(here, selectors.EVENT_READ)
        for _ in range(int(BURST)):
            assert len(selector.select(None)) == 1
        assert time.slept == []
        began = time.moment
        for _ in range(80):
            selector.select(None)
        assert time.moment - began == pytest.approx(2.0)  # 40 a second from now on
        time.slept.clear()
        time.moment += 10
        for _ in range(int(BURST)):
            selector.select(None)
        assert time.slept == []


def test_a_pause_is_never_longer_than_it_may_wait_and_work_that_is_there_has_none() -> None:
    time = Passing()
    with GatheringSelector(40.0, time.now, time.sleep) as selector:
        for _ in range(int(BURST)):
            selector.select(0.000_001)
        selector.select(0.001)
        assert time.slept == [pytest.approx(0.001)]
        for _ in range(100):
            selector.select(0)
        assert len(time.slept) == 1


def test_what_comes_in_the_pause_is_taken_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "BURST", 1.0)
    found: list[str] = []

    async def work() -> str:
        there, here = socket.socketpair()
        there.setblocking(False)
        here.setblocking(False)
        loop = asyncio.get_running_loop()
        with there, here:
            for text in (b"one", b"two"):
                await loop.sock_sendall(there, text)
                await asyncio.sleep(0.001)
            found.append((await loop.sock_recv(here, 100)).decode())
        return "done"

    assert run_gathering(work(), 1000.0) == "done"
    assert found == ["onetwo"]
