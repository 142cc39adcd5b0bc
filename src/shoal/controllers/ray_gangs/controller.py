"""The controller of Ray gangs: a source of workloads for the planning loop.

Changes become facts; what is planned becomes one condition of the object, which the Ray operator waits for. The
condition is stored before anything of the gang exists, on the very revision that was read. Nothing else is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.objects import group_of
from shoal.api.ray_gang import (
    ROOM_FOUND,
    STARTED_BEFORE,
    WAITING_FOR_ROOM,
    condition_of,
    has_changed,
    is_admitted,
    is_gang,
    with_condition,
)
from shoal.api.times import seconds_text
from shoal.controllers.demand import RaySidecars
from shoal.controllers.planning import NodeRequester, PlanningLoop
from shoal.controllers.planning.caches import UNREADABLE
from shoal.controllers.planning.loop_guard import LoopGuard
from shoal.controllers.planning.observations import Observation
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.planning.words import why_waiting
from shoal.controllers.ray_gangs.facts import RayGangFacts, as_seen_first, gang_key
from shoal.controllers.ray_gangs.remembered import remembered
from shoal.engine.model import Explanation, Gang, Plan
from shoal.errors import ShoalError
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.runtime import Controller

log = logging.getLogger(__name__)

KINDS = (kinds.RAY_JOB, kinds.RAY_CLUSTER)
Address = tuple[Kind, Key]
FIRST = 0.5
"""Seconds after a plan until the reasons of gangs that wait are found out again."""
PER_GANG = 0.003
"""Seconds between two such rounds, for every gang that waits."""
CHUNK = 100
"""So many are looked at before others get a turn."""
BY_LOOKING = ("resources",)
"""Holds whose reason can be found out again; the others say what they wait for."""
STARTING = "it was admitted and is being started"
DROPPED = (
    "the server drops status.conditions of a {0}: its start cannot be stored; update its definition with shoal install"
)


class RayGangController:
    """A `WorkloadSource` of the planning loop that it joins."""

    def __init__(
        self, planning: PlanningLoop, sidecars: RaySidecars | None = None, namespaces: Sequence[str] = ()
    ) -> None:
        """`sidecars` and `namespaces` are the Ray operator's."""
        self.planning, self.clock = planning, planning.clock
        self._namespaces = frozenset(namespaces)
        self._awaited = Awaited()
        self.caches: dict[Kind, Cache[Json]] = {kind: self._cache(kind) for kind in KINDS}
        self.facts = RayGangFacts(sidecars or RaySidecars())
        self.queue: Controller[Address] = Controller("ray-gangs", self._reconcile, workers=16, clock=self.clock)
        self._writer = planning.writes.writer("ray-gangs", attempts=1)
        self._guard = LoopGuard(self.clock)
        self._addresses: dict[str, Address] = {}
        """By UID."""
        self._keys: dict[str, str] = {}
        """UID of each gang, by its key."""
        self._said: dict[str, tuple[Explanation, Explanation]] = {}
        """By UID: what the plan said of a gang that waits, and what was found out since."""
        self._changed = asyncio.Event()
        planning.join(self)

    # --- a source of workloads

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for cache in self.caches.values():
                tasks.create_task(cache.run())
            tasks.create_task(self.queue.run())
            tasks.create_task(self._keep_reasons_true())

    async def synced(self) -> None:
        await self._awaited.known(self.caches.values())

    def subscribe(self) -> None:
        shared = self.planning.caches
        self.facts.defaults = shared.pod_defaults
        for kind, cache in self.caches.items():
            cache.subscribe(partial(self._object_changed, kind))
        shared.limit_ranges.subscribe(self._limits_changed)
        shared.runtime_classes.subscribe(self._limits_changed)

    def gang_of(self, namespace: str, mark: str, owners: Sequence[str]) -> str:
        found = (uid for uid in owners if uid in self._addresses)
        return next((uid for uid in found if self._addresses[uid][1].namespace == namespace), "")

    def known_as(self, key: str) -> str:
        return key

    def pods_changed(self, gang: str, after: float) -> None:
        """Pods that are gone, or a cluster that is there, may change what is stored of it."""
        found = self._found(gang)
        if found is not None and (not is_admitted(found[1]) or has_changed(found[1])):
            self._update(*found)
            self.queue.enqueue(self._addresses[gang])

    def observed(self, observation: Observation) -> None:
        """Reconcilers of other sources learn nothing of Ray gangs."""

    def planned(self, plan: Plan, touched: Sequence[str]) -> None:
        for key in touched:
            if key in self._keys:
                self.queue.enqueue(self._addresses[self._keys[key]])
        self._changed.set()

    def keeps(self, request: Json) -> bool:
        return False

    def requester(self, uid: str) -> NodeRequester | None:
        found = self._found(uid)
        if found is None:
            return None
        kind, obj = found
        named = {"apiVersion": kind.api_version, "kind": kind.kind}
        owner = {**named, "name": obj["metadata"]["name"], "uid": uid, "controller": True, "blockOwnerDeletion": True}
        return NodeRequester(
            gang=gang_key(kind, obj),
            generation=int(obj["metadata"].get("generation") or 0),
            owner=owner,
            about={**obj, **named},
            update=lambda: self._update_again(uid),
        )

    def consumers(self, group: str, kind: str, key: Key) -> None:
        return None

    def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None:
        """Of a gang that waits; how others fare, their pods tell."""
        for one in KINDS:
            obj = self.caches[one].get(key) if kind == one.kind and group in ("", one.group) else None
            if obj is None or obj["metadata"]["uid"] not in self._addresses:
                continue
            name, uid = gang_key(one, obj), obj["metadata"]["uid"]
            gang = self.planning.engine.gang(name)
            if gang is None or gang.uid != uid or gang.state not in ("waiting", "admitted") or is_admitted(obj):
                return None
            state = str((obj.get("status") or {}).get("jobDeploymentStatus") or "Waiting")
            if gang.state == "admitted":
                return QuestionSubject(uid=uid, state=state, reason="Starting", message=STARTING)
            hold = self.planning.decisions.hold(name, uid)
            said = hold.explanation.message if hold is not None else "the controller has not looked at it yet"
            return QuestionSubject(uid=uid, state=state, reason="Room", message=said, gang=name, hold=hold)
        return None

    def draft(self, manifest: Json, now: int) -> Gang | None:
        for one in KINDS:
            if manifest.get("kind") == one.kind and group_of(manifest) == one.group and self._is_ours(manifest):
                gang = self.facts.gang(one, as_seen_first(manifest), runs=False)
                self.facts.forget(gang.uid)
                return gang
        return None

    def collect(self) -> Iterator[Any]:
        return iter(())

    def watched(self) -> list[Cache[Any]]:
        return list(self.caches.values())

    # --- changes

    def _object_changed(self, kind: Kind, change: Change) -> None:
        obj: Json = change.new or change.old
        uid, generation = obj["metadata"]["uid"], int(obj["metadata"].get("generation") or 0)
        if change.new is None or not self._is_ours(obj):
            if uid in self._addresses:
                self._forget(kind, obj)
            return
        is_new = uid not in self._addresses
        self._addresses[uid], self._keys[gang_key(kind, obj)] = (kind, change.key), uid
        self.planning.refresh_requests(uid, generation)
        self._update(kind, obj)
        if is_new:
            self.planning.cluster.refresh_pods(uid)
        self.queue.enqueue((kind, change.key))

    def _is_ours(self, obj: Json) -> bool:
        return is_gang(obj) and (not self._namespaces or obj["metadata"]["namespace"] in self._namespaces)

    def _forget(self, kind: Kind, obj: Json) -> None:
        key, uid = gang_key(kind, obj), obj["metadata"]["uid"]
        self.planning.refresh_requests(uid, int(obj["metadata"].get("generation") or 0))
        self._addresses.pop(uid, None)
        if self._keys.get(key) == uid:
            del self._keys[key]
        self.facts.forget(uid)
        self._said.pop(uid, None)
        self.planning.forget(key, uid, keep_room=True)

    def _update(self, kind: Kind, obj: Json) -> None:
        """Update the planning loop with what is stored."""
        self.planning.update(self._gang(kind, obj), lambda: remembered(kind, obj))

    def _gang(self, kind: Kind, obj: Json) -> Gang:
        pods = self.planning.pods(obj["metadata"]["uid"])
        bound = [pod.fact for pod in pods if pod.fact.node]
        return self.facts.gang(kind, obj, runs=self._runs(kind, obj), bound=bound)

    def _update_again(self, uid: str) -> None:
        found = self._found(uid)
        if found is not None:
            self._update(*found)

    def _runs(self, kind: Kind, obj: Json) -> bool:
        """Was it started before anything was stored about that? Its cluster or its pods are there."""
        uid, status = obj["metadata"]["uid"], obj.get("status") or {}
        if kind == kinds.RAY_JOB:
            made = (one for one, _ in self.planning.caches.controlled_by(uid))
            return status.get("jobDeploymentStatus") in ("Running", "Waiting") or kinds.RAY_CLUSTER in made
        provisioned = any(
            one.get("type") == "RayClusterProvisioned" and one.get("status") == "True"
            for one in status.get("conditions") or ()
        )
        return provisioned or any(True for _ in self.planning.caches.pods.by_index("owner", uid))

    def _limits_changed(self, change: Change) -> None:
        for address in list(self._addresses.values()):
            obj = self.caches[address[0]].get(address[1])
            if obj is not None and change.key.namespace in ("", address[1].namespace):
                self._update(address[0], obj)

    def _found(self, uid: str) -> tuple[Kind, Json] | None:
        address = self._addresses.get(uid)
        obj = self.caches[address[0]].get(address[1]) if address is not None else None
        if address is None or obj is None or obj["metadata"]["uid"] != uid:
            return None
        return address[0], obj

    # --- one gang

    async def _reconcile(self, address: Address) -> float | None:
        """Store what is decided of one gang: that it starts, or why it waits."""
        kind, obj = address[0], self.caches[address[0]].get(address[1])
        if obj is None or obj["metadata"]["uid"] not in self._addresses:
            return None
        await self._guard.count(address)
        gang = self._gang(kind, obj)
        if gang.state == "admitted" and not is_admitted(obj):
            await self._store(kind, obj, True, STARTED_BEFORE, "It was started before gangs were looked at")
        elif gang.state == "waiting" and self.planning.decisions.admit(gang.key, gang.uid) is not None:
            await self._store(kind, obj, True, ROOM_FOUND, "All of its pods have room")
            log.info("%s starts", gang.key)
        elif gang.state == "waiting":
            await self._explain(kind, obj, gang)
        return None

    async def _explain(self, kind: Kind, obj: Json, gang: Gang) -> None:
        hold = self.planning.decisions.hold(gang.key, gang.uid)
        if hold is None:
            return
        said = self._said.get(gang.uid)
        found = said[1] if said is not None and said[0] == hold.explanation else hold.explanation
        message = why_waiting(found, gang.namespace, self.planning.known_as)
        if condition_of(obj).get("message") != message:
            is_first = not condition_of(obj)
            await self._store(kind, obj, False, WAITING_FOR_ROOM, message)
            if is_first:
                about = {**obj, "apiVersion": kind.api_version, "kind": kind.kind}
                self.planning.recorder.event(about, "Normal", "Waiting", message)

    async def _store(self, kind: Kind, obj: Json, admitted: bool, reason: str, message: str) -> None:
        conditions = with_condition(obj, admitted, reason, message, seconds_text(self.clock.now()))
        written = await self._writer.patch(kind, obj, {"status": {"conditions": conditions}}, subresource="status")
        self.caches[kind].note_write(written)
        if not condition_of(written):
            raise ShoalError(DROPPED.format(kind.kind))

    # --- reasons

    async def _keep_reasons_true(self) -> None:
        """A plan does not speak again of gangs that it knows cannot start: find out again why they wait."""
        turn = -1
        while True:
            await self._changed.wait()
            self._changed.clear()
            if turn == self.planning.turn:
                continue
            await self.clock.sleep(FIRST)
            turn, known = self.planning.turn, dict[object, Explanation]()
            decisions = self.planning.decisions
            waiting = [hold for hold in decisions.holds.values() if hold.gang in self._keys]
            for number, hold in enumerate(waiting, 1):
                if number % CHUNK == 0:
                    await asyncio.sleep(0)
                    if turn != self.planning.turn:
                        turn, known = self.planning.turn, {}
                found = self.planning.engine.room_reason(hold.gang, known) if hold.reason in BY_LOOKING else None
                said = (hold.explanation, found) if found is not None else None
                if said is not None and hold.uid in self._addresses and self._said.get(hold.uid) != said:
                    self._said[hold.uid] = said
                    self.queue.enqueue(self._addresses[hold.uid])
            await self.clock.sleep(PER_GANG * len(waiting))

    def _cache(self, kind: Kind) -> Cache[Json]:
        report = self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE)
        return Cache(self.planning.client, kind, dict, clock=self.clock, report=report, share=True)
