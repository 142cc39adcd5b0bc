"""The hub dies after every single write of an AppWrapper's walk through its members; one walk per write.

The end is that of a calm walk, and meanwhile no AppWrapper was in two members, nor anywhere before that was stored.
"""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperController
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.controllers.multicluster import ClusterController, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.kube.client import Client
from shoal.kube.transport import Transport
from tests.chaos.clusters.test_killed import Mortal
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.build import Town
from tests.unit.clusters.wrappers import SENDING, WRAPPER, gang, sending_town

MOST_WRITES = 40
AT_ONCE = 6


class MortalSender(Mortal):
    """A hub that sends AppWrappers and dies after one chosen write, wherever it went."""

    settings = SENDING

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
        loop = PlanningLoop(client, WRAPPER.planning)
        AppWrapperController(loop, WRAPPER, places.for_wrappers)
        clusters = ClusterController(client, self.settings, connect=connect, places=places)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run())
            tasks.create_task(clusters.run())


class CopyWatch:
    """Notes every moment at which a copy was where the hub had not stored it, or in two places."""

    plural = ("workload.codeflare.dev", "appwrappers")

    def __init__(self, t: Town) -> None:
        self.broken: list[str] = []
        self._town = t
        self._at: dict[str, set[str]] = {}
        for name, member in t.members.items():
            resource = member.server.registry.find(*self.plural)
            assert resource is not None
            resource.collection.listeners.append(lambda event, name=name: self._look(name, event))

    def _look(self, cluster: str, event: object) -> None:
        copy: Json = msgspec.json.decode(event.record.raw)  # type: ignore[attr-defined]
        name, there = copy["metadata"]["name"], self._at.setdefault(copy["metadata"]["name"], set())
        if event.type == "DELETED":  # type: ignore[attr-defined]
            there.discard(cluster)
            return
        there.add(cluster)
        if len(there) > 1:
            self.broken.append(f"{name} is in {sorted(there)}")
        if event.type == "ADDED" and self._stored(name) != cluster:  # type: ignore[attr-defined]
            self.broken.append(f"{name} is in {cluster}, and the hub says {self._stored(name) or 'nothing'}")

    def _stored(self, name: str) -> str:
        resource = self._town.hub.server.registry.find("workload.codeflare.dev", "appwrappers")
        assert resource is not None
        for record in resource.collection.records():
            found = msgspec.json.decode(record.raw)
            if found["metadata"]["name"] == name:
                return str(json.loads(found.get("status", {}).get("admission") or "{}").get("cluster", ""))
        return ""


async def walk_once(at: int = 0) -> tuple[list[object], list[str]]:
    """Two gangs run in two members, one is deleted, and a third takes its place."""
    async with sending_town("a", "b") as t:
        mortal, watch = MortalSender(t, at), CopyWatch(t)
        t.run_hub(mortal.lives())
        await t.connected()
        for name in ("one", "two"):
            await t.hub.create(kinds.APP_WRAPPER, gang(name))
            await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
        await t.hub.create(kinds.APP_WRAPPER, gang("three"))
        await t.hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "one")
        await t.hub.until(kinds.APP_WRAPPER, "three", dispatched)
        assert watch.broken == [], f"dies at write {at} ({mortal.hub.writes[-1:]})"
        left = [sorted(await member.names(kinds.APP_WRAPPER)) for member in t.members.values()]
        return sorted(left), mortal.hub.writes


def sends_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    real = AppWrapperReconciler._admit

    async def admit(self: AppWrapperReconciler, kind: object, wrapper: object, decision: object) -> float | None:
        cluster = self._cluster_of(wrapper)  # type: ignore[arg-type]
        if cluster and self.context.elsewhere is not None:
            await self.context.elsewhere.send(kind, wrapper, cluster, 1)  # type: ignore[arg-type]
        return await real(self, kind, wrapper, decision)  # type: ignore[arg-type]

    monkeypatch.setattr(AppWrapperReconciler, "_admit", admit)


@proven(without=sends_before_it_is_stored)
async def test_f234_a_hub_that_dies_after_any_write_sends_every_app_wrapper_once() -> None:
    """F234: the hub dies after any one of its writes while it sends, follows and removes AppWrappers. Holds: none is
    ever in two members or where the hub had not stored it, and all ends as if it had not died."""
    calm, writes = await walk_once()
    assert calm == [["three"], ["two"]]
    assert len(writes) <= MOST_WRITES
    for first in range(1, len(writes) + 1, AT_ONCE):
        walks = (walk_once(at) for at in range(first, min(first + AT_ONCE, len(writes) + 1)))
        assert [state for state, _ in await asyncio.gather(*walks)] == [calm] * min(AT_ONCE, len(writes) + 1 - first)
