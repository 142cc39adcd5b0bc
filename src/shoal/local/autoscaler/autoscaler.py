"""Grows and shrinks node pools: for ProvisioningRequests all or nothing, for pending pods as a cluster autoscaler does.

Event-driven, level-triggered: every look starts from the caches. What is given to a request is written on it as a
booking before the first node is asked for, so that a restart goes on where it was and no other request counts on that
room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from shoal.api.autoscaling import CHECK_CAPACITY
from shoal.api.booking import BOOKING, Booking, Place, booking_of, is_over, owner_of, unused, written
from shoal.api.kind import Key
from shoal.api.kinds import NODE, POD, POD_TEMPLATE, PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.api.node_pools import BROUGHT_FOR, obtains
from shoal.engine.model import PodSet
from shoal.engine.nodes import Room
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import KubeError, NotFound
from shoal.kube.events import Recorder
from shoal.local.autoscaler import requests
from shoal.local.autoscaler.fitting import (
    Later,
    PoolGrowth,
    booking,
    charge,
    could_ever,
    free_room,
    growth_for,
    is_overfull,
    place_with,
    pool_fact,
)
from shoal.local.autoscaler.pools import NodePools, pool_of
from shoal.local.autoscaler.publishing import Publisher
from shoal.local.autoscaler.tally import PodTally
from shoal.local.scheduler.groups import alike, group_key, shape_key
from shoal.local.seen import TrackedPod
from shoal.local.settings import LocalSettings

log = logging.getLogger(__name__)

DEBOUNCE = 0.1
LONGEST_REST = 60.0
LEAVING = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
"""Taint of a node that is about to be removed, as a cluster autoscaler writes it."""


class Autoscaler:
    """`cluster` is the name of the agent that will serve the nodes."""

    def __init__(self, client: Client, settings: LocalSettings, cluster: str, *, clock: Clock | None = None) -> None:
        self._client = client
        self._idle_seconds, self._booking_seconds = settings.idle_seconds, settings.booking_seconds
        self._clock: Clock = clock or SystemClock()
        self._pools = NodePools(settings.pools, client, cluster, self._clock)
        self._publisher = Publisher(client)
        self._recorder = Recorder(client, "cluster-autoscaler", clock=self._clock)
        self.requests: Cache[Json] = Cache(client, PROVISIONING_REQUEST, dict, clock=self._clock)
        self._templates: Cache[Json] = Cache(client, POD_TEMPLATE, dict, clock=self._clock)
        self._nodes: Cache[Json] = Cache(client, NODE, dict, clock=self._clock)
        self._pods: Cache[TrackedPod] = Cache(client, POD, TrackedPod, clock=self._clock)
        self._tally = PodTally()
        self._lost: set[Key] = set()
        self._idle_since: dict[str, float] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        caches = (self.requests, self._templates, self._nodes, self._pods)
        try:
            async with asyncio.TaskGroup() as tasks:
                for cache in caches:
                    tasks.create_task(cache.run())
                for cache in caches:
                    await cache.synced.wait()
                self._pods.subscribe(self._tally.changed)
                self._nodes.subscribe(self._node_changed)
                for cache in caches:
                    cache.subscribe(self._changed)
                self._wake.set()
                while True:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._rest()):  # wait_for may swallow a cancellation
                            await self._wake.wait()
                    self._wake.clear()
                    await self.refresh()
                    await self._clock.sleep(DEBOUNCE)
        finally:
            self._pools.stop()
            await self._recorder.close()

    def _changed(self, change: Change) -> None:
        self._wake.set()

    def _node_changed(self, change: Change) -> None:
        """A node that vanished under the pods of a request took their capacity with it."""
        if change.new is None:
            for request in self.requests.list():
                if self._tally.has_living_consumers(request, change.key.name):
                    self._lost.add(_key(request))

    async def refresh(self) -> None:
        """One pass over everything."""
        self._count()
        for name, pool in self._pools.by_name.items():
            for node in self._new({name: max(0, pool.least - self._pools.size(name))}):
                self._pools.ask(name, node)
        for request in sorted(self.requests.list(), key=_age):
            try:
                await self._serve(request)
            except KubeError as error:
                log.debug("request %s is looked at again: %s", request["metadata"]["name"], error)
                self._wake.set()
        self._count()
        self._grow_for_pending()
        await self._shrink()
        await self._publish()

    def _rest(self) -> float:
        """Seconds until something is due although nothing changes: an idle node, an unused booking."""
        now, moment = self._clock.monotonic(), self._clock.now()
        due = [began + self._idle_seconds - now for began in self._idle_since.values()]
        for request in self.requests.list():
            if booking_of(request) is not None and requests.holds(request, "Provisioned"):
                due.append(self._booking_seconds - (moment - requests.since(request, "Provisioned")) / 1e6)
        return max(DEBOUNCE, min(due, default=LONGEST_REST))

    def _count(self) -> None:
        held = [found for request in self.requests.list() if (found := booking_of(request)) is not None]
        self._pools.refresh(self._nodes.list(), [found.new for found in held])

    # --- requests

    async def _serve(self, request: Json) -> None:
        if requests.class_of(request) not in requests.CLASSES or is_over(request):
            return
        if requests.condition(request, "Accepted") is None:
            await self._write(
                request,
                Accepted=(True, "Accepted", "Provisioning Request was accepted."),
                Provisioned=(False, "Pending", "Waiting for nodes."),
                Failed=(False, "Pending", ""),
            )
            return
        held = booking_of(request)
        if requests.holds(request, "Provisioned"):
            await self._watch_provisioned(request, held)
        elif held is not None:
            await self._bring(request, held)
        else:
            try:
                wanted = requests.wanted_pods(request, lambda *name: self._templates.get(Key(*name)))
            except requests.NotYet as error:
                await self._wait(request, "Pending", str(error))
            else:
                await self._book(request, wanted)

    async def _book(self, request: Json, wanted: list[PodSet]) -> None:
        """Whole or not at all: either there is room for every pod, and it is all booked, or nothing is."""
        only_looks = requests.class_of(request) == CHECK_CAPACITY
        room, namespace = self._room(), _key(request).namespace
        answer = growth_for(wanted, namespace, [] if only_looks else self._pools.sizes(), room)
        if isinstance(answer, PoolGrowth):
            new = self._new(answer.nodes)
            placement = place_with(wanted, namespace, self._pools.by_name, new, room)
            if placement is not None:
                await self._mark(request, written(booking(wanted, placement, new)))
        elif only_looks and requests.wants_no_retry(request):
            await self._fail(request, "CapacityIsNotFound", "CA could not find requested capacity")
        elif only_looks:
            await self._wait(request, "CapacityIsNotFound", "Capacity is not found, CA will try to find it later.")
        elif isinstance(answer, Later):
            await self._wait(request, "CapacityIsNotFound", f"Waiting for nodes: {answer.reason}.")
        elif could_ever(wanted, namespace, [*self._pools.by_name.values()], self._nodes.list()):
            message = "Waiting for nodes: those that could hold these pods are in use."
            await self._wait(request, "CapacityIsNotFound", message)
        else:
            await self._fail(request, "CapacityCannotBeProvided", answer.reason)

    async def _bring(self, request: Json, held: Booking) -> None:
        """Booked: ask for the nodes that are missing, and say when all are there and still free for it."""
        there = {node["metadata"]["name"] for node in self._nodes.list()}
        missing = sorted((held.nodes | set(held.new)) - there)
        if any(held.new.get(node) not in self._pools.by_name for node in missing):
            await self._mark(request, None)  # a node or a pool went away meanwhile: think again
            return
        for node in missing:
            self._pools.ask(held.new[node], node, owner_of(request))
        if missing:
            pools = ", ".join(sorted(set(held.new.values())))
            came = len(held.new) - len(missing)
            message = f"Waiting for nodes: {came} of {len(held.new)} of pool {pools} are there."
            await self._wait(request, "Pending", message)
        elif is_overfull(self._room(), held.nodes):
            await self._mark(request, None)
        elif requests.class_of(request) == CHECK_CAPACITY:
            await self._provisioned(request, held, "CapacityIsFound", "Capacity is found in the cluster.")
        else:
            message = "Provisioning Request was successfully provisioned."
            await self._provisioned(request, held, "Provisioned", message)

    async def _provisioned(self, request: Json, held: Booking, reason: str, message: str) -> None:
        pools = ",".join(sorted(set(held.new.values())))
        details = {"NodeGroupName": pools, "NodesAdded": str(len(held.new))} if held.new else {}
        await self._write(request, details, Provisioned=(True, reason, message))
        self._recorder.event(_reference(request), "Normal", "Provisioned", message)

    async def _watch_provisioned(self, request: Json, held: Booking | None) -> None:
        """A booking ends when its pods are bound; one that waits too long is given back, a lost one is said to be."""
        key = _key(request)
        left = [] if held is None else unused(held, self._tally.consumers(request))
        gone = sorted({place.node for place in left if self._nodes.get(Key("", place.node)) is None})
        if gone or key in self._lost:
            self._lost.discard(key)
            message = f"Node {gone[0]} was removed." if gone else "A node was removed under the pods of this request."
            await self._write(request, CapacityRevoked=(True, "NodesRemoved", message))
            self._recorder.event(_reference(request), "Warning", "CapacityRevoked", message)
        elif held is not None and not left:
            await self._mark(request, None)
        elif left and (self._clock.now() - requests.since(request, "Provisioned")) / 1e6 > self._booking_seconds:
            message = f"The capacity was not used within {self._booking_seconds:g} s and is no longer guaranteed."
            await self._write(request, BookingExpired=(True, "BookingExpired", message))

    async def _fail(self, request: Json, reason: str, message: str) -> None:
        await self._write(request, Failed=(True, reason, message))
        self._recorder.event(_reference(request), "Warning", "Failed", message)

    async def _wait(self, request: Json, reason: str, message: str) -> None:
        found = requests.condition(request, "Provisioned")
        if found is None or found.get("message") != message:
            await self._write(request, Provisioned=(False, reason, message))

    async def _mark(self, request: Json, text: str | None) -> None:
        """Write, change or remove the booking."""
        await self._patch(request, {"annotations": {BOOKING: text}}, {})

    async def _write(
        self, request: Json, details: dict[str, str] | None = None, **changes: tuple[bool, str, str]
    ) -> None:
        status: Json = {"conditions": requests.with_conditions(request, self._clock.now(), **changes)}
        if details:
            status["provisioningClassDetails"] = details
        await self._patch(request, {}, {"status": status}, "status")

    async def _patch(self, request: Json, metadata: Json, rest: Json, subresource: str = "") -> None:
        name, namespace = request["metadata"]["name"], request["metadata"].get("namespace")
        exact = {"uid": request["metadata"]["uid"], "resourceVersion": request["metadata"]["resourceVersion"]}
        with contextlib.suppress(NotFound):
            body = {"metadata": {**metadata, **exact}, **rest}
            written = await self._client.patch(PROVISIONING_REQUEST, name, namespace, body, subresource=subresource)
            self.requests.note_write(written)
            self._wake.set()

    # --- growing and shrinking

    def _grow_for_pending(self) -> None:
        """As a cluster autoscaler: pods that no node takes, gang by gang, may make a pool grow."""
        groups: dict[str, list[Json]] = {}
        if self._pools.by_name:
            for uid, seen in self._tally.turned_away.items():
                pod = seen.opened()
                groups.setdefault(group_key(pod) or uid, []).append(pod)
        if not groups:
            return
        room = self._room()
        hopeless: set[bytes] = set()
        for members in groups.values():
            namespace = members[0]["metadata"].get("namespace", "")
            try:
                sets = [pod_set for pod_set, _ in alike(members, pinned=False)]
                shape = namespace.encode() + b"".join(b"%d " % one.count + shape_key(one) for one in sets)
                answer = growth_for(sets, namespace, self._pools.sizes(), room) if shape not in hopeless else None
            except BadInput as error:
                log.debug("pod %s is left out: %s", members[0]["metadata"]["name"], error)
                continue
            if isinstance(answer, PoolGrowth):
                self._grow(answer, sets, members, room)
            else:
                hopeless.add(shape)

    def _grow(self, answer: PoolGrowth, sets: list[PodSet], members: list[Json], room: Room) -> None:
        namespace = members[0]["metadata"].get("namespace", "")
        new = self._new(answer.nodes)
        placement = place_with(sets, namespace, self._pools.by_name, new, room)
        if placement is None:
            return
        for name, pool in new.items():
            self._pools.ask(pool, name)
            room.set_node(pool_fact(self._pools.by_name[pool], name))
        charge(room, sets, placement)
        for pod in members if new else ():
            grown = ", ".join(f"{pool} grows by {count}" for pool, count in answer.nodes.items())
            self._recorder.event(pod, "Normal", "TriggeredScaleUp", f"pod triggered scale-up: pool {grown}")

    async def _shrink(self) -> None:
        """Nodes of pools that hold no pod for a while go away, down to the pool's least.

        In two looks: first a taint keeps new pods off, then, if still no pod came, the node goes.
        """
        now = self._clock.monotonic()
        booked = {place.node for place in self._booked()}
        self._idle_since = {name: at for name, at in self._idle_since.items() if self._nodes.get(Key("", name))}
        for node in self._nodes.list():
            name, pool = node["metadata"]["name"], pool_of(node)
            if pool not in self._pools.by_name:
                continue
            spare = self._pools.size(pool) > self._pools.by_name[pool].least
            leaves = LEAVING in (node["spec"].get("taints") or ())
            if not spare or name in booked or not self._tally.is_empty(name):
                self._idle_since.pop(name, None)
                if leaves:
                    await self._taint(node, [one for one in node["spec"]["taints"] if one != LEAVING])
            elif leaves:
                self._idle_since.pop(name, None)
                log.info("node %s was idle and is removed", name)
                await self._pools.remove(pool, name)
            elif now - self._idle_since.setdefault(name, now) >= self._idle_seconds:
                await self._taint(node, [*(node["spec"].get("taints") or ()), LEAVING])

    async def _taint(self, node: Json, taints: list[Json]) -> None:
        metadata = node["metadata"]
        exact = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        with contextlib.suppress(KubeError):
            change = {"metadata": exact, "spec": {"taints": taints or None}}
            self._nodes.note_write(await self._client.patch(NODE, metadata["name"], None, change))
        self._wake.set()

    async def _publish(self) -> None:
        """Tell controllers that admit gangs what could still come, and whose the new nodes are so long."""
        booked = {node for request in self.requests.list() if (held := booking_of(request)) for node in held.new}
        for node in self._nodes.list():
            if BROUGHT_FOR in (node["metadata"].get("annotations") or {}) and node["metadata"]["name"] not in booked:
                await self._release(node)
        promised = {
            node
            for request in self.requests.list()
            if obtains(request) and (held := booking_of(request))
            for node in held.new
        }
        try:
            await self._publisher.publish(self._pools.by_name.values(), self._pools.obtainable(promised))
        except KubeError as error:
            log.debug("the node pools are published later: %s", error)
            self._wake.set()

    async def _release(self, node: Json) -> None:
        with contextlib.suppress(KubeError):
            change = {"metadata": {"annotations": {BROUGHT_FOR: None}}}
            self._nodes.note_write(await self._client.patch(NODE, node["metadata"]["name"], None, change))

    # --- looking things up

    def _new(self, nodes: dict[str, int]) -> dict[str, str]:
        """Names for so many new nodes, each with its pool."""
        taken = self._tally.names()
        return {name: pool for pool, count in nodes.items() for name in self._pools.new_names(pool, count, taken)}

    def _room(self) -> Room:
        """What is there and what is on its way, less pods and bookings."""
        room = free_room(self._nodes.list(), self._tally.bound.values(), self._booked())
        for name, pool in self._pools.coming.items():
            room.set_node(pool_fact(self._pools.by_name[pool], name))
        return room

    def _booked(self) -> list[Place]:
        return [
            place
            for request in self.requests.list()
            if (held := booking_of(request)) is not None
            for place in unused(held, self._tally.consumers(request))
        ]


def _key(request: Json) -> Key:
    return Key(str(request["metadata"].get("namespace", "")), request["metadata"]["name"])


def _age(request: Json) -> tuple[str, Key]:
    return (request["metadata"].get("creationTimestamp", ""), _key(request))


def _reference(request: Json) -> Json:
    return {**request, "apiVersion": PROVISIONING_REQUEST.api_version, "kind": "ProvisioningRequest"}


async def run(client: Client, settings: LocalSettings, cluster: str, clock: Clock | None = None) -> None:
    """Autoscale until cancelled."""
    await Autoscaler(client, settings, cluster, clock=clock).run()
