"""What the queue controller watches, and which Workload is which job's.

A job is found by the name of its Workload, which follows from the job's identity; a Workload by its owner's UID. Names
alone never decide. Reads only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from shoal.api import kinds, kueue_names
from shoal.api.core import Namespace
from shoal.api.kind import Key, Kind
from shoal.api.kueue import ClusterQueue, LocalQueue
from shoal.api.kueue_workload import Workload
from shoal.api.labels import HOSTNAME
from shoal.api.meta import Json, Object, OwnerReference, controller_of
from shoal.api.objects import annotation, key_of, label
from shoal.api.scheduling import PriorityClass
from shoal.controllers.demand.pod_defaults import Defaults
from shoal.controllers.planning.caches import UNREADABLE, SharedCaches
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.queues.jobs import ALL, GangJob
from shoal.controllers.queues.jobs.blueprint import WithBlueprint, has_blueprint
from shoal.controllers.queues.jobs.pod_group import GROUPS, composed, group_name, is_group
from shoal.controllers.queues.names import workload_name
from shoal.controllers.queues.stored import (
    StoredCheck,
    StoredClusterQueue,
    StoredCohort,
    StoredFlavor,
    StoredLocalQueue,
    StoredPriorityClass,
    StoredProvisioningConfig,
    StoredTopology,
    StoredWorkload,
    WorkloadViews,
    view,
)
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache
from shoal.kube.clock import Clock

QUEUE_KINDS = (
    kinds.CLUSTER_QUEUE,
    kinds.COHORT,
    kinds.RESOURCE_FLAVOR,
    kinds.TOPOLOGY,
    kinds.LOCAL_QUEUE,
    kinds.ADMISSION_CHECK,
    kinds.PROVISIONING_REQUEST_CONFIG,
    kinds.WORKLOAD_PRIORITY_CLASS,
    kinds.PRIORITY_CLASS,
    kinds.NAMESPACE,
)
T = TypeVar("T", bound=Object)
SHARED_KINDS = (kinds.LIMIT_RANGE, kinds.RUNTIME_CLASS)
"""Of the planning loop's caches, those that a queue's decisions depend on beside nodes and pods."""


class QueueCaches:
    """Caches of everything an admission by a queue depends on, beside what the planning loop shares."""

    def __init__(self, shared: SharedCaches, clock: Clock, *, jobs_without_queue: bool = False) -> None:
        self.client = shared.client
        self._shared = shared
        self._clock = clock
        self._awaited = Awaited()
        self.workloads: Cache[StoredWorkload] = self._cache(
            kinds.WORKLOAD,
            StoredWorkload,
            indexes={"owner": owner_uids, "queue": _queue_of, "reserved": _reserved_in},
            view=WorkloadViews(),
        )
        self.cluster_queues = self._stored(kinds.CLUSTER_QUEUE, StoredClusterQueue)
        self.cohorts = self._stored(kinds.COHORT, StoredCohort)
        self.flavors = self._stored(kinds.RESOURCE_FLAVOR, StoredFlavor)
        self.topologies = self._stored(kinds.TOPOLOGY, StoredTopology)
        self.local_queues = self._stored(kinds.LOCAL_QUEUE, StoredLocalQueue, {"cluster queue": _feeds})
        self.checks = self._stored(kinds.ADMISSION_CHECK, StoredCheck)
        self.configs = self._stored(kinds.PROVISIONING_REQUEST_CONFIG, StoredProvisioningConfig)
        self.workload_priorities = self._stored(kinds.WORKLOAD_PRIORITY_CLASS, StoredPriorityClass)
        self.pod_priorities: Cache[PriorityClass] = self._cache(kinds.PRIORITY_CLASS, PriorityClass)
        self.namespaces: Cache[Namespace] = self._cache(kinds.NAMESPACE, Namespace)
        self.others: dict[Kind, Cache[Any]] = {cache.kind: cache for cache in self._all_others()}
        self.requests: Cache[Json] = shared.watch_requests()
        unnamed = {one.kind for one in ALL if jobs_without_queue} - {kinds.POD}  # of pods, never all
        self.jobs: dict[Kind, Cache[Json]] = {
            one.kind: self._jobs(one, label_selector="" if one.kind in unnamed else kueue_names.QUEUE) for one in ALL
        }
        self.blueprints: dict[Kind, Cache[Json]] = {
            kind: self._cache(kind, dict) for one in ALL if has_blueprint(one) for kind in one.blueprint_kinds
        }
        self._copies: dict[str, Json] = {}
        """By a job's UID: the copy of its blueprint by which its own controller goes."""
        self._looked_for_copy: set[str] = set()
        self._job_of: dict[Key, tuple[GangJob, Key]] = {}
        self._members: dict[Key, set[Key]] = {}
        """By the name of a group of pods, which is that of its Workload: its pods."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for cache in self._at_once:
                tasks.create_task(cache.run())
            for one in self._with_blueprint:
                tasks.create_task(self._run_in_turn(one, tasks))

    @property
    def all(self) -> list[Cache[Any]]:
        return [self.workloads, *self.others.values(), *self.jobs.values(), *self.blueprints.values()]

    async def synced(self) -> None:
        """Until everything was read once. Kinds that are not installed, or that we may not read, do not hold up others;
        they join when that changes."""
        in_turn = [self._known_in_turn(one) for one in self._with_blueprint]
        await asyncio.gather(self._awaited.known(self._at_once), *in_turn)
        met = [one for one in ALL if len(self.jobs[one.kind])]  # whose pods may be there already
        await asyncio.gather(*(self._shared.follow(kind) for one in met for kind in getattr(one, "between", ())))

    @property
    def _with_blueprint(self) -> list[WithBlueprint]:
        return [one for one in ALL if has_blueprint(one)]

    @property
    def _at_once(self) -> list[Cache[Any]]:
        later = {cache.kind for one in self._with_blueprint for cache in self._turns(one)}
        return [cache for cache in self.all if cache.kind not in later]

    def _turns(self, kind: WithBlueprint) -> list[Cache[Any]]:
        """What describes its pods before the jobs: none of them is seen without. Where the kinds are not installed, one
        of them is asked for now and then, not each."""
        return [*(self.blueprints[one] for one in kind.blueprint_kinds), self.jobs[kind.kind]]

    async def _run_in_turn(self, kind: WithBlueprint, tasks: asyncio.TaskGroup) -> None:
        for cache in self._turns(kind):
            tasks.create_task(cache.run())
            await cache.synced.wait()

    async def _known_in_turn(self, kind: WithBlueprint) -> None:
        for cache in self._turns(kind):
            await self._awaited.known([cache])
            if not cache.synced.is_set():
                return

    def _all_others(self) -> list[Cache[Any]]:
        """In the order in which they are subscribed to."""
        return [
            self.cluster_queues,
            self.cohorts,
            self.flavors,
            self.topologies,
            self.local_queues,
            self.checks,
            self.configs,
            self.workload_priorities,
            self.pod_priorities,
            self.namespaces,
        ]

    def _jobs(self, kind: GangJob, label_selector: str) -> Cache[Json]:
        indexes: dict[str, Any] = {"blueprint": partial(_blueprint_of, kind)} if has_blueprint(kind) else {}
        requires = getattr(kind, "required_fields", ())
        return self._cache(kind.kind, dict, label_selector=label_selector, indexes=indexes, requires=requires)

    def _stored(
        self, kind: Kind, type: type[T], indexes: dict[str, Callable[[T], Iterable[str]]] | None = None
    ) -> Cache[T]:
        return self._cache(kind, type, indexes=indexes, view=view(type))

    def _cache(
        self,
        kind: Kind,
        type: type[Any],
        *,
        label_selector: str = "",
        indexes: dict[str, Callable[[T], Iterable[str]]] | None = None,
        view: Callable[[Json], T] | None = None,
        requires: tuple[str, ...] = (),
    ) -> Cache[Any]:
        return Cache(
            self.client,
            kind,
            type,
            label_selector=label_selector,
            indexes=indexes or {},
            clock=self._clock,
            report=self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE),
            view=view,
            requires=requires,
        )

    # --- jobs and their Workloads

    def note_job(self, kind: GangJob, job: Json) -> Key:
        """Remember which Workload is this job's; returns that Workload's key."""
        key = workload_key(kind, job)
        for above in getattr(kind, "between", ()):
            self._shared.watch(above)
        if _is_member(kind, job):
            self._members.setdefault(key, set()).add(key_of(job))
        else:
            self._job_of[key] = (kind, key_of(job))
        return key

    def forget_job(self, kind: GangJob, job: Json) -> Key:
        key = workload_key(kind, job)
        self._copies.pop(job["metadata"]["uid"], None)
        self._looked_for_copy.discard(job["metadata"]["uid"])
        if _is_member(kind, job):
            left = self._members.get(key, set())
            left.discard(key_of(job))
            if not left:
                self._members.pop(key, None)
        else:
            self._job_of.pop(key, None)
        return key

    def job_of(self, key: Key) -> tuple[GangJob, Json] | None:
        """The job whose Workload has this key: the very one, by UID. A group of pods has its Workload's name from its
        users: a job whose Workload has that name goes first."""
        found = self._job_of.get(key)
        if found is None:
            group = self.group(key)
            return (GROUPS, group) if group is not None else None
        kind, job_key = found
        job = self.jobs[kind.kind].get(job_key)
        return (self.informed(kind, job), job) if job is not None and workload_key(kind, job) == key else None

    def informed(self, kind: GangJob, job: Json) -> GangJob:
        """The kind, knowing the object that describes the pods of this job, where another one does."""
        if not has_blueprint(kind):
            return kind
        name, workload = kind.blueprint_name(job), self.workloads.get(workload_key(kind, job))
        found = self._copies.get(job["metadata"]["uid"])
        if found is None and name is not None:
            found = self.blueprints[name.kind].get(name.key)
        return kind.knowing(found, pod_sets_of(workload) if workload is not None else ())

    def learn_copy(self, job: Json, blueprint: Json) -> None:
        """From now on this job's pods are those of a copy."""
        self._copies[job["metadata"]["uid"]] = blueprint

    def has_copy(self, job: Json) -> bool:
        return job["metadata"]["uid"] in self._copies

    def first_look(self, job: Json) -> bool:
        """True once for each job: then it is looked whether there is a copy."""
        uid = job["metadata"]["uid"]
        known = uid in self._looked_for_copy
        self._looked_for_copy.add(uid)
        return not known

    def group(self, key: Key) -> Json | None:
        """The group of pods of this name."""
        names = self._members.get(key)
        if not names:
            return None
        pods = self.jobs[kinds.POD]
        found = [pods.get(one) for one in names]
        members = [one for one in found if one is not None and group_name(one) == key.name]
        return composed(members) if members else None

    def gang_of(self, namespace: str, owners: Sequence[str]) -> str:
        """UID of the Workload of the first of these owners that has one in this namespace."""
        for uid in owners:
            for workload in self.workloads.by_index("owner", uid):
                if workload.metadata.namespace == namespace:
                    return workload.metadata.uid
        return ""

    def known_as(self, key: str) -> str:
        """A gang's key with the job that people know in place of its Workload."""
        kind, _, rest = key.partition("/")
        namespace, _, name = rest.partition("/")
        workload = self.workloads.get(Key(namespace, name)) if kind == kinds.WORKLOAD.kind else None
        owner = owner_of(workload) if workload is not None else None
        return f"{owner.kind}/{namespace}/{owner.name}" if owner is not None else key

    # --- queues

    def cluster_queue(self, name: str) -> StoredClusterQueue | None:
        return self.cluster_queues.get(Key("", name))

    def check(self, name: str) -> StoredCheck | None:
        return self.checks.get(Key("", name))

    def flavor(self, name: str) -> StoredFlavor | None:
        return self.flavors.get(Key("", name))

    def local_queue(self, workload: Workload) -> StoredLocalQueue | None:
        return self.local_queues.get(Key(workload.metadata.namespace, workload.spec.queue_name))

    def local_queues_of(self, cluster_queue: str) -> list[StoredLocalQueue]:
        return self.local_queues.by_index("cluster queue", cluster_queue)

    def cluster_queue_name(self, workload: Workload) -> str:
        """Where it holds quota, or would."""
        admission = workload.status.admission
        if admission is not None and admission.cluster_queue:
            return admission.cluster_queue
        local = self.local_queue(workload)
        return local.spec.cluster_queue if local is not None else ""

    def cluster_queue_of(self, workload: Workload) -> StoredClusterQueue | None:
        return self.cluster_queue(self.cluster_queue_name(workload))

    def stopped_queue(self, workload: Workload) -> tuple[str, str, str] | None:
        """Kind, name and policy of a queue above it that is stopped."""
        for queue in (self.cluster_queue_of(workload), self.local_queue(workload)):
            if queue is not None and is_stopped(queue):
                return queue.kind, queue.metadata.name, queue.spec.stop_policy
        return None

    def requests_of(self, workload: Workload) -> list[Json]:
        return self.requests.by_index("owner", workload.metadata.uid)

    def pods_of(self, workload: Workload) -> list[SeenPod]:
        """Pods of its job, however deep below it."""
        found = [pod for uid in owner_uids(workload) for pod in self._shared.pods_below(uid)]
        return list({pod.metadata.uid: pod for pod in found}.values())

    def node_by_host(self, host: str) -> Json | None:
        """The node with this host name, which is its name as a rule."""
        named = self._shared.nodes.get(Key("", host))
        if named is not None and label(named, HOSTNAME) == host:
            return named
        return next((one for one in self._shared.nodes.list() if label(one, HOSTNAME) == host), None)

    @property
    def limits_turn(self) -> int:
        """Another one whenever what pods are given, where they do not say what they need, may be different."""
        return self._shared.limits_turn

    def limit_ranges(self, namespace: str) -> tuple[Json, ...]:
        return tuple(self._shared.limit_ranges.list(namespace))

    def pod_defaults(self, namespace: str) -> Defaults:
        """What pods of this namespace are given where they do not say what they need."""
        return self._shared.pod_defaults(namespace)


def workload_key(kind: GangJob, job: Json) -> Key:
    metadata = job["metadata"]
    named = prebuilt_name(job) or (group_name(job) if kind.kind == kinds.POD else "")
    name = named or workload_name(kind.kind.kind, kind.kind.group, metadata["name"], metadata["uid"])
    return Key(metadata.get("namespace", ""), name)


def prebuilt_name(job: Json) -> str:
    """The Workload that another client made for this job; empty for most jobs, whose Workload is made by us."""
    return annotation(job, kueue_names.PREBUILT) or label(job, kueue_names.PREBUILT)


def pod_sets_of(workload: StoredWorkload) -> list[Json]:
    """As they are stored, with every field: they may go back into the job."""
    return (workload.raw.get("spec") or {}).get("podSets") or []


def is_stopped(queue: ClusterQueue | LocalQueue) -> bool:
    return (queue.spec.stop_policy or "None") != "None"


def owner_of(workload: Workload) -> OwnerReference | None:
    """The object that people know it by: its job, or what makes the pods of its group."""
    owners = workload.metadata.owner_references or ()
    makers = [one for one in owners if one.kind != kinds.POD.kind] if is_group(workload) else []
    return controller_of(workload.metadata) or next(iter(makers), None)


def owner_uids(workload: Workload) -> tuple[str, ...]:
    """UIDs of what its pods stand below: its job, or each pod of its group."""
    owner = controller_of(workload.metadata)
    if owner is None and is_group(workload):
        owners = workload.metadata.owner_references or ()
        return tuple(one.uid for one in owners if one.kind == kinds.POD.kind and one.uid)
    return (owner.uid,) if owner is not None and owner.uid else ()


def _blueprint_of(kind: WithBlueprint, job: Json) -> tuple[str, ...]:
    name = kind.blueprint_name(job)
    return (name.index,) if name is not None else ()


def _is_member(kind: GangJob, job: Json) -> bool:
    return kind.kind == kinds.POD and bool(group_name(job))


def _queue_of(workload: Workload) -> tuple[str, ...]:
    return (f"{workload.metadata.namespace}/{workload.spec.queue_name}",)


def _reserved_in(workload: Workload) -> tuple[str, ...]:
    admission = workload.status.admission
    return (admission.cluster_queue,) if admission is not None and admission.cluster_queue else ()


def _feeds(queue: LocalQueue) -> tuple[str, ...]:
    return (queue.spec.cluster_queue,) if queue.spec.cluster_queue else ()
