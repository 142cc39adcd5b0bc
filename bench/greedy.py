"""The floor of Kueue's benchmark: a bare greedy loop that does nothing but admit, with one write for each Workload.

Each queue gives its own quota to the first by priority and age, and to no other before it. Nothing is borrowed, evicted
or explained, no conflict is expected, and queues tell how many wait and run every few seconds only, so that Kueue's
runner knows when it is over. What a queue costs above this is the price of what it does above this.

    python bench/greedy.py --kubeconfig FILE    the runner starts it so: bench/kueue_runner.py --subject greedy
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.times import seconds_text
from shoal.kube.client import Client, WatchEvent
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import NotFound
from shoal.kube.kubeconfig import load

RETRY = 0.1
TELL = 5.0
"""Seconds between two looks at what queues tell."""


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str = ""


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str] = {}


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources = _Resources()


class _PodSpec(msgspec.Struct, frozen=True):
    containers: list[_Container] = []


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _PodSet(msgspec.Struct, frozen=True):
    template: _Template = _Template()


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    queue_name: str = ""
    priority: int = 0
    pod_sets: list[_PodSet] = []


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] = []


class _Workload(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Quota(msgspec.Struct, rename="camel", frozen=True):
    nominal_quota: str


class _Flavor(msgspec.Struct, frozen=True):
    name: str
    resources: list[_Quota]


class _Group(msgspec.Struct, frozen=True):
    flavors: list[_Flavor]


class _QueueSpec(msgspec.Struct, rename="camel", frozen=True):
    resource_groups: list[_Group]


class _Queue(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _QueueSpec


_workload = msgspec.json.Decoder(_Workload)
_queue = msgspec.json.Decoder(_Queue)


class Greedy:
    """Queues are ClusterQueues; a Workload's queue and namespace are called as its ClusterQueue, as the runner does."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._quota: dict[str, int] = {}
        self._flavor: dict[str, str] = {}
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[int, str, str, str, int]]] = {}
        self._held: dict[str, int] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._running: Counter[str] = Counter()
        self._known: set[str] = set()
        self._writing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await self._served()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_queues())
            tasks.create_task(self._watch_workloads())
            tasks.create_task(self._tell())

    async def _served(self) -> None:
        """Until the server knows the kinds: the runner installs them while it starts us."""
        for kind in (kinds.CLUSTER_QUEUE, kinds.WORKLOAD):
            while True:
                try:
                    await self._client.list(kind)
                    break
                except NotFound:
                    await self._clock.sleep(RETRY)

    async def _events(self, kind: Kind) -> AsyncIterator[WatchEvent]:
        """For ever: a server ends watches of a kind that it has just learned."""
        while True:
            async for event in self._client.watch(kind, None, send_initial_events=True):
                yield event

    async def _watch_queues(self) -> None:
        async for event in self._events(kinds.CLUSTER_QUEUE):
            if event.type == "ADDED":
                queue = _queue.decode(event.object)
                name, flavor = queue.metadata.name, queue.spec.resource_groups[0].flavors[0]
                self._quota[name], self._flavor[name] = int(flavor.resources[0].nominal_quota), flavor.name
                self._serve(name)

    async def _watch_workloads(self) -> None:
        async for event in self._events(kinds.WORKLOAD):
            if event.type in ("ADDED", "MODIFIED"):
                self._changed(_workload.decode(event.object))

    def _changed(self, one: _Workload) -> None:
        uid, queue = one.metadata.uid, one.spec.queue_name
        if uid not in self._known:
            self._known.add(uid)
            size = int(one.spec.pod_sets[0].template.spec.containers[0].resources.requests["cpu"])
            place = (-one.spec.priority, one.metadata.creation_timestamp, uid, one.metadata.name, size)
            heapq.heappush(self._waiting.setdefault(queue, []), place)
            self._serve(queue)
        elif uid in self._held and any(each.type == "Finished" for each in one.status.conditions):
            self._used[queue] -= self._held.pop(uid)
            self._running[queue] -= 1
            self._serve(queue)

    def _serve(self, queue: str) -> None:
        waiting = self._waiting.get(queue)
        while waiting and queue in self._quota and self._used[queue] + waiting[0][-1] <= self._quota[queue]:
            _, _, uid, name, size = heapq.heappop(waiting)
            self._held[uid] = size
            self._used[queue] += size
            self._running[queue] += 1
            writing = asyncio.get_running_loop().create_task(self._admit(queue, name, size))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    async def _admit(self, queue: str, name: str, size: int) -> None:
        moment = seconds_text(self._clock.now())
        used = {"flavors": {"cpu": self._flavor[queue]}, "resourceUsage": {"cpu": str(size)}}
        conditions = [
            {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": moment}
            for kind in ("QuotaReserved", "Admitted")
        ]
        status = {
            "admission": {"clusterQueue": queue, "podSetAssignments": [{"name": "main", "count": 1, **used}]},
            "conditions": conditions,
        }
        await self._client.patch(kinds.WORKLOAD, name, queue, {"status": status}, subresource="status")

    async def _tell(self) -> None:
        while True:
            await self._clock.sleep(TELL)
            for queue in self._quota:
                now_is = (len(self._waiting.get(queue) or ()), self._running[queue])
                if self._told.get(queue) != now_is:
                    self._told[queue] = now_is
                    active = {"type": "Active", "status": "True", "reason": "Ready", "message": "",
                              "lastTransitionTime": seconds_text(self._clock.now())}  # fmt: skip
                    counts = dict(zip(("pendingWorkloads", "reservingWorkloads"), now_is, strict=True))
                    body = {"status": {**counts, "conditions": [active]}}
                    await self._client.patch(kinds.CLUSTER_QUEUE, queue, None, body, subresource="status")


async def follow(client: Client, clock: Clock) -> None:
    await Greedy(client, clock).run()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--counts", type=Path, help="a file for the number of requests, by verb and resource")
    asked = parser.parse_args()
    transport = load(asked.kubeconfig)
    running = asyncio.ensure_future(follow(Client(transport, manager="greedy"), SystemClock()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.cancel)
    await asyncio.wait({running})
    await transport.close()
    if asked.counts is not None:
        counts = {f"{verb} {resource}": count for (verb, resource), count in transport.requests.items()}
        asked.counts.write_bytes(msgspec.json.encode(counts))
    if not running.cancelled():
        running.result()


if __name__ == "__main__":
    asyncio.run(main())
