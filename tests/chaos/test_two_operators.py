"""Two operators that both believe to lead, for as long as a lost lease is not noticed: nothing doubles.

Either may be taken away at any moment; the other goes on from what is stored.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from shoal.api import kinds
from shoal.controllers.ray import Operator, RaySettings, names, view
from shoal.controllers.ray.cluster import slots
from shoal.kube.client import Client
from tests.conformance.kuberay_doubles import ScriptedDashboard
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.resting import looked_at, rules_of
from tests.unit.ray import judgement
from tests.unit.ray.builders import group, ray_cluster

CLUSTERS = 20


class Second:
    """Another operator on the same server, with caches and memory of its own."""

    def __init__(self, stage: Stage) -> None:
        self.operator = Operator(Client(stage.server.transport()), RaySettings(), stage.clock, ScriptedDashboard())
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.tasks = [asyncio.create_task(cache.run()) for cache in self.operator.caches.all()]
        await self.operator.caches.synced()
        self.tasks += [asyncio.create_task(controller.run()) for controller in self.operator.controllers]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for recorder in self.operator.recorders.values():
            await recorder.close()


def each_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(self, cluster, slot, prefix, taken):
        return prefix + names.suffix(self._life, slot.group, slot.replica, len(taken))

    monkeypatch.setattr(slots.PodNames, "choose", choose)


@pytest.mark.parametrize("seed", range(4))
@proven(without=each_its_own_names)
async def test_f075_two_leaders_and_a_handover_double_no_pod(seed: int) -> None:
    """F75: a lease changes hands while twenty clusters are made, and for a while both act. Holds: one head and two
    workers each at every revision, whichever leader goes away when."""
    random = Random(seed)
    stage = Stage(RaySettings())
    await stage.start()
    second = Second(stage)
    made: dict[str, int] = {}

    def count(kind: str, pod: dict) -> None:
        if kind == "ADDED":
            cluster = view.labels(pod)[names.CLUSTER]
            made[cluster] = made.get(cluster, 0) + 1

    stage.server.on_change(kinds.POD, count)
    await second.start()
    for number in range(CLUSTERS):
        await stage.client.create(kinds.RAY_CLUSTER, ray_cluster(f"demo-{number}", group(replicas=2)), "default")
        for _ in range(random.randint(0, 12)):
            await asyncio.sleep(0)
        if number == random.randint(5, CLUSTERS - 2):
            break
    leaver = random.choice((second, None))
    if leaver is not None:
        await leaver.stop()
    for number in range(CLUSTERS):
        body = ray_cluster(f"demo-{number}", group(replicas=2))
        if all(view.name(held) != view.name(body) for held in stage.objects(kinds.RAY_CLUSTER)):
            await stage.client.create(kinds.RAY_CLUSTER, body, "default")
    await stage.settle()
    await second.stop()
    await stage.stop()
    assert made == {f"demo-{number}": 3 for number in range(CLUSTERS)}
    assert judgement.violations(stage) == []
    assert looked_at(stage.server.server, rules_of(ray=True, jobs=False), stage.clock.now()) == []
