"""What queues and checks show of themselves: are they active, which gangs wait, which hold how much.

Recomputed from the caches for one object at a time and written only where it differs. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key, Kind
from shoal.api.kueue import MOST_FLAVORS
from shoal.api.kueue_convert import upgrade
from shoal.api.meta import Json
from shoal.api.quantity import amount, show
from shoal.controllers.queues.checks import BY_CONTROLLER, rules_of
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.facts import check_problems
from shoal.controllers.queues.provisioning import config_of
from shoal.kube.errors import Forbidden, NotFound

Usage = dict[tuple[str, str], int]
KEPT = (kinds.CLUSTER_QUEUE, kinds.RESOURCE_FLAVOR, kinds.ADMISSION_CHECK)
"""What stays until nothing uses it."""


class QueueStatus:
    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._caches = context.caches

    async def publish(self, kind: Kind, key: Key) -> None:
        obj = self._caches.others[kind].get(key)
        if obj is None:
            return
        if kind in KEPT:
            kept = await self._keep_while_used(kind, obj)
            if kept is None:
                return
            obj = kept
        draft = Draft(obj, self._context.clock.now())
        match kind:
            case kinds.CLUSTER_QUEUE:
                self._cluster_queue(draft)
            case kinds.LOCAL_QUEUE:
                self._local_queue(draft)
            case kinds.ADMISSION_CHECK:
                self._check(draft)
        if draft.change:
            try:
                stored = await self._context.writer.patch(kind, obj, {"status": draft.change}, subresource="status")
            except NotFound:
                return
            self._caches.others[kind].note_write(stored)

    # --- each kind

    def _check(self, draft: Draft) -> None:
        spec = draft.obj.get("spec") or {}
        if (ours := BY_CONTROLLER.get(str(spec.get("controllerName")))) is not None:
            problem = ours.problem(draft.obj)
            state = ("Active", "The admission check is active") if not problem else ("BadParametersRef", problem)
            draft.put("Active", not problem, *state)
            return
        if spec.get("controllerName") != kueue_names.PROVISIONING_CHECK:
            return
        if config_of(draft.obj, self._caches) is not None:
            draft.put("Active", True, "Active", "The admission check is active")
            return
        parameters = spec.get("parameters") or {}
        name = parameters.get("name") or ""
        message = (
            f'ProvisioningRequestConfig.kueue.x-k8s.io "{name}" not found'
            if parameters.get("kind") == "ProvisioningRequestConfig" and parameters.get("apiGroup") == kueue_names.GROUP
            else "spec.parameters must name a ProvisioningRequestConfig of kueue.x-k8s.io"
        )
        draft.put("Active", False, "BadParametersRef", message)

    def _cluster_queue(self, draft: Draft) -> None:
        name = draft.obj["metadata"]["name"]
        problems = self.problems(upgrade(draft.obj))
        if draft.obj["metadata"].get("deletionTimestamp"):
            draft.put("Active", False, "Terminating", "Can't admit new workloads; clusterQueue is terminating")
        elif problems:
            parts = ", ".join(text for _, text in problems)
            draft.put("Active", False, problems[0][0], f"Can't admit new workloads: {parts}.")
        else:
            draft.put("Active", True, "Ready", "Can admit new workloads")
        queues = [
            one
            for one in self._caches.others[kinds.LOCAL_QUEUE].list()
            if (one.get("spec") or {}).get("clusterQueue") == name
        ]
        waiting = [one for queue in queues for one in self._in_queue(queue)]
        reserving = self._caches.workloads.by_index("reserved", name)
        self._count(draft, waiting, reserving)
        quotas = _quotas(draft.obj)
        draft.set("flavorsReservation", _flavors(quotas, _usage(_holding(reserving)), borrows=True))
        draft.set("flavorsUsage", _flavors(quotas, _usage(_admitted(reserving)), borrows=True))

    def _local_queue(self, draft: Draft) -> None:
        obj = draft.obj
        cluster_queue = self._caches.get(kinds.CLUSTER_QUEUE, str((obj.get("spec") or {}).get("clusterQueue") or ""))
        if ((obj.get("spec") or {}).get("stopPolicy") or "None") != "None":
            draft.put("Active", False, "Stopped", "LocalQueue is stopped")
        elif cluster_queue is None:
            draft.put("Active", False, "ClusterQueueDoesNotExist", "Can't submit new workloads to clusterQueue")
        elif self.problems(cluster_queue) or cluster_queue["metadata"].get("deletionTimestamp"):
            draft.put("Active", False, "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
        else:
            draft.put("Active", True, "Ready", "Can submit new workloads to localQueue")
        mine = self._in_queue(obj)
        self._count(draft, mine, mine)
        quotas = _quotas(cluster_queue or {})
        draft.set("flavorsReservation", _flavors(quotas, _usage(_holding(mine)), borrows=False)[:MOST_FLAVORS])
        draft.set("flavorsUsage", _flavors(quotas, _usage(_admitted(mine)), borrows=False)[:MOST_FLAVORS])

    # --- staying while in use

    async def _keep_while_used(self, kind: Kind, obj: Json) -> Json | None:
        """As Kueue: queues, flavors and checks have a finalizer, which goes after the last use once they are deleted.

        Returns the object as it is stored then; None where it may be gone.
        """
        held = obj["metadata"].get("finalizers") or []
        leaving = bool(obj["metadata"].get("deletionTimestamp"))
        if leaving == (kueue_names.IN_USE not in held) or (leaving and self._is_used(kind, obj["metadata"]["name"])):
            return obj
        wanted = [one for one in held if one != kueue_names.IN_USE] if leaving else [*held, kueue_names.IN_USE]
        try:
            stored = await self._context.writer.patch(kind, obj, {"metadata": {"finalizers": wanted or None}})
        except NotFound:
            return None
        except Forbidden:
            if leaving:
                raise
            return obj  # rights from an older installation: nothing but this depends on them
        if leaving:
            return None
        self._caches.others[kind].note_write(stored)
        return stored

    def _is_used(self, kind: Kind, name: str) -> bool:
        if kind == kinds.CLUSTER_QUEUE:
            return bool(_holding(self._caches.workloads.by_index("reserved", name)))
        queues = map(upgrade, self._caches.others[kinds.CLUSTER_QUEUE].list())
        return any(name in named_by(queue, kind) for queue in queues)

    # --- parts

    def problems(self, cluster_queue: Json) -> list[tuple[str, str]]:
        """Reason and text of all that keeps a queue from admitting, the first in Kueue's order first."""
        spec = cluster_queue.get("spec") or {}
        found = []
        if (spec.get("stopPolicy") or "None") != "None":
            found.append(("Stopped", "is stopped"))
        missing = sorted(
            name for name in _named_flavors(cluster_queue) if self._caches.get(kinds.RESOURCE_FLAVOR, name) is None
        )
        if missing:
            found.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
        return found + check_problems(cluster_queue, self._caches)

    def _in_queue(self, queue: Json) -> list[Json]:
        metadata = queue["metadata"]
        return self._caches.workloads.by_index("queue", f"{metadata.get('namespace', '')}/{metadata['name']}")

    def _count(self, draft: Draft, waiting: list[Json], reserving: list[Json]) -> None:
        draft.status["pendingWorkloads"] = sum(1 for one in waiting if _is_pending(one))
        draft.status["reservingWorkloads"] = len(_holding(reserving))
        draft.status["admittedWorkloads"] = len(_admitted(reserving))


def _true(workload: Json, kind: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _is_pending(workload: Json) -> bool:
    active = (workload.get("spec") or {}).get("active") is not False
    return active and not _true(workload, "Finished") and not _true(workload, "QuotaReserved")


def _holding(workloads: Iterable[Json]) -> list[Json]:
    return [one for one in workloads if _true(one, "QuotaReserved") and not _true(one, "Finished")]


def _admitted(workloads: Iterable[Json]) -> list[Json]:
    return [one for one in _holding(workloads) if _true(one, "Admitted")]


def _usage(workloads: list[Json]) -> Usage:
    used: Usage = {}
    for workload in workloads:
        status = workload.get("status") or {}
        left_of = _left_of(workload)
        for entry in (status.get("admission") or {}).get("podSetAssignments") or ():
            flavors, count = entry.get("flavors") or {}, int(entry.get("count", 1))
            left = min(count, left_of.get(str(entry.get("name")), count))
            for resource, text in (entry.get("resourceUsage") or {}).items():
                if resource in flavors:
                    at = (flavors[resource], resource)
                    whole = amount(resource, text)
                    used[at] = used.get(at, 0) + (whole if not count else whole * left // count)
    return used


def _left_of(workload: Json) -> dict[str, int]:
    """Pod set name to the pods that are not done yet."""
    done = {one["name"]: int(one.get("count") or 0) for one in workload["status"].get("reclaimablePods") or ()}
    pod_sets = (workload.get("spec") or {}).get("podSets") or ()
    sizes = {str(one.get("name") or "main"): int(one.get("count", 1)) for one in pod_sets}
    return {name: max(0, size - done.get(name, 0)) for name, size in sizes.items()}


def _quotas(cluster_queue: Json) -> dict[str, dict[str, int]]:
    """Flavor name to nominal quota by resource, in the order of the queue's spec."""
    found: dict[str, dict[str, int]] = {}
    for group in (cluster_queue.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            found[flavor["name"]] = {
                one["name"]: amount(one["name"], one.get("nominalQuota", 0)) for one in flavor.get("resources") or ()
            }
    return found


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


def named_by(cluster_queue: Json, kind: Kind) -> set[str]:
    """The ResourceFlavors or AdmissionChecks that a queue, in today's spelling, names."""
    return set(rules_of(cluster_queue)) if kind == kinds.ADMISSION_CHECK else _named_flavors(cluster_queue)


def _named_flavors(cluster_queue: Json) -> set[str]:
    groups = (cluster_queue.get("spec") or {}).get("resourceGroups") or ()
    return {str(flavor.get("name")) for group in groups for flavor in group.get("flavors") or ()}
