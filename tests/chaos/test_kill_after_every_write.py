"""The controller dies after every single write of a walk, one walk per write; the end state is that of a calm walk."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.appwrapper.reconciler import Reconciler
from shoal.kube.client import Client
from tests.chaos.mortal import MortalTransport
from tests.chaos.walks import WALKS, Walk, end_state
from tests.checker.gang_history import Watched, violations
from tests.cluster import Cluster, running
from tests.faults import proven

MOST_WRITES = 40


class Life:
    """A controller that dies at most once and is started again."""

    def __init__(self, cluster: Cluster, settings: AppWrapperSettings, dies_after: int) -> None:
        self.watched = Watched(cluster.server.transport())
        self.first = MortalTransport(self.watched, dies_after)
        self._settings = settings

    async def run(self) -> None:
        running_one = asyncio.ensure_future(AppWrapperController(Client(self.first), self._settings).run())
        death = asyncio.ensure_future(self.first.died.wait())
        try:
            await asyncio.wait({running_one, death}, return_when=asyncio.FIRST_COMPLETED)
            running_one.cancel()
            with suppress(asyncio.CancelledError):
                await running_one
            await AppWrapperController(Client(self.watched), self._settings).run()
        finally:
            death.cancel()
            running_one.cancel()


async def walk_once(walk: Walk, settings: AppWrapperSettings, dies_after: int) -> tuple[dict[str, object], Life]:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        life = Life(cluster, settings, dies_after)
        cluster.start(life.run())
        await walk(cluster)
        await cluster.settled()
        return await end_state(cluster), life


def does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Reconciler, kind: object, wrapper: object) -> None:
        return None

    monkeypatch.setattr(Reconciler, "_go_on", nothing)
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


@proven(without=does_not_go_on)
@pytest.mark.parametrize("name", WALKS)
async def test_f001_every_death_is_survived(name: str) -> None:
    """F1: the controller dies between any two writes. Holds: the end state is that of an undisturbed walk; no object
    without a stored admission, none twice, no stranger touched."""
    walk, settings = WALKS[name]
    calm, life = await walk_once(walk, settings, 0)
    assert violations(life.watched.writes) == []
    number = len(life.first.writes)
    assert 0 < number < MOST_WRITES, life.first.writes
    for dies_after in range(1, number + 1):
        state, life = await walk_once(walk, settings, dies_after)
        where = f"died after write {dies_after} of {number}: {life.first.writes[-1]}"
        assert state == calm, where
        assert violations(life.watched.writes) == [], where
