"""A stage for one look of the queue controller: its own caches, facts and hands over a store in memory.

Nothing runs by itself: what a case gives is stored, the caches are filled with it, and the case asks for a look. The
plan is not part of it: every gang that holds quota and has passed its checks has room, and of waiting gangs only that
is told which keeps them out of their queue.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.settings import PlanningSettings
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.engine.model import Admit, Plan
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import AlreadyExists, NotFound

OUT_OF_QUEUE = ("Misconfigured", "Suspended")
"""Reasons that a plan gives to gangs that are in no queue now."""


class StoredInMemory:
    """What of `kube.Client` a look needs."""

    namespaces: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self._revision = 0

    def put(self, kind: Kind, obj: Json) -> Json:
        self._revision += 1
        metadata = {"uid": f"{kind.kind}-{obj['metadata']['name']}", **obj["metadata"]}
        metadata["uid"] = metadata["uid"] or f"{kind.kind}-{metadata['name']}"
        metadata["resourceVersion"] = str(self._revision)
        stored = {"apiVersion": kind.api_version, "kind": kind.kind, **obj, "metadata": metadata}
        self.objects[kind.kind, metadata.get("namespace", ""), metadata["name"]] = stored
        return stored

    def all(self, kind: Kind) -> list[Json]:
        return [obj for (name, _, _), obj in self.objects.items() if name == kind.kind]

    async def get(self, kind: Kind, name: str, namespace: str | None = None, **_: Any) -> Json:
        found = self.objects.get((kind.kind, namespace or "", name))
        if found is None:
            raise NotFound(404, "NotFound", f"{kind.resource} {name} not found")
        return copy.deepcopy(found)

    async def create(self, kind: Kind, body: Json, namespace: str | None = None, **_: Any) -> Json:
        if (kind.kind, namespace or "", body["metadata"]["name"]) in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{kind.resource} {body['metadata']['name']} exists")
        return copy.deepcopy(self.put(kind, body))

    async def patch(self, kind: Kind, name: str, namespace: str | None, body: Json, **_: Any) -> Json:
        found = await self.get(kind, name, namespace)
        metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in ("uid",)}
        made = merged({**found}, {**body, "metadata": metadata})
        left = made["metadata"].get("finalizers")
        if made["metadata"].get("deletionTimestamp") and not left:
            self.objects.pop((kind.kind, namespace or "", name))
            return made
        return copy.deepcopy(self.put(kind, made))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, **_: Any) -> Json:
        found = await self.get(kind, name, namespace)
        self.objects.pop((kind.kind, namespace or "", name))
        return found


def merged(base: Any, change: Any) -> Any:
    """A JSON merge patch, carried out."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    made = dict(base) if isinstance(base, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made


class Told:
    """A recorder that keeps events."""

    def __init__(self) -> None:
        self.events: list[Json] = []

    def event(self, obj: Json, type: str, reason: str, message: str) -> None:
        where = f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
        self.events.append({"type": type, "reason": reason, "message": message, "object": where})


class Stage:
    def __init__(self, now: str, settings: QueueSettings) -> None:
        self.store, self.told = StoredInMemory(), Told()
        clock = VirtualClock(parse_time(now))
        client: Any = self.store
        self.loop = PlanningLoop(client, PlanningSettings(queues=settings.decisions), clock)
        self.queues = QueueController(self.loop, settings)
        recorder: Any = self.told
        self.queues.context.recorder = recorder
        self.queues.reconciler._pods_left = lambda uid: 1  # jobs are another controller's there: none has stopped

    def give(self, kind: Kind, obj: Json) -> Json:
        """Store an object and let the controller's caches see it."""
        stored = self.store.put(kind, obj)
        self.see(kind, stored)
        return stored

    def see(self, kind: Kind, stored: Json) -> None:
        caches, shared = self.queues.caches, self.loop.caches
        watched = {**caches.others, **caches.jobs, kinds.WORKLOAD: caches.workloads}
        watched |= {kinds.PROVISIONING_REQUEST: caches.requests, kinds.NODE: shared.nodes}
        if kind in watched:
            watched[kind].take(msgspec.Raw(msgspec.json.encode(stored)))

    def begin(self, *, inactive: bool = False) -> None:
        """Everything is given: the controller is told, and a plan is made of which only what is said above stays.

        `inactive`: ClusterQueues cannot admit, whatever is wrong with them.
        """
        self.queues.subscribe()
        for queue in self.queues.caches.cluster_queues.list() if inactive else ():
            fact = self.queues.facts.cluster_queue(queue)
            self.loop.update_fact(msgspec.structs.replace(fact, problem="it was made so"))
        plan = self.loop.engine.plan(self.loop.clock.now())
        gangs = self.queues._gangs.values()
        admits = tuple(
            Admit(gang=gang.key, uid=gang.uid) for gang in gangs if gang.state == "reserved" and gang.checks_done
        )
        holds = tuple(one for one in plan.holds if one.term in OUT_OF_QUEUE)
        self.loop.decisions.planned(Plan(admits=admits, holds=holds), self.loop.clock.now())

    async def look(self, key: Key) -> float | None:
        """One look at one Workload."""
        return await self.queues.reconciler.reconcile(key)
