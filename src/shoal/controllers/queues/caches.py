"""What the queue controller watches, and which Workload is which job's.

A job is found by the name of its Workload, which follows from the job's identity; a Workload by its owner's UID. Names
alone never decide. Reads only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key, Kind
from shoal.api.kueue_convert import upgrade
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of, key_of, label
from shoal.controllers.demand.pod_defaults import Defaults
from shoal.controllers.planning.caches import UNREADABLE, SharedCaches
from shoal.controllers.queues.jobs import ALL, GangJob
from shoal.controllers.queues.names import workload_name
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache
from shoal.kube.clock import Clock

QUEUE_KINDS = (
    kinds.CLUSTER_QUEUE,
    kinds.COHORT,
    kinds.RESOURCE_FLAVOR,
    kinds.LOCAL_QUEUE,
    kinds.ADMISSION_CHECK,
    kinds.PROVISIONING_REQUEST_CONFIG,
    kinds.WORKLOAD_PRIORITY_CLASS,
    kinds.PRIORITY_CLASS,
    kinds.NAMESPACE,
)
SHARED_KINDS = (kinds.LIMIT_RANGE, kinds.RUNTIME_CLASS)
"""Of the planning loop's caches, those that a queue's decisions depend on beside nodes and pods."""


class QueueCaches:
    """Caches of everything an admission by a queue depends on, beside what the planning loop shares."""

    def __init__(self, shared: SharedCaches, clock: Clock) -> None:
        self.client = shared.client
        self._shared = shared
        self._clock = clock
        self._awaited = Awaited()
        self.workloads: Cache[Json] = self._cache(
            kinds.WORKLOAD, indexes={"owner": _owner_uids, "queue": _queue_of, "reserved": _reserved_in}
        )
        self.others: dict[Kind, Cache[Json]] = {kind: self._cache(kind) for kind in QUEUE_KINDS}
        self.requests: Cache[Json] = shared.watch_requests()
        self.jobs: dict[Kind, Cache[Json]] = {
            one.kind: self._cache(one.kind, label_selector=kueue_names.QUEUE) for one in ALL
        }
        self._job_of: dict[Key, tuple[GangJob, Key]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for cache in self.all:
                tasks.create_task(cache.run())

    @property
    def all(self) -> list[Cache[Any]]:
        return [self.workloads, *self.others.values(), *self.jobs.values()]

    async def synced(self) -> None:
        """Until everything was read once. Kinds that are not installed, or that we may not read, do not hold up others;
        they join when that changes."""
        await self._awaited.known(self.all)

    def _cache(
        self, kind: Kind, *, label_selector: str = "", indexes: dict[str, Callable[[Json], Iterable[str]]] | None = None
    ) -> Cache[Json]:
        return Cache(
            self.client,
            kind,
            dict,
            label_selector=label_selector,
            indexes=indexes or {},
            clock=self._clock,
            report=self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE),
        )

    # --- jobs and their Workloads

    def note_job(self, kind: GangJob, job: Json) -> Key:
        """Remember which Workload is this job's; returns that Workload's key."""
        key = workload_key(kind, job)
        self._job_of[key] = (kind, key_of(job))
        return key

    def forget_job(self, kind: GangJob, job: Json) -> Key:
        key = workload_key(kind, job)
        self._job_of.pop(key, None)
        return key

    def job_of(self, key: Key) -> tuple[GangJob, Json] | None:
        """The job whose Workload has this key: the very one, by UID."""
        found = self._job_of.get(key)
        if found is None:
            return None
        kind, job_key = found
        job = self.jobs[kind.kind].get(job_key)
        return (kind, job) if job is not None and workload_key(kind, job) == key else None

    def gang_of(self, namespace: str, owners: Sequence[str]) -> str:
        """UID of the Workload of the first of these owners that has one in this namespace."""
        for uid in owners:
            for workload in self.workloads.by_index("owner", uid):
                if workload["metadata"].get("namespace") == namespace:
                    return str(workload["metadata"]["uid"])
        return ""

    def known_as(self, key: str) -> str:
        """A gang's key with the job that people know in place of its Workload."""
        kind, _, rest = key.partition("/")
        namespace, _, name = rest.partition("/")
        workload = self.workloads.get(Key(namespace, name)) if kind == kinds.WORKLOAD.kind else None
        owner = controller_of(workload) if workload is not None else None
        return f"{owner['kind']}/{namespace}/{owner['name']}" if owner is not None else key

    # --- queues

    def get(self, kind: Kind, name: str, namespace: str = "") -> Json | None:
        """One object; a queue in today's spelling, whichever it was written in."""
        found = self.others[kind].get(Key(namespace, name)) if name else None
        return upgrade(found) if found is not None and kind == kinds.CLUSTER_QUEUE else found

    def local_queue(self, workload: Json) -> Json | None:
        return self.get(kinds.LOCAL_QUEUE, queue_name(workload), workload["metadata"].get("namespace", ""))

    def cluster_queue_name(self, workload: Json) -> str:
        """Where it holds quota, or would."""
        admission = (workload.get("status") or {}).get("admission") or {}
        if admission.get("clusterQueue"):
            return str(admission["clusterQueue"])
        local = self.local_queue(workload)
        return str((local or {}).get("spec", {}).get("clusterQueue") or "")

    def stopped_queue(self, workload: Json) -> tuple[str, str, str] | None:
        """Kind, name and policy of a queue above it that is stopped."""
        cluster_queue = self.get(kinds.CLUSTER_QUEUE, self.cluster_queue_name(workload))
        for kind, queue in (("ClusterQueue", cluster_queue), ("LocalQueue", self.local_queue(workload))):
            policy = ((queue or {}).get("spec") or {}).get("stopPolicy") or "None"
            if queue is not None and policy != "None":
                return kind, queue["metadata"]["name"], policy
        return None

    def requests_of(self, workload: Json) -> list[Json]:
        return self.requests.by_index("owner", workload["metadata"]["uid"])

    def limit_ranges(self, namespace: str) -> tuple[Json, ...]:
        return tuple(self._shared.limit_ranges.list(namespace))

    def pod_defaults(self, namespace: str) -> Defaults:
        """What pods of this namespace are given where they do not say what they need."""
        return self._shared.pod_defaults(namespace)


def workload_key(kind: GangJob, job: Json) -> Key:
    metadata = job["metadata"]
    name = prebuilt_name(job) or workload_name(kind.kind.kind, kind.kind.group, metadata["name"], metadata["uid"])
    return Key(metadata.get("namespace", ""), name)


def prebuilt_name(job: Json) -> str:
    """The Workload that another client made for this job; empty for most jobs, whose Workload is made by us."""
    return annotation(job, kueue_names.PREBUILT) or label(job, kueue_names.PREBUILT)


def queue_name(workload: Json) -> str:
    return str((workload.get("spec") or {}).get("queueName") or "")


def _owner_uids(obj: Json) -> tuple[str, ...]:
    owner = controller_of(obj)
    return (str(owner.get("uid")),) if owner and owner.get("uid") else ()


def _queue_of(workload: Json) -> tuple[str, ...]:
    return (f"{workload['metadata'].get('namespace', '')}/{queue_name(workload)}",)


def _reserved_in(workload: Json) -> tuple[str, ...]:
    admission = (workload.get("status") or {}).get("admission") or {}
    return (str(admission["clusterQueue"]),) if admission.get("clusterQueue") else ()
