"""Binds pending pods, event-driven: a node, a freed place or a new pod wakes it; nothing is polled.

Pods of a gang are bound together or not at all. What was decided is charged to the nodes at once, before the API server
has heard of it, so that two decisions never share a place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from itertools import islice, takewhile
from typing import Any

from shoal.api import gang as marks
from shoal.api.kind import Key, Kind
from shoal.api.kinds import NAMESPACE, NODE, POD, POD_GROUP, PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.engine.facts import node_fact, pod_requests
from shoal.engine.model import PodSet
from shoal.engine.nodes import Room, Unplaced, place_pod
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.events import Recorder
from shoal.local.scheduler.binding import Binder
from shoal.local.scheduler.bookings import ProvisionedRoom
from shoal.local.scheduler.charges import Charges, PodCharge
from shoal.local.scheduler.families import Families, family_key
from shoal.local.scheduler.groups import BOUND_WHOLE, Group, as_pod_set, group_key, minimum_of, order
from shoal.local.scheduler.judging import Judging
from shoal.local.scheduler.lineage import Lineage
from shoal.local.scheduler.placing import places_for, shape_of
from shoal.local.scheduler.preemption import PodPreemption
from shoal.local.scheduler.reasons import WAITING_FOR_GANG, ReasonWriter
from shoal.local.seen import TrackedPod

log = logging.getLogger(__name__)

NO_NODES = "no nodes available to schedule pods"
AGAIN = 1.0
"""Seconds until room is made again for a pod for which the server did not let us."""
NAMES = ("", "default-scheduler", "shoal", "shoal-scheduler")


class Scheduler:
    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._recorder = Recorder(client, "default-scheduler", clock=self._clock)
        self.pods: Cache[TrackedPod] = Cache(client, POD, TrackedPod, clock=self._clock)
        self._nodes: Cache[Json] = Cache(client, NODE, dict, clock=self._clock)
        self._namespaces: Cache[Json] = Cache(client, NAMESPACE, dict, clock=self._clock)
        self._lacking = {kind: asyncio.Event() for kind in (POD_GROUP, PROVISIONING_REQUEST)}
        self._pod_groups, self._requests = (self._optional(client, kind) for kind in self._lacking)
        self.room = Room()
        self._bookings = ProvisionedRoom(self.room)
        self._binder = Binder(client, self._clock, self._is_assumed)
        self._reasons = ReasonWriter(client, self._recorder, self._clock, self._binder.limit, self._assumed_at)
        self._charged = Charges(self.room, self._bookings)
        self._preemption = PodPreemption(client, self._recorder, self._clock, self.room, self._charged)
        self._assumed: dict[str, str] = {}
        self._pending: dict[Key, Json] = {}
        self._members: dict[str, set[Key]] = defaultdict(set)
        self._started: dict[str, set[str]] = defaultdict(set)
        self._families = Families()
        self._lineage = Lineage(client)
        self._judging = Judging(self._lineage, self.pods, self._clock, self._judged)
        self._whole: set[str] = set()
        self._hopeless: dict[bytes, str] = {}
        self._no_victims: set[tuple[bytes, int]] = set()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        needed, optional = (self._namespaces, self._nodes, self.pods), (self._pod_groups, self._requests)
        try:
            async with asyncio.TaskGroup() as tasks:
                for cache in (*needed, *optional):
                    tasks.create_task(cache.run())
                for cache in needed:
                    await cache.synced.wait()
                for cache in optional:
                    await _either(cache.synced, self._lacking[cache.kind])
                self._namespaces.subscribe(self._namespace_changed)
                self._nodes.subscribe(self._node_changed)
                self._requests.subscribe(self._request_changed)
                await self._judging.judge_all()
                tasks.create_task(self._judging.run())
                self.pods.subscribe(self._pod_changed)
                self._pod_groups.subscribe(lambda change: self._improved())
                self.ready.set()
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self.cycle()
        finally:
            await self._recorder.close()

    def _optional(self, client: Client, kind: Kind) -> Cache[Json]:
        """A kind that may not be installed: then it is not waited for, and picked up when it comes."""
        return Cache(client, kind, dict, clock=self._clock, report=lambda trouble: self._lacking[kind].set())

    async def cycle(self) -> None:
        """Look at every pending pod whose chances may have changed, best first: gangs that lose none of what they lost,
        then what was half bound or has survivors, then all others."""
        done: set[str] = set()
        lacking = self._families.incomplete(self._waiting(), self._least)
        for pods in lacking:
            if not self._starts_together(pods[0]):
                self._place_whole(pods)
        begun = {pod["metadata"]["uid"] for pods in lacking for pod in pods}
        line = self._families.line(self._waiting(), lambda one: self._is_begun(one, begun))
        for index, pod in enumerate(line):
            key = group_key(pod)
            if key in done or pod["metadata"]["uid"] in self._assumed:
                continue
            try:
                group = self._group(key, pod) if key else None
                if group is not None and group.together:
                    done.add(key)
                    self._place_group(group)
                elif key or not self._place_kin(line, index, done):
                    self._place_one(pod)
            except BadInput as error:
                self._reasons.waits(pod, str(error))
            if index % 64 == 63:
                await asyncio.sleep(0)  # binds go out and events come in while a long queue is looked at

    def _waiting(self) -> list[Json]:
        return [pod for pod in self._pending.values() if pod["metadata"]["uid"] not in self._assumed]

    def _is_begun(self, pod: Json, lacking: set[str]) -> bool:
        """A gang of which some pods are bound and others not, because it lost them or because its scheduler died: it is
        finished first, before anyone can take its room."""
        key = group_key(pod)
        return pod["metadata"]["uid"] in lacking or (
            bool(key) and bool(self._started.get(key)) and key not in self._whole
        )

    def _least(self, pod: Json) -> int | None:
        """How many pods its gang needs; None for what says nothing of that."""
        return self._minimum(pod) if group_key(pod) else None

    def _minimum(self, pod: Json) -> int | None:
        return minimum_of(pod, lambda name: self._pod_groups.get(Key(*name.split("/", 1))))

    def _starts_together(self, pod: Json) -> bool:
        key = group_key(pod)
        try:
            return bool(key) and self._group(key, pod).together
        except BadInput:
            return True

    # --- decisions

    def _group(self, key: str, pod: Json) -> Group:
        """Raises BadInput for a PodGroup that does not exist: its members cannot be known."""
        members = [self._pending[member] for member in self._members[key] if member in self._pending]
        waiting = tuple(sorted((m for m in members if m["metadata"]["uid"] not in self._assumed), key=order))
        minimum = self._minimum(pod)
        if minimum is None:
            raise BadInput(f"waiting for PodGroup {key.removeprefix('podgroup/')}, which does not exist")
        return Group(key, waiting, minimum, len(self._started.get(key, ())), key in self._whole)

    def _place_group(self, group: Group) -> None:
        """All of it or nothing of it."""
        if group.missing:
            text = f"waiting for {group.missing} more of the {group.minimum} pods of its gang to be created"
            for pod in group.pods:
                self._reasons.waits(pod, text, WAITING_FOR_GANG)
            return
        with self._bookings.open_to(group.pods):
            places = places_for(group, self.room)
            if isinstance(places, list):
                for pod, node in places:
                    self._assume(pod, node)
        if isinstance(places, list):
            self._whole.add(group.key)
            self._spawn(self._bind_group(places))
            return
        why = "; ".join(shortfall.message for shortfall in places if shortfall.message) or "no node has room"
        together = f"the {group.minimum} pods of its gang start together or not at all"
        text = f"0/{len(self._nodes)} nodes are available: {why}; {together}." if len(self._nodes) else NO_NODES
        for pod in group.pods:
            self._reasons.waits(pod, text)

    def _place_kin(self, line: list[Json], index: int, done: set[str]) -> bool:
        """Pods that a queue started together get their places together, where there is room for all of them. They stand
        beside each other in the line, from this one on."""
        key = family_key(line[index])
        if not key or key in done:
            return False
        done.add(key)
        kin = [*takewhile(lambda one: family_key(one) == key, islice(line, index, None))]
        return len(kin) > 1 and self._place_whole(kin)

    def _place_whole(self, pods: list[Json]) -> bool:
        """All of these or none, without a word: a pod without a place is looked at by itself later."""
        alone = any(self._preemption.is_nominated(pod["metadata"]["uid"]) for pod in pods)
        try:
            if alone or any(shape_of(pod)[1] in self._hopeless for pod in pods):
                return False
            with self._bookings.open_to(pods):
                places = places_for(Group(family_key(pods[0]), tuple(pods), len(pods)), self.room)
                if isinstance(places, list):
                    for pod, node in places:
                        self._assume(pod, node)
        except BadInput:
            return False
        if not isinstance(places, list):
            return False
        for pod, node in places:
            self._spawn(self._bind(pod, node))
        return True

    def _place_one(self, pod: Json) -> None:
        shape, key = shape_of(pod)
        namespace = pod["metadata"].get("namespace", "")
        uid = pod["metadata"]["uid"]
        known = self._hopeless.get(key)
        if known is not None and not self._preemption.is_nominated(uid):
            self._reasons.waits(pod, known)
            self._make_room(pod, shape, key)
            return
        if not len(self._nodes):
            self._reasons.waits(pod, NO_NODES)
            return
        with self._preemption.open_to(uid), self._bookings.open_to((pod,)):
            answer = place_pod(shape, namespace, self.room)
            if isinstance(answer, Unplaced) and (pod["metadata"].get("annotations") or {}).get(marks.NODE_PIN):
                answer = place_pod(as_pod_set([pod], "pod", pinned=False), namespace, self.room)
            if isinstance(answer, str):
                self._assume(pod, answer)
        if isinstance(answer, str):
            self._preemption.drop(uid)
            self._spawn(self._bind(pod, answer))
            return
        if not self._preemption.is_nominated(uid):
            self._hopeless[key] = answer.message
        self._reasons.waits(pod, answer.message)
        self._make_room(pod, shape, key)

    def _make_room(self, pod: Json, shape: PodSet, key: bytes) -> None:
        """No node takes this pod: pods of lower priority may have to go. Never for or at the cost of a gang's pod."""
        uid, priority = pod["metadata"]["uid"], int(pod["spec"].get("priority") or 0)
        if group_key(pod) or not self._preemption.could_help(pod) or (key, priority) in self._no_victims:
            return
        if self._preemption.waits_for_victims(uid):
            return
        found = self._preemption.choose(pod, shape, pod_requests(pod["spec"]))
        if found is None:
            self._no_victims.add((key, priority))
            return
        node, victims = found
        self._spawn(self._preempt(pod, node, {victim: self._charged[victim] for victim in victims}))

    async def _preempt(self, pod: Json, node: str, victims: Mapping[str, PodCharge]) -> None:
        if not await self._preemption.carry_out(pod, node, victims):
            await self._clock.sleep(AGAIN)  # nothing else would tell it to look again
            self._improved()

    # --- carrying out

    def _assume(self, pod: Json, node: str) -> None:
        """Take the place now; the API server is told in the background."""
        uid = pod["metadata"]["uid"]
        self._charge(uid, pod, node)
        self._assumed[uid] = node
        self._families.settle(uid, pod)
        key = group_key(pod)
        if key:
            self._started[key].add(uid)

    async def _bind_group(self, places: list[tuple[Json, str]]) -> None:
        """The oldest pod (a Ray cluster's head) goes last and tells that the gang is whole: see `BOUND_WHOLE`.

        It is not told when another has lost its node meanwhile: then both look for a place together.
        """
        places = sorted(places, key=lambda one: order(one[0]))
        await asyncio.gather(*(self._bind(pod, node) for pod, node in places[1:]))
        if any(self._waits_again(pod) for pod, _ in places[1:]):
            self._whole.discard(group_key(places[0][0]))
            self._unassume(places[0][0])
            return
        await self._bind(*places[0], last_of_gang=True)

    def _waits_again(self, pod: Json) -> bool:
        metadata = pod["metadata"]
        held = self._pending.get(Key(metadata.get("namespace", ""), metadata["name"]))
        return held is not None and held["metadata"]["uid"] == metadata["uid"] and metadata["uid"] not in self._assumed

    async def _bind(self, pod: Json, node: str, *, last_of_gang: bool = False) -> None:
        if await self._binder.bind(pod, node, last_of_gang=last_of_gang):
            self._reasons.bound(pod, node)
        elif self._is_assumed(pod, node):  # else it has lost this place already, and may have another
            self._unassume(pod)

    def _unassume(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if self._assumed.pop(uid, None) is None:
            return
        held = self.pods.get(Key(pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
        if held is None or held.metadata.uid != uid or not held.node:
            self._release(uid)
            self._bookings.leave(pod)
            self._families.leave(uid)
            self._started[group_key(pod)].discard(uid)
        self._improved()

    def _assumed_at(self, uid: str) -> bool:
        return uid in self._assumed

    def _is_assumed(self, pod: Json, node: str) -> bool:
        return self._assumed.get(pod["metadata"]["uid"]) == node

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- facts

    def _improved(self) -> None:
        """Room appeared: pods that were turned away are tried again."""
        self._hopeless.clear()
        self._no_victims.clear()
        self._wake.set()

    def _namespace_changed(self, change: Change) -> None:
        labels = {} if change.new is None else dict(change.new["metadata"].get("labels") or {})
        self.room.namespaces[change.key.name] = labels
        self.room.around.relabelled()

    def _request_changed(self, change: Change) -> None:
        if self._bookings.update(str(change.key), change.new):
            self._improved()

    def _node_changed(self, change: Change) -> None:
        if change.new is None:
            self.room.drop_node(change.key.name)
            for pod in [one for one in self._pending.values() if self._is_assumed(one, change.key.name)]:
                self._whole.discard(group_key(pod))  # its others may be bound: it is finished before anyone's turn
                self._unassume(pod)  # a bind that is on its way is not tried again
            return
        try:
            self.room.set_node(node_fact(change.new))
        except BadInput as error:
            log.warning("node %s is left out: %s", change.key.name, error)
            self.room.drop_node(change.key.name)
            return
        self._improved()

    def _pod_changed(self, change: Change) -> None:
        if change.new is None:
            self._forget(change.key, change.old)
            return
        pod: TrackedPod = change.new
        uid = pod.metadata.uid
        if self._judging.is_due(change.key, pod) and not pod.node:
            return  # it waits until it is known with which pods it goes
        if pod.is_terminal:
            self._pending.pop(change.key, None)
            self._assumed.pop(uid, None)
            self._families.leave(uid)
            self._release(uid)
        elif pod.node:
            self._is_bound(change.key, pod)
        elif uid not in self._assumed:
            self._waits(change.key, pod)

    def _judged(self, key: Key, pod: TrackedPod) -> None:
        """It is known now with which pods it goes. One that was bound before was charged as a pod on its own."""
        self._release(pod.metadata.uid)
        self._pod_changed(Change("changed", key, pod, pod))

    def _is_bound(self, key: Key, pod: TrackedPod) -> None:
        uid, node = pod.metadata.uid, pod.node
        self._pending.pop(key, None)
        self._assumed.pop(uid, None)
        self._reasons.forget(uid)
        if (charged := self._charged.get(uid)) is not None and charged.node == node:
            if group := group_key(self._lineage.vetted({"metadata": pod.head()})):
                self._members[group].discard(key)
            return
        opened = self._lineage.vetted(pod.opened())
        self._families.settle(uid, opened)
        if group := group_key(opened):
            self._members[group].discard(key)
            self._started[group].add(uid)
            if (pod.metadata.annotations or {}).get(BOUND_WHOLE):
                self._whole.add(group)
        self._charge(uid, opened, node)

    def _waits(self, key: Key, pod: TrackedPod) -> None:
        spec = pod.whole_spec()
        gates = spec.get("schedulingGates")
        if (spec.get("schedulerName") or "") not in NAMES or pod.metadata.deletion_timestamp or gates:
            self._pending.pop(key, None)
            return
        known = self._pending.get(key)
        opened = self._lineage.vetted({"metadata": pod.head(), "spec": spec})
        self._pending[key] = opened
        if group := group_key(opened):
            self._members[group].add(key)
        if (
            known is None
            or known["spec"] != spec
            or known["metadata"].get("labels") != opened["metadata"].get("labels")
        ):
            self._wake.set()

    def _forget(self, key: Key, pod: TrackedPod) -> None:
        uid = pod.metadata.uid
        self._pending.pop(key, None)
        self._assumed.pop(uid, None)
        self._reasons.forget(uid)
        self._families.leave(uid)
        self._release(uid)
        if self._preemption.drop(uid):
            self._improved()
        head = self._lineage.vetted({"metadata": pod.head()})
        self._judging.forget(key, uid)
        self._bookings.leave(head)
        group = group_key(head)
        if group:
            self._members[group].discard(key)
            self._started[group].discard(uid)
            if not self._started[group]:
                self._whole.discard(group)  # nothing is left of it: it starts together again
                if not self._members[group]:
                    del self._members[group], self._started[group]

    def _charge(self, uid: str, pod: Json, node: str) -> None:
        known = self._charged.get(uid)
        if known is not None and known.node == node:
            return
        if known is not None:
            self._release(uid)
        self._charged.take(uid, pod, node)

    def _release(self, uid: str) -> None:
        if self._charged.release(uid):
            self._improved()


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


async def run(client: Client, clock: Clock | None = None) -> None:
    """Schedule pods until cancelled."""
    await Scheduler(client, clock=clock).run()
