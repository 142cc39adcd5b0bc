"""The queue controller put together: watch → facts → plan → writes → watch.

It is a source of the planning loop, so that AppWrappers and queued jobs compete for one and the same room.
Changes become facts here; what was planned is carried out by the reconciler, one Workload at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from shoal.api import kinds, kueue_names
from shoal.api.booking import owner_of
from shoal.api.kind import Key, Kind
from shoal.api.kueue_workload import Workload
from shoal.api.labels import HOSTNAME
from shoal.api.meta import Json
from shoal.api.objects import finalizers, group_of, key_of, label
from shoal.controllers.planning import NodeRequester, PlanningLoop
from shoal.controllers.planning.cluster_line import ClusterLine
from shoal.controllers.planning.observations import CalledOff, NotStored, Observation, ReservationRefused
from shoal.controllers.planning.other_clusters import QueueClusters
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.planning.ray_nodes import RayNodes
from shoal.controllers.queues.caches import QueueCaches, owner_uids, workload_key
from shoal.controllers.queues.changes import changes_gang, concerns_us, health
from shoal.controllers.queues.checks.requests import workload_reference
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.counts import Address
from shoal.controllers.queues.destinations import QueueDestinations
from shoal.controllers.queues.draining import Draining
from shoal.controllers.queues.elastic import ElasticWorkers
from shoal.controllers.queues.facts import QueueFacts, gang_key
from shoal.controllers.queues.jobs import BY_KIND, BY_NAME, GangJob
from shoal.controllers.queues.jobs.blueprint import BlueprintName, has_blueprint
from shoal.controllers.queues.managing import Managing
from shoal.controllers.queues.metrics import QueueMetrics
from shoal.controllers.queues.node_failures import nodes_of
from shoal.controllers.queues.owners import Owners, claim_of
from shoal.controllers.queues.publishing import Publishing
from shoal.controllers.queues.queue_changes import QueueChanges
from shoal.controllers.queues.reasons import Reasons
from shoal.controllers.queues.reconciler import QueueReconciler
from shoal.controllers.queues.recovery import Incomplete
from shoal.controllers.queues.remembered import remembered
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.stored import StoredWorkload, condition, is_true, view
from shoal.controllers.queues.subjects import Subjects
from shoal.controllers.queues.telling import Telling
from shoal.controllers.queues.unsettled import Unsettled
from shoal.controllers.queues.workloads import new_workload
from shoal.engine.model import Gang, Plan
from shoal.kube.cache import Cache, Change
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller

EVENTS_PACE = 2.0
"""Events a second where hundreds of gangs come and go: conditions tell the same, and each event is a write."""
PODS_PAUSE = 0.02
FIRST_LOOK = 0.05
"""Seconds after which a new Workload that may go to another cluster is looked at even if no plan was made yet."""
LOOKED_AT_ONCE = 500
"""Workloads of a look now and then, between which other work has its turn."""
CHOICE_PAUSE = 0.02
"""Seconds between a change in another cluster and the next look at gangs that could go there."""


class QueueController:
    """A `WorkloadSource` of the planning loop that it joins."""

    def __init__(
        self,
        planning: PlanningLoop,
        settings: QueueSettings | None = None,
        ray: RayNodes | None = None,
        elsewhere: QueueClusters | None = None,
    ) -> None:
        """`ray`: how Ray is asked before its workers are taken; None: it is not. `elsewhere`: chooses where gangs go
        whose queue gives them to other clusters; None: their check does, once they hold quota."""
        self.settings = settings or QueueSettings()
        self.planning = planning
        self.clock = planning.clock
        client = planning.client
        self._managing = Managing(self.settings)
        unnamed = self.settings.manage_jobs_without_queue_name
        self.caches = QueueCaches(planning.caches, self.clock, jobs_without_queue=unnamed)
        self.decisions = planning.decisions
        self.recorder = Recorder(client, "shoal", clock=self.clock, pace=EVENTS_PACE)
        writer = planning.writes.writer("queues")
        self.context = QueueContext(
            client, self.settings, self.clock, self.caches, self.decisions, writer, self.recorder
        )
        self.facts = QueueFacts(self.caches, self.settings)
        self._destinations: QueueDestinations | None = None
        self._choices_due = asyncio.Event()
        if elsewhere is not None:
            self._destinations = QueueDestinations(
                elsewhere, planning, self.caches, self.facts.alone, self._workload_by_uid
            )
            self.context.clusters_of = self._destinations.clusters
            elsewhere.subscribe(self._room_changed)
        self._incomplete = Incomplete(self.caches, self.settings.recovery_seconds, planning)
        self._telling = Telling(self.clock, lambda: planning.is_behind)
        self._draining = draining = Draining(self.caches, self.settings, ray)
        self.reconciler = QueueReconciler(
            self.context, self.facts, planning.pods_left, self._incomplete, self._telling, draining
        )
        self.queue: Controller[Key] = Controller("queues", self._reconcile, workers=64, clock=self.clock)
        self._elastic = ElasticWorkers(self.context, planning, writer, draining)
        self.publishing = Publishing(self.context, planning.engine)
        problems = self.publishing.status.problems
        self.metrics = QueueMetrics(self.caches, problems, planning.engine, self.settings)
        self.context.stored = self.metrics.stored
        self._queue_changes = QueueChanges(
            planning,
            self.caches,
            self.facts,
            self.publishing,
            self.metrics,
            update_all=self._update_all,
            look=lambda key: self.queue.enqueue(key),
            namespace_changed=self._namespace_changed,
        )
        self._owners = Owners(client, without_queue_name=unnamed)
        self._claims: Controller[Address] = Controller("queue-owners", self._judge_claim, workers=8, clock=self.clock)
        self._judged: dict[str, tuple[str, bool]] = {}
        """By a job's UID: the owner that it named when it was judged, and whether that one holds it."""
        refusal_of = self.reconciler.warnings.last
        self._subjects = Subjects(self.caches, self.decisions, self.settings.copied_labels, refusal_of)
        self._gangs: dict[str, Gang] = {}
        """Gangs as they are stored, by key, without what is only decided."""
        self._unsettled = Unsettled()
        self.reasons = Reasons(self.decisions, self._telling, self.clock, self._refresh, planning.engine)
        self._keys: dict[str, Key] = {}
        self._on_host: dict[str, set[Key]] = {}
        """Host name to the Workloads that have places there by their topology."""
        self._hosts_of: dict[Key, set[str]] = {}
        planning.join(self)

    # --- a source of workloads

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.caches.run())
                await self.caches.synced()
                await self._until_planned()
                tasks.create_task(self.queue.run())
                tasks.create_task(self.publishing.run())
                tasks.create_task(self._claims.run())
                tasks.create_task(self._check_now_and_then())
                tasks.create_task(self.reasons.run())
                tasks.create_task(self._elastic.run())
                if self._destinations is not None:
                    tasks.create_task(self._choose_again(self._destinations.line))
        finally:
            await self.recorder.close()
            await self._draining.ray.close()

    async def _until_planned(self) -> None:
        """Before that a job that is there may not be known, and a gang that runs look as if it had stopped."""
        await self.planning.ready.wait()

    async def synced(self) -> None:
        await self.caches.synced()

    def subscribe(self) -> None:
        """Queues before gangs: a gang that is told finds its queue."""
        for kind, cache in self.caches.others.items():
            cache.subscribe(partial(self._queue_changes.take, kind))
        for kind, jobs in self.caches.jobs.items():
            jobs.subscribe(partial(self._job_changed, BY_KIND[kind]))
        for kind, blueprints in self.caches.blueprints.items():
            blueprints.subscribe(partial(self._blueprint_changed, kind))
        shared = self.planning.caches
        shared.limit_ranges.subscribe(lambda change: self._limits_changed(change, change.key.namespace))
        shared.runtime_classes.subscribe(lambda change: self._limits_changed(change, None))
        shared.nodes.subscribe(self._node_changed)
        self._elastic.subscribe()
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
        if workload is None or workload.metadata.uid != uid:
            return None
        return NodeRequester(
            gang=gang_key(workload),
            generation=workload.metadata.generation or 1,
            owner=workload_reference(workload),
            about=workload.raw,
            update=lambda: self._update_again(uid),
        )

    def consumers(self, group: str, kind: str, key: Key) -> None:
        return None

    def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None:
        found = self._subjects.find(group, kind, key, self.planning.engine, self.clock.now())
        if found is None or self._destinations is None or not self._destinations.line.doubt(found.uid):
            return found
        self._update_again(found.uid)  # what other clusters say of it may be older than the question
        self.planning.replan_now()
        return self._subjects.find(group, kind, key, self.planning.engine, self.clock.now())

    def draft(self, manifest: Json, now: int) -> Gang | None:
        kind = BY_NAME.get((group_of(manifest), str(manifest.get("kind"))))
        if kind is None or not self._is_queued(kind, manifest):
            return None
        informed = self.caches.informed(kind, manifest)
        made = new_workload(informed, manifest, self.caches, self.settings.copied_labels)
        made["metadata"] |= {
            "uid": manifest["metadata"]["uid"],
            "creationTimestamp": manifest["metadata"]["creationTimestamp"],
        }
        workload = view(StoredWorkload)(made)
        gang = self.facts.gang(workload)
        self.facts.forget(gang.uid)
        if self._destinations is not None:
            gang = self._destinations.draft(workload, gang, manifest["metadata"].get("annotations"))
        return gang

    def collect(self) -> Iterator[Any]:
        return self.metrics.collect()

    def watched(self) -> list[Cache[Any]]:
        return self.caches.all

    def planned(self, plan: Plan, touched: Sequence[str]) -> None:
        now = self.clock.now()
        self.metrics.planned(plan)
        if self._destinations is not None and self._destinations.planned(plan):
            self._choices_due.set()
        for key in touched:
            gang = self._gangs.get(key)
            if gang is not None and self._is_given(gang):
                address = Key(gang.namespace, gang.name)
                self._unsettled.update(address, False)
                self.queue.enqueue(address, rank=gang.priority)  # thousands may wait for a write
            elif gang is not None and self._telling.is_due(gang, now):
                self._refresh(gang)
        for uid in self._incomplete.late(now):  # something has changed: one of them may have to go now
            self.queue.enqueue(self._keys[uid], PODS_PAUSE)
        for namespace, name in sorted(self.planning.engine.usage_changed()):
            self.publishing.soon(kinds.LOCAL_QUEUE, Key(namespace, name))
        self._elastic.planned(plan)
        for uid in self.planning.engine.regrown():
            workload = self.caches.workloads.get(self._keys[uid]) if uid in self._keys else None
            if workload is not None:
                self.publishing.update(workload, self.facts.alone(workload))
        self.reasons.changed(self.planning.turn)

    def _is_given(self, gang: Gang) -> bool:
        """Was more decided about it than that it waits?"""
        return (
            self.decisions.reservation(gang.key, gang.uid) is not None
            or self.decisions.preempt(gang.key, gang.uid) is not None
        )

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
        workload: StoredWorkload = change.new or change.old
        key, uid = gang_key(workload), workload.metadata.uid
        self._note_hosts(change.new, change.key)
        if change.new is None:
            self._gangs.pop(key, None)
            self._unsettled.forget(change.key)
            self._telling.forget(key)
            self.publishing.forget(uid)
            self._keys.pop(uid, None)
            if self._destinations is not None:
                self._destinations.forget(uid)
            self._incomplete.forget(uid)
            self._draining.forget(uid)
            self.facts.forget(uid)
            self.planning.forget(key, uid)
        else:
            self._keys[uid] = change.key
            self.planning.refresh_requests(uid, workload.metadata.generation or 1)
            self._update(workload)
            known = owner_uids(change.old) if change.old is not None else ()
            for owner in owner_uids(workload):
                if owner not in known:
                    self.planning.cluster.refresh_pods(owner)
            if self._has_nothing_due(workload):
                self._unsettled.update(change.key, True)
                self._settle(workload)
                return
            if change.old is None and self._destinations is not None:
                # Looked at once the plan has judged it, so that its checks and its quota become one status.
                self.queue.enqueue(change.key, FIRST_LOOK)
                return
        self.queue.enqueue(change.key)

    def _has_nothing_due(self, workload: Workload) -> bool:
        """A Workload that its maker ends and starts by itself, and about which nothing is decided, to be told or to be
        asked: as most of thousands. A look would find nothing to do."""
        metadata, status = workload.metadata, workload.status
        gang = self._gangs.get(gang_key(workload))
        if gang is None or metadata.owner_references or metadata.finalizers or metadata.deletion_timestamp:
            return False
        if gang.state == "finished":
            return self.settings.keep_finished_seconds is None and not self.caches.requests_of(workload)
        if gang.state not in ("waiting", "admitted") or not gang.checks_done or self.settings.pods_ready is not None:
            return False
        asked = status.admission_checks or status.requeue_state or workload.spec.maximum_execution_time_seconds
        if asked or label(workload, kueue_names.JOB_UID) or not workload.spec.active or self._is_given(gang):
            return False
        if any(one.type not in ("QuotaReserved", "Admitted") for one in status.conditions or ()):
            return False
        if self.caches.job_of(key_of(workload)) is not None or self.caches.stopped_queue(workload) is not None:
            return False
        return gang.state == "admitted" or not self._telling.is_due(gang, self.clock.now())

    def _settle(self, workload: Workload) -> None:
        """Once it is over, nothing is kept of it but the Workload."""
        key, uid = gang_key(workload), workload.metadata.uid
        gang = self._gangs[key]
        if gang.state != "finished" or self._destinations is not None or self.planning.pods(uid):
            return
        del self._gangs[key], self._keys[uid]
        self._incomplete.forget(uid)
        self._draining.forget(uid)
        self.planning.settle(key, uid)

    def _update(self, workload: Workload) -> None:
        """Update the planning loop with what is stored."""
        gang = self.facts.gang(workload)
        if self._destinations is not None:
            gang = self._destinations.fact(workload, gang)
        self._incomplete.update(workload)
        before = self._gangs.get(gang.key)
        self._gangs[gang.key] = gang
        key = self._keys.get(gang.uid) or key_of(workload)
        self._unsettled.update(key, gang.state == "finished" and not finalizers(workload))
        self._telling.update(gang, self._sharing(workload), condition(workload, "QuotaReserved") is not None)
        self.publishing.update(workload, self.facts.alone(workload))
        if before is None or (before.state, before.checks_done) != (gang.state, gang.checks_done):
            for request in self.caches.requests_of(workload):
                self.planning.refresh_booking(request)
        self.planning.update(gang, lambda: remembered(workload, self.caches))

    def _sharing(self, workload: Workload) -> str:
        """What shares the quota that it waits for: the cohort of its ClusterQueue, or that alone."""
        queue = self.caches.cluster_queue_of(workload)
        return "" if queue is None else queue.spec.cohort_name or queue.metadata.name

    def _update_again(self, uid: str) -> None:
        workload = self._workload_by_uid(uid)
        if workload is not None:
            self._update(workload)

    def _workload_by_uid(self, uid: str) -> Workload | None:
        return self.caches.workloads.get(self._keys[uid]) if uid in self._keys else None

    def _room_changed(self, cluster: str) -> None:
        if self._destinations is not None:
            self._destinations.line.changed(cluster)
            self._choices_due.set()

    async def _choose_again(self, line: ClusterLine) -> None:
        """What changes in other clusters within a moment is looked at once."""
        await self.planning.ready.wait()
        pause = CHOICE_PAUSE
        while True:
            await self._choices_due.wait()
            await self.clock.sleep(pause)
            self._choices_due.clear()
            began = self.clock.monotonic()
            for uid in line.look():
                self._update_again(uid)
            pause = max(CHOICE_PAUSE, 4 * (self.clock.monotonic() - began))  # where very many wait

    def _update_all(self, workloads: Iterable[Workload]) -> None:
        for workload in workloads:
            if workload.metadata.uid in self._keys:  # else it is over
                self._update(workload)
                self.queue.enqueue(key_of(workload))

    def _job_changed(self, kind: GangJob, change: Change) -> None:
        job: Json = change.new or change.old
        if change.old is not None and change.new is not None:
            before = workload_key(kind, change.old)
            if before != workload_key(kind, job):  # a pod that names another group now
                self._leave_group(self.caches.forget_job(kind, change.old))
        if change.new is None:
            self.reconciler.warnings.forget(job["metadata"]["uid"])
            self._judged.pop(job["metadata"]["uid"], None)
            self._leave_group(self.caches.forget_job(kind, job))
        elif self._is_queued(kind, job):
            claim, judged = claim_of(job), self._judged.get(job["metadata"]["uid"])
            if not claim or judged == (claim, False):
                self._take_job(kind, change.old, job)
            elif judged != (claim, True):
                self._claims.enqueue((kind.kind, change.key))
        elif self.caches.job_of(workload_key(kind, job)) is not None:
            self.queue.enqueue(self.caches.forget_job(kind, job))

    def _blueprint_changed(self, kind: Kind, change: Change) -> None:
        """What describes the pods of jobs has come, has changed or is gone: those that name it look again."""
        if not concerns_us(change):
            return
        index = BlueprintName(kind, change.key).index
        for one in (one for one in BY_KIND.values() if has_blueprint(one) and kind in one.blueprint_kinds):
            for job in self.caches.jobs[one.kind].by_index("blueprint", index):
                key = workload_key(one, job)
                self.queue.enqueue(key)
                workload = self.caches.workloads.get(key)
                if workload is not None:
                    self._update(workload)

    def _leave_group(self, key: Key) -> None:
        """A job is gone, or a pod of a group: what is left of the group may lack one."""
        self.queue.enqueue(key)
        workload = self.caches.workloads.get(key)
        if workload is not None and self.caches.group(key) is not None:
            self._update(workload)

    def _is_queued(self, kind: GangJob, job: Json) -> bool:
        name = job["metadata"].get("namespace", "")
        namespace = self.caches.namespaces.get(Key("", name)) if self._managing.by_labels else None
        labels = namespace.metadata.labels if namespace is not None else None
        return self._managing.has_part(name, labels) and self._managing.is_queued(kind, job)

    def _take_job(self, kind: GangJob, old: Json | None, job: Json) -> None:
        key = self.caches.note_job(kind, job)
        self.queue.enqueue(key)
        workload = self.caches.workloads.get(key)
        if workload is not None and changes_gang(kind, old, job):
            self._update(workload)

    async def _judge_claim(self, address: Address) -> None:
        """A job says that another one made it. Where that is not so, or that one is not held, it waits by itself."""
        kind, key = address
        job = self.caches.jobs[kind].get(key)
        if job is None or not claim_of(job):
            return
        held = await self._owners.hold(job)
        self._judged[job["metadata"]["uid"]] = (claim_of(job), held)
        if not held:
            self._take_job(BY_KIND[kind], None, job)

    def _node_changed(self, change: Change) -> None:
        """A node that fails, or comes back: gangs with places on it look again."""
        old, new = change.old, change.new
        if old is not None and new is not None and health(old) == health(new):
            return
        for host in {label(one, HOSTNAME) for one in (old, new) if one is not None}:
            for key in self._on_host.get(host, ()):
                self.queue.enqueue(key)

    def _note_hosts(self, workload: Workload | None, key: Key) -> None:
        """Remember on which nodes a gang has places."""
        hosts = nodes_of(workload) if workload is not None else set()
        for host in self._hosts_of.pop(key, set()) - hosts:
            self._on_host[host].discard(key)
            if not self._on_host[host]:
                del self._on_host[host]
        for host in hosts:
            self._on_host.setdefault(host, set()).add(key)
        if hosts:
            self._hosts_of[key] = hosts

    def _request_changed(self, change: Change) -> None:
        """Its answer is a check's answer; what it booked is told again with its gang."""
        key = self._keys.get(owner_of(change.new or change.old))
        workload = self.caches.workloads.get(key) if key is not None else None
        if workload is not None:
            self._update(workload)
            self.queue.enqueue(key_of(workload))

    def _namespace_changed(self, name: str) -> None:
        """Its labels may have given its jobs a part in queues."""
        for kind, cache in self.caches.jobs.items() if self._managing.by_labels else ():
            for job in cache.list(name):
                self._job_changed(BY_KIND[kind], Change("added", key_of(job), None, job))

    def _limits_changed(self, change: Change, namespace: str | None) -> None:
        """What pods are given where they do not say what they need is another now."""
        if concerns_us(change):
            self._update_all(self.caches.workloads.list(namespace))

    async def _check_now_and_then(self) -> None:
        """Events wake workloads long before; this finds what they did not: admitted and not started, or undecided."""
        while True:
            await self.clock.sleep(self.settings.check_seconds)
            for turn, key in enumerate(self._unsettled.next_look(self.caches.workloads)):
                if turn % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                    await asyncio.sleep(0)
                workload = self.caches.workloads.get(key)
                if workload is not None and self._may_be_stuck(workload):
                    self.queue.set_aside(key)
            for kind, cache in self.caches.jobs.items():
                for job in cache.list():
                    key = workload_key(BY_KIND[kind], job)
                    if self.caches.job_of(key) is not None and self.caches.workloads.get(key) is None:
                        self.queue.set_aside(key)
            for uid in self._destinations.line.refresh() if self._destinations is not None else ():
                self._update_again(uid)
            self.planning.plan_again()

    def _may_be_stuck(self, workload: Workload) -> bool:
        """Neither simply waiting nor simply running nor over: something is due that may have been missed."""
        gang = self._gangs.get(gang_key(workload))
        if gang is None or gang.state in ("finished", "held"):
            is_unknown = gang is None and not is_true(workload, "Finished")
            return is_unknown or bool(finalizers(workload))
        if gang.state == "waiting":
            return self.decisions.reservation(gang.key, gang.uid) is not None
        if gang.state != "admitted":
            return True
        found = self.caches.job_of(key_of(workload))
        return found[0].is_suspended(found[1]) if found is not None else not self._has_nothing_due(workload)
