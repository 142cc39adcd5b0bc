"""Grows and shrinks node pools: for ProvisioningRequests all or nothing, for pending pods as a cluster autoscaler does.

Event-driven, level-triggered: every look starts from the caches. A node is asked for once and appears after its pool's
delay; what was provisioned for a request is held for that request's pods by a mark on the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from shoal.api.autoscaling import CHECK_CAPACITY
from shoal.api.kind import Key
from shoal.api.kinds import NODE, POD, POD_TEMPLATE, PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.engine.model import PodSet
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import KubeError, NotFound
from shoal.kube.events import Recorder
from shoal.local.agent.nodes import POOL, NodeKeeper, NodeShape
from shoal.local.autoscaler import requests
from shoal.local.autoscaler.fitting import Growth, Never, free_room, growth_for, pool_fact
from shoal.local.scheduler.groups import CONSUMES, HELD_FOR, alike, group_key
from shoal.local.settings import Pool, Settings

log = logging.getLogger(__name__)

DEBOUNCE = 0.1
IDLE_LOOK = 5.0


class Coming(msgspec.Struct):
    """A node that was asked for and has not appeared yet."""

    pool: str
    held_for: str = ""


class Autoscaler:
    """`cluster` is the name of the agent that will serve the nodes."""

    def __init__(self, client: Client, settings: Settings, cluster: str, *, clock: Clock | None = None) -> None:
        self._client = client
        self._pools = {pool.name: pool for pool in settings.pools}
        self._idle_seconds = settings.idle_seconds
        self._clock: Clock = clock or SystemClock()
        self._keeper = NodeKeeper(client, cluster, "127.0.0.1", self._clock)
        self._recorder = Recorder(client, "cluster-autoscaler", clock=self._clock)
        self.requests: Cache[Json] = Cache(client, PROVISIONING_REQUEST, dict, clock=self._clock)
        self._templates: Cache[Json] = Cache(client, POD_TEMPLATE, dict, clock=self._clock)
        self._nodes: Cache[Json] = Cache(client, NODE, dict, clock=self._clock)
        self._pods: Cache[Json] = Cache(client, POD, dict, clock=self._clock)
        self._coming: dict[str, Coming] = {}
        self._idle_since: dict[str, float] = {}
        self._given: dict[str, set[str]] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        caches = (self.requests, self._templates, self._nodes, self._pods)
        try:
            async with asyncio.TaskGroup() as tasks:
                for cache in caches:
                    tasks.create_task(cache.run())
                for cache in caches:
                    await cache.synced.wait()
                    cache.subscribe(self._changed)
                while True:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), IDLE_LOOK)
                    self._wake.clear()
                    await self.look()
                    await self._clock.sleep(DEBOUNCE)
        finally:
            for task in self._tasks:
                task.cancel()
            await self._recorder.close()

    def _changed(self, change: Change) -> None:
        self._wake.set()

    async def look(self) -> None:
        """One pass over everything."""
        for name in [name for name in self._coming if self._nodes.get(Key("", name))]:
            del self._coming[name]
        self._keep_least()
        for request in sorted(self.requests.list(), key=lambda one: one["metadata"].get("creationTimestamp", "")):
            try:
                await self._serve(request)
            except KubeError as error:
                log.debug("request %s is looked at again: %s", request["metadata"]["name"], error)
                self._wake.set()
        await self._release_holds()
        self._grow_for_pending()
        await self._shrink()

    # --- requests

    async def _serve(self, request: Json) -> None:
        if (request.get("spec") or {}).get("provisioningClassName") not in requests.CLASSES or requests.settled(
            request
        ):
            return
        if requests.condition(request, "Accepted") is None:
            await self._write(
                request,
                Accepted=(True, "Accepted", "Provisioning Request was accepted."),
                Provisioned=(False, "Pending", "Waiting for nodes."),
                Failed=(False, "Pending", ""),
            )
            return
        if requests.holds(request, "Provisioned"):
            await self._watch_provisioned(request)
            return
        try:
            wanted = requests.wanted_pods(request, self._template)
        except requests.NotYet as error:
            await self._wait(request, str(error))
            return
        if request["spec"]["provisioningClassName"] == CHECK_CAPACITY:
            await self._check_capacity(request, wanted)
        else:
            await self._provision(request, wanted)

    async def _check_capacity(self, request: Json, wanted: list[PodSet]) -> None:
        room = free_room(self._nodes.list(), self._pods.list())
        if growth_for(wanted, _namespace(request), (), room) == Growth("", 0):
            await self._provisioned(request, "Capacity is found in the cluster.")
        else:
            await self._wait(request, "Capacity is not found, CA will try to find it later.")

    async def _provision(self, request: Json, wanted: list[PodSet]) -> None:
        """Whole or not at all: either every node is there and held for it, or nothing is asked for."""
        held = requests.hold_value(request)
        coming = [name for name, node in self._coming.items() if node.held_for == held]
        if coming:
            return
        mine = {node["metadata"]["name"] for node in self._nodes.list() if _held_for(node) == held}
        usable = [node for node in self._nodes.list() if node["metadata"]["name"] in mine or self._is_idle(node)]
        room = free_room(usable, self._pods.list(), without_held=False)
        sizes = [(pool, self._size(name)) for name, pool in self._pools.items()]
        answer = growth_for(wanted, _namespace(request), sizes, room)
        if isinstance(answer, Never):
            await self._write(request, Failed=(True, "CapacityCannotBeProvided", answer.reason))
            self._recorder.event(_reference(request), "Warning", "Failed", answer.reason)
        elif isinstance(answer, Growth):
            for name in set(answer.uses) - mine:
                await self._hold(name, held)
            for _ in range(answer.count):
                self._ask(self._pools[answer.pool], held)
            if answer.count == 0:
                await self._provisioned(request, "Provisioning Request was successfully provisioned.")
        else:
            await self._wait(request, answer.reason)

    async def _provisioned(self, request: Json, message: str) -> None:
        held = requests.hold_value(request)
        self._given[request["metadata"]["uid"]] = {
            node["metadata"]["name"] for node in self._nodes.list() if _held_for(node) == held
        }
        await self._write(request, Provisioned=(True, "Provisioned", message))
        self._recorder.event(_reference(request), "Normal", "Provisioned", message)

    async def _watch_provisioned(self, request: Json) -> None:
        """Room that waits too long for its pods is given back; room that vanished is said to be gone."""
        given = self._given.get(request["metadata"]["uid"], set())
        if any(self._nodes.get(Key("", name)) is None for name in given):
            await self._write(request, CapacityRevoked=(True, "NodesRemoved", "A provisioned node was removed."))
            return
        waited = (self._clock.now() - requests.since(request, "Provisioned")) / 1e6
        if waited > requests.BOOKING_SECONDS and not any(_consumes(pod, request) for pod in self._pods.list()):
            await self._write(request, BookingExpired=(True, "BookingExpired", "No pod used the capacity in time."))

    async def _release_holds(self) -> None:
        """Nodes held for requests that are gone or over are everyone's again."""
        living = {requests.hold_value(request) for request in self.requests.list() if not requests.settled(request)}
        for node in self._nodes.list():
            held = _held_for(node)
            if held and held not in living:
                await self._hold(node["metadata"]["name"], None)
        for coming in self._coming.values():
            if coming.held_for and coming.held_for not in living:
                coming.held_for = ""

    async def _hold(self, name: str, value: str | None) -> None:
        with contextlib.suppress(NotFound):
            written = await self._client.patch(NODE, name, None, {"metadata": {"annotations": {HELD_FOR: value}}})
            self._nodes.note_write(written)

    async def _wait(self, request: Json, message: str) -> None:
        found = requests.condition(request, "Provisioned")
        if found is None or found.get("message") != message:
            await self._write(request, Provisioned=(False, "Pending", message))

    async def _write(self, request: Json, **changes: tuple[bool, str, str]) -> None:
        metadata = request["metadata"]
        conditions = requests.with_conditions(request, self._clock.now(), **changes)
        body = {
            "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        with contextlib.suppress(NotFound):
            written = await self._client.patch(
                PROVISIONING_REQUEST, metadata["name"], metadata.get("namespace"), body, subresource="status"
            )
            self.requests.note_write(written)
            self._wake.set()

    # --- growing and shrinking

    def _keep_least(self) -> None:
        for name, pool in self._pools.items():
            for _ in range(pool.least - self._size(name)):
                self._ask(pool)

    def _grow_for_pending(self) -> None:
        """As a cluster autoscaler: pods that no node takes, gang by gang, may make a pool grow."""
        if not self._pools:
            return
        groups: dict[str, list[Json]] = {}
        for pod in self._pods.list():
            if _unschedulable(pod):
                groups.setdefault(group_key(pod) or pod["metadata"]["uid"], []).append(pod)
        if not groups:
            return
        room = free_room(self._nodes.list(), self._pods.list())
        for name, node in self._coming.items():
            if not node.held_for and node.pool in self._pools:
                room.set_node(pool_fact(self._pools[node.pool], name))
        for members in groups.values():
            sets = [pod_set for pod_set, _ in alike(members)]
            sizes = [(pool, self._size(name)) for name, pool in self._pools.items()]
            answer = growth_for(sets, _namespace(members[0]), sizes, room)
            if isinstance(answer, Growth) and answer.count:
                pool = self._pools[answer.pool]
                for _ in range(answer.count):
                    room.set_node(pool_fact(pool, self._ask(pool)))
                for pod in members:
                    message = f"pod triggered scale-up: pool {pool.name} grows by {answer.count}"
                    self._recorder.event(
                        {**pod, "apiVersion": "v1", "kind": "Pod"}, "Normal", "TriggeredScaleUp", message
                    )

    def _ask(self, pool: Pool, held_for: str = "") -> str:
        taken = {node["metadata"]["name"] for node in self._nodes.list()} | set(self._coming)
        name = next(f"{pool.name}-{index}" for index in range(len(taken) + 1) if f"{pool.name}-{index}" not in taken)
        self._coming[name] = Coming(pool.name, held_for)
        task = asyncio.create_task(self._deliver(pool, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return name

    async def _deliver(self, pool: Pool, name: str) -> None:
        await self._clock.sleep(pool.delay)
        coming = self._coming.get(name)
        if coming is None:
            return
        shape = NodeShape(
            name=name,
            capacity=pool.capacity,
            labels={POOL: pool.name, **pool.labels},
            taints=pool.taints,
            runtime=pool.runtime,
        )
        annotations = {HELD_FOR: coming.held_for} if coming.held_for else {}
        while True:
            try:
                await self._keeper.register([shape], annotations)
                return
            except KubeError as error:
                log.warning("node %s of pool %s was not created: %s", name, pool.name, error)
                await self._clock.sleep(1.0)

    async def _shrink(self) -> None:
        """Nodes of pools that hold nothing and nobody for a while go away, down to the pool's least."""
        now = self._clock.monotonic()
        for node in self._nodes.list():
            name, pool = node["metadata"]["name"], (node["metadata"].get("labels") or {}).get(POOL, "")
            if pool not in self._pools:
                continue
            if _held_for(node) or self._pods_on(name):
                self._idle_since.pop(name, None)
                continue
            began = self._idle_since.setdefault(name, now)
            if now - began >= self._idle_seconds and self._size(pool) > self._pools[pool].least:
                self._idle_since.pop(name, None)
                log.info("node %s was idle and is removed", name)
                await self._keeper.remove(name)

    # --- looking things up

    def _template(self, namespace: str, name: str) -> Json | None:
        return self._templates.get(Key(namespace, name))

    def _size(self, pool: str) -> int:
        there = {
            n["metadata"]["name"] for n in self._nodes.list() if (n["metadata"].get("labels") or {}).get(POOL) == pool
        }
        return len(there | {name for name, node in self._coming.items() if node.pool == pool})

    def _is_idle(self, node: Json) -> bool:
        """A pool's node that holds nothing and is held for nobody."""
        metadata = node["metadata"]
        return POOL in (metadata.get("labels") or {}) and not _held_for(node) and not self._pods_on(metadata["name"])

    def _pods_on(self, node: str) -> bool:
        return any(
            pod["spec"].get("nodeName") == node
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            and pod["metadata"].get("namespace") != "kube-system"
            for pod in self._pods.list()
        )


def _held_for(node: Json) -> str:
    return str((node["metadata"].get("annotations") or {}).get(HELD_FOR, ""))


def _namespace(obj: Json) -> str:
    return str(obj["metadata"].get("namespace", ""))


def _reference(request: Json) -> Json:
    return {**request, "apiVersion": PROVISIONING_REQUEST.api_version, "kind": "ProvisioningRequest"}


def _consumes(pod: Json, request: Json) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return _namespace(pod) == _namespace(request) and any(
        annotations.get(name) == request["metadata"]["name"] for name in CONSUMES
    )


def _unschedulable(pod: Json) -> bool:
    """Turned away by the scheduler, not for want of gang members, and not waiting for a request's nodes."""
    if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return False
    if any((pod["metadata"].get("annotations") or {}).get(name) for name in CONSUMES):
        return False
    return any(
        c["type"] == "PodScheduled" and c["status"] == "False" and not c.get("message", "").startswith("waiting for")
        for c in (pod.get("status") or {}).get("conditions") or ()
    )


async def run(client: Client, settings: Settings, cluster: str, clock: Clock | None = None) -> None:
    """Autoscale until cancelled."""
    await Autoscaler(client, settings, cluster, clock=clock).run()
