"""Kueue's performance runner lived through in one process, in virtual time: what a subject asks of the API server.

The runner's part is played here by its own rules (Kueue's `test/performance/scheduler/runner`): Workloads come by a
file, one worker ends each its time after its admission, and every eviction at once. The server is the embedded one, in
memory; every write takes its turn and a set time there, whichever client sends it, so that needless writes make the run
longer. The clock jumps where nothing is left to do: a run costs what is computed, never what is waited for, and gives
the same figures every time. `bench/runner_replay.py` prints them; tests hold them.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.client import Client
from shoal.kube.errors import Conflict
from shoal.kube.history import parse_path
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.local.apiserver import Server
from tests.cluster import rendered_crds
from tests.stocked import start_with

START = 1_800_000_000_000_000
"""Microseconds since the epoch at which every replay begins."""
RUNTIME = "kueue.x-k8s.io/performance-scheduler-running-ms"
CLASS = "kueue.x-k8s.io/performance-scheduler-class"


# --- time


class _Skipping(selectors.DefaultSelector):
    """Where the loop would sleep until its next timer, the time of that timer comes at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            return super().select(0.05)  # only another thread can wake it
        if not found and timeout is not None and timeout > 0:
            self.passed += timeout
        return found


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.passed


class LoopClock:
    """The time of the running loop."""

    def now(self) -> int:
        return START + round(self.monotonic() * 1_000_000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def skipping(doing: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(doing)


# --- the server


class Turns:
    """One server for all: each write takes its turn."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._free = 0.0

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        self._free = max(self._free, loop.time()) + self.seconds
        await asyncio.sleep(self._free - loop.time())


class Counted:
    """A way to the server on which requests are counted, by verb and resource."""

    def __init__(self, inner: Transport, turns: Turns) -> None:
        self.asked: Counter[str] = Counter()
        self._inner = inner
        self._turns = turns

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        found = parse_path(request.path)
        sub = f"/{found.subresource}" if found.subresource else ""
        self.asked[f"{request.method} {found.collection.rpartition('/')[2]}{sub}"] += 1
        if request.method != "GET":
            await self._turns.take()
        return await self._inner.send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        async with self._inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield stream

    async def close(self) -> None:
        await self._inner.close()

    @property
    def writes(self) -> Counter[str]:
        return Counter({name: count for name, count in self.asked.items() if not name.startswith("GET")})


# --- the runner


@dataclass
class Kept:
    """What the runner's recorder keeps of one Workload."""

    kind: str
    first: float
    admitted: float = -1.0
    finished: float = -1.0
    evictions: int = 0
    was_admitted: bool = False
    was_evicted: bool = False


@dataclass
class Figures:
    """What one replay came to."""

    wall: float
    cpu: float
    kept: list[Kept]
    writes: dict[str, Counter[str]]
    """By client: `runner`, `subject`."""
    excess: list[str] = field(default_factory=list)
    """Moments at which quota was exceeded."""
    why: Counter[str] = field(default_factory=Counter)
    """Reasons of preemptions."""

    def waits(self, kind: str) -> float:
        found = [one.admitted - one.first for one in self.kept if one.kind == kind and one.admitted >= 0]
        return sum(found) / len(found) if found else 0.0

    @property
    def evictions(self) -> int:
        return sum(one.evictions for one in self.kept)

    @property
    def unfinished(self) -> int:
        return sum(one.finished < 0 for one in self.kept)


class ReplayedRunner:
    """Creates, ends and records, as Kueue's runner; one worker ends Workloads, in the order in which they fall due."""

    def __init__(self, client: Client, config: Json) -> None:
        self._client = client
        self._config = config
        self.kept: dict[str, Kept] = {}
        self.why: Counter[str] = Counter()
        self.excess: list[str] = []
        self._objects: dict[tuple[str, str], Json] = {}
        self._due: list[tuple[float, tuple[str, str]]] = []
        self._queued: set[tuple[str, str]] = set()
        self._more = asyncio.Event()
        self._used: Counter[str] = Counter()
        self._holding: dict[str, int] = {}
        self._created = False
        self.over = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch())
            worker = tasks.create_task(self._work())
            async with asyncio.TaskGroup() as making:
                await self._create(kinds.RESOURCE_FLAVOR, {"metadata": {"name": "rf"}, "spec": {}})
                for cohorts in self._config["cohorts"]:
                    for index in range(cohorts["count"]):
                        for queues in cohorts["queuesSets"]:
                            for number in range(queues["count"]):
                                cohort = f"{cohorts['className']}-{index}"
                                making.create_task(self._queue(queues, cohort, number))
            self._created = True
            self._look_for_end()
            await self.over.wait()
            watch.cancel()
            worker.cancel()

    async def _create(self, kind: Kind, body: Json) -> None:
        named = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        await self._client.create(kind, named, body["metadata"].get("namespace"))

    async def _queue(self, queues: Json, cohort: str, number: int) -> None:
        name = f"{queues['className']}-0-{number}-{cohort}"
        quota = {"name": "cpu", "nominalQuota": str(queues["nominalQuota"]),
                 "borrowingLimit": str(queues["borrowingLimit"])}  # fmt: skip
        spec = {
            "cohortName": cohort,
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "rf", "resources": [quota]}]}],
            "preemption": {"reclaimWithinCohort": queues["reclaimWithinCohort"],
                           "withinClusterQueue": queues["withinClusterQueue"]},
        }  # fmt: skip
        await self._create(kinds.CLUSTER_QUEUE, {"metadata": {"name": name}, "spec": spec})
        await self._create(kinds.NAMESPACE, {"metadata": {"name": name}})
        local = {"metadata": {"name": name, "namespace": name}, "spec": {"clusterQueue": name}}
        await self._create(kinds.LOCAL_QUEUE, local)
        async with asyncio.TaskGroup() as tasks:
            for index, each in enumerate(queues["workloadsSets"]):
                tasks.create_task(self._workloads(each, name, index))

    async def _workloads(self, each: Json, queue: str, index: int) -> None:
        for count in range(each["count"]):
            for number, one in enumerate(each["workloads"]):
                await asyncio.sleep(each["creationIntervalMs"] / 1000)
                template = {"spec": {"restartPolicy": "Never", "containers": [
                    {"name": "c", "resources": {"requests": {"cpu": str(one["request"])}}}]}}  # fmt: skip
                labels = {RUNTIME: str(one["runtimeMs"]), CLASS: one["className"]}
                metadata = {
                    "name": f"{one['className']}-{index}-{count}-{number}",
                    "namespace": queue,
                    "labels": labels,
                }
                spec = {"queueName": queue, "priority": one["priority"], "active": True,
                        "podSets": [{"name": "main", "count": 1, "template": template}]}  # fmt: skip
                await self._create(kinds.WORKLOAD, {"metadata": metadata, "spec": spec})

    async def _watch(self) -> None:
        async for event in self._client.watch(kinds.WORKLOAD, None, send_initial_events=True):
            if event.type in ("ADDED", "MODIFIED"):
                self._record(msgspec.json.decode(event.object))

    def _record(self, obj: Json) -> None:
        now, metadata = asyncio.get_running_loop().time(), obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        self._objects[key] = obj
        kept = self.kept.setdefault(metadata["uid"], Kept(metadata["labels"][CLASS], now))
        admitted, evicted, finished = (_true(obj, kind) for kind in ("Admitted", "Evicted", "Finished"))
        if admitted and not kept.was_admitted:
            kept.admitted = now
        if evicted and not kept.was_evicted:
            kept.evictions += 1
            self.why[next(one["reason"] for one in obj["status"]["conditions"] if one["type"] == "Preempted")] += 1
        if finished and kept.finished < 0:
            kept.finished = now
            self._look_for_end()
        kept.was_admitted, kept.was_evicted = admitted, evicted
        self._count(obj, metadata["uid"], key[0], finished)
        if admitted and not finished:
            after = 0.0 if evicted else max(0.0, kept.admitted + int(metadata["labels"][RUNTIME]) / 1000 - now)
            heapq.heappush(self._due, (now + after, key))
            self._more.set()

    def _count(self, obj: Json, uid: str, queue: str, finished: bool) -> None:
        """Quota in use by what is stored: of no cohort ever more than its queues have."""
        given = (obj.get("status") or {}).get("admission") if not finished and _true(obj, "QuotaReserved") else None
        amount = sum(int(one["resourceUsage"]["cpu"]) for one in (given or {}).get("podSetAssignments") or ())
        cohort = queue.split("-", 3)[3]
        self._used[cohort] += amount - self._holding.get(uid, 0)
        self._holding[uid] = amount
        most = sum(
            one["count"] * int(one["nominalQuota"]) for each in self._config["cohorts"] for one in each["queuesSets"]
        )
        if self._used[cohort] > most:
            self.excess.append(f"{cohort}: {self._used[cohort]} of {most}")

    def _look_for_end(self) -> None:
        if self._created and all(one.finished >= 0 for one in self.kept.values()):
            self.over.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._due and self._due[0][0] <= loop.time() + 1e-9:
                _, key = heapq.heappop(self._due)
                obj = self._objects[key]
                if _true(obj, "Admitted") and not _true(obj, "Finished"):
                    await self._end(obj)
            self._more.clear()
            try:
                async with asyncio.timeout(self._due[0][0] - loop.time() if self._due else None):
                    await self._more.wait()
            except TimeoutError:
                pass

    async def _end(self, obj: Json) -> None:
        """Its time is over, or it was evicted: then it gives its quota back."""
        metadata = obj["metadata"]
        kept = self.kept[metadata["uid"]]
        moment = seconds_text(LoopClock().now())
        if _true(obj, "Evicted"):
            changes = [("QuotaReserved", "False", "Pending", "Evicted by the test runner"),
                       ("Admitted", "False", "NoReservation", "The workload has no reservation")]  # fmt: skip
            change: Json = {"admission": None}
        elif asyncio.get_running_loop().time() + 1e-9 >= kept.admitted + int(metadata["labels"][RUNTIME]) / 1000:
            changes, change = [("Finished", "True", "ByTest", "By test runner")], {}
        else:
            return
        conditions = {one["type"]: one for one in obj["status"]["conditions"]}
        for kind, status, reason, message in changes:
            conditions[kind] = {"type": kind, "status": status, "reason": reason, "message": message,
                                "lastTransitionTime": moment, "observedGeneration": 1}  # fmt: skip
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]},
                "status": {**change, "conditions": list(conditions.values())}}  # fmt: skip
        await self._patched(metadata, body)

    async def _patched(self, metadata: Json, body: Json) -> None:
        try:
            made = await self._client.patch(
                kinds.WORKLOAD, metadata["name"], metadata["namespace"], body, subresource="status"
            )
        except Conflict:
            heapq.heappush(
                self._due, (asyncio.get_running_loop().time() + 0.005, (metadata["namespace"], metadata["name"]))
            )
            return
        self._record(made)


def _true(obj: Json, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


async def replay(
    config: Json,
    subject: Callable[[Client, LoopClock], Awaitable[None]],
    *,
    service: float,
    afterwards: Callable[[Server, LoopClock], Awaitable[None]] | None = None,
) -> Figures:
    """One run; `service` is the time that a write takes of the server's. `afterwards` is called at its end, while the
    subject is still at work."""
    clock = LoopClock()
    server = Server(None, clock=clock, chance=Random(1))
    await start_with(server, rendered_crds())
    turns = Turns(service)
    sides = {name: Counted(server.transport(), turns) for name in ("runner", "subject")}
    begun = time.process_time()
    runner = ReplayedRunner(Client(sides["runner"]), config)
    deciding = asyncio.ensure_future(subject(Client(sides["subject"], manager="shoal"), clock))
    try:
        async with asyncio.timeout(3600):
            await runner.run()
        wall = clock.monotonic()
        if afterwards is not None:
            await afterwards(server, clock)
    finally:
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
        await server.stop()
    return Figures(
        wall=wall,
        cpu=time.process_time() - begun,
        kept=list(runner.kept.values()),
        writes={name: one.writes for name, one in sides.items()},
        excess=runner.excess,
        why=runner.why,
    )
