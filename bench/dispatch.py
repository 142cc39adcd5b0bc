"""How fast AppWrappers are dispatched: many at once, and one after another when room comes free.

    python bench/dispatch.py                     everything, embedded and on a real control plane (some two minutes)
    python bench/dispatch.py throughput          [--count 1000] [--backlog] [--plane | --kubeconfig FILE]
    python bench/dispatch.py handover            [--count 50] [--waiting 1000] [--plane | --kubeconfig FILE]

Embedded, everything runs in this process: the API server in memory, its garbage collector and the controller. On a
real control plane only the controller runs here. Throughput counts one-pod AppWrappers from the first create (with
--backlog: from the controller's start) until the last pod exists, on bare Node objects. A hand-over is the deletion of
one gang until the next is Dispatched, while others wait; there a real controller-manager collects the garbage. Prints
one JSON line each: rates or latencies, API writes per AppWrapper, and cpu by process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.planning import PlanningLoop
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.kube.transport import Request, Response, Stream, Transport

NAMESPACE = "default"
SETTINGS = AppWrapperSettings(trust_unstamped=True, bind_seconds=0)


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


# --- where it runs


class Place:
    """An API server, what has to run beside it in this process, and whose cpu counts."""

    def __init__(self, transport: Transport, beside: list[Any], processes: dict[str, int], nodes_there: bool) -> None:
        self.transport = transport
        self.beside = beside
        self.processes = processes
        self.nodes_there = nodes_there

    def cpu(self) -> dict[str, float]:
        spent = {name: _cpu_of(pid) for name, pid in self.processes.items()}
        return {"controller" if self.processes else "everything": time.process_time(), **spent}

    def cpu_since(self, before: dict[str, float]) -> dict[str, float]:
        return {name: round(value - before[name], 2) for name, value in self.cpu().items()}


def _cpu_of(pid: int) -> float:
    import os

    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def place(arguments: argparse.Namespace) -> AsyncIterator[Place]:
    if arguments.plane:
        from tests.controlplane.plane import ControlPlane

        whole = arguments.what == "handover"  # bare nodes stay ready only where no controller looks after them
        with tempfile.TemporaryDirectory() as folder:
            plane = ControlPlane(Path(folder), controllers=whole, scheduler=whole, kwok=whole).start()
            try:
                if whole:
                    plane.add_node("bench-0", cpu="8", memory="64Gi")
                pids = {name: process.pid for name, process in plane._processes.items()}
                async with _remote(plane.kubeconfig, pids, whole) as found:
                    yield found
            finally:
                plane.stop()
    elif arguments.kubeconfig:
        async with _remote(arguments.kubeconfig, {}, arguments.what == "handover") as found:
            yield found
    else:
        from shoal.cli.cluster import judges
        from shoal.local import builtin
        from shoal.local.apiserver import Server

        server = Server(None)
        await server.start()
        server.admission.judges.update(judges(Client(server.transport())))  # as `shoal up` has it
        try:
            yield Place(server.transport(), [builtin.run_all(Client(server.transport()))], {}, nodes_there=False)
        finally:
            await server.stop()


@asynccontextmanager
async def _remote(kubeconfig: Path, processes: dict[str, int], nodes_there: bool) -> AsyncIterator[Place]:
    from shoal.kube.kubeconfig import load

    transport = load(str(kubeconfig))
    try:
        yield Place(transport, [], processes, nodes_there)
    finally:
        await transport.close()


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
        await client.patch(kinds.NODE, name, None, {"spec": {"taints": None}})  # no controller finds it ready
    for _ in range(100):
        try:
            await client.list(kinds.APP_WRAPPER, NAMESPACE)
            return
        except NotFound:
            await asyncio.sleep(0.1)


class Seen:
    """When each pod appeared and each AppWrapper was dispatched, as the controller's own caches see it."""

    def __init__(self, controller: AppWrapperController) -> None:
        self.pods: dict[str, float] = {}
        self.dispatched: dict[str, float] = {}
        self.held: set[str] = set()
        self._changed = asyncio.Event()
        controller.planning.caches.pods.subscribe(
            lambda change: self._pod(change.new) if change.new is not None else None
        )
        wrappers = controller.caches.wrappers[kinds.APP_WRAPPER]
        wrappers.subscribe(lambda change: self._wrapper(change.new) if change.new is not None else None)

    def _pod(self, pod: Any) -> None:
        self.pods.setdefault(pod.metadata.name, time.perf_counter())
        self._changed.set()

    def _wrapper(self, wrapper: Any) -> None:
        name, state = wrapper.metadata.name, wrapper.status.queue_job_state
        if state == "Dispatched":
            self.dispatched.setdefault(name, time.perf_counter())
        elif state == "Backoff":
            self.held.add(name)
        self._changed.set()

    async def until(self, holds: Callable[[], bool], limit: float = 600.0) -> None:
        async with asyncio.timeout(limit):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


async def create_all(client: Client, names: list[str], cpu: str, at_once: int = 16) -> None:
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await client.create(kinds.APP_WRAPPER, app_wrapper(name, cpu), NAMESPACE)

    await asyncio.gather(*(work() for _ in range(at_once)))


# --- what is measured


async def throughput(arguments: argparse.Namespace) -> Json:
    count = arguments.count or 1000
    async with place(arguments) as here:
        client = Client(here.transport, timeout=120)
        await prepare(client, 20, "1000")
        counting = Counting(here.transport)
        planning = PlanningLoop(Client(counting), SETTINGS.planning)
        controller = AppWrapperController(planning, SETTINGS)
        seen = Seen(controller)
        tasks = [asyncio.ensure_future(one) for one in here.beside]
        names = [f"aw-{number:05}" for number in range(count)]
        if not arguments.backlog:
            tasks.append(asyncio.ensure_future(planning.run()))
            await asyncio.sleep(1.0)
        cpu, began = here.cpu(), time.perf_counter()
        await create_all(client, names, "10m")
        submitted = time.perf_counter() - began
        if arguments.backlog:
            tasks.append(asyncio.ensure_future(planning.run()))
            cpu, began = here.cpu(), time.perf_counter()
        await seen.until(lambda: len(seen.pods) >= count)
        last = max(seen.pods.values()) - began
        await seen.until(lambda: len(seen.dispatched) >= count)
        result = {
            "count": count,
            "submitted_per_second": round(count / submitted, 1),
            "dispatched_per_second": round(count / last, 1),
            "writes_per_appwrapper": {k: round(v / count, 3) for k, v in counting.writes.items()},
            "cpu_seconds": here.cpu_since(cpu),
        }
        await stop(tasks)
        return result


async def handover(arguments: argparse.Namespace) -> Json:
    count = arguments.count or 50
    async with place(arguments) as here:
        client = Client(here.transport, timeout=120)
        await prepare(client, 0 if here.nodes_there else 1, "8")
        counting = Counting(here.transport)
        planning = PlanningLoop(Client(counting), SETTINGS.planning)
        controller = AppWrapperController(planning, SETTINGS)
        seen = Seen(controller)
        tasks = [asyncio.ensure_future(one) for one in (planning.run(), *here.beside)]
        await asyncio.sleep(1.0)
        total = arguments.waiting + count + 1
        names = [f"aw-{number:05}" for number in range(total)]
        await client.create(kinds.APP_WRAPPER, app_wrapper(names[0], "5"), NAMESPACE)
        await seen.until(lambda: names[0] in seen.dispatched)
        for name in names[1 : count + 2]:  # the order of those that will be measured
            await client.create(kinds.APP_WRAPPER, app_wrapper(name, "5"), NAMESPACE)
        await create_all(client, names[count + 2 :], "5")
        await seen.until(lambda: len(seen.held) >= total - 1)
        await asyncio.sleep(1.0)
        counting.writes.clear()
        to_status, to_pod = [], []
        cpu = here.cpu()
        # the first is not counted: a real garbage collector learns of new kinds only now and then
        for before, after in pairwise(names[: count + 1]):
            began = time.perf_counter()
            await client.delete(kinds.APP_WRAPPER, before, NAMESPACE, propagation="Background")
            await seen.until(lambda after=after: after in seen.dispatched and after in seen.pods, 60.0)
            to_status.append(seen.dispatched[after] - began)
            to_pod.append(seen.pods[after] - began)
            await asyncio.sleep(0.05)
        result = {
            "handovers": count,
            "waiting": arguments.waiting,
            "first_ms": round(to_status[0] * 1000, 1),
            "delete_to_dispatched_ms": spread(to_status[1:]),
            "delete_to_pod_created_ms": spread(to_pod[1:]),
            "writes_per_handover": {k: round(v / count, 2) for k, v in counting.writes.items()},
            "cpu_seconds": here.cpu_since(cpu),
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


def everything(arguments: argparse.Namespace) -> None:
    """Each figure that is promised, with its target."""
    runs: list[tuple[str, str, dict[str, Any]]] = [
        ("embedded, target 200/s", "throughput", {}),
        ("embedded, ten times as many: as fast", "throughput", {"count": 10_000}),
        ("embedded, target p99 100 ms", "handover", {}),
        ("control plane from a backlog, target 100/s", "throughput", {"plane": True, "backlog": True}),
        ("control plane while submitting", "throughput", {"plane": True}),
        ("control plane, target p99 250 ms", "handover", {"plane": True}),
    ]
    for title, what, chosen in runs:
        values = {**vars(arguments), "what": what, **chosen}
        if values["plane"] and not _can_build():
            print(json.dumps({"run": title, "skipped": "no control plane can be built here"}))
            continue
        run = throughput if what == "throughput" else handover
        print(json.dumps({"run": title, **asyncio.run(run(argparse.Namespace(**values)))}), flush=True)


def _can_build() -> bool:
    from tests.controlplane import build

    try:
        build.binaries("etcd", "kube-apiserver")
    except build.CannotBuild:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="everything", choices=["everything", "throughput", "handover"])
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--backlog", action="store_true", help="submit everything before the controller starts")
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--plane", action="store_true", help="start a real control plane for it")
    parser.add_argument("--kubeconfig", type=Path, help="use that API server")
    parser.add_argument("--profile", action="store_true", help="print where the time went")
    arguments = parser.parse_args()
    if arguments.what == "everything":
        everything(arguments)
        return
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
