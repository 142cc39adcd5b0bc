"""Random histories with deletions of every sort: after each step what the controller counts equals what one that starts
now would count from stored objects, and no gang holds more than it asked for.

AppWrappers and queued jobs in one cluster, real controllers, no scheduler: the test binds pods, ends them
slowly, and deletes what it likes in the order it likes. `SHOAL_SEEDS=from:to` runs other seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.quantity import amount
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.planning import leaving
from shoal.controllers.queues import QueueSettings
from shoal.engine.model import Gang, PodFact
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import Planned, planned
from tests.resting import rules_of
from tests.unit.appwrapper import build as wrappers
from tests.unit.appwrapper.meddler import Meddler
from tests.unit.appwrapper.test_faults_leaving import counts_those_who_end_twice
from tests.unit.queues import build as queues

STEPS = 24
NODES = ("node-1", "node-2")
Counted = tuple[dict[str, dict[str, int]], dict[str, int], dict[str, dict[str, int]]]


def seeds() -> range:
    first, _, last = os.environ.get("SHOAL_SEEDS", "1:5").partition(":")
    return range(int(first), int(last))


async def never(request: Request) -> Response | None:
    """A controller that only looks: its writes are not answered."""
    if request.method not in ("GET", "HEAD") and "selfsubject" not in request.path:
        await asyncio.Event().wait()
    return None


@asynccontextmanager
async def starting(client: Client) -> AsyncIterator[Planned]:
    """A controller with its queues, until the block ends."""
    host = planned(client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counted(host: Planned) -> Counted:
    """What bound pods take on each node; what is kept for pods to come, in all; and each gang's reservation."""
    ledger = host.loop.engine._state.ledger
    ledger.settle()
    slots = ledger.room.by_name.values()
    bound = {slot.name: {name: value for name, value in slot.bound.items() if value} for slot in slots}
    planned = sum((Counter(slot.planned) for slot in slots), Counter())
    return {name: taken for name, taken in bound.items() if taken}, dict(+planned), dict(ledger.reserved)


class Town:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.dice = random.Random(seed)
        self.number = 0

    async def step(self) -> str:
        deed = self.dice.choice(
            [self.submit, self.submit, self.bind, self.bind, self.bind, self.drop, self.drop, self.end_slowly, self.end,
             self.end, self.finish]
        )  # fmt: skip
        try:
            return f"{deed.__name__} {await deed()}"
        except NotFound:
            return f"{deed.__name__}: gone already"

    async def submit(self) -> str:
        self.number += 1
        name, size, cores = f"g{self.number}", self.dice.randint(1, 3), str(self.dice.randint(1, 2))
        match self.dice.randrange(4):
            case 0:
                wrapped = [wrappers.pod(f"{name}-{index}", cpu=cores) for index in range(size)]
                await self.cluster.create(kinds.APP_WRAPPER, wrappers.app_wrapper(name, *wrapped))
            case 1:
                wrapper = wrappers.app_wrapper(name, wrappers.job(name, size, cpu=cores))
                await self.cluster.create(kinds.APP_WRAPPER, wrapper)
            case 2:
                await queues.make(self.cluster, queues.job(name, size, cpu=cores))
            case _:
                component = {"template": {**wrappers.job(name, size, cpu=cores)}}
                made = {
                    "apiVersion": "workload.codeflare.dev/v1beta2",
                    "kind": "AppWrapper",
                    "metadata": {"name": name, "namespace": "default", "labels": {queues.QUEUE: "user-queue"}},
                    "spec": {"suspend": True, "components": [component]},
                }
                await self.cluster.create(kinds.APP_WRAPPER_V1BETA2, made)
        return name

    async def pods(self) -> list[Json]:
        return sorted(await self.cluster.client.list(kinds.POD, "default"), key=lambda one: one["metadata"]["name"])

    async def bind(self) -> str:
        """Where there is room, as a scheduler would."""
        pods = await self.pods()
        free = Counter(dict.fromkeys(NODES, 4000))
        for pod in pods:
            if pod["spec"].get("nodeName") and is_live(pod):
                free[pod["spec"]["nodeName"]] -= cores_of(pod)
        unbound = [one for one in pods if not one["spec"].get("nodeName") and is_live(one)]
        self.dice.shuffle(unbound)
        for pod in unbound:
            node = next((name for name in NODES if free[name] >= cores_of(pod)), "")
            if node:
                await wrappers.set_pod(self.cluster, pod["metadata"]["name"], "Running", node)
                return f"{pod['metadata']['name']} to {node}"
        return "nothing"

    async def drop(self) -> str:
        """Delete a gang, its pods at once after it, before it, or not at all."""
        found: list[tuple[Kind, Json]] = []
        for kind in (kinds.APP_WRAPPER, kinds.JOB):
            found += [(kind, one) for one in await self.cluster.client.list(kind, "default")]
        found = [(kind, one) for kind, one in found if not one["metadata"].get("ownerReferences")]
        if not found:
            return "nothing"
        kind, obj = self.dice.choice(sorted(found, key=lambda one: one[1]["metadata"]["name"]))
        unbound = any(not one["spec"].get("nodeName") and is_live(one) for one in await self.pods())
        how = self.dice.choice(["Background", "Foreground", *([] if unbound else ["Orphan"])])
        await self.cluster.client.delete(kind, obj["metadata"]["name"], "default", propagation=how)
        return f"{obj['metadata']['name']} {how}"

    async def end_slowly(self) -> str:
        return await self._on_pod(
            lambda one: is_live(one) and "deletionTimestamp" not in one["metadata"],
            lambda name: self.cluster.client.delete(kinds.POD, name, "default", grace_seconds=600),
        )

    async def end(self) -> str:
        return await self._on_pod(
            lambda one: "deletionTimestamp" in one["metadata"],
            lambda name: self.cluster.client.delete(kinds.POD, name, "default", grace_seconds=0),
        )

    async def finish(self) -> str:
        phase = self.dice.choice(["Succeeded", "Failed"])
        return await self._on_pod(
            lambda one: is_live(one) and bool(one["spec"].get("nodeName")),
            lambda name: self.cluster.client.patch(
                kinds.POD, name, "default", {"status": {"phase": phase}}, subresource="status"
            ),
        )

    async def _on_pod(self, wanted: Any, deed: Any) -> str:
        found = [one["metadata"]["name"] for one in await self.pods() if wanted(one)]
        if not found:
            return "nothing"
        name = self.dice.choice(found)
        await deed(name)
        return str(name)


def is_live(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def cores_of(pod: Json) -> int:
    return sum(amount("cpu", one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])


def holds_too_much(host: Planned, pods: list[Json]) -> list[str]:
    """Gangs that hold more cpu than they were admitted with and their ending pods take beside it."""
    ledger = host.loop.engine._state.ledger
    ending = {one["metadata"]["uid"]: cores_of(one) for one in pods if "deletionTimestamp" in one["metadata"]}
    bound = {one["metadata"]["uid"] for one in pods if one["spec"].get("nodeName") and is_live(one)}
    found = []
    for uid, gang in ledger.holders.items():
        asked = sum(one.requests.get("cpu", 0) * one.count for one in gang.pod_sets)
        twice = sum(ending.get(pod, 0) for pod in ledger.by_gang.get(uid, ())) if gang.state == "admitted" else 0
        there = sum(ledger.pods[pod].requests.get("cpu", 0) for pod in ledger.by_gang.get(uid, ()) if pod in bound)
        held = sum(taken.get("cpu", 0) for taken in ledger._held_by([uid])[0].values())
        if held > max(asked + twice, there):
            found.append(f"{gang.key} ({gang.state}) asked for {asked}m and holds {held}m")
    return found


async def settled_like(host: Planned, cluster: Cluster) -> Counted:
    """What a controller that starts now counts, once it has seen what the other has; the last thing it counted where
    the two never agree."""
    only_looks = Client(Meddler(cluster.server.transport(), never))
    async with starting(only_looks) as fresh:
        for _ in range(400):
            await asyncio.sleep(0.005)
            if counted(fresh) == counted(host):
                break
        return counted(fresh)


def counts_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that ends is counted beside what replaces it, and a deleted gang as if it were whole."""
    counts_those_who_end_twice(monkeypatch)
    whole = leaving.remains

    def as_it_was(gang: Gang, pods: Iterable[PodFact]) -> Gang:
        return gang if whole(gang, pods).pod_sets else whole(gang, pods)

    monkeypatch.setattr(leaving, "remains", as_it_was)


@proven(without=counts_as_it_did)
async def test_f157_each_pod_is_counted_once_whatever_is_deleted_first() -> None:
    """F157: gangs, their objects and their pods are deleted in any order, orphaned, or end slowly. Holds: after each
    step the ledger equals one that is built from stored objects, and no gang holds more than was asked for."""
    for seed in seeds():
        await live_through(seed)


async def live_through(seed: int) -> None:
    async with running() as cluster:
        for node in NODES:
            await cluster.add_node(node, cpu="4", memory="64Gi")
        await queues.make(cluster, queues.flavor(), queues.cluster_queue(quota={"cpu": "100"}), queues.local_queue())
        town, said = Town(cluster, seed), []
        async with starting(cluster.client) as host:
            await cluster.settled()
            for _ in range(STEPS):
                said.append(await town.step())
                await cluster.settled()
                assert holds_too_much(host, await town.pods()) == [], (seed, said)
                again = await settled_like(host, cluster)
                assert counted(host) == again, (seed, said)
            cluster.rules = rules_of(AppWrapperSettings(trust_unstamped=True), QueueSettings())
            await cluster.hold_at_rest()
            cluster.rules = None  # from here on no controller decides
