"""How fast AppWrappers are dispatched: many at once, and one after another when room comes free.

    python bench/dispatch.py throughput [--count 1000] [--backlog] [--kubeconfig FILE]
    python bench/dispatch.py handover   [--count 50] [--waiting 1000] [--kubeconfig FILE]

Without a kubeconfig everything runs in this process: the embedded API server in memory, its garbage collector and the
controller. With one, the controller here works against that API server: for throughput start one without controllers
(bare nodes stay ready), for hand-overs one with them (they collect the garbage) and a single node of 8 cpu.
Prints one JSON line: rates or latencies, API writes per AppWrapper, and cpu seconds of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.kind import Kind
from shoal.api.meta import Json, Object, Part
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.kube.transport import Request, Response, Stream, Transport

NAMESPACE = "default"


class Counting:
    """Counts what the controller writes, by what it writes to."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.writes: dict[str, int] = {}

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method != "GET":
            parts = request.path.rstrip("/").split("/")
            what = (
                "status"
                if parts[-1] == "status"
                else next(p for p in ("events", "pods", "appwrappers", parts[-1]) if p in parts)
            )
            self.writes[what] = self.writes.get(what, 0) + 1
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


def app_wrapper(name: str, cpu: str) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"resources": {"GenericItems": [{"replicas": 1, "generictemplate": pod}]}},
    }


@asynccontextmanager
async def api(kubeconfig: Path | None) -> AsyncIterator[tuple[Transport, list[Any]]]:
    """A transport to the API server, and what has to run beside it."""
    if kubeconfig is not None:
        from shoal.kube.kubeconfig import load

        transport = load(str(kubeconfig))
        try:
            yield transport, []
        finally:
            await transport.close()
        return
    from shoal.local import builtin
    from shoal.local.apiserver import Server

    server = Server(None)
    await server.start()
    try:
        yield server.transport(), [builtin.run_all(Client(server.transport()))]
    finally:
        await server.stop()


async def prepare(client: Client, nodes: int, cpu: str) -> None:
    for crd in load_crds():
        try:
            await client.create(kinds.CRD, crd)
        except AlreadyExists:
            continue
    amounts = {"cpu": cpu, "memory": "64Gi", "pods": "10000"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    for number in range(nodes):
        name = f"bench-{number}"
        try:
            await client.create(kinds.NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        except AlreadyExists:
            pass
        await client.patch(kinds.NODE, name, None, {"status": status}, subresource="status")
        await client.patch(kinds.NODE, name, None, {"spec": {"taints": None}})  # nobody else finds it ready
    for _ in range(100):
        try:
            await client.list(kinds.APP_WRAPPER, NAMESPACE)
            return
        except NotFound:
            await asyncio.sleep(0.1)


class Seen:
    """When each pod appeared and each AppWrapper was dispatched, by one cache per kind."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.pods: dict[str, float] = {}
        self.dispatched: dict[str, float] = {}
        self.held: set[str] = set()
        self.changed = asyncio.Event()

    async def watch(self, kind: Kind) -> None:
        cache: Cache[Brief] = Cache(self._client, kind, Brief, namespace=NAMESPACE)
        cache.subscribe(lambda change: self._note(kind, change.new) if change.new is not None else None)
        await cache.run()

    def _note(self, kind: Kind, obj: Brief) -> None:
        name = obj.metadata.name
        if kind is kinds.POD:
            self.pods.setdefault(name, time.perf_counter())
        elif obj.status.queuejobstate == "Dispatched":
            self.dispatched.setdefault(name, time.perf_counter())
        elif obj.status.queuejobstate == "Backoff":
            self.held.add(name)
        self.changed.set()

    async def until(self, holds: Callable[[], bool], limit: float = 600.0) -> None:
        async with asyncio.timeout(limit):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class BriefStatus(Part):
    queuejobstate: str = ""


class Brief(Object):
    status: BriefStatus = BriefStatus()


async def create_all(client: Client, names: list[str], cpu: str, at_once: int = 16) -> None:
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await client.create(kinds.APP_WRAPPER, app_wrapper(name, cpu), NAMESPACE)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def throughput(arguments: argparse.Namespace) -> Json:
    async with api(arguments.kubeconfig) as (transport, beside):
        client = Client(transport, timeout=120)
        await prepare(client, 20, "1000")
        counting, seen = Counting(transport), Seen(client)
        settings = AppWrapperSettings(trust_unstamped=True, bind_seconds=0)
        running = [seen.watch(kinds.POD), seen.watch(kinds.APP_WRAPPER), *beside]
        tasks = [asyncio.ensure_future(one) for one in running]
        controller = AppWrapperController(Client(counting), settings).run()
        names = [f"aw-{number:05}" for number in range(arguments.count)]
        if not arguments.backlog:
            tasks.append(asyncio.ensure_future(controller))
            await asyncio.sleep(1.0)
        cpu, began = time.process_time(), time.perf_counter()
        await create_all(client, names, "10m")
        created = time.perf_counter() - began
        if arguments.backlog:
            tasks.append(asyncio.ensure_future(controller))
            cpu, began = time.process_time(), time.perf_counter()
        await seen.until(lambda: len(seen.pods) >= arguments.count)
        last = max(seen.pods.values()) - began
        await seen.until(lambda: len(seen.dispatched) >= arguments.count)
        result = {
            "count": arguments.count,
            "submitted_per_second": round(arguments.count / created, 1),
            "dispatched_per_second": round(arguments.count / last, 1),
            "writes_per_appwrapper": {k: round(v / arguments.count, 3) for k, v in counting.writes.items()},
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "cpu_milliseconds_per_appwrapper": round((time.process_time() - cpu) * 1000 / arguments.count, 2),
        }
        await stop(tasks)
        return result


async def handover(arguments: argparse.Namespace) -> Json:
    async with api(arguments.kubeconfig) as (transport, beside):
        client = Client(transport, timeout=120)
        await prepare(client, 0 if arguments.kubeconfig else 1, "8")
        counting, seen = Counting(transport), Seen(client)
        settings = AppWrapperSettings(trust_unstamped=True, bind_seconds=0)
        running = [
            AppWrapperController(Client(counting), settings).run(),
            seen.watch(kinds.POD),
            seen.watch(kinds.APP_WRAPPER),
            *beside,
        ]
        tasks = [asyncio.ensure_future(one) for one in running]
        await asyncio.sleep(1.0)
        total = arguments.waiting + arguments.count + 1
        names = [f"aw-{number:05}" for number in range(total)]
        await client.create(kinds.APP_WRAPPER, app_wrapper(names[0], "5"), NAMESPACE)
        await seen.until(lambda: names[0] in seen.dispatched)
        for name in names[1 : arguments.count + 2]:  # the order of those that will be measured
            await client.create(kinds.APP_WRAPPER, app_wrapper(name, "5"), NAMESPACE)
        await create_all(client, names[arguments.count + 2 :], "5")
        await seen.until(lambda: len(seen.held) >= total - 1)
        await asyncio.sleep(1.0)
        counting.writes.clear()
        to_status, to_pod = [], []
        cpu = time.process_time()
        # the first is not counted: a real garbage collector learns of new kinds only now and then
        for before, after in pairwise(names[: arguments.count + 1]):
            began = time.perf_counter()
            await client.delete(kinds.APP_WRAPPER, before, NAMESPACE, propagation="Background")
            await seen.until(lambda after=after: after in seen.dispatched and after in seen.pods, 60.0)
            to_status.append(seen.dispatched[after] - began)
            to_pod.append(seen.pods[after] - began)
            await asyncio.sleep(0.05)
        result = {
            "handovers": arguments.count,
            "waiting": arguments.waiting,
            "first_ms": round(to_status[0] * 1000, 1),
            "delete_to_dispatched_ms": spread(to_status[1:]),
            "delete_to_pod_created_ms": spread(to_pod[1:]),
            "writes_per_handover": {k: round(v / arguments.count, 2) for k, v in counting.writes.items()},
            "cpu_milliseconds_per_handover": round((time.process_time() - cpu) * 1000 / arguments.count, 2),
            "in_order": sorted(seen.dispatched, key=seen.dispatched.__getitem__) == names[: len(seen.dispatched)],
        }
        await stop(tasks)
        return result


def spread(seconds: list[float]) -> Json:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 1)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "worst": at(1.0)}


async def stop(tasks: list[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="handover", choices=["throughput", "handover"])
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--backlog", action="store_true", help="submit everything before the controller starts")
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--profile", action="store_true", help="print where the time went")
    arguments = parser.parse_args()
    arguments.count = arguments.count or (1000 if arguments.what == "throughput" else 50)
    run = throughput if arguments.what == "throughput" else handover
    if arguments.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.enable()
        result = asyncio.run(run(arguments))
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    else:
        result = asyncio.run(run(arguments))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
