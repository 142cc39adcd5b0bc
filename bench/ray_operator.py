"""How fast the Ray operator brings up many Ray clusters, and how little it writes.

    python bench/operator.py                             both of these
    python bench/operator.py embedded [--clusters 200]   embedded API server, scheduler, simulated nodes, 1 process
    python bench/operator.py plane [--clusters 200]      real control plane, KWOK nodes, operator in its own process
    python bench/operator.py services [--services 50]    RayServices, Shoal's operator and KubeRay's (ray_services.py)

Every cluster is one head and two workers. Prints one JSON line each: seconds from the first create until every cluster
is ready next to their target, CPU seconds of the operator and of the plane's processes, or of everything (`embedded`),
and writes per cluster by kind next to the least possible: 3 pods, 1 service, 1 status write. Events are counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from tests.controlplane.plane import ControlPlane

from shoal.api.crds import load_crds
from shoal.api.kinds import CRD, RAY_CLUSTER
from shoal.controllers.ray import Operator, RaySettings
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.kubeconfig import load
from shoal.kube.transport import Request, Response, Transport

ENTRY = Path(__file__).with_name("operator.py")
AT_ONCE = 32
TARGETS = {"embedded": 8.0, "plane": 12.0}
"""Seconds for 200 clusters. KubeRay on such a machine, same control plane: 16.9 s and 5 s of CPU."""


class Counting:
    """A transport that counts writes by verb and resource."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.writes: Counter[str] = Counter()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method != "GET":
            parts = request.path.split("/")
            after = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-2:]
            self.writes[f"{request.method} {after[0]}{'/status' if parts[-1] == 'status' else ''}"] += 1
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> Any:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


def ray_cluster(number: int) -> dict[str, Any]:
    def template(name: str) -> dict[str, Any]:
        amounts = {"cpu": "100m", "memory": "2Gi"}
        container = {
            "name": name,
            "image": "rayproject/ray:2.60.0",
            "resources": {"limits": amounts, "requests": amounts},
        }
        return {"spec": {"containers": [container]}}

    group = {
        "groupName": "workers",
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 2,
        "template": template("ray-worker"),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": f"bench-{number}", "namespace": "default"},
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head")},
            "workerGroupSpecs": [group],
        },
    }


async def install(client: Client) -> None:
    for crd in load_crds():
        if crd["spec"]["group"] in ("ray.io", "ray.k8s.io"):
            await client.create(CRD, crd)
    for crd in load_crds():
        if crd["spec"]["group"] not in ("ray.io", "ray.k8s.io"):
            continue
        while True:
            held = await client.get(CRD, crd["metadata"]["name"])
            conditions = (held.get("status") or {}).get("conditions") or []
            if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                break
            await asyncio.sleep(0.1)


async def bring_up(client: Client, clusters: int) -> float:
    """Seconds from the first create until all are ready."""
    ready: set[str] = set()
    done = asyncio.Event()

    def changed(change: Change) -> None:
        found = change.new
        if found is not None and (found.get("status") or {}).get("state") == "ready":
            ready.add(change.key.name)
            if len(ready) == clusters:
                done.set()

    cache: Cache[dict[str, Any]] = Cache(client, RAY_CLUSTER, dict)
    cache.subscribe(changed)
    watching = asyncio.create_task(cache.run())
    await cache.synced.wait()
    slots = asyncio.Semaphore(AT_ONCE)

    async def create(number: int) -> None:
        async with slots:
            await client.create(RAY_CLUSTER, ray_cluster(number), "default")

    began = time.monotonic()
    await asyncio.gather(*(create(number) for number in range(clusters)))
    await asyncio.wait_for(done.wait(), 120)
    seconds = time.monotonic() - began
    await ended(watching)
    return seconds


async def ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def reached(kubeconfig: Path) -> AsyncIterator[Client]:
    transport = load(kubeconfig)
    try:
        yield Client(transport, timeout=120)
    finally:
        await transport.close()


async def embedded(clusters: int) -> dict[str, Any]:
    from shoal.local.apiserver import Server
    from shoal.local.nodes.agent import Agent, NodeKeeper, NodeShape
    from shoal.local.nodes.runtime.simulated import SimulatedRuntime
    from shoal.local.scheduler import Scheduler

    clock = SystemClock()
    server = Server(None)
    await server.start()
    client = Client(server.transport(), timeout=120)
    await install(client)
    keeper = NodeKeeper(client, "bench", "127.0.0.1", clock)
    shapes = (
        NodeShape(name=f"node-{i}", capacity={"cpu": "64", "memory": "256Gi", "pods": "500"}, runtime="simulated")
        for i in range(10)
    )
    await keeper.register(shapes)
    agent = Agent(client, "bench", {"simulated": SimulatedRuntime(clock)}, keeper, workers=64)
    scheduler = Scheduler(client)
    counting = Counting(server.transport())
    operator = Operator(Client(counting), RaySettings())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        running = (agent.run(), scheduler.run(), operator.run_until_cancelled())
        stack.push_async_callback(ended, *map(asyncio.create_task, running))
        await agent.ready.wait()
        await scheduler.ready.wait()
        await operator.caches.synced()
        before = cpu()
        seconds = await bring_up(client, clusters)
        spent = cpu() - before
    return {"seconds": seconds, "cpu_everything": spent, "writes": counting.writes}


def plane(clusters: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-")) / "state"
    control = ControlPlane(folder, controllers=True, scheduler=True, kwok=True)
    control.start()
    try:
        for number in range(10):
            control.add_node(f"node-{number}", cpu="64", memory="256Gi", pods="500")
        asyncio.run(prepare(control.kubeconfig))
        control.restart_controllers()  # as on a cluster whose kinds were there before: they look for new ones seldom
        rest(control)
        operator = subprocess.Popen(
            [sys.executable, str(ENTRY), "operator", "--kubeconfig", str(control.kubeconfig)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert operator.stdout is not None
            operator.stdout.readline()  # its caches are filled
            before = control.cpu_seconds()
            seconds = asyncio.run(drive(control.kubeconfig, clusters))
            spent = {name: used - before[name] for name, used in control.cpu_seconds().items()}
            operator.send_signal(signal.SIGTERM)
            report = json.loads(operator.stdout.readline())
            operator.wait(20)
        finally:
            operator.kill()
            operator.communicate()
    finally:
        control.stop()
    cpus = {f"cpu_{name}": used for name, used in spent.items()}
    return {"seconds": seconds, "cpu_operator": report["cpu"], **cpus, "writes": Counter(report["writes"])}


def rest(control: ControlPlane) -> None:
    """Until the plane is at rest: what its own start costs is not asked."""
    used = sum(control.cpu_seconds().values())
    for _ in range(60):
        time.sleep(1)
        before, used = used, sum(control.cpu_seconds().values())
        if used - before < 0.15:
            return


async def prepare(kubeconfig: Path) -> None:
    async with reached(kubeconfig) as client:
        await install(client)


async def drive(kubeconfig: Path, clusters: int) -> float:
    async with reached(kubeconfig) as client:
        return await bring_up(client, clusters)


async def operator(kubeconfig: str) -> None:
    """The operator alone; on SIGTERM it says what it wrote and what it cost."""
    counting = Counting(load(kubeconfig))
    running = Operator(Client(counting, timeout=60), RaySettings())
    task = asyncio.create_task(running.run_until_cancelled())
    await running.caches.synced()
    before = cpu()
    print("ready", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    print(json.dumps({"cpu": cpu() - before, "writes": counting.writes}), flush=True)
    await ended(task)
    await counting.close()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", nargs="?", default="all", choices=("all", "embedded", "plane", "services", "operator"))
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--services", type=int, default=50)
    parser.add_argument("--subject", default="all", choices=("all", "shoal", "kuberay"))
    parser.add_argument("--kubeconfig", default="")
    parser.add_argument("--through-server", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.where == "services" or chosen.through_server:
        import ray_services

        if chosen.through_server:
            asyncio.run(ray_services.operate(chosen.kubeconfig))
        else:
            ray_services.main(chosen.services, chosen.subject)
        return
    if chosen.where == "operator":
        asyncio.run(operator(chosen.kubeconfig))
        return
    if chosen.where in ("all", "embedded"):
        report("embedded", chosen.clusters, asyncio.run(embedded(chosen.clusters)))
    if chosen.where in ("all", "plane"):
        report("plane", chosen.clusters, plane(chosen.clusters))


def report(where: str, clusters: int, result: dict[str, Any]) -> None:
    writes = {name: round(count / clusters, 2) for name, count in sorted(result.pop("writes").items())}
    events = sum(count for name, count in writes.items() if "events" in name)
    line = {
        "where": where,
        "clusters": clusters,
        **{key: round(value, 2) for key, value in result.items()},
        "target_seconds": TARGETS[where],
        "writes_per_cluster": round(sum(writes.values()) - events, 2),
        "events_per_cluster": round(events, 2),
        "least_possible": 5,
        "by_kind": writes,
    }
    print(json.dumps(line), flush=True)
