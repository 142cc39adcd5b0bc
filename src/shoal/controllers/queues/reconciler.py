"""One Workload and its job, brought to where the stored status says. Level-triggered: safe to call at any time.

What is stored decides what happens to the job, never the other way round: quota before checks, checks before the start,
the eviction before the stop, and quota is given back only when the job has stopped and none of its pods is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shoal.api import kinds, kueue_names
from shoal.api.codec import merge_patch
from shoal.api.kind import Key
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json, controller_of
from shoal.api.objects import annotation, finalizers, key_of, label
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.queues import ownership, pod_ends
from shoal.controllers.queues.caches import pod_sets_of, prebuilt_name
from shoal.controllers.queues.checks import multikueue, requests, steps
from shoal.controllers.queues.checks.answered import AnsweredChecks
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.checks.provisioning import Provisioning
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.draining import Draining, is_at_work
from shoal.controllers.queues.facts import QueueFacts
from shoal.controllers.queues.inject import StartError
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.jobs.blueprint import (
    NoBlueprint,
    WithCopies,
    has_blueprint,
    has_copies,
    missing_reason,
)
from shoal.controllers.queues.jobs.pod_group import GROUPS, PodGroups, is_composed, is_group
from shoal.controllers.queues.managing import Managing
from shoal.controllers.queues.node_failures import failed_nodes, nodes_of
from shoal.controllers.queues.pod_groups import PodGroupKeeper
from shoal.controllers.queues.reapplied import recorded
from shoal.controllers.queues.recovery import Incomplete
from shoal.controllers.queues.retention import drop_deactivated
from shoal.controllers.queues.state_machine import Situation, StateMachine
from shoal.controllers.queues.stored import StoredWorkload, condition, is_true, since
from shoal.controllers.queues.telling import Telling
from shoal.controllers.queues.topology_gates import TopologyGates
from shoal.controllers.queues.warnings import Warnings
from shoal.controllers.queues.workloads import (
    NoSuchClass,
    class_of,
    infos_of,
    is_same_shape,
    new_workload,
    owner_reference,
    spec_change,
    spec_of,
)
from shoal.errors import BadInput
from shoal.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound

log = logging.getLogger(__name__)

LONGEST_FAREWELL = 60.0
"""Seconds for which a deleted Workload waits for pods that do not go."""
RETRY_CLASS = 10.0
RETRY_REFUSED = 60.0
STOP_LOOK = 1.0
DRAIN_LOOK = 5.0
"""Seconds after which Ray is asked again about workers that it was not told of."""

Found = tuple[GangJob, Json] | None


class QueueReconciler:
    """`pods_left(uid)` counts the pods of a gang that have not ended."""

    def __init__(
        self,
        context: QueueContext,
        facts: QueueFacts,
        pods_left: Callable[[str], int],
        incomplete: Incomplete,
        telling: Telling,
        draining: Draining,
    ) -> None:
        self._context = context
        self._caches = context.caches
        self._facts = facts
        self._pods_left = pods_left
        self._incomplete = incomplete
        self._managing = Managing(context.settings)
        self._machine = StateMachine(
            context.caches,
            context.decisions,
            context.settings,
            incomplete.verdict,
            telling,
            lambda uid: context.clusters_of(uid),
        )
        self._draining = draining
        self._gates = TopologyGates()
        self._provisioning = Provisioning(context)
        self._answered = AnsweredChecks(context)
        self.warnings = Warnings(context)
        self._groups = PodGroupKeeper(context, self.warnings)

    async def reconcile(self, key: Key) -> float | None:
        found = self._caches.job_of(key)
        workload = self._caches.workloads.get(key)
        if workload is None:
            return await self._create(found)
        group = self._caches.group(key)
        if group is not None and self._groups.is_taken(workload, group):
            await self._groups.let_go(GROUPS.inactive(group))
            found = None if found is not None and is_composed(found[0]) else found
        if workload.metadata.deletion_timestamp:
            return await self._leave(workload, found)
        if found is not None and prebuilt_name(found[1]) and not is_composed(found[0]):
            owner = controller_of(workload.metadata)
            if owner is None and multikueue.is_same_round(workload, found[1]) and not is_group(workload):
                await self._adopt(workload, *found)
                return None
            if owner is None or owner.uid != found[1]["metadata"]["uid"]:
                found = None  # made for another job, and this one stays stopped
        if is_true(workload, "Finished"):
            if found is not None and is_composed(found[0]):
                await self._groups.let_go(found[0].members(found[1]))
            return await self._after_the_end(workload)
        draft = WorkloadDraft(workload, self._context.clock.now())
        if found is not None:
            ended = await self._follow_job(draft, *found)
            if ended:
                return None
        elif ownership.is_orphan(workload):
            return await self._orphaned(draft)
        elif job_is := await ownership.owner_is(self._context.client, workload, self._managing):
            if job_is == "without it":
                await self._context.writer.delete(kinds.WORKLOAD, workload.raw)
                text = f"Deleted not matching Workload: {key_of(workload)}"
                self._context.tell(ownership.owner_of(workload), "Normal", "DeletedWorkload", text)
                return None
            if not draft.is_true("QuotaReserved") and not draft.get("admission"):
                return await self._orphaned(draft)  # before the garbage collector comes it gets no quota again
        elif (value := self._value_of_class(workload)) != workload.spec.priority:
            await self._patch(workload, {"spec": {"priority": value}})
            return None
        if draft.is_true("DeactivationTarget") and workload.spec.active:
            await self._patch(workload, {"spec": {"active": False}})
            return None
        if self._context.call_off(draft):
            return 0.0  # once the planning loop knows
        self._note_failed_nodes(draft)
        wake = self._machine.advance(draft, await self._situation(workload, found))
        workload = await self._context.store(draft)
        workload = await self._provisioning.look(workload)
        workload, again = await self._answered.look(workload)
        later = [wake, again, self._provisioning.next_look(workload)]
        if found is not None:
            later.append(await self._start_or_stop(workload, *found))
            later.append(await drop_deactivated(self._context, workload, *found))
        return min((one for one in later if one is not None), default=None)

    async def _orphaned(self, draft: WorkloadDraft) -> float | None:
        steps.finish(draft, "OwnerNotFound", "The workload's owner no longer exists")
        return await self._after_the_end(await self._context.store(draft))

    def _value_of_class(self, workload: StoredWorkload) -> int | None:
        """What its WorkloadPriorityClass is worth now, for a Workload without a job of ours; else as it is stored."""
        known = self._caches.workload_priorities.get(Key("", class_of(workload)))
        is_copy = multikueue.is_copy(workload)  # the cluster that it comes from says
        return known.value if known is not None and not is_copy else workload.spec.priority

    def _note_failed_nodes(self, draft: WorkloadDraft) -> None:
        """Name the nodes that failed under a gang with places in a topology; the plan finds others for its pods."""
        workload = draft.workload
        if not is_true(workload, "Admitted") or is_true(workload, "Evicted") or not nodes_of(workload):
            return
        failed = failed_nodes(workload, self._caches.node_by_host, self._caches.pods_of(workload), self._caches.flavor)
        draft.set("unhealthyNodes", [{"name": name} for name in failed] or None)

    async def _situation(self, workload: Workload, found: Found) -> Situation:
        ready = None
        runs = found is not None and not found[0].is_suspended(found[1])
        if self._context.settings.pods_ready is not None and found is not None:
            kind, job = found
            admission = workload.status.admission
            given = admission.pod_set_assignments if admission is not None else ()
            counts = {one.name: 1 if one.count is None else one.count for one in given}
            ready = not kind.is_suspended(job) and kind.are_pods_ready(job, counts)
        return Situation(
            gang=self._facts.gang(workload),
            stopped=self._has_stopped(workload, found) and await self._is_confirmed(workload, found),
            ready=ready,
            lacking=self._incomplete.lacking(workload) if runs else None,
            reclaimable=found[0].reclaimable(found[1]) if found is not None else None,
        )

    def _has_stopped(self, workload: Workload, found: Found) -> bool:
        if multikueue.is_held(workload):
            return False
        if found is not None and found[0].kind == kinds.POD:
            return found[0].is_suspended(found[1]) and not found[0].is_active(found[1])  # pods that wait do not run
        if self._pods_left(workload.metadata.uid):
            return False
        if found is None:
            return is_group(workload) or ownership.cannot_have_started(workload)
        kind, job = found
        if multikueue.is_managed(job):
            return True
        return kind.is_suspended(job) and not kind.is_active(job)

    async def _is_confirmed(self, workload: Workload, found: Found) -> bool:
        """Jobs may be known from before a start of which the Workload shows the eviction: the server says how it is."""
        if found is None or not (is_true(workload, "Admitted") and is_true(workload, "Evicted")):
            return True
        kind, job = found
        if multikueue.is_managed(job):
            return True
        if is_composed(kind):
            return await self._groups.stands_still(job)
        try:
            now = await self._context.client.get(kind.kind, job["metadata"]["name"], job["metadata"]["namespace"])
        except NotFound:
            return True
        same = now["metadata"]["uid"] == job["metadata"]["uid"]
        return not same or (kind.is_suspended(now) and not kind.is_active(now))

    # --- the job

    async def _create(self, found: Found) -> float | None:
        """A job that a queue holds has exactly one Workload, from the start to its end."""
        if found is None:
            return None
        kind, job = found
        if is_composed(kind) and (job["metadata"].get("deletionTimestamp") or kind.end(job) is not None):
            await self._groups.let_go(kind.members(job))
        if job["metadata"].get("deletionTimestamp") or kind.end(job) is not None:
            return None
        if not kind.is_suspended(job):
            try:
                await self._stop(kind, job, None, "Not admitted by cluster queue", "NotAdmitted")
            except (Invalid, Forbidden) as error:
                self._context.tell(job, "Warning", "StopRefused", f"it runs outside its queue: {error}")
                return RETRY_REFUSED
            return None
        if prebuilt_name(job):
            return None  # it comes, or the job stays stopped
        if is_composed(kind):
            group = await self._groups.whole(job)
            if group is None:
                return None
            job = group
        try:
            body = new_workload(kind, job, self._caches, self._context.settings.copied_labels)
        except NoSuchClass as error:
            self.warnings.tell(job, "WorkloadPriorityClassNotFound", str(error))
            return RETRY_CLASS
        except NoBlueprint as error:
            await self._tell_missing(job, error)
            return None
        except BadInput as error:
            self.warnings.tell(job, "InvalidJob", str(error))
            return None
        try:
            made = await self._context.writer.create(kinds.WORKLOAD, body)
        except AlreadyExists:
            return 0.5  # ours from before a restart, and the cache has not seen it yet
        except (Invalid, Forbidden) as error:
            self.warnings.tell(job, "CreateWorkloadRefused", f"it stays suspended: its Workload is refused: {error}")
            return RETRY_REFUSED
        self.warnings.forget(job["metadata"]["uid"])
        self._caches.workloads.note_write(made)
        name = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        self._context.tell(job, "Normal", "CreatedWorkload", f"Created Workload: {name}")
        return None

    async def _tell_missing(self, job: Json, error: NoBlueprint) -> None:
        """What describes its pods is not there, or came so lately that the watch has not brought it yet: then it does,
        and the job is looked at again."""
        name = error.name
        try:
            await self._context.client.get(name.kind, name.key.name, name.key.namespace or None)
        except NotFound:
            self.warnings.tell(job, missing_reason(name), str(error))

    async def _adopt(self, workload: StoredWorkload, kind: GangJob, job: Json) -> None:
        """A Workload that was made for this job by another client becomes its own."""
        await self._patch(workload, {"metadata": {"ownerReferences": [owner_reference(kind, job)]}})
        self._context.tell(job, "Normal", "AdoptedWorkload", f"Adopted Workload: {key_of(workload)}")

    async def _follow_job(self, draft: WorkloadDraft, kind: GangJob, job: Json) -> bool:
        """True when the job's own state ends the look: it is over, on hold, or not what was judged."""
        if is_composed(kind) and await self._is_group_gone(draft, kind, job):
            return True
        end = kind.end(job)
        if end is not None:
            steps.finish(draft, "Succeeded" if end.succeeded else "Failed", end.message)
            await self._context.store(draft)
            name = key_of(draft.workload)
            self._context.tell(job, "Normal", "FinishedWorkload", f"Workload '{name}' is declared finished")
            return True
        if kind.is_on_hold(job):
            try:
                kind.pod_sets(job)
            except NoBlueprint as error:
                await self._tell_missing(job, error)
            if draft.is_true("QuotaReserved"):
                steps.release(draft, "OnHold", "Job is on hold")
                await self._context.store(draft)
            return True
        return not await self._keep_in_step(draft, kind, job)

    async def _is_group_gone(self, draft: WorkloadDraft, kind: PodGroups, job: Json) -> bool:
        """Users deleted every pod of the group: so the group is. Pods that an eviction deleted are to be replaced."""
        if not job["metadata"].get("deletionTimestamp") or draft.is_true("Evicted") or kind.running(job):
            return False
        await self._groups.let_go(kind.members(job))
        if not kind.is_serving(job):
            await self._context.writer.delete(kinds.WORKLOAD, draft.workload.raw)
        return True

    async def _keep_in_step(self, draft: WorkloadDraft, kind: GangJob, job: Json) -> bool:
        """The Workload says what the job says. False when one of them was changed, and another look follows."""
        workload, reserved = draft.workload, draft.is_true("QuotaReserved")
        try:
            wanted = spec_of(kind, job, self._caches)
            if has_copies(kind) and (
                (kind.may_have_copy(job) and self._caches.first_look(job))
                or not is_same_shape(wanted["podSets"], workload, admitted=reserved)
            ):
                kind = await self._by_its_copy(kind, job)
                wanted = spec_of(kind, job, self._caches)
        except NoSuchClass as error:
            self._context.tell(job, "Warning", "WorkloadPriorityClassNotFound", str(error))
            return True
        except BadInput as error:
            self._context.tell(job, "Warning", "InvalidJob", str(error))
            return True
        if has_blueprint(kind) and (name := kind.blueprint_name(job)) is not None:
            self.warnings.over(job["metadata"]["uid"], missing_reason(name))
        if not reserved and annotation(job, kueue_names.GATED_BY) != annotation(workload, kueue_names.GATED_BY):
            gates = annotation(job, kueue_names.GATED_BY) or None
            change = {"metadata": {"annotations": {kueue_names.GATED_BY: gates}}}
            if await self._change_workload(workload, job, change, f"annotation {kueue_names.GATED_BY}"):
                return False
        if is_composed(kind):
            kept = await self._groups.keep(draft, job)
            if kept == "changed":
                return False
            same = kept == "as it is"
        else:
            same = is_same_shape(wanted["podSets"], workload, admitted=reserved)
        if same or (reserved and kind.is_suspended(job) and draft.is_true("Evicted")):
            return await self._follow_spec(draft, job, wanted)
        if prebuilt_name(job):
            steps.finish(draft, "OutOfSync", "The prebuilt workload is out of sync with its user job")
            await self._context.store(draft)
            return False
        if not reserved and kind.is_suspended(job) and not is_composed(kind):
            change = {"spec": {"podSets": wanted["podSets"]}}
            changed = await self._change_workload(workload, job, change, "pod sets")
            if changed is None:
                message = (
                    "it stays suspended: the API server drops fields of its pods from the Workload; update Kueue's CRDs"
                )
                self.warnings.tell(job, "UpdateWorkloadRefused", message)
                return False
            if changed:
                message = f"Updated not matching Workload for suspended job: {key_of(workload)}"
                self._context.tell(job, "Normal", "UpdatedWorkload", message)
                return False
        if not kind.is_suspended(job):
            await self._stop(kind, job, workload, "No matching Workload", "NoMatchingWorkload")
        await self._context.writer.delete(kinds.WORKLOAD, workload.raw)
        self._context.tell(job, "Normal", "DeletedWorkload", f"Deleted not matching Workload: {key_of(workload)}")
        return False

    async def _follow_spec(self, draft: WorkloadDraft, job: Json, wanted: Json) -> bool:
        """Queue, priority and time limit as the job says, as far as they may change now. False when one did."""
        workload, reserved = draft.workload, draft.is_true("QuotaReserved")
        admitted = draft.is_true("Admitted") or bool(prebuilt_name(job))  # a prebuilt one has a limit of its own
        change = spec_change(workload, wanted, reserved=reserved, admitted=admitted)
        named = label(job, kueue_names.PRIORITY_CLASS)
        if reserved and named and named != class_of(workload) and "priorityClassRef" not in change:
            message = (
                f"WorkloadPriorityClass {named} counts from when the job has no quota: until then it cannot change"
            )
            self.warnings.tell(job, "PriorityClassNotApplied", message)
        return not change or not await self._change_workload(workload, job, {"spec": change}, ", ".join(change))

    async def _change_workload(self, workload: StoredWorkload, job: Json, change: Json, what: str) -> bool | None:
        """False where the API server refuses: that is told, and the rest goes on as if the job had not changed. None
        where the server stores the same as before."""
        try:
            stored = await self._patch(workload, change)
        except (Invalid, Forbidden) as error:
            self.warnings.tell(job, "UpdateWorkloadRefused", f"the Workload cannot take over the job's {what}: {error}")
            return False
        if stored["metadata"]["resourceVersion"] == workload.metadata.resource_version:
            return None
        self.warnings.forget(job["metadata"]["uid"])
        return True

    async def _start_or_stop(self, workload: StoredWorkload, kind: GangJob, job: Json) -> float | None:
        evicted = condition(workload, "Evicted")
        is_evicted = evicted is not None and evicted.status == "True"
        admitted = is_true(workload, "Admitted") and not is_evicted and workload.spec.active
        if job["metadata"].get("deletionTimestamp") or multikueue.is_dispatched(workload, job):
            return None
        if kind.is_half_stopped(job):
            await self._restore(kind, job, workload)
            return STOP_LOOK
        if admitted and (kind.waiting(job) if is_composed(kind) else kind.is_suspended(job)):
            if kind.is_active(job) and not is_composed(kind):
                return STOP_LOOK  # it is still stopping from before
            if has_copies(kind) and not kind.may_have_copy(job):
                return None  # its own controller has yet to see it; its status wakes us
            if has_copies(kind) and await self._by_its_copy(kind, job) is not kind:
                return 0.0  # what it was judged by may be another
            await self._start(workload, kind, job)
        elif not admitted and not kind.is_suspended(job) and (left := await self._drain(workload)) > 0:
            return left
        elif not admitted and not kind.is_suspended(job):
            message, reason = "Not admitted by cluster queue", "NotAdmitted"
            if evicted is not None and is_evicted:
                message, reason = evicted.message, f"WorkloadEvictedDueTo{evicted.reason}"
            await self._stop(kind, job, workload, message, reason)
        elif admitted:
            await self._gates.open(workload, self._caches.pods_of(workload), self._context.writer)
        if is_evicted and is_true(workload, "QuotaReserved"):
            return STOP_LOOK
        return None

    async def _by_its_copy(self, kind: WithCopies, job: Json) -> GangJob:
        """The kind as it is, or knowing the copy of the job's blueprint that its own controller has made meanwhile."""
        if self._caches.has_copy(job):
            return kind
        name = kind.copy_name(job)
        try:
            kept = await self._context.client.get(name.kind, name.key.name, name.key.namespace or None)
        except (NotFound, Forbidden):
            return kind
        found = kind.from_copy(kept, job)
        if found is None:
            return kind
        self._caches.learn_copy(job, found)
        return self._caches.informed(kind, job)

    async def _drain(self, workload: StoredWorkload) -> float:
        """Before a Ray cluster is stopped Ray is told that its workers go. Seconds until it is stopped: so long work
        can be saved; 0 when the time is over, or there is nothing to save."""
        until = self._draining.until(workload)
        left = (until - self._context.clock.now()) / SECOND
        pods = [pod for pod in self._caches.pods_of(workload) if is_at_work(pod)] if left > 0 else []
        if not pods:
            self._draining.forget(workload.metadata.uid)
            return 0.0
        await self._draining.ask(workload.metadata.uid, pods, until)
        return min(left, DRAIN_LOOK)

    async def _start(self, workload: StoredWorkload, kind: GangJob, job: Json) -> None:
        """One patch: unsuspended, with all that the admission adds."""
        try:
            infos = infos_of(workload, self._caches.flavor)
            infos = requests.consuming(infos, self._caches.requests_of(workload))
            started = kind.started(job, infos)
            started = started if is_composed(kind) else recorded(job, started, kind, infos)
        except StartError as error:
            draft = WorkloadDraft(workload, self._context.clock.now())
            steps.finish(draft, "FailedToStart", str(error))
            await self._context.store(draft)
            self._context.tell(job, "Warning", "FailedToStart", str(error))
            return
        begun = [job]
        try:
            if is_composed(kind):
                begun = await self._groups.start(job, infos)
            else:
                await self._change(kind, job, started)
        except (Invalid, Forbidden) as error:
            message = f"the job cannot be started: {error}"
            draft = WorkloadDraft(workload, self._context.clock.now())
            steps.evict(draft, "StartRefused", message)
            draft.tell("Warning", "EvictedDueToStartRefused", message)
            at = draft.now + int(RETRY_REFUSED * SECOND)
            draft.set("requeueState", {**(draft.get("requeueState") or {}), "requeueAt": seconds_text(at)})
            await self._context.store(draft)
            return
        queue = self._caches.cluster_queue_name(workload)
        for one in begun:
            self._context.tell(one, "Normal", "Started", f"Admitted by clusterQueue {queue}")
        log.info("%s %s/%s starts", kind.kind.kind, job["metadata"]["namespace"], job["metadata"]["name"])

    async def _stop(self, kind: GangJob, job: Json, workload: StoredWorkload | None, why: str, reason: str) -> None:
        """Suspended, its templates as they were; its pods go by its own controller. `reason`: `why` in one word."""
        if is_composed(kind):
            return await self._groups.stop(job, why, reason)
        if getattr(kind, "deleted_to_stop", False):
            await pod_ends.tell(self._context, job, reason, why)
            await self._context.writer.delete(kind.kind, job)
        else:
            stopped = kind.stopped(job, pod_sets_of(workload)) if workload is not None else kind.suspended(job)
            await self._change(kind, job, stopped)
        self._context.tell(job, "Normal", "Stopped", why)
        log.info("%s %s/%s stops: %s", kind.kind.kind, job["metadata"]["namespace"], job["metadata"]["name"], why)

    async def _restore(self, kind: GangJob, job: Json, workload: StoredWorkload) -> None:
        """Put the templates back, once none of its pods is counted any more."""
        if kind.is_winding_down(job):
            return
        if (job.get("status") or {}).get("startTime"):
            change = {"status": {"startTime": None}}
            job = await self._context.writer.patch(kind.kind, job, change, subresource="status")
        await self._change(kind, job, kind.restored(job, pod_sets_of(workload)))

    async def _change(self, kind: GangJob, job: Json, wanted: Json) -> None:
        change = merge_patch(job, wanted)
        stored = await self._context.writer.patch(kind.kind, job, change)
        self._caches.jobs[kind.kind].note_write(stored)

    # --- the end

    async def _leave(self, workload: StoredWorkload, found: Found) -> float | None:
        """Deleted: the job stops, its requests go, and the name is free once no pod is left."""
        if kueue_names.IN_USE not in finalizers(workload):
            return None
        finished = is_true(workload, "Finished")
        if found is not None and not finished:
            kind, job = found
            if not kind.is_suspended(job) and kind.end(job) is None and not job["metadata"].get("deletionTimestamp"):
                await self._stop(kind, job, workload, "Workload is deleted", "WorkloadDeleted")
            elif kind.is_half_stopped(job):
                await self._restore(kind, job, workload)
        if found is not None and is_composed(found[0]):
            gone = [one for one in found[0].members(found[1]) if one["metadata"].get("deletionTimestamp")]
            await self._groups.let_go(gone)
        for request in self._caches.requests_of(workload):
            await self._context.writer.delete(kinds.PROVISIONING_REQUEST, request)
        left_at = parse_time(workload.metadata.deletion_timestamp or "")
        waited = (self._context.clock.now() - left_at) / SECOND
        may_run = found is not None or self._pods_left(workload.metadata.uid) > 0
        if may_run and not finished and waited < LONGEST_FAREWELL and not self._has_stopped(workload, found):
            return STOP_LOOK
        await self._drop_finalizer(workload)
        return None

    async def _after_the_end(self, workload: StoredWorkload) -> float | None:
        await self._provisioning.look(workload)
        await self._drop_finalizer(workload)
        keep = self._context.settings.keep_finished_seconds
        if keep is None:
            return None
        left = keep - (self._context.clock.now() - since(workload, "Finished")) / SECOND
        if left > 0:
            return left
        await self._context.writer.delete(kinds.WORKLOAD, workload.raw)
        return None

    async def _drop_finalizer(self, workload: StoredWorkload) -> None:
        held = finalizers(workload)
        if kueue_names.IN_USE not in held:
            return
        left = [one for one in held if one != kueue_names.IN_USE]
        try:
            await self._patch(workload, {"metadata": {"finalizers": left or None}})
        except NotFound:
            pass

    async def _patch(self, workload: StoredWorkload, change: Json) -> Json:
        stored = await self._context.writer.patch(kinds.WORKLOAD, workload.raw, change)
        if not stored["metadata"].get("deletionTimestamp"):
            self._caches.workloads.note_write(stored)
        return stored
