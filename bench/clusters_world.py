"""A hub and its members in one process, for bench/clusters.py: API servers in memory, and wires that count.

The hub has its real controllers. A member has nodes, a queue and, in place of its own controllers, one task that takes
whatever it is sent at once, so that what is measured is the hub. A MultiKueueConfig names at most 20 clusters: with
more there are several, each with a queue of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.unit.clusters.build import SYSTEM, check, config, member_cluster, secret
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.kueue_names import PREBUILT
from shoal.api.labels import GATED
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, ClusterSettings, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.queues import QueueSettings
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import KubeError, Unknown
from shoal.kube.transport import Request, Response, Stream, Transport

PER_CONFIG = 20
LOTS = {"cpu": "100000", "memory": "1000Ti"}
ROOMY = {"cpu": "10000", "memory": "1000Ti", "pods": "100000"}
LIMIT = 300.0
WRAPPER = AppWrapperSettings(trust_unstamped=True)


class Counting:
    """Counts what goes through, reads and writes apart; watches are read once. `swallows`: it answers nothing."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.requests: Counter[str] = Counter()
        self.swallows = False

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if self.swallows:
            await asyncio.sleep(timeout or LIMIT)
            raise Unknown("no answer")
        if "/events" not in request.path:
            self.requests["reads" if request.method == "GET" else "writes"] += 1
        return await self.inner.send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        if self.swallows:
            await asyncio.sleep(idle_timeout or LIMIT)
            raise Unknown("no answer")
        async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield stream

    async def close(self) -> None:
        return None


Answer = Callable[[Cluster, Json], Any]


async def answer_everything(cluster: Cluster, kind: Kind, answer: Answer) -> None:
    """In place of a member's own controllers: every copy is answered as soon as it is there."""
    due: asyncio.Queue[Json] = asyncio.Queue()
    copies: Cache[Json] = Cache(cluster.client, kind)
    copies.subscribe(lambda change: due.put_nowait(change.new) if change.new is not None else None)
    feeding = asyncio.create_task(copies.run())
    try:
        while True:
            try:
                await answer(cluster, await due.get())
            except KubeError:
                continue  # it is gone
    finally:
        feeding.cancel()


async def admit(cluster: Cluster, copy: Json) -> None:
    """A Workload's copy holds quota and is admitted; one that is told to go goes."""
    metadata = copy["metadata"]
    at = (kinds.WORKLOAD, metadata["name"], metadata["namespace"])
    if metadata.get("deletionTimestamp"):
        await cluster.client.patch(*at, {"metadata": {"finalizers": None}})
    elif not (copy.get("status") or {}).get("admission"):
        await cluster.client.patch(*at, {"status": admitted(copy)}, subresource="status")


async def run(cluster: Cluster, copy: Json) -> None:
    """An AppWrapper's copy runs once it is released."""
    if _is_released(copy) and not (copy.get("status") or {}).get("state"):
        await _show(cluster, copy, {"state": "Running", "canrun": True, "running": 1})


async def run_and_end(cluster: Cluster, copy: Json) -> None:
    """An AppWrapper's copy runs once it is released, and ends at once."""
    await run(cluster, copy)
    if _is_released(copy) and (copy.get("status") or {}).get("state") == "Running":
        await _show(cluster, copy, {"state": "Completed", "canrun": True, "running": 0, "Succeeded": 1})


async def end(cluster: Cluster, job: Json) -> None:
    """A Job ends as soon as it is there: its Workload says so."""
    name, now = job["metadata"]["labels"][PREBUILT], seconds_text(SystemClock().now())
    copy = await cluster.client.get(kinds.WORKLOAD, name, "default")
    ended = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": now}
    conditions = [*copy["status"]["conditions"], ended]
    at = (kinds.WORKLOAD, name, "default")
    await cluster.client.patch(*at, {"status": {"conditions": conditions}}, subresource="status")


def _is_released(copy: Json) -> bool:
    metadata = copy["metadata"]
    return GATED not in (metadata.get("annotations") or {}) and not metadata.get("deletionTimestamp")


async def _show(cluster: Cluster, copy: Json, status: Json) -> None:
    at = (kinds.APP_WRAPPER, copy["metadata"]["name"], copy["metadata"]["namespace"])
    await cluster.client.patch(*at, {"status": status}, subresource="status")


def admitted(workload: Json) -> Json:
    now = seconds_text(SystemClock().now())
    queue = workload["spec"]["queueName"]
    usage = workload["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]
    flavors = dict.fromkeys(usage, "default-flavor")
    assigned = {"name": "main", "count": 1, "flavors": flavors, "resourceUsage": usage}
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in ("QuotaReserved", "Admitted")
    ]
    return {"admission": {"clusterQueue": queue, "podSetAssignments": [assigned]}, "conditions": conditions}


class World:
    """`released`: when each gang was, by name: its Job came to be in a member, or its AppWrapper's gate went."""

    def __init__(self, hub: Cluster, members: dict[str, Cluster], queues: list[str], settings: ClusterSettings) -> None:
        self.hub, self.members, self.queues, self.settings = hub, members, queues, settings
        self.hub_way = Counting(hub.server.transport())
        self.ways = {name: Counting(one.server.transport()) for name, one in members.items()}
        self.released: dict[str, float] = {}
        self.released_cpu: dict[str, float] = {}
        """The same by the CPU time of this process, which other programs of the machine do not change."""
        self.where: dict[str, str] = {}
        self.starts: Counter[str] = Counter()
        self._workloads: dict[str, str] = {}
        """Name of each Job's Workload."""
        self.swallowed: set[str] = set()
        """Gangs that were offered to a member which swallows packets: they wait for that one."""
        self.expected = 0
        self.all_released = asyncio.Event()
        self._listen()

    def connect(self, content: bytes, source: str) -> Transport:
        return self.ways[content.decode()]

    def start(self, *, wrappers: bool) -> None:
        client, places = Client(self.hub_way), HubPlaces(self.settings)
        if wrappers:
            loop = PlanningLoop(client, WRAPPER.planning)
            AppWrapperController(loop, WRAPPER, places.for_wrappers)
            self.hub.start(loop.run())
        else:
            self.hub.start(planned(client, WRAPPER, queues=QueueSettings(), places=places).run())
        self.hub.start(ClusterController(client, self.settings, connect=self.connect, places=places).run())

    async def connected(self) -> None:
        for name in self.members:
            await self.hub.until(kinds.MULTIKUEUE_CLUSTER, name, lambda one: "True" in str(one.get("status")))

    def expect(self, count: int) -> None:
        """`all_released` is set once so many are."""
        self.expected = count
        self.all_released.clear()
        self._judge()

    def forget_requests(self) -> None:
        for way in (self.hub_way, *self.ways.values()):
            way.requests.clear()

    def member_requests(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for way in self.ways.values():
            found += way.requests
        return found

    def _listen(self) -> None:
        for name, one in self.members.items():
            for group, plural in (("batch", "jobs"), (kinds.APP_WRAPPER.group, "appwrappers")):
                found = one.server.registry.find(group, plural)
                assert found is not None
                found.collection.listeners.append(lambda event, at=name: self._note(event, at))
        workloads = self.hub.server.registry.find("kueue.x-k8s.io", "workloads")
        assert workloads is not None
        workloads.collection.listeners.append(self._note_offer)

    def _note(self, event: Any, at: str) -> None:
        metadata = msgspec.json.decode(event.record.raw)["metadata"]
        if GATED not in (metadata.get("annotations") or {}):
            self.where[metadata["name"]] = at
            if metadata["name"] not in self.released:
                self.starts[at] += 1
            self.released.setdefault(metadata["name"], time.monotonic())
            self.released_cpu.setdefault(metadata["name"], time.process_time())
            self._judge()

    def _note_offer(self, event: Any) -> None:
        workload = msgspec.json.decode(event.record.raw)
        offered = (workload.get("status") or {}).get("nominatedClusterNames") or ()
        self._workloads[workload["metadata"]["ownerReferences"][0]["name"]] = workload["metadata"]["name"]
        if any(self.ways[name].swallows for name in offered):
            self.swallowed.add(workload["metadata"]["ownerReferences"][0]["name"])
            self._judge()

    async def delete(self, kind: Kind, name: str) -> None:
        """At the hub, which has no garbage collector here."""
        await self.hub.client.delete(kind, name, "default", propagation="Background")
        if kind == kinds.JOB:
            await self.hub.client.delete(kinds.WORKLOAD, self._workloads[name], "default")

    def _judge(self) -> None:
        if len(self.released.keys() | self.swallowed) >= self.expected:
            self.all_released.set()


@asynccontextmanager
async def world(
    members: int,
    settings: ClusterSettings,
    node: dict[str, str] | None = None,
    *,
    wrappers: bool = False,
    ends: bool = False,
) -> AsyncIterator[World]:
    """`node`: the size of the one node of every member. `ends`: what starts ends at once."""
    names = [f"member-{at:03}" for at in range(members)]
    queues = {f"queue-{at}": names[at * PER_CONFIG : (at + 1) * PER_CONFIG] for at in range(-(-members // PER_CONFIG))}
    if wrappers:
        asked = {"app_wrappers": ",".join(queues), "app_wrapper_namespaces": "any", "trust_unstamped": True}
        settings = msgspec.structs.replace(settings, **asked)
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running(with_builtin=False))
        clusters = {name: await stack.enter_async_context(running(with_builtin=False)) for name in names}
        await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
        await make(hub, flavor())
        for queue, some in queues.items():
            await hub.create(kinds.ADMISSION_CHECK, check(queue, queue))
            await hub.create(kinds.MULTIKUEUE_CONFIG, config(*some, name=queue))
            await _make_queue(hub, queue, [queue])
            for name in some:
                await make(clusters[name], flavor())
                await _make_queue(clusters[name], queue, [])
                await clusters[name].add_node("node-1", **(node or ROOMY))
                await hub.create(kinds.SECRET, secret(name, name))
                await hub.create(kinds.MULTIKUEUE_CLUSTER, member_cluster(name))
                wrapper = run_and_end if ends else run
                kind, answer = (kinds.APP_WRAPPER, wrapper) if wrappers else (kinds.WORKLOAD, admit)
                clusters[name].start(answer_everything(clusters[name], kind, answer))
                if ends and not wrappers:
                    clusters[name].start(answer_everything(clusters[name], kinds.JOB, end))
        yield World(hub, clusters, list(queues), settings)


async def _make_queue(cluster: Cluster, name: str, checks: list[str]) -> None:
    await make(cluster, cluster_queue(name, quota=LOTS, checks=checks), local_queue(name, to=name))
