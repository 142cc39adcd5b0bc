"""Quota of one member: what its queues still have for gangs of the hub.

Read from the member's LocalQueues, ClusterQueues and admitted Workloads; what was just sent there and holds no quota
yet is deducted. A queue in a cohort may borrow, so the member alone judges that. Sums, never flavors: a member that
cannot start what was sent gives it back. Reads only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.fields import Conditions
from shoal.api.kind import Key, Kind
from shoal.api.kueue import ClusterQueue, LocalQueue
from shoal.api.kueue_workload import Admission
from shoal.api.meta import Object, Part
from shoal.api.objects import annotation
from shoal.api.quantity import amount, show
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.planning.caches import UNREADABLE
from shoal.engine.model import Amounts, Gang
from shoal.engine.nodes import demand_of
from shoal.errors import BadInput
from shoal.kube.awaited import Awaited
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock


class SeenAdmission(Part):
    admission: Admission | None = None
    conditions: Conditions | None = None


class SeenWorkload(Object):
    """As it is cached: what it holds of a ClusterQueue's quota. Everything else is not kept."""

    status: SeenAdmission = SeenAdmission()


class QuotaAnswer(msgspec.Struct, frozen=True):
    short: str = ""
    """Why the queue would not start it now; empty: it would, or that cannot be known."""
    preempts: bool = False
    """May it evict gangs of lower priority?"""


class MemberQuota:
    def __init__(
        self, client: Client, settings: ClusterSettings, clock: Clock, awaited: Awaited, changed: Callable[[], None]
    ) -> None:
        self._client, self._clock, self._awaited, self._changed = client, clock, awaited, changed
        self._most = settings.answers.held
        self._local: Cache[LocalQueue] = self._cache(kinds.LOCAL_QUEUE, LocalQueue)
        self._queues: Cache[ClusterQueue] = self._cache(kinds.CLUSTER_QUEUE, ClusterQueue)
        self._workloads: Cache[SeenWorkload] = self._cache(kinds.WORKLOAD, SeenWorkload)
        self._used: dict[str, Counter[str]] = {}
        """Amounts by ClusterQueue."""
        self._kept: dict[str, Gang] = {}
        """Gangs that were sent here, by UID at the hub."""
        self._holding: set[str] = set()
        """UIDs at the hub of those whose copy holds quota."""

    @property
    def caches(self) -> list[Cache[Any]]:
        return [self._local, self._queues, self._workloads]

    @property
    def is_known(self) -> bool:
        return all(cache.synced.is_set() for cache in self.caches)

    @property
    def may_evict(self) -> bool:
        """Could a queue here evict gangs for another, or is that not known?"""
        never = (one.spec.preemption.within_cluster_queue == "Never" for one in self._queues.list())
        return not self.is_known or not all(never)

    def subscribe(self) -> None:
        self._workloads.subscribe(self._workload_changed)
        for cache in (self._local, self._queues):
            cache.subscribe(lambda change: self._changed())

    def keep(self, gang: Gang) -> None:
        self._kept[gang.uid] = gang

    def release(self, uid: str) -> None:
        self._kept.pop(uid, None)

    def answer(self, gang: Gang, without: Iterable[str] = ()) -> QuotaAnswer:
        """`without`: as if these gangs, by UID at the hub, had left."""
        if not self.is_known:
            return QuotaAnswer()
        local = self._local.get(Key(gang.namespace, gang.queue))
        if local is None:
            return QuotaAnswer(f"it has no LocalQueue {gang.queue} in namespace {gang.namespace}")
        name = local.spec.cluster_queue
        queue = self._queues.get(Key("", name))
        if queue is None:
            return QuotaAnswer(f"it has no ClusterQueue {name}")
        if queue.spec.stop_policy != "None":
            return QuotaAnswer(f"its ClusterQueue {name} is stopped")
        if local.spec.stop_policy != "None":
            return QuotaAnswer(f"its LocalQueue {gang.queue} is stopped")
        preempts = queue.spec.preemption.within_cluster_queue != "Never"
        if queue.spec.cohort_name:
            return QuotaAnswer(preempts=preempts)
        return QuotaAnswer(self._short(queue, gang, frozenset(without)), preempts)

    def _short(self, queue: ClusterQueue, gang: Gang, without: frozenset[str]) -> str:
        name = queue.metadata.name
        used = Counter(self._used.get(name, Counter()))
        for uid, kept in self._kept.items():
            local = self._local.get(Key(kept.namespace, kept.queue))
            if local is None or local.spec.cluster_queue != name or uid == gang.uid:
                continue
            if uid in without:
                used.subtract(demand_of(kept.pod_sets) if uid in self._holding else {})
            elif uid not in self._holding:
                used.update(demand_of(kept.pod_sets))
        for resource, needed in sorted(demand_of(gang.pod_sets).items()):
            nominal = _nominal(queue, resource)
            if nominal is None or needed <= nominal - used[resource]:
                continue
            free = show(resource, max(0, nominal - used[resource]))
            return f"its ClusterQueue {name} has {free} {resource} left, needed {show(resource, needed)}"
        return ""

    def _workload_changed(self, change: Change) -> None:
        for found, sign in ((change.old, -1), (change.new, 1)):
            held = _held(found) if found is not None else None
            if held is None or found is None:
                continue
            queue, amounts = held
            used = self._used.setdefault(queue, Counter())
            for resource, many in amounts.items():
                used[resource] += sign * many
            uid = annotation(found, words.HUB_WORKLOAD)
            if uid:
                (self._holding.add if sign > 0 else self._holding.discard)(uid)
        if _held(change.old) != _held(change.new):
            self._changed()

    def _cache(self, kind: Kind, type: Any) -> Cache[Any]:
        report = self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE)
        return Cache(self._client, kind, type, clock=self._clock, most=self._most, report=report)


def _held(workload: SeenWorkload | None) -> tuple[str, Amounts] | None:
    """ClusterQueue and amounts of the quota that it holds."""
    status = workload.status if workload is not None else None
    if status is None or status.admission is None:
        return None
    if any(one.type == "Finished" and one.status == "True" for one in status.conditions or ()):
        return None
    sums: Amounts = {}
    for one in status.admission.pod_set_assignments:
        for resource, text in (one.resource_usage or {}).items():
            try:
                sums[resource] = sums.get(resource, 0) + amount(resource, text)
            except BadInput:
                continue
    return status.admission.cluster_queue, sums


def _nominal(queue: ClusterQueue, resource: str) -> int | None:
    """Its quota of this resource on all flavors; None where it does not count it."""
    quotas = [
        one.nominal_quota
        for group in queue.spec.resource_groups or ()
        for flavor in group.flavors
        for one in flavor.resources
        if one.name == resource
    ]
    try:
        return sum(amount(resource, one) for one in quotas) if quotas else None
    except BadInput:
        return None
