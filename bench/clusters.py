"""What it costs a hub to give queued jobs to other clusters: the engine's choice against all at once.

    python bench/clusters.py                     both dispatchers at 3, 20 and 100 members (some minutes)
    python bench/clusters.py run --members 20 --count 200 --dispatcher engine|all-at-once [--silent] [--rate 10]

Everything runs in one process: hub and members are API servers in memory. The hub has its real queues and its real
controller of several clusters; a member has nodes, a queue and, in place of its own controllers, one task that admits
every copy at once, so that what is measured is the hub. A MultiKueueConfig names at most 20 clusters: with 100 there
are five queues, each with 20 members. One-pod Jobs are created as fast as the server takes them, or `--rate` a second,
so that a wait is one gang's own and not that of all before it; a gang is released when its Job exists in a member.
Prints one JSON line per run: gangs a second, submit to released, requests per gang on the hub and on all members
together, CPU seconds per gang and resident memory. With `--silent` one member swallows all packets from the first
submit on; gangs that were sent there are left out, and the others are to fare as without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

import msgspec
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.unit.clusters.build import SYSTEM, check, config, member_cluster, secret, sent_job
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, ClusterSettings, HubPlaces
from shoal.controllers.multicluster.settings import ALL_AT_ONCE, ENGINE
from shoal.controllers.queues import QueueSettings
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import KubeError, Unknown
from shoal.kube.transport import Request, Response, Stream, Transport

DISPATCHERS = {"engine": ENGINE, "all-at-once": ALL_AT_ONCE}
RUNS = ((3, 300), (20, 300), (100, 300))
PER_CONFIG = 20
LOTS = {"cpu": "100000", "memory": "1000Ti"}
LIMIT = 300.0
SLOWEST = 0.3
"""Seconds a gang may take of one run, beyond that."""


class Counting:
    """Counts what goes through, reads and writes apart; watches are read once."""

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


async def admit_everything(cluster: Cluster) -> None:
    """In place of a member's queues: every copy holds quota and is admitted as soon as it is there; one that is told
    to go goes."""
    due: asyncio.Queue[Json] = asyncio.Queue()
    copies: Cache[Json] = Cache(cluster.client, kinds.WORKLOAD)
    copies.subscribe(lambda change: due.put_nowait(change.new) if change.new is not None else None)
    feeding = asyncio.create_task(copies.run())
    try:
        while True:
            await answer(cluster, await due.get())
    finally:
        feeding.cancel()


async def answer(cluster: Cluster, copy: Json) -> None:
    metadata = copy["metadata"]
    at = (kinds.WORKLOAD, metadata["name"], metadata["namespace"])
    try:
        if metadata.get("deletionTimestamp"):
            await cluster.client.patch(*at, {"metadata": {"finalizers": None}})
        elif not (copy.get("status") or {}).get("admission"):
            await cluster.client.patch(*at, {"status": admitted(copy)}, subresource="status")
    except KubeError:
        return  # it is gone


def admitted(workload: Json) -> Json:
    now = seconds_text(SystemClock().now())
    queue = workload["spec"]["queueName"]
    assigned = {"name": "main", "count": 1, "flavors": {"cpu": "default-flavor"}, "resourceUsage": {"cpu": "1"}}
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in ("QuotaReserved", "Admitted")
    ]
    return {"admission": {"clusterQueue": queue, "podSetAssignments": [assigned]}, "conditions": conditions}


class Bench:
    def __init__(self, hub: Cluster, members: dict[str, Cluster], settings: ClusterSettings) -> None:
        self.hub, self.members, self.settings = hub, members, settings
        self.hub_way = Counting(hub.server.transport())
        self.ways = {name: Counting(one.server.transport()) for name, one in members.items()}
        self.released: dict[str, float] = {}
        self.all_released = asyncio.Event()
        self.swallowed: set[str] = set()

    def connect(self, content: bytes, source: str) -> Transport:
        return self.ways[content.decode()]

    def start(self) -> None:
        client, places = Client(self.hub_way), HubPlaces(self.settings)
        wrappers, queues = AppWrapperSettings(trust_unstamped=True), QueueSettings()
        self.hub.start(planned(client, wrappers, queues=queues, places=places).run())
        self.hub.start(ClusterController(client, self.settings, connect=self.connect, places=places).run())

    def watch(self, count: int) -> None:
        """Notes when each Job came to be in a member."""
        for one in self.members.values():
            found = one.server.registry.find("batch", "jobs")
            assert found is not None
            found.collection.listeners.append(lambda event: self._note(event, count))
        workloads = self.hub.server.registry.find("kueue.x-k8s.io", "workloads")
        assert workloads is not None
        workloads.collection.listeners.append(self._note_offer)

    def _note(self, event: Any, count: int) -> None:
        name = msgspec.json.decode(event.record.raw)["metadata"]["name"]
        self.released.setdefault(name, time.monotonic())
        if len(self.released.keys() | self.swallowed) >= count:
            self.all_released.set()

    def _note_offer(self, event: Any) -> None:
        """A gang that was offered to a member which swallows packets waits for that one."""
        workload = msgspec.json.decode(event.record.raw)
        offered = (workload.get("status") or {}).get("nominatedClusterNames") or ()
        if any(self.ways[name].swallows for name in offered):
            self.swallowed.add(workload["metadata"]["ownerReferences"][0]["name"])


async def make_queue(cluster: Cluster, name: str, checks: list[str]) -> None:
    await make(cluster, cluster_queue(name, quota=LOTS, checks=checks), local_queue(name, to=name))


async def measure(count: int, members: int, dispatcher: str, silent: bool, rate: float) -> None:
    names = [f"member-{at:03}" for at in range(members)]
    queues = {f"queue-{at}": names[at * PER_CONFIG : (at + 1) * PER_CONFIG] for at in range(-(-members // PER_CONFIG))}
    settings = ClusterSettings(dispatcher=DISPATCHERS[dispatcher], policy="spread", probe_seconds=30)
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running(with_builtin=False))
        clusters = {name: await stack.enter_async_context(running(with_builtin=False)) for name in names}
        await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
        await make(hub, flavor())
        for queue, some in queues.items():
            await hub.create(kinds.ADMISSION_CHECK, check(queue, queue))
            await hub.create(kinds.MULTIKUEUE_CONFIG, config(*some, name=queue))
            await make_queue(hub, queue, [queue])
            for name in some:
                await make(clusters[name], flavor())
                await make_queue(clusters[name], queue, [])
                await clusters[name].add_node("node-1", cpu="10000", memory="1000Ti", pods="100000")
                await hub.create(kinds.SECRET, secret(name, name))
                await hub.create(kinds.MULTIKUEUE_CLUSTER, member_cluster(name))
                clusters[name].start(admit_everything(clusters[name]))
        bench = Bench(hub, clusters, settings)
        bench.start()
        for name in names:
            await hub.until(kinds.MULTIKUEUE_CLUSTER, name, lambda one: "True" in str(one.get("status")))
        if silent:
            bench.ways[names[0]].swallows = True
        found = await rush(bench, count, list(queues), dispatcher, rate)
        print(json.dumps({**found, "silent_members": int(silent)}), flush=True)
        os._exit(0)  # servers in memory leave nothing behind


async def rush(bench: Bench, count: int, queues: list[str], dispatcher: str, rate: float) -> dict[str, Any]:
    bench.watch(count)
    for way in (bench.hub_way, *bench.ways.values()):
        way.requests.clear()
    submitted: dict[str, float] = {}
    cpu, began = time.process_time(), time.monotonic()
    for at in range(count):
        job = sent_job(f"job-{at:05}", 1, cpu="1")
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queues[at % len(queues)]
        if rate:
            await asyncio.sleep(max(0.0, began + at / rate - time.monotonic()))
        submitted[job["metadata"]["name"]] = time.monotonic()
        await bench.hub.create(kinds.JOB, job)
    async with asyncio.timeout(LIMIT + SLOWEST * count):
        await bench.all_released.wait()
    lasted, used = time.monotonic() - began, time.process_time() - cpu
    waits = sorted(bench.released[name] - at for name, at in submitted.items() if name not in bench.swallowed)
    there: Counter[str] = Counter()
    for way in bench.ways.values():
        there += way.requests
    return {
        "dispatcher": dispatcher,
        "members": len(bench.members),
        "gangs": len(waits),
        "gangs_per_second": round(count / lasted, 1),
        "released_p50_ms": round(waits[len(waits) // 2] * 1000),
        "released_p99_ms": round(waits[int(len(waits) * 0.99)] * 1000),
        "hub_writes_per_gang": round(bench.hub_way.requests["writes"] / count, 2),
        "hub_reads_per_gang": round(bench.hub_way.requests["reads"] / count, 2),
        "member_writes_per_gang": round(there["writes"] / count, 2),
        "member_reads_per_gang": round(there["reads"] / count, 2),
        "cpu_ms_per_gang": round(used / count * 1000, 1),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run"])
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--dispatcher", choices=list(DISPATCHERS), default="engine")
    parser.add_argument("--rate", type=float, default=0.0, help="gangs a second; 0: as fast as the server takes them")
    parser.add_argument("--silent", action="store_true", help="one member swallows all packets")
    chosen = parser.parse_args()
    if chosen.what == "run":
        asyncio.run(measure(chosen.count, chosen.members, chosen.dispatcher, chosen.silent, chosen.rate))
    for members, count in RUNS:
        for dispatcher in DISPATCHERS:
            flags = ["--members", str(members), "--count", str(count), "--dispatcher", dispatcher]
            subprocess.run([sys.executable, __file__, "run", *flags], check=True)
    for silent in ((), ("--silent",)):
        flags = ["--members", "20", "--count", "300", "--rate", "5", *silent]
        subprocess.run([sys.executable, __file__, "run", *flags], check=True)


if __name__ == "__main__":
    main()
