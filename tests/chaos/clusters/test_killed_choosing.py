"""A hub whose engine chooses the members dies, queues and all, after every single write of a walk; one walk per write.

The end is that of a calm walk, and meanwhile no gang ran in two clusters, nor anywhere before the hub had stored where.
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, HubPlaces
from shoal.controllers.queues import QueueSettings
from shoal.kube.client import Client
from shoal.kube.transport import Transport
from tests.chaos.clusters.test_killed import Mortal, Watch, makes_the_job_before_the_choice_is_stored, walk
from tests.faults import proven
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.clusters.build import CHOOSING, Town, decide, town

AT_ONCE = 13
ABOUT_GANGS = ("/workloads", "/jobs")
SETTINGS = msgspec.structs.replace(CHOOSING, probe_seconds=0.2, lost_seconds=30.0)
QUEUES, WRAPPERS = QueueSettings(check_seconds=1.0), AppWrapperSettings(trust_unstamped=True)


class MortalChooser(Mortal):
    settings = SETTINGS

    async def lives(self) -> None:
        first = asyncio.ensure_future(self._hub(self.hub, self.connect))
        death = asyncio.ensure_future(self.hub.died.wait())
        try:
            await asyncio.wait({first, death}, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            await asyncio.wait({first})
            await self._hub(self.town.hub.server.transport(), self.town.connect)
        finally:
            death.cancel()
            first.cancel()

    async def _hub(self, transport: Transport, connect: object) -> None:
        client, places = Client(transport), HubPlaces(self.settings)
        clusters = ClusterController(client, self.settings, connect=connect, places=places)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(planned(client, WRAPPERS, queues=QUEUES, places=places).run())
            tasks.create_task(clusters.run())


async def walk_once(at: int = 0) -> tuple[dict[str, object], list[str]]:
    async with town("a", "b", hub_decides=False) as t:
        mortal, watch = MortalChooser(t, at), Watch(t)
        living = asyncio.ensure_future(mortal.lives())
        t.run_hub(asyncio.wait({living}))
        try:
            await t.connected()
            state = await walk(t)
        finally:
            living.cancel()
            await asyncio.wait({living})
        after(t)
        assert watch.broken == [], f"dies at write {at} ({mortal.hub.writes[-1:]})"
        return state, mortal.hub.writes


def after(t: Town) -> None:
    """Its books are kept to the end, for the judge."""
    t.hub.rules = rules_of(WRAPPERS, QUEUES)
    decide(t.hub)


@proven(without=makes_the_job_before_the_choice_is_stored)
async def test_f463_a_hub_that_chooses_dies_after_any_write_and_nothing_is_lost_or_runs_twice() -> None:
    """F463: a hub whose engine chooses the members dies after any write about a gang, to its own cluster or to another.
    Holds: the same end as without; a gang runs in at most one cluster (I40), only in the stored one, and nothing is
    left behind (I41)."""
    calm, writes = await walk_once()
    assert calm["left"] == [[], [], [], []]
    second = next(at for at, write in enumerate(writes) if "job-two" in write)  # goes the way of the first
    ends_begin = next(at for at, write in enumerate(writes) if write.startswith("DELETE /apis/batch/"))
    parts = [at for at in range(1, len(writes) + 1) if at <= second or at > ends_begin]
    numbers = [at for at in parts if any(text in writes[at - 1] for text in ABOUT_GANGS)]
    assert len(numbers) > 10
    different = []
    for begin in range(0, len(numbers), AT_ONCE):
        some = numbers[begin : begin + AT_ONCE]
        ends = await asyncio.gather(*(walk_once(at) for at in some))
        different += [f"at {at} ({writes[at - 1]})" for at, (state, _) in zip(some, ends, strict=True) if state != calm]
    assert different == []
