"""Queues that borrow, reclaim and preempt, behind a bad network: in calm the same controller leaves no gang waiting.

No timer looks again and nothing is restarted: an event missed in the storm would be missed for ever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import ApiError
from tests.checker.gang_story import changes_of
from tests.checker.queue_rules import judge_queues
from tests.cluster import Cluster, running
from tests.faulty import FaultyTransport, Rates
from tests.patience import PATIENCE, patiently
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make
from tests.unit.queues.test_overtaken import PRIORITY, priority_class

STORM = Rates(
    unsent=0.03, conflict=0.05, throttled=0.01, server_error=0.04, lost_answer=0.05, lost_request=0.02, doubled=0.05,
    delayed=0.05,
)  # fmt: skip
NEVER = 86400.0
STEPS = 60
QUEUES = {
    "a": ("4", "left", {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}),
    "b": ("3", "right", {"reclaimWithinCohort": "LowerPriority", "withinClusterQueue": "LowerOrNewerEqualPriority"}),
    "c": ("0", "right", {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}),
}


def seeds() -> range:
    first, _, last = os.environ.get("SHOAL_SEEDS", "1:3").partition(":")
    return range(int(first), int(last))


def queue_of(name: str, cpu: str) -> Json:
    _, cohort, preemption = QUEUES[name]
    return cluster_queue(name, quota={"cpu": cpu}, cohortName=cohort, preemption=preemption)


class Unrest:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.jobs: dict[str, Json] = {}
        self.network = FaultyTransport(cluster.server.transport(), STORM, seed=seed, clock=SystemClock())
        self.wrappers = AppWrapperSettings(trust_unstamped=True, events=False, backoff_seconds=NEVER)
        fair_sharing = self.random.random() < 0.4
        self.queues = QueueSettings(
            check_seconds=NEVER, recovery_seconds=NEVER, events=False, fair_sharing=fair_sharing
        )
        client = Client(self.network, timeout=0.1)
        self.planned = planned(client, self.wrappers, queues=self.queues)
        cluster.start(self.planned.run())

    async def prepare(self) -> None:
        cohort: dict[str, Any] = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort"}
        for name, spec in (("roof", {}), ("left", {"parentName": "roof"}), ("right", {"parentName": "roof"})):
            await make(self.cluster, {**cohort, "metadata": {"name": name}, "spec": spec})
        await make(self.cluster, flavor(), *(priority_class(value) for value in (0, 1, 5)))
        for name, (cpu, _, _) in QUEUES.items():
            await make(self.cluster, queue_of(name, cpu), local_queue(name, to=name))

    async def step(self) -> None:
        chance = self.random
        name = chance.choice(sorted(self.jobs)) if self.jobs else ""
        with suppress(ApiError):
            match chance.choice(["submit", "submit", "submit", "finish", "finish", "delete", "quota"]):
                case "submit" if len(self.jobs) < 16:
                    await self._submit()
                case "finish" if name:
                    await self._finish(name)
                case "delete" if name:
                    del self.jobs[name]
                    await self.cluster.client.delete(kinds.JOB, name, "default", propagation="Background")
                case "quota":
                    queue = chance.choice(["a", "b"])
                    groups = queue_of(queue, str(chance.randint(1, 5)))["spec"]["resourceGroups"]
                    change = {"spec": {"resourceGroups": groups}}
                    await self.cluster.client.patch(kinds.CLUSTER_QUEUE, queue, None, change)
        await asyncio.sleep(chance.uniform(0.0, 0.05))

    async def _submit(self) -> None:
        name = f"job-{self.random.getrandbits(24):06x}"
        labels = {PRIORITY: f"p{self.random.choice((0, 0, 1, 5))}"}
        body = job(name, self.random.randint(1, 3), queue=self.random.choice("abc"), labels=labels)
        (self.jobs[name],) = await make(self.cluster, body)

    async def _finish(self, name: str) -> None:
        selector = f"batch.kubernetes.io/job-name={name}"
        for pod in await self.cluster.client.list(kinds.POD, "default", label_selector=selector):
            done = {"status": {"phase": "Succeeded"}}
            await self.cluster.client.patch(kinds.POD, pod["metadata"]["name"], "default", done, subresource="status")

    async def calm(self) -> None:
        self.network.calm()
        async with patiently(PATIENCE):
            while not await self._rests():
                await self.cluster.settled()

    async def _rests(self) -> bool:
        """Nothing is due soon or on its way, in the controller or in what is stored.

        A Job that waits for its pods stays due at the end of its time for recovery: that is rest.
        """
        work = self.planned.queues.queue.queue
        if not work.idle or any(due < work._clock.monotonic() + NEVER / 2 for due in work._due.values()):
            return False
        workloads = await self.cluster.client.list(kinds.WORKLOAD, "default")
        known = [one.raw for one in self.planned.queues.caches.workloads.list()]
        if revisions(workloads) != revisions(known) or self.planned.loop._changed.is_set():
            return False  # the storm held up what the controller is to hear, or it has not planned since
        return not any(is_leaving(one) for one in workloads)


def revisions(objects: Iterable[Json]) -> set[tuple[str, str]]:
    return {(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in objects}


def is_leaving(workload: Json) -> bool:
    held, evicted, finished = (
        condition(workload, kind).get("status") == "True" for kind in ("QuotaReserved", "Evicted", "Finished")
    )
    return (held and evicted and not finished) or bool(workload["metadata"].get("deletionTimestamp"))


@pytest.mark.parametrize("seed", seeds())
async def test_who_was_overtaken_in_a_storm_is_served_in_calm(seed: int) -> None:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="32", memory="64Gi")
        unrest = Unrest(cluster, seed)
        await unrest.prepare()
        for _ in range(STEPS):
            await unrest.step()
        await unrest.calm()
        assert judge_queues(changes_of(cluster.server), quiet=True) == []
        engine = unrest.planned.loop.engine
        charged = {uid for one in engine._queues.kueue.state.records.values() for uid in one.reserved}
        workloads = await cluster.client.list(kinds.WORKLOAD, "default")
        holding = [one for one in workloads if condition(one, "QuotaReserved").get("status") == "True"]
        held = {one["metadata"]["uid"] for one in holding if condition(one, "Finished").get("status") != "True"}
        assert charged == held
        cluster.rules = rules_of(unrest.wrappers, unrest.queues)
