"""What queues and checks show of themselves: are they active, which gangs wait, which hold how much.

Made for one object at a time, its numbers from what is counted with every change (`counts.py`), and written only where
it differs. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from shoal.api import kinds, kueue_names
from shoal.api.gang import USER_USAGE
from shoal.api.kind import Key, Kind
from shoal.api.kueue import MOST_FLAVORS, ClusterQueue, LocalQueue
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.objects import finalizers, key_of
from shoal.api.quantity import amount, show
from shoal.controllers.queues.caches import is_stopped
from shoal.controllers.queues.checks import BY_CONTROLLER, flavors_of, rules_of
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.checks.provisioning import config_named, config_of
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.counts import Address, QueueCounts, QueueShare, QueueTally, Usage, together, usage_of
from shoal.controllers.queues.facts import check_problems
from shoal.controllers.queues.ownership import may_be_left_behind
from shoal.controllers.queues.shares import QueueShares
from shoal.controllers.queues.stored import (
    StoredCheck,
    StoredClusterQueue,
    StoredCohort,
    StoredFlavor,
    StoredLocalQueue,
    StoredTopology,
    is_true,
)
from shoal.engine import Engine
from shoal.engine.model import Gang
from shoal.kube.errors import Forbidden, NotFound

Published = StoredClusterQueue | StoredLocalQueue | StoredCheck | StoredFlavor | StoredCohort | StoredTopology
KEPT = (kinds.CLUSTER_QUEUE, kinds.RESOURCE_FLAVOR, kinds.ADMISSION_CHECK, kinds.TOPOLOGY)
"""What stays until nothing uses it."""


class QueueStatus:
    def __init__(self, context: QueueContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._shares = QueueShares(engine, context.settings)
        self._caches = context.caches
        self.counts = QueueCounts()

    def update(self, workload: Workload, gang: Gang) -> tuple[Address, ...]:
        """Count a Workload as it is stored; `gang` is what it alone says. Returns the queues that are to publish it."""
        holds = gang.state in ("reserved", "admitted", "stopping")
        part = QueueShare(
            local_queue=Key(workload.metadata.namespace, gang.queue),
            cluster_queue=self._caches.cluster_queue_name(workload),
            pending=gang.state in ("waiting", "held") and workload.spec.active,
            holds=holds,
            admitted=holds and is_true(workload, "Admitted"),
            usage=together(usage_of(gang), self._engine.surplus_usage(gang.uid)) if holds else {},
        )
        changed = self.counts.update(gang.uid, part)
        if holds and part.cluster_queue and may_be_left_behind(workload):
            return (*changed, (kinds.CLUSTER_QUEUE, Key("", part.cluster_queue)))  # which may be waiting to go
        return changed

    async def publish(self, kind: Kind, key: Key) -> None:
        obj: Published | None = self._caches.others[kind].get(key)
        if obj is None:
            return
        if kind in KEPT:
            kept = await self._keep_while_used(kind, obj)
            if kept is None:
                return
            obj = kept
        draft = Draft(obj.raw, self._context.clock.now())
        match obj:
            case StoredClusterQueue():
                self._cluster_queue(draft, obj)
            case StoredLocalQueue():
                self._local_queue(draft, obj)
            case StoredCheck():
                self._check(draft, obj)
            case StoredCohort():
                self._shares.cohort(draft, obj)
        text = self._shares.user_usage(obj) if isinstance(obj, StoredLocalQueue) else None
        if text is not None:
            await self._note_users(obj, text)
        if draft.change:
            try:
                stored = await self._context.writer.patch(kind, obj.raw, {"status": draft.change}, subresource="status")
            except NotFound:
                return
            self._caches.others[kind].note_write(stored)

    # --- each kind

    def _check(self, draft: Draft, check: StoredCheck) -> None:
        if (ours := BY_CONTROLLER.get(check.spec.controller_name)) is not None:
            problem = ours.problem(check.raw)
            state = ("Active", "The admission check is active") if not problem else ("BadParametersRef", problem)
            draft.put("Active", not problem, *state)
            return
        if check.spec.controller_name != kueue_names.PROVISIONING_CHECK:
            return
        if config_of(check, self._caches) is not None:
            draft.put("Active", True, "Active", "The admission check is active")
            return
        name = config_named(check)
        message = (
            f'ProvisioningRequestConfig.kueue.x-k8s.io "{name}" not found'
            if name is not None
            else "spec.parameters must name a ProvisioningRequestConfig of kueue.x-k8s.io"
        )
        draft.put("Active", False, "BadParametersRef", message)

    def _cluster_queue(self, draft: Draft, queue: ClusterQueue) -> None:
        name = queue.metadata.name
        problems = self.problems(queue)
        if queue.metadata.deletion_timestamp:
            draft.put("Active", False, "Terminating", "Can't admit new workloads; clusterQueue is terminating")
        elif problems:
            parts = ", ".join(text for _, text in problems)
            draft.put("Active", False, problems[0][0], f"Can't admit new workloads: {parts}.")
        else:
            draft.put("Active", True, "Ready", "Can admit new workloads")
        _count(draft, self.counts.of(kinds.CLUSTER_QUEUE, Key("", name)), _quotas(queue), borrows=True)
        self._shares.cluster_queue(draft, queue)

    def _local_queue(self, draft: Draft, queue: LocalQueue) -> None:
        cluster_queue = self._caches.cluster_queue(queue.spec.cluster_queue)
        if is_stopped(queue):
            draft.put("Active", False, "Stopped", "LocalQueue is stopped")
        elif cluster_queue is None:
            draft.put("Active", False, "ClusterQueueDoesNotExist", "Can't submit new workloads to clusterQueue")
        elif self.problems(cluster_queue) or cluster_queue.metadata.deletion_timestamp:
            draft.put("Active", False, "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
        else:
            draft.put("Active", True, "Ready", "Can submit new workloads to localQueue")
        quotas = dict(islice(_quotas(cluster_queue).items(), MOST_FLAVORS))
        _count(draft, self.counts.of(kinds.LOCAL_QUEUE, key_of(queue)), quotas, borrows=False)
        self._shares.local_queue(draft, queue, {resource for each in quotas.values() for resource in each})

    async def _note_users(self, queue: Published, text: str) -> None:
        """What users had, beside the status, which has no place for it."""
        change = {"metadata": {"annotations": {USER_USAGE: text}}}
        try:
            stored = await self._context.writer.patch(kinds.LOCAL_QUEUE, queue.raw, change)
        except (NotFound, Forbidden):
            return  # rights from an older installation: after a restart users begin with nothing
        self._caches.others[kinds.LOCAL_QUEUE].note_write(self._caches.others[kinds.LOCAL_QUEUE].as_held(stored))

    # --- staying while in use

    async def _keep_while_used(self, kind: Kind, obj: Published) -> Published | None:
        """As Kueue: queues, flavors, checks and topologies have a finalizer, which goes after the last use of one that
        was deleted. Returns the object as it is stored then; None where it may be gone.
        """
        held = finalizers(obj)
        leaving = bool(obj.metadata.deletion_timestamp)
        if leaving == (kueue_names.IN_USE not in held) or (leaving and self._is_used(kind, obj.metadata.name)):
            return obj
        wanted = [one for one in held if one != kueue_names.IN_USE] if leaving else [*held, kueue_names.IN_USE]
        try:
            answer = await self._context.writer.patch(kind, obj.raw, {"metadata": {"finalizers": wanted or None}})
        except NotFound:
            return None
        except Forbidden:
            if leaving:
                raise
            return obj  # rights from an older installation: nothing but this depends on them
        if leaving:
            return None
        cache = self._caches.others[kind]
        stored: Published = cache.as_held(answer)
        cache.note_write(stored)
        return stored

    def _left_behind(self, queue: str) -> int:
        """Workloads with quota of this queue that it need not stay for; they stay charged until they give it back."""
        found = self._caches.workloads.by_index("reserved", queue)
        kept = [one for one in found if is_true(one, "QuotaReserved") and not is_true(one, "Finished")]
        return sum(map(may_be_left_behind, kept))

    def _is_used(self, kind: Kind, name: str) -> bool:
        if kind == kinds.CLUSTER_QUEUE:
            return self.counts.of(kind, Key("", name)).reserving > self._left_behind(name)
        if kind == kinds.TOPOLOGY:
            return any(flavor.spec.topology_name == name for flavor in self._caches.flavors.list())
        return any(name in named_by(queue, kind) for queue in self._caches.cluster_queues.list())

    # --- parts

    def problems(self, cluster_queue: ClusterQueue) -> list[tuple[str, str]]:
        """Reason and text of all that keeps a queue from admitting, the first in Kueue's order first."""
        found = []
        if is_stopped(cluster_queue):
            found.append(("Stopped", "is stopped"))
        missing = [name for name in _quotas(cluster_queue) if self._caches.flavor(name) is None]
        if missing:
            found.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
        return found + check_problems(cluster_queue, self._caches) + self._missing_topologies(cluster_queue)

    def _missing_topologies(self, cluster_queue: ClusterQueue) -> list[tuple[str, str]]:
        found = []
        for name in sorted(flavors_of(cluster_queue)):
            flavor = self._caches.flavor(name)
            topology = flavor.spec.topology_name if flavor is not None else None
            if topology and self._caches.topologies.get(Key("", topology)) is None:
                found.append(("TopologyNotFound", f'there is no Topology "{topology}" for TAS flavor "{name}"'))
        return found


def _count(draft: Draft, tally: QueueTally, quotas: dict[str, dict[str, int]], *, borrows: bool) -> None:
    draft.status["pendingWorkloads"] = tally.pending
    draft.status["reservingWorkloads"] = tally.reserving
    draft.status["admittedWorkloads"] = tally.admitted
    draft.set("flavorsReservation", _flavors(quotas, tally.reserved, borrows=borrows))
    draft.set("flavorsUsage", _flavors(quotas, tally.used, borrows=borrows))


def _quotas(cluster_queue: ClusterQueue | None) -> dict[str, dict[str, int]]:
    """Flavor name to nominal quota by resource, in the order of the queue's spec."""
    groups = cluster_queue.spec.resource_groups if cluster_queue is not None else None
    return {
        flavor.name: {one.name: amount(one.name, one.nominal_quota) for one in flavor.resources}
        for group in groups or ()
        for flavor in group.flavors
    }


def _flavors(quotas: dict[str, dict[str, int]], used: Usage, *, borrows: bool) -> list[Json]:
    made = []
    for flavor, resources in quotas.items():
        entries = []
        for resource, nominal in sorted(resources.items()):
            total = used.get((flavor, resource), 0)
            entry = {"name": resource, "total": show(resource, total)}
            if borrows:
                entry["borrowed"] = show(resource, max(0, total - nominal))
            entries.append(entry)
        made.append({"name": flavor, "resources": entries})
    return made


def named_by(cluster_queue: ClusterQueue, kind: Kind) -> Iterable[str]:
    """The ResourceFlavors or AdmissionChecks that a queue names."""
    return rules_of(cluster_queue) if kind == kinds.ADMISSION_CHECK else flavors_of(cluster_queue)
