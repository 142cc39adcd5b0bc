"""The hands of groups of pods: pods too many go, pods that were replaced are let go, each pod is started or stopped.

Called by the reconciler with the group as the cache has it (`jobs.pod_group.composed`). Every write names the pod's UID
and revision, so that a look from before a crash or with an old cache repeats nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.codec import merge_patch
from shoal.api.meta import Json
from shoal.api.objects import finalizers, key_of
from shoal.controllers.queues import pod_ends
from shoal.controllers.queues.checks.draft import WorkloadDraft
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.inject import InjectedInfo
from shoal.controllers.queues.jobs.pod import MAIN, Pods
from shoal.controllers.queues.jobs.pod_group import GROUPS, composed, group_name, is_group, is_kept, role_of
from shoal.controllers.queues.reapplied import recorded
from shoal.controllers.queues.stored import StoredWorkload, is_true
from shoal.controllers.queues.warnings import Warnings
from shoal.controllers.queues.workloads import member_reference
from shoal.kube.errors import Conflict, NotFound

REPLACEMENT = "WaitingForReplacementPods"
EXCESS = "ExcessPodDeleted"
_POD = Pods()

Kept = Literal["as it is", "changed", "other pods"]


class PodGroupKeeper:
    def __init__(self, context: QueueContext, warnings: Warnings) -> None:
        self._context = context
        self._warnings = warnings

    async def whole(self, job: Json) -> Json | None:
        """The group without pods too many or at their end, once a Workload can be made of it; else it is told why."""
        await self.let_go(GROUPS.inactive(job))
        if missing := GROUPS.lacks(job, self._context.settings.copied_labels):
            self._warnings.tell(job, "ErrWorkloadCompose", missing)
            return None
        excess = GROUPS.excess(job)
        await self._remove(excess)
        gone = {one["metadata"]["uid"] for one in (*excess, *GROUPS.inactive(job))}
        return composed(one for one in GROUPS.members(job) if one["metadata"]["uid"] not in gone)

    def is_taken(self, workload: StoredWorkload, job: Json) -> bool:
        """Does the Workload of the group's name belong to something else? Then the group is told, and waits."""
        if is_group(workload) or is_true(workload, "Finished"):
            return False
        name = group_name(job)
        message = f"a Workload named {name!r} exists that is not of a pod group: this pod group cannot be admitted"
        self._warnings.tell(job, "WorkloadNameConflict", message)
        return True

    async def keep(self, draft: WorkloadDraft, job: Json) -> Kept:
        """Pods and Workload agree: too many go, all are its owners, and its status says whether some are missing."""
        workload = draft.workload
        found = GROUPS.sorted_out(job, workload.spec.pod_sets, reserved=draft.is_true("QuotaReserved"))
        if not found.fits:
            return "other pods"
        owners = workload.raw["metadata"].get("ownerReferences") or []
        known = {one.get("uid") for one in owners}
        gone = {one["metadata"]["uid"] for one in found.excess}
        new = [one for one in GROUPS.members(job) if one["metadata"]["uid"] not in known | gone]
        if new:
            references = [*owners, *(member_reference(one) for one in new)]
            change = {"metadata": {"ownerReferences": references}}
            stored = await self._context.writer.patch(kinds.WORKLOAD, workload.raw, change)
            self._context.caches.workloads.note_write(stored)
            self._context.tell(workload.raw, "Normal", "OwnerReferencesAdded", f"Added {len(new)} owner reference(s)")
            return "changed"
        await self._remove(found.excess)
        await self.let_go(found.replaced)
        note_absent(draft, found.absent)
        return "as it is"

    async def start(self, job: Json, infos: Sequence[InjectedInfo]) -> list[Json]:
        """Set every pod free that waits; returns them. Raises StartError, Invalid or Forbidden."""
        given = {info.name: info for info in infos}
        begun = []
        for before, after in zip(GROUPS.members(job), GROUPS.members(GROUPS.started(job, infos)), strict=True):
            if after is before:
                continue
            info = msgspec.structs.replace(given[role_of(before)], name=MAIN)
            try:
                await self._patch(before, recorded(before, after, _POD, [info]))
            except (NotFound, Conflict):
                continue  # it has changed meanwhile: the watch tells what it is now
            begun.append(before)
        return begun

    async def stop(self, job: Json, why: str, reason: str) -> None:
        """Delete every pod that runs, or may. `reason`: `why` in one word."""
        for pod in GROUPS.running(job):
            if not pod["metadata"].get("deletionTimestamp"):
                await pod_ends.tell(self._context, pod, reason, why)
                await self._context.writer.delete(kinds.POD, pod)
                self._context.tell(pod, "Normal", "Stopped", why)

    async def stands_still(self, job: Json) -> bool:
        """Does the server say the same of the pods that wait, as far as the cache knows?"""
        for pod in GROUPS.waiting(job):
            try:
                now = await self._context.client.get(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
            except NotFound:
                continue
            if now["metadata"]["uid"] == pod["metadata"]["uid"] and not GROUPS.is_suspended(composed([now])):
                return False
        return True

    async def let_go(self, pods: Iterable[Json]) -> None:
        """Take our finalizer from these pods: they need not be counted any more."""
        for pod in pods:
            if not is_kept(pod):
                continue
            left = [one for one in finalizers(pod) if one != kueue_names.MANAGED]
            try:
                await self._patch(pod, {**pod, "metadata": {**pod["metadata"], "finalizers": left}})
            except (NotFound, Conflict):
                pass

    async def _remove(self, pods: Sequence[Json]) -> None:
        await self.let_go(pods)
        cache = self._context.caches.jobs[kinds.POD]
        for pod in pods:
            if not pod["metadata"].get("deletionTimestamp"):
                await self._context.writer.delete(kinds.POD, cache.get(key_of(pod)) or pod)
                self._context.tell(pod, "Normal", EXCESS, "Excess pod deleted")

    async def _patch(self, before: Json, after: Json) -> None:
        stored = await self._context.writer.patch(kinds.POD, before, merge_patch(before, after))
        if finalizers(stored) or not stored["metadata"].get("deletionTimestamp"):
            self._context.caches.jobs[kinds.POD].note_write(stored)


def note_absent(draft: WorkloadDraft, absent: int) -> None:
    """As Kueue: the condition comes with the first pod that is missing, and stays. While it holds, a group without
    quota is given none."""
    if not absent:
        if draft.is_true(REPLACEMENT):
            draft.put(REPLACEMENT, False, "PodsReady", "No pods need replacement")
    elif draft.is_true("Evicted"):
        draft.put(REPLACEMENT, True, draft.reason("Evicted"), draft.message("Evicted"))
    elif not draft.is_true(REPLACEMENT):
        draft.put(REPLACEMENT, True, "PodsFailed", "Some Failed pods need replacement")
