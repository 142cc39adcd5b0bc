"""Days of work on a one-machine cluster in virtual time: gangs come, run, end and go, and nothing may stay behind.

The cluster is the one that `shoal up` puts together, on a database file, with simulated nodes and a clock that jumps
where nothing is left to do. Users create ten gangs a second of three kinds and delete each a while after its end, one
in ten before. Every so often what the process holds is measured. A day may also be waves of gangs with quiet between
them, so that all of its timers pass in less than an hour of work, or be shared by several clusters, each of which has
a whole day with its part of the gangs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli.cluster import LocalCluster
from shoal.controllers.appwrapper.status import admission
from shoal.engine import identity
from shoal.engine.kueue import demand
from shoal.kube.client import Client
from shoal.local.home import Home
from shoal.local.nodes.runtime.simray import JOB_SECONDS
from shoal.local.nodes.runtime.simulated import RUN_SECONDS
from shoal.local.settings import LocalSettings, parse_node
from tests.checker.at_rest import Rules
from tests.replay import START
from tests.resting import hold_at_rest, objects_of

RATE = 10
LIFE = 20.0
"""Seconds from a gang's creation to its deletion by its user."""
RAY_EVERY = 50
"""One gang in so many is a RayJob: it has six objects of its own."""
ONE_OF_EACH = (-50, -46, -1)
"""Numbers of a gang of each kind, after whose ends every watch has begun."""
BEGINNING = 120.0
"""Real seconds for that."""
QUEUE = {"kueue.x-k8s.io/queue-name": "jobs"}
QUIET = 60.0
"""Seconds after the last gang until everything has gone."""
LEAST = 5
"""Gangs of a wave, however little time there is for them."""


class Held(msgspec.Struct, frozen=True):
    """What the process and its files hold at one moment."""

    at: float
    gangs: int
    memory: int
    """Resident, in bytes, after a collection."""
    objects: int
    """Of the collector."""
    stored: int
    """Objects in the API server."""
    database: int
    """Bytes of its file and log."""
    history: int
    files: int
    tasks: int


# --- time

TICK = 1e-7
"""Seconds of every look: asyncio calls a timer that is due within a billionth, and two that wait for the rest of theirs
by turns would keep each other busy at one moment for ever."""


class _Skipping(selectors.DefaultSelector):
    """The time of the next timer comes at once, unless the database's thread is still writing."""

    passed = 0.0
    busy: Callable[[], bool] = staticmethod(lambda: False)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.passed += TICK
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None or self.busy():
            return super().select(0.05)  # the thread wakes the loop
        self.passed += max(timeout, 0.0)
        return found


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.skipping = _Skipping()
        super().__init__(self.skipping)

    def time(self) -> float:
        return self.skipping.passed


class SteppedClock:
    """The time of the running loop, on a machine whose wall clock is corrected and which sleeps now and then."""

    def __init__(self) -> None:
        self._corrected = self._asleep = 0.0

    def now(self) -> int:
        return START + round((self._corrected + self.monotonic()) * 1_000_000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self._asleep

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def set_wall(self, seconds: float) -> None:
        """As an administrator or a time server does."""
        self._corrected += seconds

    def suspend(self, seconds: float) -> None:
        """The lid is closed for so long: clocks went on, and no timer of the loop did."""
        self._asleep += seconds


# --- gangs


def pod_spec() -> Json:
    size = {"requests": {"cpu": "500m", "memory": "64Mi"}}
    return {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox", "resources": size}]}


def wrapper(name: str, seconds: float) -> tuple[Kind, Json]:
    annotations = {RUN_SECONDS: str(seconds)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": pod_spec(),
    }
    metadata = {"name": name, "namespace": "default"}
    return kinds.APP_WRAPPER_V1BETA2, {"metadata": metadata, "spec": {"components": [{"template": pod}]}}


def queued_job(name: str, seconds: float) -> tuple[Kind, Json]:
    template = {"metadata": {"annotations": {RUN_SECONDS: str(seconds)}}, "spec": pod_spec()}
    spec = {"parallelism": 2, "completions": 2, "suspend": True, "template": template}
    return kinds.JOB, {"metadata": {"name": name, "namespace": "default", "labels": QUEUE}, "spec": spec}


def ray_job(name: str, seconds: float) -> tuple[Kind, Json]:
    size = {"requests": {"cpu": "1", "memory": "1Gi"}}
    head = {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0", "resources": size}]}
    template = {"metadata": {"annotations": {JOB_SECONDS: str(seconds)}}, "spec": head}
    spec = {
        "entrypoint": "true",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {"headGroupSpec": {"template": template}},
    }
    return kinds.RAY_JOB, {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def gang(number: int, chance: Random) -> tuple[Kind, Json]:
    seconds = round(chance.uniform(0.5, 8.0), 1)
    if number % RAY_EVERY == RAY_EVERY - 1:
        return ray_job(f"ray-{number}", seconds)
    return queued_job(f"job-{number}", seconds) if number % 5 == 4 else wrapper(f"wrapper-{number}", seconds)


def how_it_stands(obj: Json) -> str:
    """`done`, or what it is doing."""
    status = obj.get("status") or {}
    if status.get("phase") == "Succeeded" or status.get("jobStatus") == "SUCCEEDED":
        return "done"
    complete = [one for one in status.get("conditions") or () if one["type"] == "Complete" and one["status"] == "True"]
    return "done" if complete else str(status)


QUEUES: tuple[tuple[Kind, Json], ...] = (
    (kinds.RESOURCE_FLAVOR, {"metadata": {"name": "plain"}, "spec": {}}),
    (
        kinds.CLUSTER_QUEUE,
        {
            "metadata": {"name": "all"},
            "spec": {
                "namespaceSelector": {},
                "resourceGroups": [
                    {
                        "coveredResources": ["cpu", "memory"],
                        "flavors": [
                            {
                                "name": "plain",
                                "resources": [
                                    {"name": "cpu", "nominalQuota": "200"},
                                    {"name": "memory", "nominalQuota": "1Ti"},
                                ],
                            }
                        ],
                    }
                ],
            },
        },
    ),
    (kinds.LOCAL_QUEUE, {"metadata": {"name": "jobs", "namespace": "default"}, "spec": {"clusterQueue": "all"}}),
)


async def create(client: Client, kind: Kind, obj: Json) -> None:
    whole = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
    await client.create(kind, whole, obj["metadata"].get("namespace"))


# --- the day


class Waves(msgspec.Struct, frozen=True):
    """When gangs come: ten a second, so many from the beginning of every wave on, and then none until the next."""

    every: float
    gangs: int
    """Of a wave; fewer where the rest of the day would otherwise take longer than there is time for."""
    steady: int = 0
    """Waves that have all their gangs, whatever time they take."""
    spread: bool = False
    """Evenly, until the next wave begins."""

    def arrivals(self, wave: int, size: int) -> Iterator[float]:
        apart = self.every / size if self.spread else 1 / RATE
        return (wave * self.every + number * apart for number in range(size))


class Day:
    """Some seconds of it; `run` gives what was held, every `measured` seconds."""

    def __init__(
        self,
        directory: Path,
        seconds: float,
        measured: float,
        *,
        waves: Waves | None = None,
        wall_limit: float = 1e9,
        first: int = 0,
        nodes: int = 4,
    ) -> None:
        """Without waves gangs come all the while. `wall_limit`: real seconds that all of it may take.

        `first`: the number of the first gang, which other clusters of the same day do not have.
        """
        self.home = Home("churn", directory)
        self.seconds, self.measured, self.wall_limit = seconds, measured, wall_limit
        self.waves = waves or Waves(seconds, round(seconds * RATE), steady=1)
        self.clock = SteppedClock()
        self.happens: list[tuple[float, Callable[[], None]]] = []
        """What becomes of the machine, and after how many seconds."""
        self.first, self.nodes = first, nodes
        self.created = 0
        self.ends: Counter[str] = Counter()
        """How gangs stood when their users deleted them; of those that were late only the number."""
        self.late: list[str] = []
        """Gangs that had not ended by then, and what they did instead."""
        self.held: list[Held] = []
        self.left: dict[str, int] = {}
        self.warnings: Counter[str] = Counter()
        """Reasons of the events that warn."""

    def run(self) -> list[Held]:
        """The first measurement is before the first gang, the last after the last has gone."""
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(self._live())
        return self.held

    async def _live(self) -> None:
        nodes = tuple(parse_node(f"cpu=64,memory=256Gi,count={self.nodes}", "simulated"))
        settings = LocalSettings(nodes=nodes, runtime="simulated", sandbox="loopback", durability="normal")
        self.home.create()
        cluster = LocalCluster(self.home, settings, clock=self.clock)
        loop, storage = asyncio.get_running_loop(), cluster.server.storage
        assert isinstance(loop, SkippingLoop)
        loop.skipping.busy = lambda: storage.busy
        await cluster.start()
        try:
            for kind, obj in QUEUES:
                await create(cluster.client, kind, obj)
            await asyncio.gather(*(self._patient_user(cluster.client, number) for number in ONE_OF_EACH))
            await asyncio.sleep(QUIET)
            self._measure(cluster)
            await self._churn(cluster)
            await asyncio.sleep(QUIET)
            assert not cluster.troubles(), cluster.troubles()
            self._measure(cluster)
            await self._look_back(cluster.client)

            async def stored() -> dict[str, list[Json]]:
                return objects_of(cluster.server)

            await hold_at_rest(stored, partial(asyncio.sleep, 1.0), Rules())
        finally:
            await cluster.stop(1.0)

    async def _churn(self, cluster: LocalCluster) -> None:
        loop, users = asyncio.get_running_loop(), asyncio.TaskGroup()
        began, next_look = loop.time(), self.measured
        happens = sorted(self.happens, key=lambda one: one[0], reverse=True)
        async with users:
            for due in self._arrivals():
                await asyncio.sleep(max(began + due - loop.time(), 0.0))
                while happens and loop.time() - began >= happens[-1][0]:
                    happens.pop()[1]()
                if loop.time() - began >= next_look:
                    next_look += self.measured
                    self._measure(cluster)
                users.create_task(self._user(cluster.client, self.first + self.created))
                self.created += 1

    def _arrivals(self) -> Iterator[float]:
        """The seconds of the day at which gangs come."""
        began, waves = time.monotonic(), self.waves
        count = max(int(self.seconds / waves.every), 1)
        size = waves.gangs
        for wave in range(count):
            if wave >= waves.steady and self.created:
                spent = time.monotonic() - began
                affordable = (self.wall_limit - spent) / (count - wave) * self.created / spent
                size = min(size, max(int(affordable), LEAST))
            yield from waves.arrivals(wave, size)

    async def _user(self, client: Client, number: int) -> None:
        """A user who creates a gang, and deletes it when it should have ended, or loses patience before."""
        chance = Random(number)
        kind, obj = gang(number, chance)
        name = obj["metadata"]["name"]
        await create(client, kind, obj)
        hasty = chance.random() < 0.1
        await asyncio.sleep(chance.uniform(0, LIFE) if hasty else LIFE)
        end = "deleted early" if hasty else how_it_stands(await client.get(kind, name, "default"))
        if end not in ("done", "deleted early"):
            self.late.append(f"{name}: {end}")
            end = "late"
        self.ends[end] += 1
        await client.delete(kind, name, "default", propagation="Background")

    async def _patient_user(self, client: Client, number: int) -> None:
        """A user who waits for the gang's end: while a cluster begins in threads, hours of the loop may pass."""
        kind, obj = gang(number, Random(number))
        name = obj["metadata"]["name"]
        await create(client, kind, obj)
        deadline = time.monotonic() + BEGINNING
        while (stands := how_it_stands(await client.get(kind, name, "default"))) != "done":
            assert time.monotonic() < deadline, f"{name}: {stands}"
            await asyncio.sleep(1.0)
        await client.delete(kind, name, "default", propagation="Background")

    def _measure(self, cluster: LocalCluster) -> None:
        identity.forget()  # these empty themselves when they are full: how full they are now says nothing
        demand._known.clear()
        admission.read.cache_clear()
        gc.collect()
        files = [self.home.api / name for name in os.listdir(self.home.api)]
        beside = [path for path in self.home.directory.glob("history*") if path.is_file()]
        self.held.append(
            Held(
                at=round(asyncio.get_running_loop().time(), 1),
                gangs=self.created,
                memory=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
                objects=len(gc.get_objects()),
                stored=sum(len(one.records()) for one in cluster.server.storage.collections.values()),
                database=sum(path.stat().st_size for path in files if path.is_file()),
                history=sum(path.stat().st_size for path in beside),
                files=len(os.listdir("/proc/self/fd")),
                tasks=len(asyncio.all_tasks()),
            )
        )
        print(self.held[-1], flush=True)

    async def _look_back(self, client: Client) -> None:
        """Objects of gangs that are still stored, nodes that are not ready, and what events warned of."""
        of_gangs = (kinds.POD, kinds.JOB, kinds.APP_WRAPPER_V1BETA2, kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.WORKLOAD)
        counts = {kind.plural: len(await client.list(kind)) for kind in of_gangs}
        for node in await client.list(kinds.NODE):
            ready = next(one for one in node["status"]["conditions"] if one["type"] == "Ready")
            counts["nodes that are not ready"] = counts.get("nodes that are not ready", 0) + (ready["status"] != "True")
        self.left = {name: count for name, count in counts.items() if count}
        events = await client.list(kinds.EVENT)
        self.warnings = Counter(event["reason"] for event in events if event.get("type") == "Warning")
