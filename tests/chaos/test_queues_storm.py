"""Jobs in two queues over a bad network, with controllers that come and go and users who change their minds; seeded.

When faults and users have come to rest, the whole history is judged from the stored objects alone, and no gang waits
that would fit. `SHOAL_SEEDS=from:to` runs other seeds; a failure names its seed.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from random import Random

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
from tests.patience import PATIENCE
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import cluster_queue, condition, counts, flavor, job, local_queue, make, name_of

STORM = Rates(
    unsent=0.03,
    conflict=0.04,
    throttled=0.01,
    server_error=0.04,
    lost_answer=0.04,
    lost_request=0.02,
    cut=0.03,
    cut_in_line=0.01,
    doubled=0.05,
    gone=0.05,
)
WRAPPERS = AppWrapperSettings(trust_unstamped=True, obtain=True, events=False)
QUEUES = QueueSettings(check_seconds=0.5, events=False)
STEPS = 60
QUOTA = 6


def seeds() -> range:
    first, _, last = os.environ.get("SHOAL_SEEDS", "1:3").partition(":")
    return range(int(first), int(last))


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.jobs: dict[str, Json] = {}
        self._network: FaultyTransport | None = None
        self._running: asyncio.Task[None] | None = None

    def begin(self, rates: Rates) -> None:
        self._network = FaultyTransport(
            self.cluster.server.transport(), rates, seed=self.random.getrandbits(30), clock=SystemClock()
        )
        client = Client(self._network, timeout=0.1)
        host = planned(client, WRAPPERS, queues=QUEUES)
        self._running = asyncio.ensure_future(host.run())

    async def end(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def step(self) -> None:
        """One thing that somebody does."""
        act = self.random.choice(
            ["submit", "submit", "finish", "finish", "delete", "switch", "hold", "restart", "rest"]
        )
        name = self.random.choice(sorted(self.jobs)) if self.jobs else ""
        with suppress(ApiError):
            match act:
                case "submit" if len(self.jobs) < 14:
                    await self._submit()
                case "finish" if name:
                    await self._finish(name)
                case "delete" if name and self.random.random() < 0.5:
                    del self.jobs[name]
                    await self.cluster.client.delete(kinds.JOB, name, "default", propagation="Background")
                case "switch" if name:
                    workload = await self.cluster.get(kinds.WORKLOAD, name_of(self.jobs[name]))
                    turned = {"spec": {"active": workload["spec"].get("active") is False}}
                    await self.cluster.client.patch(kinds.WORKLOAD, workload["metadata"]["name"], "default", turned)
                case "hold":
                    policy = self.random.choice(["None", "Hold", "HoldAndDrain"])
                    await self.cluster.client.patch(kinds.CLUSTER_QUEUE, "a", None, {"spec": {"stopPolicy": policy}})
                case "restart":
                    await self.end()
                    self.begin(STORM)
        await asyncio.sleep(self.random.uniform(0.0, 0.06))

    async def _submit(self) -> None:
        name = f"job-{self.random.getrandbits(24):06x}"
        body = job(name, self.random.randint(1, 4), queue=self.random.choice(["a", "b"]))
        (self.jobs[name],) = await make(self.cluster, body)

    async def _finish(self, name: str) -> None:
        selector = f"batch.kubernetes.io/job-name={name}"
        for pod in await self.cluster.client.list(kinds.POD, "default", label_selector=selector):
            done = {"status": {"phase": "Succeeded"}}
            await self.cluster.client.patch(kinds.POD, pod["metadata"]["name"], "default", done, subresource="status")

    async def calm(self) -> None:
        """Users do nothing any more, and the network is good: until everything is where it stays, or for long."""
        await self.cluster.client.patch(kinds.CLUSTER_QUEUE, "a", None, {"spec": {"stopPolicy": "None"}})
        await self.end()
        self.begin(Rates())
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    await self.cluster.settled(turns=120)
                    if not await self.in_motion() and not await self.unserved():
                        return

    async def in_motion(self) -> list[str]:
        """Gangs on their way out, and queues that have not counted them yet."""
        found = await self.cluster.client.list(kinds.WORKLOAD, "default")
        return [
            one["metadata"]["name"]
            for one in found
            if (_holds(one) and condition(one, "Evicted").get("status") == "True")
            or one["metadata"].get("deletionTimestamp")
        ]

    async def unserved(self) -> list[str]:
        """Gangs that wait although there is quota for them, and gangs that are admitted and do not run."""
        found = []
        workloads = await self.cluster.client.list(kinds.WORKLOAD, "default")
        for queue in ("a", "b"):
            mine = [one for one in workloads if one["spec"]["queueName"] == queue]
            held = sum(one["spec"]["podSets"][0]["count"] - _done(one) for one in mine if _holds(one))
            if counts(await self.cluster.get(kinds.CLUSTER_QUEUE, queue))[1] != sum(map(_holds, mine)):
                found.append(f"{queue} has not counted what it gave")
            for one in mine:
                if not _holds(one) and _waits(one) and one["spec"]["podSets"][0]["count"] <= QUOTA - held:
                    found.append(f"{one['metadata']['name']} waits and {QUOTA - held} are free")
                if _holds(one):
                    owner = one["metadata"]["ownerReferences"][0]["name"]
                    if (await self.cluster.get(kinds.JOB, owner))["spec"]["suspend"]:
                        found.append(f"{owner} is admitted and suspended")
        return found


def _holds(workload: Json) -> bool:
    ended = condition(workload, "Finished").get("status") == "True"
    return condition(workload, "QuotaReserved").get("status") == "True" and not ended


def _done(workload: Json) -> int:
    """Pods whose quota was given back already."""
    return sum(one["count"] for one in workload["status"].get("reclaimablePods") or ())


def _waits(workload: Json) -> bool:
    return workload["spec"].get("active") is not False and not condition(workload, "Finished")


@pytest.mark.parametrize("seed", seeds())
async def test_nothing_is_lost_taken_twice_or_left_waiting(seed: int) -> None:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="32", memory="64Gi")
        quota = {"cpu": str(QUOTA), "memory": "64Gi"}
        await make(cluster, flavor(), cluster_queue("a", quota=quota), cluster_queue("b", quota=quota))
        await make(cluster, local_queue("a", to="a"), local_queue("b", to="b"))
        storm = Storm(cluster, seed)
        storm.begin(STORM)
        for _ in range(STEPS):
            await storm.step()
        await storm.calm()
        broken = judge_queues(changes_of(cluster.server), quiet=True) + await storm.unserved()
        cluster.rules = rules_of(WRAPPERS, QUEUES)
        await cluster.hold_at_rest()
        await storm.end()
        assert broken == [], f"seed {seed}: {broken}"
