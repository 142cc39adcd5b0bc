"""What talking to an API server costs: our client, the official one, and a bare loop on the same kind of socket.

`python bench/kube.py [--objects 10000] [--pods 50000] [--writes 1500]` starts a real control plane and prints one table
per question, then our promises and whether they held; the official client is in the `bench` extra. CPU is this
process's alone, in microseconds per operation; the server has processes of its own. It takes three to four minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from shoal.api.core import Pod
from shoal.api.kind import Kind
from shoal.api.kinds import CRD, NAMESPACE, POD
from shoal.api.meta import Json, Object, Part
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import KubeError
from shoal.kube.feed import FeedSettings
from shoal.kube.kubeconfig import load, resolve, tls_context
from shoal.kube.lease import FencedTransport, Term
from shoal.kube.writes import Writes

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.controlplane.plane import ControlPlane  # noqa: E402

BENCH = Kind("bench.test", "v1", "Gang", "gangs")
IN_FLIGHT = (1, 8, 32)


class Gang(Object):
    """What a controller would read of a bench object; the rest stays bytes or is skipped."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def gang(name: str) -> Json:
    """About 2.7 KB, as a RayCluster of two groups has."""
    env = [{"name": f"VARIABLE_{number}", "value": f"value-of-the-variable-{number}"} for number in range(15)]
    container = {"name": "ray", "image": "rayproject/ray:2.9.0", "env": env, "resources": {"limits": {"cpu": "4"}}}
    groups = [
        {"groupName": f"g{number}", "replicas": 4, "template": {"spec": {"containers": [container]}}}
        for number in (1, 2)
    ]
    return {
        "apiVersion": BENCH.api_version,
        "kind": BENCH.kind,
        "metadata": {"name": name, "namespace": "default", "labels": {"queue": "team-a"}},
        "spec": {"groups": groups},
    }


def status_of(number: int) -> Json:
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "Because",
            "message": f"change {number}",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Admitted", "Ready", "Running")
    ]
    return {"status": {"phase": "Running", "count": number, "conditions": conditions}}


def pod(number: int) -> Json:
    env = [{"name": f"RAY_{number}", "value": "x" * 20} for number in range(8)]
    container = {
        "name": "ray-worker", "image": "rayproject/ray:2.9.0", "env": env, "args": ["ray start --block " + "x" * 200],
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"}},
    }  # fmt: skip
    labels = {"ray.io/cluster": f"cluster-{number // 10}", "ray.io/group": "workers", "app": "ray"}
    metadata = {
        "name": f"cluster-{number // 10}-worker-{number:05}",
        "namespace": f"team-{number % 20}",
        "labels": labels,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


# --- three ways to write

Write = Callable[[int], Awaitable[Any]]


class Ours:
    """As `shoal controller` writes: through the shared places, kept back by a lease term, with the revision seen."""

    name = "shoal"

    def __init__(self, kubeconfig: Path) -> None:
        self.transport = load(kubeconfig)
        clock = SystemClock()
        term = Term(1, clock.monotonic() + 3600, clock)
        self.writer = Writes(Client(FencedTransport(self.transport, term)), in_flight=max(IN_FLIGHT)).writer("bench")
        self.created: dict[int, Json] = {}

    async def create(self, number: int) -> None:
        self.created[number] = await self.writer.create(BENCH, gang(f"{self.name}-{number}"))

    async def patch(self, number: int) -> None:
        await self.writer.patch(BENCH, self.created[number], status_of(number), subresource="status")

    async def close(self) -> None:
        await self.transport.close()


class Official:
    """The `kubernetes` package, synchronous, in as many threads as writes are in flight."""

    name = "kubernetes"

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import client, config

        settings = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=settings)
        settings.connection_pool_maxsize = max(IN_FLIGHT)
        self.api = client.CustomObjectsApi(client.ApiClient(settings))
        self.pool = ThreadPoolExecutor(max(IN_FLIGHT))

    async def create(self, number: int) -> None:
        body = gang(f"{self.name}-{number}")
        await self._call(
            self.api.create_namespaced_custom_object, BENCH.group, BENCH.version, "default", BENCH.plural, body
        )

    async def patch(self, number: int) -> None:
        place = (BENCH.group, BENCH.version, "default", BENCH.plural, f"{self.name}-{number}")
        await self._call(self.api.patch_namespaced_custom_object_status, *place, status_of(number))

    async def close(self) -> None:
        self.pool.shutdown()

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)


class Bare:
    """Bytes over TLS with asyncio, the least that Python can do; answers are read and not decoded."""

    name = "bare"

    def __init__(self, kubeconfig: Path) -> None:
        self.target = resolve(kubeconfig)
        self.tls = tls_context(self.target) or ssl.create_default_context()
        host, _, port = self.target.cluster.server.removeprefix("https://").partition(":")
        self.host, self.port = host, int(port)
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def create(self, number: int) -> None:
        await self._send("POST", BENCH.path("default"), "application/json", gang(f"{self.name}-{number}"))

    async def patch(self, number: int) -> None:
        path = BENCH.path("default", f"{self.name}-{number}", "status")
        await self._send("PATCH", path, "application/merge-patch+json", status_of(number))

    async def close(self) -> None:
        for _, writer in self.free:
            writer.close()

    async def _send(self, method: str, path: str, content_type: str, body: Json) -> None:
        data = msgspec.json.encode(body)
        reader, writer = (
            self.free.pop() if self.free else await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        )
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: {content_type}\r\n"
            f"Accept: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head[9:10] == b"2", head
        if b"chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(length)
        self.free.append((reader, writer))


async def measure(write: Write, numbers: range, in_flight: int) -> dict[str, float]:
    times: list[float] = []
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            start = time.perf_counter()
            await write(number)
            times.append(time.perf_counter() - start)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    times.sort()
    return {
        "rate": len(times) / wall,
        "cpu": cpu / len(times) * 1e6,
        "p50": times[len(times) // 2] * 1e3,
        "p99": times[len(times) * 99 // 100] * 1e3,
    }


async def bench_writes(kubeconfig: Path, count: int) -> dict[str, Any]:
    print(f"\nwrites of 2.7 KB ({count} creates and status patches per row)")
    head = f"{'/s':>8} {'CPU us':>7} {'p99 ms':>7}"
    print(f"{'client':<11} {'in flight':>9} | create {head} | patch {head}")
    results: dict[str, Any] = {}
    start = 0
    for in_flight in IN_FLIGHT:
        for make in (Bare, Ours, Official):
            writer = make(kubeconfig)
            numbers = range(start, start + count)
            await writer.create(10**6 + start)  # connections and caches warm
            created = await measure(writer.create, numbers, in_flight)
            patched = await measure(writer.patch, numbers, in_flight)
            await writer.close()
            results[f"{writer.name}/{in_flight}"] = {"create": created, "patch": patched}
            row = [f"{one['rate']:>8.0f} {one['cpu']:>7.0f} {one['p99']:>7.1f}" for one in (created, patched)]
            print(f"{writer.name:<11} {in_flight:>9} | {'':>6} {row[0]} | {'':>5} {row[1]}", flush=True)
        start += count
    return results


# --- lists and watches, each in a process of its own so that memory can be told apart


def resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


class Before:
    """What a process has used before the part that is measured."""

    def __init__(self) -> None:
        self.rss, self.cpu, self.wall = resident(), time.process_time(), time.perf_counter()

    def report(self, count: int) -> None:
        spent, seconds = time.process_time() - self.cpu, time.perf_counter() - self.wall
        gc.collect()
        found = {"count": count, "cpu": spent / count * 1e6, "seconds": seconds}
        print(json.dumps({**found, "rss": resident() - self.rss, "total": resident(), "peak": peak()}))


async def run_cache(
    kubeconfig: Path, kind: Kind, type: Any, streaming: bool, count: int, *, share: bool = False
) -> None:
    transport = load(kubeconfig)
    cache = Cache(Client(transport), kind, type, settings=FeedSettings(streaming_lists=streaming), share=share)
    before = Before()
    task = asyncio.ensure_future(cache.run())
    await cache.synced.wait()
    assert len(cache) >= count, len(cache)
    before.report(len(cache))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await transport.close()


def run_official(kubeconfig: Path, what: str) -> None:
    from kubernetes import client, config, watch

    config.load_kube_config(str(kubeconfig))
    api = client.CustomObjectsApi()
    place = (BENCH.group, BENCH.version, BENCH.plural)
    before = Before()
    held: list[Any] = []
    if what == "official-list":
        held = api.list_cluster_custom_object(*place, resource_version="0")["items"]
    else:
        total = len(api.list_cluster_custom_object(*place, limit=1)["items"]) + (
            api.list_cluster_custom_object(*place, limit=1)["metadata"].get("remainingItemCount") or 0
        )
        before = Before()
        for event in watch.Watch().stream(api.list_cluster_custom_object, *place, timeout_seconds=120):
            held.append(event["object"])
            if len(held) == total:
                break
    before.report(len(held))


def in_process(kubeconfig: Path, what: str, count: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "bench.kube",
        "--part",
        what,
        "--kubeconfig",
        str(kubeconfig),
        "--objects",
        str(count),
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


async def run_part(what: str, kubeconfig: Path, count: int) -> None:
    match what:
        case "list" | "stream":
            await run_cache(kubeconfig, BENCH, Gang, what == "stream", count)
        case "list-dict" | "stream-dict":
            await run_cache(kubeconfig, BENCH, dict, what == "stream-dict", count)
        case "pods" | "pods-list":
            await run_cache(kubeconfig, POD, Pod, what == "pods", count)
        case "pods-shared":
            await run_cache(kubeconfig, POD, Pod, True, count, share=True)
        case "pods-slim":
            await run_cache(kubeconfig, POD, SlimPod, True, count)
        case _:
            run_official(kubeconfig, what)


class SlimContainer(Part):
    resources: msgspec.Raw = msgspec.Raw(b"{}")


class SlimSpec(Part):
    node_name: str = ""
    containers: tuple[SlimContainer, ...] = ()


class SlimStatus(Part):
    phase: str = ""


class SlimPod(Object):
    """What counting room needs of a pod."""

    spec: SlimSpec = SlimSpec()
    status: SlimStatus = SlimStatus()


async def fill(kubeconfig: Path, count: int, make: Callable[[int], Json], kind: Kind) -> None:
    """Create until there are `count`; 32 in flight, patient when the server is busy."""
    transport = load(kubeconfig)
    client = Client(transport)
    writer = Writes(client, in_flight=32, attempts=10).writer("fill")
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            try:
                await writer.create(kind, make(number))
            except KubeError as error:
                print(f"fill: {error}", file=sys.stderr)

    await asyncio.gather(*(worker() for _ in range(32)))
    await transport.close()


def bench_reads(kubeconfig: Path, count: int) -> dict[str, Any]:
    print(f"\nreading {count} objects (CPU us and KiB of memory per object; whole process in MiB)")
    print(f"{'how':<34} {'CPU us':>7} {'KiB':>6} {'total':>6} {'peak':>6}")
    parts = {
        "list": "shoal cache, typed, list",
        "stream": "shoal cache, typed, streamed",
        "list-dict": "shoal cache, dictionaries, list",
        "official-list": "kubernetes, list",
        "official-watch": "kubernetes, watch from the start",
    }
    results = {}
    for part, title in parts.items():
        found = results[part] = in_process(kubeconfig, part, count)
        kib = found["rss"] * 1024 / found["count"]
        print(f"{title:<34} {found['cpu']:>7.0f} {kib:>6.1f} {found['total']:>6.0f} {found['peak']:>6.0f}", flush=True)
    return results


def bench_pods(kubeconfig: Path, count: int) -> dict[str, Any]:
    print(f"\na cache of {count} pods (CPU us per pod, seconds until loaded, whole process in MiB)")
    print(f"{'how':<34} {'CPU us':>7} {'s':>5} {'steady':>7} {'peak':>6}")
    results = {}
    titles = {
        "pods-shared": "whole pods, equal parts shared",
        "pods": "whole pods, streamed",
        "pods-list": "whole pods, paged list",
        "pods-slim": "only what counting room reads",
    }
    for part, title in titles.items():
        found = results[part] = in_process(kubeconfig, part, count)
        row = f"{found['cpu']:>7.0f} {found['seconds']:>5.1f} {found['total']:>7.0f} {found['peak']:>6.0f}"
        print(f"{title:<34} {row}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--writes", type=int, default=1_500)
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        asyncio.run(run_part(arguments.part, arguments.kubeconfig, arguments.objects))
        return
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder) / "plane").start()
        try:
            results = asyncio.run(bench_all(plane.kubeconfig, arguments))
        finally:
            plane.stop()
    kept = summary(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.exit(0 if kept else 1)


CPU_SHARE = 0.5
"""Of the official client's CPU, per write."""
CACHE_MIB = 250
"""Whole process with 50,000 pods, once loaded."""


def summary(results: dict[str, Any]) -> bool:
    """Print what was promised and what was measured; True when all of it held."""
    print("\npromises")
    kept = True
    for in_flight in IN_FLIGHT:
        for what in ("create", "patch"):
            ours, theirs = (results["writes"][f"{name}/{in_flight}"][what]["cpu"] for name in ("shoal", "kubernetes"))
            good = ours <= CPU_SHARE * theirs
            kept &= good
            share = f"{ours / theirs:.2f} of the official client's"
            print(f"  {_verdict(good)} CPU per {what}, {in_flight:>2} in flight: {share}")
    if "pods" in results:
        found = results["pods"]["pods-shared"]
        good = found["total"] <= CACHE_MIB
        kept &= good
        steady, most = found["total"], found["peak"]
        print(
            f"  {_verdict(good)} cache of {found['count']} pods: {steady:.0f} MiB steady, {most:.0f} MiB while listing"
        )
    return kept


def _verdict(good: bool) -> str:
    return "kept  " if good else "BROKEN"


async def bench_all(kubeconfig: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    client = Client(load(kubeconfig))
    await client.create(CRD, crd())
    for number in range(20):
        await client.create(NAMESPACE, {"metadata": {"name": f"team-{number}"}})
    await client.transport.close()
    await asyncio.sleep(3)  # the server's first write after a new CRD waits two seconds on purpose
    results: dict[str, Any] = {"writes": await bench_writes(kubeconfig, arguments.writes)}
    missing = arguments.objects - arguments.writes * len(IN_FLIGHT) * 3
    await fill(kubeconfig, max(0, missing), lambda number: {**gang(f"fill-{number}"), **status_of(number)}, BENCH)
    results["reads"] = bench_reads(kubeconfig, arguments.objects)
    if arguments.pods:
        start = time.monotonic()
        await fill(kubeconfig, arguments.pods, pod, POD)
        print(f"\n{arguments.pods} pods created in {time.monotonic() - start:.0f} s")
        results["pods"] = bench_pods(kubeconfig, arguments.pods)
    return results


def crd() -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"kind": BENCH.kind, "plural": BENCH.plural, "singular": "gang"}
    spec = {"group": BENCH.group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"apiVersion": CRD.api_version, "kind": CRD.kind, "metadata": {"name": BENCH.resource}, "spec": spec}


if __name__ == "__main__":
    main()
