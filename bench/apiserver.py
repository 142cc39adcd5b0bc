"""The embedded API server beside kube-apiserver with etcd: start, writes, watch delivery, lists, memory.

`python bench/apiserver.py` starts each in turn on this machine, runs the same client against it, and prints one table.
Both get full durability, TLS and the same objects of about 3 KB. `--only embedded` leaves the real one out.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GROUP, PLURAL = "bench.example.com", "things"
WHERE = f"/apis/{GROUP}/v1/namespaces/default/{PLURAL}"
CONNECTIONS = (1, 8, 32)
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
VERSION = {
    "name": "v1",
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": OPEN, "status": OPEN}}},
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "thing", "kind": "Thing"},
        "versions": [VERSION],
    },
}


def thing(name: str) -> dict[str, Any]:
    """About 2.8 KB, shaped as a job: a few labels and two pod templates."""

    def template(size: int) -> dict[str, Any]:
        environment = [{"name": f"VARIABLE_{index}", "value": "value-" + "x" * 30} for index in range(size)]
        return {
            "replicas": 2,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "example/image:1",
                            "command": ["python", "train.py"],
                            "env": environment,
                            "resources": {
                                "requests": {"cpu": "2", "memory": "8Gi"},
                                "limits": {"cpu": "4", "memory": "8Gi"},
                            },
                        }
                    ]
                }
            },
        }

    return {"apiVersion": f"{GROUP}/v1", "kind": "Thing",
            "metadata": {"name": name, "labels": {"app": "bench", "queue": "q1"}, "annotations": {"note": "x" * 200}},
            "spec": {"priority": 5, "groups": [template(14), template(14)]}}  # fmt: skip


CONDITIONS = [
    {
        "type": kind,
        "status": "True",
        "reason": "Because",
        "message": "m" * 80,
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    for kind in ("Queued", "Admitted", "Running", "Ready")
]


class Target:
    """One running server, seen from outside."""

    def __init__(self, name: str, kubeconfig: Path, pids: list[int], start_seconds: float) -> None:
        self.name = name
        self.pids = pids
        self.start_seconds = start_seconds
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.base: str = cluster["server"]
        self.headers: dict[str, str] = {}
        if "certificate-authority" in cluster:
            self.tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
            self.tls.load_cert_chain(user["client-certificate"], user["client-key"])
        else:
            self.tls = ssl.create_default_context(
                cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
            )
            self.headers = {"Authorization": f"Bearer {user['token']}"}

    def session(self, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=connections)
        return aiohttp.ClientSession(connector=connector, headers=self.headers)

    def memory(self) -> float:
        """Resident MiB of all its processes."""
        total = 0
        for pid in self.pids:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    total += int(line.split()[1])
        return total / 1024


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, body: bytes | None = None, content: str = "application/json"
) -> bytes:
    async with session.request(method, url, data=body, headers={"Content-Type": content}) as answer:
        data = await answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {url}: {answer.status} {data[:300]!r}")
        return data


async def rate(count: int, connections: int, work: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """Operations per second and latencies in ms, `connections` at a time."""
    numbers = iter(range(count))
    taken: list[float] = []

    async def worker() -> None:
        for number in numbers:
            begin = time.perf_counter()
            await work(number)
            taken.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(connections)))
    total = time.perf_counter() - begin
    taken.sort()
    return {
        "per_second": count / total,
        "p50_ms": taken[len(taken) // 2] * 1e3,
        "p99_ms": taken[int(len(taken) * 0.99)] * 1e3,
    }


async def watch_delivery(target: Target, per_second: int, count: int) -> dict[str, float]:
    """From just before a create is sent to the event in the watcher's hands."""
    sent: dict[str, float] = {}
    delays: list[float] = []
    done = asyncio.Event()
    async with target.session(4) as session:

        async def follow() -> None:
            url = f"{target.base}{WHERE}?watch=1&resourceVersion={revision}"
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as answer:
                ready.set()
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        name = msgspec.json.decode(line)["object"]["metadata"]["name"]
                        if name in sent:
                            delays.append(time.perf_counter() - sent[name])
                            if len(delays) == count:
                                done.set()

        ready = asyncio.Event()
        listed = json.loads(await ask(session, "GET", f"{target.base}{WHERE}?limit=1"))
        revision = listed["metadata"]["resourceVersion"]
        follower = asyncio.ensure_future(follow())
        await ready.wait()
        begin = time.perf_counter()
        for index in range(count):
            await asyncio.sleep(max(0.0, begin + index / per_second - time.perf_counter()))
            name = f"watched-{index}"
            body = msgspec.json.encode(thing(name))
            sent[name] = time.perf_counter()
            await ask(session, "POST", target.base + WHERE, body)
        await asyncio.wait_for(done.wait(), 30)
        follower.cancel()
    delays.sort()
    return {"p50_ms": statistics.median(delays) * 1e3, "p99_ms": delays[int(len(delays) * 0.99)] * 1e3}


async def writes(target: Target, connections: int, count: int) -> dict[str, Any]:
    async with target.session(connections) as session:

        async def create(number: int) -> None:
            await ask(session, "POST", target.base + WHERE, msgspec.json.encode(thing(f"c{connections}-{number}")))

        async def update(number: int) -> None:
            status = {"status": {"phase": "Running", "conditions": CONDITIONS, "tick": number}}
            url = f"{target.base}{WHERE}/c{connections}-{number}/status"
            await ask(session, "PATCH", url, msgspec.json.encode(status), "application/merge-patch+json")

        return {
            f"create_c{connections}": await rate(count, connections, create),
            f"status_c{connections}": await rate(count, connections, update),
        }


async def measure(target: Target, scale: float) -> dict[str, Any]:
    found: dict[str, Any] = {"start_s": target.start_seconds, "idle_mib": target.memory()}
    async with target.session(1) as session:
        await ask(
            session,
            "POST",
            f"{target.base}/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json.dumps(DEFINITION).encode(),
        )
        for _ in range(100):
            try:
                await ask(session, "GET", f"{target.base}{WHERE}")
                break
            except RuntimeError:
                await asyncio.sleep(0.1)
        await asyncio.sleep(3)  # kube-apiserver holds back the first create of a new kind for 2 s: not what is measured
        await ask(session, "POST", target.base + WHERE, msgspec.json.encode(thing("warm")))
    found["watch"] = await watch_delivery(target, 100, int(500 * scale))
    for connections in CONNECTIONS:
        found.update(await writes(target, connections, int((800 if connections == 1 else 2500) * scale)))
    async with target.session(32) as session:
        have = len(json.loads(await ask(session, "GET", f"{target.base}{WHERE}"))["items"])

        async def fill(number: int) -> None:
            await ask(session, "POST", target.base + WHERE, msgspec.json.encode(thing(f"fill-{number}")))

        if have < 10_000 * scale:
            await rate(int(10_000 * scale) - have, 32, fill)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            await ask(session, "GET", f"{target.base}{WHERE}?resourceVersion=0")
            times.append(time.perf_counter() - begin)
        found["list_s"] = min(times)
    found["full_mib"] = target.memory()
    return found


async def serve(state: str, kubeconfig: str) -> None:
    """The embedded server, in a process of its own."""
    from shoal.local.apiserver import Server

    server = Server(state)
    await server.start()
    await server.serve()
    server.write_kubeconfig(kubeconfig)
    print("ready", flush=True)
    await asyncio.Event().wait()


def run_embedded(scale: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", f"{folder}/state", f"{folder}/kubeconfig"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            process.stdout.readline()
            target = Target("embedded", Path(folder) / "kubeconfig", [process.pid], time.perf_counter() - begin)
            return asyncio.run(measure(target, scale))
        finally:
            process.kill()
            process.wait()


def run_real(scale: float) -> dict[str, Any]:
    from tests.controlplane.plane import ControlPlane

    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder) / "plane")
        begin = time.perf_counter()
        plane.start()
        try:
            pids = [process.pid for process in plane._processes.values()]
            target = Target("kube-apiserver + etcd", plane.kubeconfig, pids, time.perf_counter() - begin)
            return asyncio.run(measure(target, scale))
        finally:
            plane.stop()


def table(found: dict[str, dict[str, Any]]) -> str:
    rows: list[tuple[str, Callable[[dict[str, Any]], float], str]] = [("start, s", lambda one: one["start_s"], ".2f")]
    for connections in CONNECTIONS:
        for verb in ("create", "status"):
            name = f"{verb}_c{connections}"
            rows.append((f"{verb}/s, {connections} connections", lambda one, name=name: one[name]["per_second"], ".0f"))
            rows.append(
                (f"{verb} p99 ms, {connections} connections", lambda one, name=name: one[name]["p99_ms"], ".1f")
            )
    rows.append(("watch delivery p50, ms", lambda one: one["watch"]["p50_ms"], ".2f"))
    rows.append(("watch delivery p99, ms", lambda one: one["watch"]["p99_ms"], ".2f"))
    rows.append(("list of 10,000, s", lambda one: one["list_s"], ".2f"))
    rows.append(("memory idle, MiB", lambda one: one["idle_mib"], ".0f"))
    rows.append(("memory with 10,000, MiB", lambda one: one["full_mib"], ".0f"))
    lines = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    lines += [
        f"| {label} | " + " | ".join(format(read(one), style) for one in found.values()) + " |"
        for label, read, style in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("embedded", "real"))
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the usual number of operations")
    parser.add_argument("--serve", nargs=2, metavar=("STATE", "KUBECONFIG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(*options.serve))
        return
    found: dict[str, dict[str, Any]] = {}
    if options.only != "real":
        found["embedded"] = run_embedded(options.scale)
    if options.only != "embedded":
        found["kube-apiserver + etcd"] = run_real(options.scale)
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}\n")
    print(table(found))


if __name__ == "__main__":
    main()
