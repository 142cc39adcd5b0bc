"""What one Workload costs the queue controller in CPU, on the road of Kueue's benchmark, without an API server.

    python bench/queue_path.py                    5 cohorts of 6 queues, a fifth of Kueue's baseline: 3,000 Workloads
    python bench/queue_path.py --part 1           all 15,000
    python bench/queue_path.py --large            the shape of its large scale: 100 queues a cohort; --cohorts 10 is all
    python bench/queue_path.py --profile FILE     with cProfile: what is called, how often (`python -m pstats FILE`)

A store of dictionaries stands where the API server is and plays the runner, in virtual time: each write takes --service
milliseconds of it, plans are --pause seconds apart as they are on two busy cores. Its own CPU is counted apart.
Prints milliseconds of CPU a Workload, codec included and socket not, plans, writes, and memory. The same figures under
any load; walls are bench/kueue_runner.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import heapq
import logging
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from bench.runner_replay import BASELINE
from tests.replay import LoopClock, skipping

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.planning import PlanningLoop, PlanningSettings, pace
from shoal.controllers.planning.history.store import HistoryStore
from shoal.controllers.planning.pace import PlanPace
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.engine.model import Plan
from shoal.kube.client import Client
from shoal.kube.collector import spare_collector
from shoal.kube.transport import Request, Response, Stream

LARGE = (("small", 35, 60, 150, 50, 1), ("medium", 11, 300, 350, 100, 5), ("large", 4, 700, 700, 200, 20))
"""Of one queue of Kueue's large scale: class, Workloads, milliseconds between two and of each, priority, cpu."""
FINISHERS = 5
"""So many Workloads at a time the runner ends."""
END = "k8s.io/initial-events-end"
T = TypeVar("T")


class _Lines:
    """One watch."""

    status = 200
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            chunks = [await self.sent.get()]
            while not self.sent.empty():
                chunks.append(self.sent.get_nowait())
            yield b"".join(chunks)

    async def read(self) -> bytes:
        return b""


class Store:
    """Objects by path, merge patches, watches of whole kinds; a `Transport` of one client."""

    def __init__(self, service: float) -> None:
        self.asked: Counter[str] = Counter()
        self.cpu = 0.0
        self.changed: Any = lambda path, obj: None
        self._service = service
        self._free = 0.0
        self._objects: dict[str, dict[str, Json]] = {}
        self._watches: dict[str, list[_Lines]] = {}
        self._revision = 0

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._free = max(self._free, loop.time()) + self._service
        await asyncio.sleep(self._free - loop.time())

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        began = time.thread_time()
        collection, name, sub = _parts(request.path)
        self.asked[f"{request.method} {collection}{sub}"] += 1
        if request.method == "GET" and not name:
            items = [*self._objects.get(collection, {}).values()]
            body = msgspec.json.encode({"metadata": {"resourceVersion": str(self._revision)}, "items": items})
            self.cpu += time.thread_time() - began
            return Response(200, {}, body)
        self.cpu += time.thread_time() - began
        await self.turn()
        began = time.thread_time()
        sent = msgspec.json.decode(request.body) if request.body else {}
        if request.method == "POST":
            obj = sent
        else:
            held = self._objects.get(collection, {}).get(name)
            if held is None:
                self.cpu += time.thread_time() - began
                return Response(404, {}, b'{"code":404,"reason":"NotFound","message":"not found"}')
            obj = _merged(held, sent)
        body = self.put(collection, obj)
        self.cpu += time.thread_time() - began
        return Response(200, {}, body)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        collection, _, _ = _parts(request.path)
        lines = _Lines()
        if "sendInitialEvents" in request.query:
            for obj in self._objects.get(collection, {}).values():
                lines.sent.put_nowait(_line("ADDED", msgspec.json.encode(obj)))
            mark = {"metadata": {"resourceVersion": str(self._revision), "annotations": {END: "true"}}}
            lines.sent.put_nowait(_line("BOOKMARK", msgspec.json.encode(mark)))
        watches = self._watches.setdefault(collection, [])
        watches.append(lines)
        try:
            yield lines
        finally:
            watches.remove(lines)

    async def close(self) -> None:
        return None

    def put(self, collection: str, obj: Json) -> bytes:
        self._revision += 1
        metadata = obj["metadata"]
        name = f"{metadata.get('namespace', '')}/{metadata['name']}"
        held = self._objects.setdefault(collection, {})
        stamp = {"resourceVersion": str(self._revision)}
        if name not in held:
            created = seconds_text(LoopClock().now())
            stamp |= {"uid": f"uid-{self._revision:08}-0000-0000-000000000000", "creationTimestamp": created}
            obj = {**obj, "metadata": {**metadata, **stamp, "generation": 1}}
        else:
            obj = {**obj, "metadata": {**metadata, **stamp}}
        kind = "ADDED" if name not in held else "MODIFIED"
        held[name] = obj
        body = msgspec.json.encode(obj)
        for watch in self._watches.get(collection, ()):
            watch.sent.put_nowait(_line(kind, body))
        self.changed(collection, obj)
        return body


def _line(kind: str, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


def _parts(path: str) -> tuple[str, str, str]:
    """Resource, namespace/name (empty for a collection), and subresource."""
    parts = path.split("/")[3:] if path.startswith("/api/") else path.split("/")[4:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource_name, *rest = parts
    sub = f"/{rest[1]}" if len(rest) > 1 else ""
    return resource_name, f"{namespace}/{rest[0]}" if rest else "", sub


def _merged(held: Any, change: Any) -> Any:
    if not isinstance(change, dict) or not isinstance(held, dict):
        return change
    merged = dict(held)
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value) if isinstance(value, dict) else value
    return merged


class Runner:
    """Creates Workloads by the plan of Kueue's baseline, and ends each its time after its admission."""

    def __init__(self, store: Store, config: Json) -> None:
        self._store = store
        self._config = config
        self._due: list[tuple[float, str]] = []
        self._more = asyncio.Event()
        self._running: dict[str, Json] = {}
        self.made: dict[str, float] = {}
        self.kind: dict[str, str] = {}
        self.admitted: dict[str, float] = {}
        self.finished = 0
        self.expected = 0
        self.over = asyncio.Event()
        store.changed = self._changed

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self._work()) for _ in range(FINISHERS)]
            self._put(kinds.RESOURCE_FLAVOR, {"metadata": {"name": "rf"}, "spec": {}})
            for index in range(self._config["count"]):
                for queues in self._config["queuesSets"]:
                    for number in range(queues["count"]):
                        self._queue(tasks, queues, f"cohort-{index}", number)
            await self.over.wait()
            for worker in workers:
                worker.cancel()

    def _put(self, kind: Kind, body: Json) -> None:
        began = time.thread_time()
        self._store.put(kind.plural, {"apiVersion": kind.api_version, "kind": kind.kind, **body})
        self._store.cpu += time.thread_time() - began

    def _queue(self, tasks: asyncio.TaskGroup, queues: Json, cohort: str, number: int) -> None:
        name = f"cq-{number}-{cohort}"
        quota = {"name": "cpu", "nominalQuota": str(queues["nominalQuota"]),
                 "borrowingLimit": str(queues["borrowingLimit"])}  # fmt: skip
        spec = {
            "cohortName": cohort,
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "rf", "resources": [quota]}]}],
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        }
        self._put(kinds.CLUSTER_QUEUE, {"metadata": {"name": name}, "spec": spec})
        self._put(kinds.NAMESPACE, {"metadata": {"name": name}})
        self._put(kinds.LOCAL_QUEUE, {"metadata": {"name": name, "namespace": name}, "spec": {"clusterQueue": name}})
        for index, each in enumerate(queues["workloadsSets"]):
            self.expected += each["count"]
            tasks.create_task(self._workloads(each, name, index))

    async def _workloads(self, each: Json, queue: str, index: int) -> None:
        one = each["workloads"][0]
        for count in range(each["count"]):
            await asyncio.sleep(each["creationIntervalMs"] / 1000)
            container = {
                "name": "c",
                "image": "registry.k8s.io/pause:3.9",
                "resources": {"requests": {"cpu": str(one["request"])}},
            }
            template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
            metadata = {"name": f"{one['className']}-{index}-{count}", "namespace": queue,
                        "labels": {"running-ms": str(one["runtimeMs"]), "class": one["className"]}}  # fmt: skip
            spec = {"queueName": queue, "priority": one["priority"], "active": True,
                    "podSets": [{"name": "main", "count": 1, "template": template}]}  # fmt: skip
            await self._store.turn()
            self._put(kinds.WORKLOAD, {"metadata": metadata, "spec": spec, "status": {}})

    def _changed(self, collection: str, obj: Json) -> None:
        if collection != kinds.WORKLOAD.plural:
            return
        metadata, now = obj["metadata"], asyncio.get_running_loop().time()
        uid = metadata["uid"]
        self.made.setdefault(uid, now)
        self.kind.setdefault(uid, metadata["labels"]["class"])
        true = {one["type"] for one in (obj.get("status") or {}).get("conditions") or () if one["status"] == "True"}
        if "Admitted" in true and "Finished" not in true and uid not in self.admitted:
            self.admitted[uid] = now
            self._running[uid] = obj
            heapq.heappush(self._due, (now + int(metadata["labels"]["running-ms"]) / 1000, uid))
            self._more.set()
        elif uid in self._running and "Finished" not in true:
            self._running[uid] = obj

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._due and self._due[0][0] <= loop.time() + 1e-9:
                _, uid = heapq.heappop(self._due)
                await self._store.turn()
                if uid in self._running:
                    self._end(self._running.pop(uid))
            self._more.clear()
            try:
                async with asyncio.timeout(self._due[0][0] - loop.time() if self._due else None):
                    await self._more.wait()
            except TimeoutError:
                pass

    def _end(self, obj: Json) -> None:
        ended = {"type": "Finished", "status": "True", "reason": "ByTest", "message": "By test runner",
                 "lastTransitionTime": seconds_text(LoopClock().now()), "observedGeneration": 1}  # fmt: skip
        status = {**obj["status"], "conditions": [*obj["status"]["conditions"], ended]}
        self._put(kinds.WORKLOAD, {**obj, "status": status})
        self.finished += 1
        if self.finished == self.expected:
            self.over.set()

    def wait(self, kind: str) -> float:
        found = [self.admitted[uid] - self.made[uid] for uid in self.admitted if self.kind[uid] == kind]
        return sum(found) / len(found) if found else 0.0


class TimedPace(PlanPace):
    """Virtual time stands still during a plan, which takes as long as its CPU on a core that others use as well."""

    def __init__(self, took: list[float]) -> None:
        super().__init__()
        self._took = took

    def planned(self, began: float, ended: float, crowd: int) -> None:
        super().planned(began - 2 * self._took[-1], ended, crowd)


class Timed(PlanningLoop):
    """Knows the CPU of each plan."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.took: list[float] = []
        self.pace = TimedPace(self.took)

    def plan(self) -> Plan:
        began = time.thread_time()
        try:
            return super().plan()
        finally:
            self.took.append(time.thread_time() - began)


async def _at_once(work: Callable[[], T]) -> T:
    return work()


async def one_run(asked: argparse.Namespace, config: Json) -> None:
    store = Store(asked.service / 1000)
    clock = LoopClock()
    queued = QueueSettings(supply="off", preemption_pause_seconds=asked.patience)
    history = HistoryStore(asked.history) if asked.history != "none" else None
    loop = Timed(Client(store, manager="shoal"), PlanningSettings(queues=queued.decisions), clock, history=history)
    if loop.history is not None:
        loop.history.in_thread = _at_once  # virtual time goes on while a thread works
    QueueController(loop, queued)
    runner = Runner(store, config)
    deciding = asyncio.ensure_future(loop.run())
    await loop.ready.wait()
    spare_collector()
    store.cpu, began = 0.0, time.thread_time()
    profile = cProfile.Profile() if asked.profile else None
    if profile is not None:
        profile.enable()
    await runner.run()
    if profile is not None:
        profile.disable()
        profile.dump_stats(asked.profile)
    spent = time.thread_time() - began - store.cpu
    wall = clock.monotonic()
    deciding.cancel()
    await asyncio.gather(deciding, return_exceptions=True)
    count = runner.expected
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    plans = sorted(loop.took)
    print(f"{count} Workloads: {1000 * spent / count:.3f} ms of CPU each ({spent:.1f} s in all; the store's own "
          f"{store.cpu:.1f} s), {memory:.0f} MiB, {wall:.0f} s of virtual time")  # fmt: skip
    print(f"  {len(plans)} plans: {sum(plans):.1f} s in all, median {1000 * plans[len(plans) // 2]:.0f} ms, "
          f"longest {1000 * plans[-1]:.0f} ms")  # fmt: skip
    print("  mean waits: " + ", ".join(f"{kind} {runner.wait(kind):.1f} s" for kind in ("large", "medium", "small")))
    told = ", ".join(f"{times} {what}" for what, times in store.asked.most_common() if times > 9)
    print(f"  asked: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="queues as of Kueue's large scale")
    parser.add_argument("--part", type=float, default=0.2, help="this part of the Workloads of each class")
    parser.add_argument("--service", type=float, default=4.5, help="milliseconds of the server for one write")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two plans")
    parser.add_argument("--patience", type=float, help="seconds before a gang evicts others; default: not set")
    parser.add_argument("--history", default="memory", help="as --history of `shoal controller`")
    parser.add_argument("--profile", help="a file for cProfile's figures")
    asked = parser.parse_args()
    pace.PAUSE = asked.pause
    logging.basicConfig(level=logging.INFO, stream=open("/dev/null", "w"))  # noqa: SIM115
    queues = BASELINE["queuesSets"][0]
    if asked.large:
        queues = {**queues, "count": 100, "workloadsSets": [
            {"count": count, "creationIntervalMs": every,
             "workloads": [{"className": name, "runtimeMs": runs, "priority": priority, "request": cpu}]}
            for name, count, every, runs, priority, cpu in LARGE
        ]}  # fmt: skip
    sets = [{**one, "count": max(1, int(one["count"] * asked.part))} for one in queues["workloadsSets"]]
    config = {"count": asked.cohorts, "queuesSets": [{**queues, "workloadsSets": sets}]}
    skipping(one_run(asked, config))


if __name__ == "__main__":
    main()
