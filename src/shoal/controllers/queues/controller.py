"""The queue controller put together: watch → facts → plan → writes → watch.

It is a source of the planning loop, so that AppWrappers and queued jobs compete for one and the same room.
Changes become facts here; what was planned is carried out by the reconciler, one Workload at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from shoal.api import kinds, kueue_names
from shoal.api.booking import owner_of
from shoal.api.kind import Key, Kind
from shoal.api.kueue_convert import upgrade
from shoal.api.meta import Json
from shoal.api.objects import controller_of, key_of, label
from shoal.controllers.planning import NodeRequester, PlanningLoop
from shoal.controllers.planning.observations import CalledOff, NotStored, Observation, ReservationRefused
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.queues.admission import is_queued
from shoal.controllers.queues.caches import QueueCaches, workload_key
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.facts import QueueFacts, gang_key, is_active
from shoal.controllers.queues.jobs import BY_KIND, GangJob
from shoal.controllers.queues.metrics import QueueMetrics
from shoal.controllers.queues.queue_status import QueueStatus, named_by
from shoal.controllers.queues.reasons import Reasons
from shoal.controllers.queues.reconciler import QueueReconciler
from shoal.controllers.queues.recovery import Incomplete
from shoal.controllers.queues.requests import reference
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.subjects import Subjects
from shoal.engine.kueue import read
from shoal.engine.model import Gang, Namespace, Plan
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller

log = logging.getLogger(__name__)

STATUS_PAUSE = 0.1
"""Seconds for which changes of a queue are collected before its status is written."""
PODS_PAUSE = 0.02
MANY = 1_000
"""With every thousand Workloads the pause grows by itself once: counting them takes its time."""
Address = tuple[Kind, Key]


class QueueController:
    """A `WorkloadSource` of the planning loop that it joins."""

    def __init__(self, planning: PlanningLoop, settings: QueueSettings | None = None) -> None:
        self.settings = settings or QueueSettings()
        self.planning = planning
        self.clock = planning.clock
        client = planning.client
        self.caches = QueueCaches(planning.caches, self.clock)
        self.decisions = planning.decisions
        self.recorder = Recorder(client, "shoal", clock=self.clock)
        writer = planning.writes.writer("queues")
        self.context = QueueContext(
            client, self.settings, self.clock, self.caches, self.decisions, writer, self.recorder
        )
        self.facts = QueueFacts(self.caches, self.settings)
        self._incomplete = Incomplete(self.caches, self.settings.recovery_seconds, planning)
        self.reconciler = QueueReconciler(self.context, self.facts, planning.pods_left, self._incomplete)
        self.queue: Controller[Key] = Controller("queues", self._reconcile, workers=64, clock=self.clock)
        self._status = QueueStatus(self.context)
        self.metrics = QueueMetrics(self.caches, self._status.problems)
        self.context.stored = self.metrics.stored
        self.statuses: Controller[Address] = Controller(
            "queue-status", lambda address: self._status.publish(*address), workers=8, clock=self.clock
        )
        refusal_of = self.reconciler.warnings.last
        self._subjects = Subjects(self.caches, self.decisions, self.settings.copied_labels, refusal_of)
        self._gangs: dict[str, Gang] = {}
        """Gangs as they are stored, by key, without what is only decided."""
        self.reasons = Reasons(self.decisions, self._gangs, self.clock, self._refresh, planning.engine)
        self._keys: dict[str, Key] = {}
        planning.join(self)

    # --- a source of workloads

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.caches.run())
                await self.caches.synced()
                tasks.create_task(self.queue.run())
                tasks.create_task(self.statuses.run())
                tasks.create_task(self._check_now_and_then())
                tasks.create_task(self.reasons.run())
        finally:
            await self.recorder.close()

    async def synced(self) -> None:
        await self.caches.synced()

    def subscribe(self) -> None:
        """Queues before gangs: a gang that is told finds its queue."""
        for kind, cache in self.caches.others.items():
            cache.subscribe(lambda change, kind=kind: self._other_changed(kind, change))  # type: ignore[misc]
        for kind, jobs in self.caches.jobs.items():
            gang_job = BY_KIND[kind]
            jobs.subscribe(lambda change, kind=gang_job: self._job_changed(kind, change))  # type: ignore[misc]
        shared = self.planning.caches
        shared.limit_ranges.subscribe(lambda change: self._limits_changed(change, change.key.namespace))
        shared.runtime_classes.subscribe(lambda change: self._limits_changed(change, None))
        self.caches.requests.subscribe(self._request_changed)
        self.caches.workloads.subscribe(self._workload_changed)

    def gang_of(self, namespace: str, mark: str, owners: Sequence[str]) -> str:
        return self.caches.gang_of(namespace, owners)

    def known_as(self, key: str) -> str:
        return self.caches.known_as(key)

    def pods_changed(self, gang: str, after: float) -> None:
        key = self._keys.get(gang)
        if key is not None:
            self.queue.enqueue(key, PODS_PAUSE)

    def keeps(self, request: Json) -> bool:
        """From the moment its gang may take the room, the engine itself counts it."""
        key = self._keys.get(owner_of(request))
        gang = self._gangs.get(f"Workload/{key.namespace}/{key.name}") if key is not None else None
        if gang is None or gang.uid != owner_of(request):
            return False
        return gang.state in ("admitted", "stopping") or (gang.state == "reserved" and gang.checks_done)

    def requester(self, uid: str) -> NodeRequester | None:
        key = self._keys.get(uid)
        workload = self.caches.workloads.get(key) if key is not None else None
        if workload is None or workload["metadata"]["uid"] != uid:
            return None
        return NodeRequester(
            gang=gang_key(workload),
            generation=workload["metadata"].get("generation", 1),
            owner=reference(workload, kinds.WORKLOAD),
            about=workload,
            update=lambda: self._update_again(uid),
        )

    def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None:
        return self._subjects.find(group, kind, key, self.planning.engine, self.clock.now())

    def collect(self) -> Iterator[Any]:
        return self.metrics.collect()

    def watched(self) -> list[Cache[Any]]:
        return self.caches.all

    def planned(self, plan: Plan, touched: Sequence[str]) -> None:
        for key in touched:
            if key in self._gangs:
                self._refresh(self._gangs[key])
        for uid in self._incomplete.late(self.clock.now()):  # something has changed: one of them may have to go now
            self.queue.enqueue(self._keys[uid], PODS_PAUSE)
        self.reasons.changed(self.planning.turn)

    def observed(self, observation: Observation) -> None:
        if isinstance(observation, CalledOff | NotStored | ReservationRefused):
            self._update_again(observation.uid)

    async def _reconcile(self, key: Key) -> float | None:
        try:
            return await self.reconciler.reconcile(key)
        finally:
            self.planning.observe(self.context.observations.take())

    def _refresh(self, gang: Gang) -> None:
        self.queue.enqueue(Key(gang.namespace, gang.name))

    # --- changes

    def _workload_changed(self, change: Change) -> None:
        workload: Json = change.new or change.old
        key, uid = gang_key(workload), workload["metadata"]["uid"]
        if change.new is None:
            self._gangs.pop(key, None)
            self._keys.pop(uid, None)
            self._incomplete.forget(uid)
            self.facts.forget(uid)
            self.planning.forget(key, uid)
        else:
            self._keys[uid] = change.key
            self.planning.refresh_requests(uid, workload["metadata"].get("generation", 1))
            self._update(workload)
            if change.old is None:
                owner = controller_of(workload)
                if owner is not None:
                    self.planning.cluster.refresh_pods(str(owner.get("uid") or ""))
        self.queue.enqueue(change.key)
        for one in filter(None, (change.old, change.new)):
            self._note_queues_of(one)

    def _update(self, workload: Json) -> None:
        """Update the planning loop with what is stored."""
        gang = self.facts.gang(workload)
        self._incomplete.update(workload)
        before = self._gangs.get(gang.key)
        self._gangs[gang.key] = gang
        if before is None or (before.state, before.checks_done) != (gang.state, gang.checks_done):
            for request in self.caches.requests_of(workload):
                self.planning.refresh_booking(request)
        self.planning.update(gang)

    def _update_again(self, uid: str) -> None:
        workload = self.caches.workloads.get(self._keys[uid]) if uid in self._keys else None
        if workload is not None:
            self._update(workload)

    def _update_all(self, workloads: Iterable[Json]) -> None:
        for workload in workloads:
            self._update(workload)
            self.queue.enqueue(key_of(workload))

    def _job_changed(self, kind: GangJob, change: Change) -> None:
        job: Json = change.new or change.old
        if change.new is None:
            self.reconciler.warnings.forget(job["metadata"]["uid"])
            self.queue.enqueue(self.caches.forget_job(kind, job))
        elif is_queued(kind, job) and job["metadata"].get("namespace") not in self.settings.excluded_namespaces:
            key = self.caches.note_job(kind, job)
            self.queue.enqueue(key)
            workload = self.caches.workloads.get(key)
            if workload is not None and _changes_gang(kind, change.old, job):
                self._update(workload)

    def _request_changed(self, change: Change) -> None:
        """Its answer is a check's answer; what it booked is told again with its gang."""
        key = self._keys.get(owner_of(change.new or change.old))
        workload = self.caches.workloads.get(key) if key is not None else None
        if workload is not None:
            self._update(workload)
            self.queue.enqueue(key_of(workload))

    def _other_changed(self, kind: Kind, change: Change) -> None:
        if not _concerns_us(change):
            return
        name, obj = change.key.name, change.new
        match kind:
            case kinds.CLUSTER_QUEUE:
                self._update_cluster_queue(name)
                self._update_all(self._workloads_of(name))
                self._note_local_queues(name)
                self._note_what_it_names(change)
            case kinds.COHORT:
                self._update_or_remove(f"Cohort/{name}", obj, read.cohort)
            case kinds.RESOURCE_FLAVOR:
                self._update_or_remove(f"ResourceFlavor/{name}", obj, read.flavor)
                self._note_cluster_queues()
            case kinds.LOCAL_QUEUE:
                self._update_or_remove(f"LocalQueue/{change.key}", obj, read.local_queue)
                self._update_all(self.caches.workloads.by_index("queue", str(change.key)))
                for one in filter(None, (change.old, change.new)):
                    queue = (one.get("spec") or {}).get("clusterQueue")
                    self.statuses.enqueue((kinds.CLUSTER_QUEUE, Key("", str(queue or ""))), STATUS_PAUSE)
            case kinds.ADMISSION_CHECK | kinds.PROVISIONING_REQUEST_CONFIG:
                self._checks_changed()
            case kinds.NAMESPACE:
                if obj is None:
                    self.planning.remove_fact(f"Namespace/{name}")
                else:
                    labels = dict(obj["metadata"].get("labels") or {})
                    self.planning.update_fact(Namespace(name=name, labels=labels))
            case kinds.WORKLOAD_PRIORITY_CLASS:
                self._look_at_class(name)
            case kinds.PRIORITY_CLASS:
                self._look_at_class("")  # of jobs that name none of ours, the pods' class may count
        if kind in (kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE, kinds.ADMISSION_CHECK, kinds.RESOURCE_FLAVOR):
            self.statuses.enqueue((kind, change.key))
        self.planning.replan()

    def _limits_changed(self, change: Change, namespace: str | None) -> None:
        """What pods are given where they do not say what they need is another now."""
        if _concerns_us(change):
            self._update_all(self.caches.workloads.list(namespace))

    def _look_at_class(self, name: str) -> None:
        """Jobs with this label of a priority class: their Workloads take over its value, or can be made now."""
        for kind, cache in self.caches.jobs.items():
            for job in cache.list():
                if label(job, kueue_names.PRIORITY_CLASS) == name:
                    self.queue.enqueue(workload_key(BY_KIND[kind], job))

    def _note_what_it_names(self, change: Change) -> None:
        """Flavors and checks that are to be deleted stay for as long as a queue names them."""
        for queue in filter(None, (change.old, change.new)):
            for kind in (kinds.RESOURCE_FLAVOR, kinds.ADMISSION_CHECK):
                for name in named_by(upgrade(queue), kind):
                    self.statuses.enqueue((kind, Key("", name)))

    def _update_cluster_queue(self, name: str) -> None:
        stored = self.caches.get(kinds.CLUSTER_QUEUE, name)
        self._update_or_remove(f"ClusterQueue/{name}", stored, self.facts.cluster_queue)

    def _update_or_remove(self, key: str, obj: Json | None, made: Callable[[Json], Any]) -> None:
        if obj is None:
            self.planning.remove_fact(key)
            return
        try:
            self.planning.update_fact(made(obj))
        except (BadInput, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("%s is left out: %s", key, error)
            self.planning.remove_fact(key)

    def _checks_changed(self) -> None:
        for check in self.caches.others[kinds.ADMISSION_CHECK].list():
            self.statuses.enqueue((kinds.ADMISSION_CHECK, key_of(check)))
        self._note_cluster_queues()
        for queue in self.caches.others[kinds.CLUSTER_QUEUE].list():
            self._update_cluster_queue(queue["metadata"]["name"])
            if named_by(upgrade(queue), kinds.ADMISSION_CHECK):
                self._update_all(self._workloads_of(queue["metadata"]["name"]))

    def _workloads_of(self, cluster_queue: str) -> list[Json]:
        found = self.caches.workloads.by_index("reserved", cluster_queue)
        for local in self.caches.others[kinds.LOCAL_QUEUE].list():
            if (local.get("spec") or {}).get("clusterQueue") == cluster_queue:
                found += self.caches.workloads.by_index("queue", str(key_of(local)))
        return list({one["metadata"]["uid"]: one for one in found}.values())

    def _note_queues_of(self, workload: Json) -> None:
        pause = STATUS_PAUSE * (1 + len(self.caches.workloads) / MANY)
        local = self.caches.local_queue(workload)
        if local is not None:
            self.statuses.enqueue((kinds.LOCAL_QUEUE, key_of(local)), pause)
        name = self.caches.cluster_queue_name(workload)
        if name:
            self.statuses.enqueue((kinds.CLUSTER_QUEUE, Key("", name)), pause)

    def _note_cluster_queues(self) -> None:
        for queue in self.caches.others[kinds.CLUSTER_QUEUE].list():
            self.statuses.enqueue((kinds.CLUSTER_QUEUE, key_of(queue)), STATUS_PAUSE)
            self._note_local_queues(queue["metadata"]["name"])

    def _note_local_queues(self, cluster_queue: str) -> None:
        for local in self.caches.others[kinds.LOCAL_QUEUE].list():
            if (local.get("spec") or {}).get("clusterQueue") == cluster_queue:
                self.statuses.enqueue((kinds.LOCAL_QUEUE, key_of(local)), STATUS_PAUSE)

    async def _check_now_and_then(self) -> None:
        """Events wake workloads long before; this finds what they did not: admitted and not started, or undecided."""
        while True:
            await self.clock.sleep(self.settings.check_seconds)
            for workload in self.caches.workloads.list():
                if self._may_be_stuck(workload):
                    self.queue.enqueue(key_of(workload))
            for kind, cache in self.caches.jobs.items():
                for job in cache.list():
                    key = workload_key(BY_KIND[kind], job)
                    if self.caches.job_of(key) is not None and self.caches.workloads.get(key) is None:
                        self.queue.enqueue(key)
            self.planning.plan_again()

    def _may_be_stuck(self, workload: Json) -> bool:
        """Neither simply waiting nor simply running nor over: something is due that may have been missed."""
        gang = self._gangs.get(gang_key(workload))
        if gang is None or gang.state in ("finished", "held"):
            return gang is None or bool(workload["metadata"].get("finalizers"))
        if gang.state == "waiting":
            return self.decisions.reservation(gang.key, gang.uid) is not None
        found = self.caches.job_of(key_of(workload))
        return gang.state != "admitted" or found is None or found[0].is_suspended(found[1])


def _changes_gang(kind: GangJob, old: Json | None, new: Json) -> bool:
    """Does the change of a job concern what the engine is told of its Workload?"""
    if old is None or old.get("spec") != new.get("spec") or kind.is_on_hold(old) != kind.is_on_hold(new):
        return True
    return bool(old["metadata"].get("deletionTimestamp") != new["metadata"].get("deletionTimestamp"))


def _concerns_us(change: Change) -> bool:
    """False for changes that only say how an object fares; whether it is active does concern those that need it."""
    old, new = change.old, change.new
    if old is None or new is None:
        return True
    parts = {*old, *new} - {"metadata", "status"}
    metadata = ("labels", "annotations", "deletionTimestamp")
    return (
        any(old.get(part) != new.get(part) for part in parts)
        or any(old["metadata"].get(part) != new["metadata"].get(part) for part in metadata)
        or is_active(old) != is_active(new)
    )
