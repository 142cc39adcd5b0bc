"""What a large cluster costs: nodes, pods and gangs in stock, two replicas of the controller, and the leader's death.

    python bench/cluster.py [--nodes 5000] [--pods 50000] [--gangs 10000] [--arrivals 200] [--qps 0]
        [--limit SECONDS]

On a real kube-apiserver with etcd; nodes and pods are bare objects, which no kubelet changes. A gang is an AppWrapper
of one pod that takes all eight GPUs of a node, so that as many start as there are nodes and the rest waits. Each
replica is a `shoal controller` process of its own. Prints one JSON line for each step: seconds, CPU and memory of the
replica, and its requests to the API server by gang started. Fail-over: small gangs are submitted all the while, the
leader is killed; what counts is when another replica holds the lease, when the first gang starts again, and that every
gang has one pod. The last line is a summary of all, with what was not reached left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from prometheus_client.parser import text_string_to_metric_families
from tests.controlplane.plane import ControlPlane, cpu_seconds

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.kube.kubeconfig import load

NAMESPACE = "default"
AT_ONCE = 32
GPUS = 8
SHOAL = [sys.executable, "-c", "import sys; from shoal.cli.main import main; sys.exit(main())"]


class Replica:
    """One controller process."""

    def __init__(self, kubeconfig: Path, log: Path, qps: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = ["--only=appwrapper", "--trust-unstamped", "--open-metrics", "--history=none"]
        options += ["--set=bind_seconds=0"]  # no scheduler binds these pods, and a gang that is not bound would go back
        options += [f"--kube-api-qps={qps}"] if qps else []
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*SHOAL, "controller", f"--kubeconfig={kubeconfig}", f"--health-port={self.port}", *options],
                stdout=output,
                stderr=output,
            )

    def asked(self, path: str) -> str | None:
        """What it answers; None while it does not, or is not ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    async def until_ready(self) -> None:
        while await asyncio.to_thread(self.asked, "/readyz") is None:
            if self.process.poll() is not None:
                raise SystemExit("error: the controller has ended; see its log")
            await asyncio.sleep(0.1)

    def requests(self) -> Counter[str]:
        """Requests sent so far, by verb and resource."""
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(self.asked("/metrics") or ""):
            for sample in family.samples:
                if sample.name == "shoal_requests_total":
                    found[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
        return found

    def memory(self) -> Json:
        """MiB, now and at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        read = {
            line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("VmRSS", "VmHWM"))
        }
        return {"mib": int(read["VmRSS"]) // 1024, "mib_at_most": int(read["VmHWM"]) // 1024}

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)


def node(number: int) -> Json:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": str(GPUS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": {"kubernetes.io/hostname": f"node-{number}"}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, requests: Json, **spec: Any) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "stock"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def gang(name: str, requests: Json) -> Json:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"resources": {"GenericItems": [{"replicas": 1, "generictemplate": pod(name, requests)}]}},
    }


async def each(items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> float:
    """Do it for all, some at a time; returns the seconds."""
    waiting, started = iter(items), time.perf_counter()

    async def one() -> None:
        for item in waiting:
            await work(item)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return time.perf_counter() - started


async def stock(client: Client, asked: argparse.Namespace) -> Json:
    for crd in load_crds():
        await client.create(kinds.CRD, crd)
    while True:
        try:
            await client.list_raw(kinds.APP_WRAPPER, NAMESPACE, limit=1)
            break
        except NotFound:
            await asyncio.sleep(0.1)

    async def make_node(number: int) -> None:
        made = await client.create(kinds.NODE, node(number))
        if made["spec"].get("taints"):  # no controller finds it ready
            await client.patch(kinds.NODE, f"node-{number}", None, {"spec": {"taints": None}})

    async def make_pod(number: int) -> None:
        body = pod(f"stock-{number}", {"cpu": "100m"}, nodeName=f"node-{number % asked.nodes}")
        await client.create(kinds.POD, body, NAMESPACE)

    async def make_gang(number: int) -> None:
        wanted = {"nvidia.com/gpu": str(GPUS), "cpu": "1"}
        await client.create(kinds.APP_WRAPPER, gang(f"gang-{number}", wanted), NAMESPACE)

    return {
        "step": "stock",
        "nodes_seconds": round(await each(range(asked.nodes), make_node), 1),
        "pods_seconds": round(await each(range(asked.pods), make_pod), 1),
        "gangs_seconds": round(await each(range(asked.gangs), make_gang), 1),
    }


class Started:
    """Gangs whose pod exists, and when it came."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.pods: Counter[str] = Counter()
        self._changed = asyncio.Event()

    async def follow(self, client: Client) -> None:
        revision = (await client.list_raw(kinds.POD, NAMESPACE, limit=1)).metadata.resource_version
        while True:
            async for event in client.watch(kinds.POD, NAMESPACE, resource_version=revision):
                seen = json.loads(bytes(event.object))["metadata"]
                revision = seen["resourceVersion"]
                if event.type == "ADDED":
                    self.at[seen["name"]] = time.time()
                    self.pods[seen["name"]] += 1
                    self._changed.set()

    async def until(self, holds: Callable[[], bool], limit: float) -> None:
        async with asyncio.timeout(limit):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


async def take_over(replica: Replica, started: Started, asked: argparse.Namespace, plane: ControlPlane) -> Json:
    """From the start of a controller that finds everything in stock until all that fits has started."""
    begun, wanted, before = time.time(), min(asked.gangs, asked.nodes), plane.cpu_seconds()
    await replica.until_ready()
    ready = time.time() - begun
    await started.until(lambda: len(started.at) >= wanted, 3600)
    seconds = time.time() - begun
    await asyncio.sleep(2)  # statuses of the last ones
    requests, server = await asyncio.to_thread(replica.requests), plane.cpu_seconds()
    return {
        "step": "take over",
        "ready_seconds": round(ready, 1),
        "started": len(started.at),
        "waiting": asked.gangs - wanted,
        "seconds": round(seconds, 1),
        "gangs_a_second": round(wanted / max(seconds - ready, 0.001), 1),
        "cpu_seconds": round(replica.cpu(), 1),
        "apiserver_cpu_seconds": round(server["kube-apiserver"] - before["kube-apiserver"], 1),
        **replica.memory(),
        "requests_a_gang": round(sum(requests.values()) / wanted, 2),
        "requests": dict(requests.most_common(8)),
    }


async def at_rest(replica: Replica, seconds: float = 10.0) -> Json:
    cpu, before = replica.cpu(), await asyncio.to_thread(replica.requests)
    await asyncio.sleep(seconds)
    sent = await asyncio.to_thread(replica.requests) - before
    return {
        "step": "at rest",
        "seconds": seconds,
        "cpu_share": round((replica.cpu() - cpu) / seconds, 3),
        "requests_a_second": round(sum(sent.values()) / seconds, 2),
        **replica.memory(),
    }


async def fail_over(
    client: Client, leader: Replica, standby: Replica, started: Started, asked: argparse.Namespace
) -> Json:
    """Small gangs come all the while; the leader dies in the middle."""
    names = [f"small-{number}" for number in range(asked.arrivals)]
    submitted: dict[str, float] = {}
    killed = 0.0

    async def submit(name: str) -> None:
        await client.create(kinds.APP_WRAPPER, gang(name, {"cpu": "10m"}), NAMESPACE)
        submitted[name] = time.time()
        await asyncio.sleep(AT_ONCE * 0.02)

    coming = asyncio.ensure_future(each(names, submit))
    await started.until(lambda: len([name for name in names if name in started.at]) >= asked.arrivals // 4, 600)
    killed = time.time()
    os.kill(leader.process.pid, signal.SIGKILL)
    leader.process.wait()
    while True:
        lease = await client.get(kinds.LEASE, "shoal-controller", "shoal-system")
        if str(lease["spec"]["holderIdentity"]).endswith(f"_{standby.process.pid}"):
            break
        await asyncio.sleep(0.05)
    leads = time.time() - killed
    await coming
    await started.until(lambda: all(name in started.at for name in names), 600)
    after = sorted(started.at[name] - killed for name in names if started.at[name] > killed)
    resumed = next((one for one in after if one >= leads), 0.0)  # writes that were on their way come before
    twice = [name for name, count in started.pods.items() if count > 1]
    return {
        "step": "fail over",
        "leads_after_seconds": round(leads, 1),
        "first_gang_after_seconds": round(resumed, 1),
        "all_started_after_seconds": round(after[-1] if after else 0.0, 1),
        "gangs": len(names),
        "started_twice": twice,
        **standby.memory(),
    }


@asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def summary(steps: dict[str, Json]) -> Json:
    """One line: what the leader needs, and how long the cluster is without one."""
    taken = {
        ("asked", "nodes"): "nodes",
        ("asked", "pods"): "pods",
        ("asked", "gangs"): "gangs",
        ("take over", "ready_seconds"): "ready_seconds",
        ("take over", "seconds"): "all_started_seconds",
        ("take over", "cpu_seconds"): "cpu_seconds",
        ("take over", "mib_at_most"): "mib_at_most",
        ("take over", "requests_a_gang"): "requests_a_gang",
        ("take over", "apiserver_cpu_seconds"): "apiserver_cpu_seconds",
        ("at rest", "cpu_share"): "cpu_share_at_rest",
        ("at rest", "requests_a_second"): "requests_a_second_at_rest",
        ("standing by", "mib"): "standby_mib",
        ("fail over", "leads_after_seconds"): "leads_after_seconds",
        ("fail over", "first_gang_after_seconds"): "first_gang_after_seconds",
        ("fail over", "started_twice"): "started_twice",
    }
    made = {name: steps[step][field] for (step, field), name in taken.items() if step in steps}
    if "take over" in steps:
        made["cpu_ms_a_gang"] = round(1000 * steps["take over"]["cpu_seconds"] / steps["take over"]["started"], 2)
    return {"step": "summary", **made}


async def measure(plane: ControlPlane, asked: argparse.Namespace, folder: Path) -> None:
    transport = load(str(plane.kubeconfig))
    client, started = Client(transport), Started()
    replicas: list[Replica] = []
    steps: dict[str, Json] = {}

    def show(step: Json) -> None:
        steps[step["step"]] = step
        tell(step)

    show({"step": "asked", "nodes": asked.nodes, "pods": asked.pods, "gangs": asked.gangs})
    try:
        show(await stock(client, asked))
        async with running(started.follow(client)):
            replicas.append(Replica(plane.kubeconfig, folder / "first.log", asked.qps))
            show(await take_over(replicas[0], started, asked, plane))
            show(await at_rest(replicas[0]))
            replicas.append(Replica(plane.kubeconfig, folder / "second.log", asked.qps))
            await replicas[1].until_ready()
            show({"step": "standing by", **replicas[1].memory(), "cpu_seconds": round(replicas[1].cpu(), 1)})
            show(await fail_over(client, *replicas, started, asked))
    finally:
        tell(summary(steps))
        for replica in replicas:
            if replica.process.poll() is None:
                replica.process.kill()
                replica.process.wait()
        await transport.close()


async def limited(plane: ControlPlane, asked: argparse.Namespace, folder: Path) -> None:
    try:
        async with asyncio.timeout(asked.limit):
            await measure(plane, asked, folder)
    except TimeoutError:
        raise SystemExit(f"error: not done within {asked.limit:.0f} s") from None


def tell(line: Json) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--gangs", type=int, default=10_000)
    parser.add_argument("--arrivals", type=int, default=200, help="gangs that come while the leader dies")
    parser.add_argument("--qps", type=int, default=0, help="as shoal controller --kube-api-qps; 0: no limit")
    parser.add_argument("--limit", type=float, help="seconds after which it ends with what it has")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder) / "plane").start()
        try:
            asyncio.run(limited(plane, asked, Path(folder)))
        finally:
            plane.stop()


if __name__ == "__main__":
    main()
