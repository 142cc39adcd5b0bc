"""The controller dies after every single write of a walk, or loses the answer of every single one; one walk per write.

The end state is that of a calm walk, and the whole history is judged.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.kube.client import Client
from shoal.kube.lease import Leadership, Term
from tests.chaos.mortal import Fate, MortalTransport
from tests.chaos.walks import WALKS, end_state
from tests.checker.gang_history import Watched, violations
from tests.checker.gang_rules import judge
from tests.checker.gang_story import changes_of
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import planned
from tests.resting import rules_of

MOST_WRITES = 60
AT_ONCE = 6
"""Walks side by side: each has a cluster of its own and mostly waits."""


class Life:
    """A controller that dies at most once and is started again."""

    def __init__(self, cluster: Cluster, settings: AppWrapperSettings, at: int, fate: Fate) -> None:
        self.watched = Watched(cluster.server.transport())
        self.first = MortalTransport(self.watched, at, fate)
        self.settings = settings

    async def run(self) -> None:
        running_one = asyncio.ensure_future(planned(Client(self.first), self.settings).run())
        death = asyncio.ensure_future(self.first.died.wait())
        try:
            await asyncio.wait({running_one, death}, return_when=asyncio.FIRST_COMPLETED)
            running_one.cancel()
            with suppress(asyncio.CancelledError):
                await running_one
            await planned(Client(self.watched), self.settings).run()
        finally:
            death.cancel()
            running_one.cancel()


class FastClock:
    """Ten seconds in one, for leases."""

    def now(self) -> int:
        return int(time.time() * 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic() * 10

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


class Pair(Life):
    """Two replicas and a lease: the one that leads first dies with the lease in its hand."""

    async def run(self) -> None:
        mine = asyncio.ensure_future(self._replica(self.first, "first"))
        await self.first_leads.wait()
        other = asyncio.ensure_future(self._replica(self.watched, "second"))
        try:
            await self.first.died.wait()
            mine.cancel()
            await asyncio.gather(mine, return_exceptions=True)
            await other
        finally:
            mine.cancel()
            other.cancel()

    def __init__(self, cluster: Cluster, settings: AppWrapperSettings, at: int, fate: Fate) -> None:
        super().__init__(cluster, settings, at, fate)
        self.first_leads = asyncio.Event()

    async def _replica(self, transport: Watched | MortalTransport, name: str) -> None:
        leadership = Leadership(Client(transport), "shoal", "kube-system", name, clock=FastClock())

        async def lead(term: Term) -> None:
            self.first_leads.set()
            await planned(leadership.fenced(term), self.settings).run()

        await leadership.run(lead)


async def walk_once(
    name: str, at: int = 0, fate: Fate = "dies", how: type[Life] = Life
) -> tuple[dict[str, object], Life]:
    walk, settings = WALKS[name]
    async with running(judged=True) as cluster:
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        life = how(cluster, settings, at, fate)
        cluster.start(life.run())
        cluster.rules = rules_of(settings, ray=name == "ray")
        await walk(cluster)
        await cluster.settled()
        state = await end_state(cluster)
        broken = [*violations(life.watched.writes), *judge(changes_of(cluster.server))]
        assert broken == [], f"{name}, {fate} at write {at} ({life.first.writes[-1:]}): {broken}"
        return state, life


async def differences(name: str, fate: Fate, how: type[Life] = Life) -> list[str]:
    """At which writes this fate leads to another end than that of a calm walk."""
    calm, life = await walk_once(name)
    number = len(life.first.writes)
    assert 0 < number < MOST_WRITES, life.first.writes
    places = asyncio.Semaphore(AT_ONCE)

    async def one(at: int) -> str:
        async with places:
            state, life = await walk_once(name, at, fate, how)
            other = {name: (calm.get(name), state.get(name)) for name in {*calm, *state}}
            differs = {name: pair for name, pair in other.items() if pair[0] != pair[1]}
            return f"{fate} at write {at} of {number}: {life.first.writes[at - 1 : at]}: {differs}" if differs else ""

    return [told for told in await asyncio.gather(*(one(at) for at in range(1, number + 1))) if told]


def does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: AppWrapperReconciler, kind: object, wrapper: object) -> None:
        return None

    async def forgets(self: object, *arguments: object) -> None:
        return None

    monkeypatch.setattr(AppWrapperReconciler, "_go_on", nothing)
    monkeypatch.setattr("shoal.controllers.appwrapper.v1beta2.components.Components._resume", forgets)
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


@proven(without=does_not_go_on)
@pytest.mark.parametrize("name", WALKS)
async def test_f001_every_death_is_survived(name: str) -> None:
    """F1: the controller dies between any two writes. Holds: the end state is that of an undisturbed walk; no object
    without a stored admission, none twice, no stranger touched."""
    assert await differences(name, "dies") == []


@pytest.mark.parametrize("fate", ["done", "not done"])
@pytest.mark.parametrize("name", ["dispatch", "requeue", "preempt", "delete"])
async def test_every_lost_answer_is_survived(name: str, fate: Fate) -> None:
    """The answer of any one write is lost, whether it was carried out or not: the end is that of a calm walk."""
    assert await differences(name, fate) == []


def stands_by_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.kube.lease.LeaseSettings.wait", property(lambda self: 1e9))
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


@proven(without=stands_by_for_ever)
@pytest.mark.parametrize("name", ["dispatch", "preempt"])
async def test_f042_a_standby_takes_over_in_the_middle_of_any_walk(name: str) -> None:
    """F42: the leader dies after any single write, with the lease in its hand. Holds: the standby takes over without a
    restart, and the end state is that of an undisturbed walk."""
    assert await differences(name, "dies", Pair) == []
