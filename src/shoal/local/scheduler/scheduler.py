"""Binds pending pods, event-driven: a node, a freed place or a new pod wakes it; nothing is polled.

Pods of a gang are bound together or not at all. What was decided is charged to the nodes at once, before the API server
has heard of it, so that two decisions never share a place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

import msgspec

from shoal.api import gang as marks
from shoal.api.kind import Key
from shoal.api.kinds import NAMESPACE, NODE, POD, POD_GROUP
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.engine.affinity import Resident, company_of
from shoal.engine.facts import host_ports, node_fact, pod_requests
from shoal.engine.fit import Placement, Unplaced, place, place_pod
from shoal.engine.model import Amounts, Gang, HostPort, Shortfall, Taint
from shoal.engine.room import Room
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.events import Recorder
from shoal.local.scheduler.groups import (
    HELD_FOR,
    Group,
    alike,
    as_pod_set,
    group_key,
    minimum_of,
    order,
    shape_key,
)

log = logging.getLogger(__name__)

NAMES = ("", "default-scheduler", "shoal", "shoal-scheduler")
TERMINAL = ("Succeeded", "Failed")
PARALLEL_BINDS = 64


class Charge(msgspec.Struct, frozen=True):
    """What one pod takes on its node."""

    node: str
    requests: Amounts
    ports: tuple[HostPort, ...]


class Scheduler:
    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self._client = client
        self._clock: Clock = clock or SystemClock()
        self._recorder = Recorder(client, "default-scheduler", clock=self._clock)
        self.pods: Cache[Json] = Cache(client, POD, dict, clock=self._clock)
        self._nodes: Cache[Json] = Cache(client, NODE, dict, clock=self._clock)
        self._namespaces: Cache[Json] = Cache(client, NAMESPACE, dict, clock=self._clock)
        self._pod_groups: Cache[Json] = Cache(client, POD_GROUP, dict, clock=self._clock)
        self.room = Room()
        self._charged: dict[str, Charge] = {}
        self._assumed: dict[str, str] = {}
        self._pending: dict[Key, Json] = {}
        self._members: dict[str, set[Key]] = defaultdict(set)
        self._started: dict[str, set[str]] = defaultdict(set)
        self._hopeless: dict[bytes, str] = {}
        self._said: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._binds = asyncio.Semaphore(PARALLEL_BINDS)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        caches = (self._namespaces, self._nodes, self.pods)
        try:
            async with asyncio.TaskGroup() as tasks:
                for cache in (*caches, self._pod_groups):
                    tasks.create_task(cache.run())
                for cache in caches:
                    await cache.synced.wait()
                self._namespaces.subscribe(self._namespace_changed)
                self._nodes.subscribe(self._node_changed)
                self.pods.subscribe(self._pod_changed)
                self._pod_groups.subscribe(lambda change: self._improved())
                self.ready.set()
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self.cycle()
        finally:
            await self._recorder.close()

    async def cycle(self) -> None:
        """Look at every pending pod whose chances may have changed, best first."""
        done: set[str] = set()
        for index, pod in enumerate(sorted(self._pending.values(), key=order)):
            key = group_key(pod)
            if key in done or pod["metadata"]["uid"] in self._assumed:
                continue
            try:
                if key and (group := self._group(key, pod)).together:
                    done.add(key)
                    self._place_group(group)
                else:
                    self._place_one(pod)
            except BadInput as error:
                self._explain(pod, str(error))
            if index % 64 == 63:
                await asyncio.sleep(0)  # binds go out and events come in while a long queue is looked at

    # --- decisions

    def _group(self, key: str, pod: Json) -> Group:
        members = [self._pending[member] for member in self._members[key] if member in self._pending]
        waiting = tuple(sorted((m for m in members if m["metadata"]["uid"] not in self._assumed), key=order))
        groups = {
            str(Key(g["metadata"].get("namespace", ""), g["metadata"]["name"])): g for g in self._pod_groups.list()
        }
        return Group(key, waiting, minimum_of(pod, groups), len(self._started[key]))

    def _place_group(self, group: Group) -> None:
        """All of it or nothing of it."""
        if group.missing:
            text = f"waiting for {group.missing} more of the {group.minimum} pods of its gang to be created"
            for pod in group.pods:
                self._explain(pod, text)
            return
        answer: Placement | tuple[Shortfall, ...] = ()
        for pinned in (True, False):
            sets = alike(group.pods, pinned)
            namespace = group.pods[0]["metadata"].get("namespace", "")
            wanted = Gang(
                key=group.key,
                uid=group.key,
                namespace=namespace,
                name=group.key,
                pod_sets=tuple(pod_set for pod_set, _ in sets),
            )
            answer = place(wanted, self.room)
            if isinstance(answer, Placement):
                for (_, members), nodes in zip(sets, answer.pod_sets, strict=True):
                    places = [node for node, count in nodes.items() for _ in range(count)]
                    for pod, node in zip(members, places, strict=True):
                        self._assign(pod, node)
                return
            if not any((pod["metadata"].get("annotations") or {}).get(marks.NODE_PIN) for pod in group.pods):
                break
        short = answer if isinstance(answer, tuple) else ()
        why = "; ".join(shortfall.message for shortfall in short if shortfall.message) or "no node has room"
        for pod in group.pods:
            self._explain(pod, f"{why} (all {group.minimum} pods of its gang start together or not at all)")

    def _place_one(self, pod: Json) -> None:
        shape = as_pod_set([pod], "pod")
        namespace = pod["metadata"].get("namespace", "")
        key = shape_key(shape) + namespace.encode()
        known = self._hopeless.get(key)
        if known is not None:
            self._explain(pod, known)
            return
        answer = place_pod(shape, namespace, self.room)
        if isinstance(answer, Unplaced) and (pod["metadata"].get("annotations") or {}).get(marks.NODE_PIN):
            answer = place_pod(as_pod_set([pod], "pod", pinned=False), namespace, self.room)
        if isinstance(answer, Unplaced):
            self._hopeless[key] = answer.message
            self._explain(pod, answer.message)
        else:
            self._assign(pod, answer)

    def _assign(self, pod: Json, node: str) -> None:
        """Take the place now; tell the API server in the background."""
        uid = pod["metadata"]["uid"]
        self._charge(uid, pod, node)
        self._assumed[uid] = node
        key = group_key(pod)
        if key:
            self._started[key].add(uid)
        task = asyncio.create_task(self._bind(pod, node))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        name, namespace, uid = metadata["name"], metadata.get("namespace", ""), metadata["uid"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            async with self._binds:
                await self._client.request("POST", POD.path(namespace, name, "binding"), body=msgspec.json.encode(body))
        except (NotFound, Conflict):
            self._unassume(pod)  # gone or taken by someone else: the watch says which
        except KubeError as error:
            log.warning("pod %s/%s could not be bound to %s: %s", namespace, name, node, error)
            await self._clock.sleep(1.0)
            self._unassume(pod)
        else:
            self._said.pop(uid, None)
            self._recorder.event(
                {**pod, "apiVersion": "v1", "kind": "Pod"},
                "Normal",
                "Scheduled",
                f"Successfully assigned {namespace}/{name} to {node}",
            )

    def _unassume(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if self._assumed.pop(uid, None) is None:
            return
        held = self.pods.get(Key(pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
        if held is None or held["metadata"]["uid"] != uid or not held["spec"].get("nodeName"):
            self._release(uid)
            self._started[group_key(pod)].discard(uid)
        self._improved()

    def _explain(self, pod: Json, message: str) -> None:
        """Say once why a pod waits: its condition, and an event."""
        uid = pod["metadata"]["uid"]
        if self._said.get(uid) == message:
            return
        self._said[uid] = message
        self._recorder.event({**pod, "apiVersion": "v1", "kind": "Pod"}, "Warning", "FailedScheduling", message)
        task = asyncio.create_task(self._write_condition(pod, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_condition(self, pod: Json, message: str) -> None:
        metadata = pod["metadata"]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": seconds_text(self._clock.now()),
        }
        body = {"metadata": {"uid": metadata["uid"]}, "status": {"phase": "Pending", "conditions": [condition]}}
        async with self._binds:
            if metadata["uid"] in self._assumed or self._said.get(metadata["uid"]) != message:
                return
            try:
                await self._client.patch(
                    POD, metadata["name"], metadata.get("namespace"), body, subresource="status", patch_type="strategic"
                )
            except KubeError as error:
                log.debug("the reason why pod %s waits was not written: %s", metadata["name"], error)

    # --- facts

    def _improved(self) -> None:
        """Room appeared: whoever was turned away may be asked again."""
        self._hopeless.clear()
        self._wake.set()

    def _namespace_changed(self, change: Change) -> None:
        labels = {} if change.new is None else dict(change.new["metadata"].get("labels") or {})
        self.room.namespaces[change.key.name] = labels
        self.room.around.relabelled()

    def _node_changed(self, change: Change) -> None:
        if change.new is None:
            self.room.drop_node(change.key.name)
            return
        try:
            fact = node_fact(change.new)
        except BadInput as error:
            log.warning("node %s is left out: %s", change.key.name, error)
            self.room.drop_node(change.key.name)
            return
        held = (change.new["metadata"].get("annotations") or {}).get(HELD_FOR)
        if held:
            fact = msgspec.structs.replace(fact, taints=(*fact.taints, Taint(HELD_FOR, held, "NoSchedule")))
        self.room.set_node(fact)
        self._improved()

    def _pod_changed(self, change: Change) -> None:
        if change.new is None:
            self._forget(change.key, change.old)
            return
        pod = change.new
        uid, spec = pod["metadata"]["uid"], pod.get("spec") or {}
        group = group_key(pod)
        phase = (pod.get("status") or {}).get("phase")
        if phase in TERMINAL:
            self._pending.pop(change.key, None)
            self._assumed.pop(uid, None)
            self._release(uid)
            return
        if spec.get("nodeName"):
            self._pending.pop(change.key, None)
            self._assumed.pop(uid, None)
            self._said.pop(uid, None)
            if group:
                self._members[group].discard(change.key)
                self._started[group].add(uid)
            self._charge(uid, pod, spec["nodeName"])
            return
        if uid in self._assumed:
            return
        if (
            (spec.get("schedulerName") or "") in NAMES
            and not spec.get("schedulingGates")
            and not pod["metadata"].get("deletionTimestamp")
        ):
            self._pending[change.key] = pod
            if group:
                self._members[group].add(change.key)
            if change.old is None or (change.old.get("spec") != spec):
                self._wake.set()
        else:
            self._pending.pop(change.key, None)

    def _forget(self, key: Key, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._pending.pop(key, None)
        self._assumed.pop(uid, None)
        self._said.pop(uid, None)
        self._release(uid)
        group = group_key(pod)
        if group:
            self._members[group].discard(key)
            self._started[group].discard(uid)
            if not self._members[group] and not self._started[group]:
                del self._members[group], self._started[group]

    def _charge(self, uid: str, pod: Json, node: str) -> None:
        known = self._charged.get(uid)
        if known is not None and known.node == node:
            return
        if known is not None:
            self._release(uid)
        spec = pod["spec"]
        try:
            requests, ports = pod_requests(spec), host_ports(spec)
            company = company_of(as_pod_set([pod], ""), pod["metadata"].get("namespace", ""))
        except BadInput as error:
            log.warning("pod %s is not counted: %s", pod["metadata"]["name"], error)
            return
        self._charged[uid] = Charge(node, requests, ports)
        self.room.take(node, requests, 1, planned=False)
        self.room.take_ports(node, ports, 1)
        self.room.around.settle(uid, Resident(node, company.namespace, company.labels, company.keeps_away))

    def _release(self, uid: str) -> None:
        charge = self._charged.pop(uid, None)
        if charge is None:
            return
        self.room.take(charge.node, charge.requests, -1, planned=False)
        self.room.take_ports(charge.node, charge.ports, -1)
        self.room.around.leave(uid)
        self._improved()


async def run(client: Client, clock: Clock | None = None) -> None:
    """Schedule pods until cancelled."""
    await Scheduler(client, clock=clock).run()
