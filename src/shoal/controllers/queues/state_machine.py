"""What a stored Workload is due next: the state machine, from facts and decisions to one new status.

Called by the reconciler with a Draft; every step may change it, and the first that ends the gang's stay ends the look.
Decides nothing about quota or room: that is in the plan. Reads no clock but the draft's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_told import PODS_MISSING
from shoal.api.meta import Json
from shoal.api.objects import key_of
from shoal.api.quantity import show
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.planning.lacking import Lacking
from shoal.controllers.planning.naming import discreet, in_plain_words, is_same_cause
from shoal.controllers.planning.preemptors import stored_preemptor, told_preemptor
from shoal.controllers.queues import backfill, checks, losses, readiness, recovery, standing
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks import steps
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.stored import StoredWorkload, created_at, is_true
from shoal.controllers.queues.telling import Telling
from shoal.engine.line import Recovery
from shoal.engine.model import Gang, Preempt

NODE_FAILURES = "NodeFailures"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the gang beside its Workload."""

    gang: Gang
    stopped: bool
    """Its job is suspended and none of its pods is left, or nothing of it can have been started."""
    ready: bool | None = None
    """Are all its pods ready? None where no setting asks for it."""
    lacking: Lacking | None = None
    """Its pods without a node, where it runs and some should have one."""
    reclaimable: dict[str, int] | None = None
    """Pod set name to pods that are done and need no quota any more. None where its own controller says so itself."""


class StateMachine:
    def __init__(
        self,
        caches: QueueCaches,
        decisions: Decisions,
        settings: QueueSettings,
        recovers: Callable[[int], Recovery],
        telling: Telling,
        clusters_of: Callable[[str], Sequence[str]] = lambda uid: (),
    ) -> None:
        """`recovers(now)`: which incomplete gang goes back, because it keeps another from being whole.
        `clusters_of(uid)`: the other clusters that were chosen for a gang with its quota."""
        self._clusters_of = clusters_of
        self._caches = caches
        self._telling = telling
        self._recovers = recovers
        self._decisions = decisions
        self._settings = settings

    def advance(self, draft: WorkloadDraft, now_is: Situation) -> float | None:
        """Bring the draft to where it belongs now. Returns seconds until time alone changes that."""
        cluster_queue = self._caches.cluster_queue_of(draft.workload)
        known = draft.get("admissionChecks")
        self._sync_checks(draft, cluster_queue)
        synced = draft.get("admissionChecks") != known
        self._note_retries(draft)
        held_off = False
        if not draft.workload.spec.active:
            self._deactivate(draft)
        elif standing.gate(draft):
            held_off = True
        elif draft.is_true("QuotaReserved") and not draft.is_true("Evicted"):
            self._end_stay(draft, now_is)
        ready = None if synced else _are_ready(draft)
        was_started = is_true(draft.workload, "Admitted") and not is_true(draft.workload, "Evicted")
        if draft.is_true("QuotaReserved") and draft.is_true("Evicted") and now_is.stopped and not was_started:
            steps.give_back(draft)
            backfill.forget(draft)
            recovery.pause(draft)
            self._sync_checks(draft, cluster_queue)
            held_off = True  # this is stored first; then it waits as any other
        if not draft.is_true("QuotaReserved") and not held_off:
            self._wait(draft, now_is.gang, cluster_queue)
            if synced and draft.is_true("QuotaReserved"):
                ready = _are_ready(draft)  # with the reservation, in one status
        if draft.is_true("QuotaReserved") and not draft.is_true("Evicted"):
            self._admit(draft, now_is.gang, cluster_queue)
            standing.release_lost(draft, self._caches)
        standing.note_admitted(draft, checks_ready=ready)
        self._reclaim(draft, now_is.reclaimable)
        recovery.note(draft, now_is.lacking)
        if self._settings.pods_ready is not None:
            readiness.note(draft, now_is.ready)
        return self._next_look(draft, now_is.lacking)

    # --- checks

    def _sync_checks(self, draft: WorkloadDraft, cluster_queue: ClusterQueue | None) -> None:
        if cluster_queue is None:
            return
        admission = draft.get("admission") if draft.is_true("QuotaReserved") else None
        used = checks.flavors_granted(admission) if admission is not None else None
        wanted = checks.applying(checks.rules_of(cluster_queue), checks.flavors_of(cluster_queue), used)
        checks.sync(draft, wanted)

    def _note_retries(self, draft: WorkloadDraft) -> None:
        """A workload that was told to try again later is not considered before that, however often it is told."""
        moments = [
            parse_time(one["lastTransitionTime"]) + int(one.get("requeueAfterSeconds") or 0) * SECOND
            for one in checks.in_state(draft, "Retry")
            if one.get("lastTransitionTime")
        ]
        state = dict(draft.get("requeueState") or {})
        if moments and seconds_text(max(moments)) > str(state.get("requeueAt") or ""):
            draft.set("requeueState", {**state, "requeueAt": seconds_text(max(moments))})

    # --- the end of a stay

    def _deactivate(self, draft: WorkloadDraft) -> None:
        """First it is evicted, whether it holds quota or not; then it waits, until a user switches it on again."""
        if draft.is_true("Evicted"):
            draft.set("requeueState", None)
            if not draft.is_true("QuotaReserved"):
                draft.put("QuotaReserved", False, "Deactivated", "The workload is deactivated")
            return
        target = draft.condition("DeactivationTarget")
        cause = str((target or {}).get("reason") or "")
        message = "The workload is deactivated"
        if target is not None:
            message += f" due to {target.get('message') or ''}"
            draft.drop("DeactivationTarget")
        reason = f"DeactivatedDueTo{cause}" if cause else "Deactivated"
        had_quota = draft.get("admission") is not None
        steps.evict(draft, reason, message, cause)
        if had_quota:
            draft.tell("Normal", f"EvictedDueTo{reason}", message)
        draft.set("requeueState", None)

    def _end_stay(self, draft: WorkloadDraft, now_is: Situation) -> None:
        """Whatever makes a gang with quota leave; the gravest first."""
        rejected, again = checks.in_state(draft, "Rejected"), checks.in_state(draft, "Retry")
        preempt = self._decisions.preempt(now_is.gang.key, now_is.gang.uid)
        if rejected:
            message = checks.listed(rejected, "Rejected")
            draft.put("DeactivationTarget", True, "AdmissionCheck", message)
            draft.tell("Warning", "AdmissionCheckRejected", f"Deactivated due to {message}")
        elif again:
            self._evict(draft, "AdmissionCheck", f"Evicted due to {checks.listed(again, 'Retry')}")
        elif preempt is not None and preempt.term == NODE_FAILURES:
            self._evict(draft, NODE_FAILURES, preempt.message)
        elif preempt is not None:
            self._preempt(draft, preempt)
        elif standing.drain(draft, self._caches, self._evict):
            pass
        elif self._is_over_time(draft):
            limit = draft.workload.spec.maximum_execution_time_seconds
            message = "exceeding the maximum execution time"
            draft.put("DeactivationTarget", True, "MaximumExecutionTimeExceeded", message)
            draft.set("accumulatedPastExecutionTimeSeconds", None)
            draft.tell("Warning", "MaximumExecutionTimeExceeded", f"The maximum execution time ({limit}s) exceeded")
        elif now_is.lacking is not None and (helped := self._goes_back_for(draft)):
            wait = f"{self._settings.recovery_seconds:g} s"
            message = f"{now_is.lacking.message}; this for {wait}, and {helped} would be whole without it"
            self._evict(draft, recovery.REASON, message)
        elif self._settings.pods_ready is not None:
            readiness.enforce(draft, self._settings.pods_ready, self._evict)

    def _goes_back_for(self, draft: WorkloadDraft) -> str:
        """The gang that would be whole without this one, which has been incomplete for too long; empty: it may stay."""
        limit = self._settings.recovery_seconds
        late = limit and draft.is_true(PODS_MISSING) and draft.since(PODS_MISSING) + int(limit * SECOND) <= draft.now
        found = self._recovers(draft.now) if late else None
        if found is None or found.uid != draft.workload.metadata.uid:
            return ""
        return discreet(in_plain_words(found.helped, self._caches.known_as), draft.workload.metadata.namespace)

    def _evict(self, draft: WorkloadDraft, reason: str, message: str, cause: str = "") -> None:
        steps.evict(draft, reason, message, cause)
        draft.tell("Normal", f"EvictedDueTo{reason}", message)

    def _preempt(self, draft: WorkloadDraft, preempt: Preempt) -> None:
        namespace = draft.workload.metadata.namespace
        message = told_preemptor(preempt, namespace)
        found = self._caches.job_of(key_of(draft.workload))
        job = found[1] if found is not None else None
        loss = losses.lost(draft.workload, job, draft.now)
        if loss is not None:
            losses.note(draft, loss, bool(losses.saved_at(job)))
        steps.preempt(draft, preempt.term, message, stored_preemptor(preempt, namespace))
        preemptor = self._workload_of(preempt.preemptor)
        if preemptor is not None:
            draft.preemptor = preemptor.raw
            draft.preempted_by = self._caches.cluster_queue_name(preemptor)
        draft.tell("Normal", "EvictedDueToPreempted", message)
        draft.tell("Normal", "Preempted", message)

    def _workload_of(self, gang: str) -> StoredWorkload | None:
        """None for a gang of another line, or that is gone."""
        kind, _, name = gang.partition("/")
        return self._caches.workloads.get(Key(*name.split("/"))) if kind == kinds.WORKLOAD.kind else None

    def _stopped(self, draft: WorkloadDraft) -> tuple[str, str, str] | None:
        """Kind, name and policy of a queue above it that is stopped."""
        return self._caches.stopped_queue(draft.workload)

    def _is_over_time(self, draft: WorkloadDraft) -> bool:
        left = self._time_left(draft)
        return left is not None and left <= 0

    def _time_left(self, draft: WorkloadDraft) -> int | None:
        """Microseconds until it has run for too long; None without a limit."""
        limit = draft.workload.spec.maximum_execution_time_seconds
        if limit is None or not draft.is_true("Admitted"):
            return None
        spent = int(draft.get("accumulatedPastExecutionTimeSeconds") or 0) * SECOND
        return limit * SECOND - spent - (draft.now - draft.since("Admitted"))

    # --- waiting

    def _wait(self, draft: WorkloadDraft, gang: Gang, cluster_queue: ClusterQueue | None) -> None:
        """Without quota: what is told of it, unless it is let back into its queue just now, or not yet."""
        before = draft.reason("Requeued")
        pauses = self._pauses(draft)
        if checks.in_state(draft, "Retry") and not pauses:  # about an attempt that is over
            steps.forget_answers(draft)
        self._requeue(draft)
        reserved = self._decisions.reservation(gang.key, gang.uid) is not None
        if reserved or not (pauses or draft.reason("Requeued") != before):
            self._reserve(draft, gang, cluster_queue)

    def _pauses(self, draft: WorkloadDraft) -> bool:
        """Is it to be considered later?"""
        at = (draft.get("requeueState") or {}).get("requeueAt")
        return bool(at) and parse_time(at) > draft.now

    def _requeue(self, draft: WorkloadDraft) -> None:
        """Back-offs that have ended, queues that run again, gangs that were switched on again."""
        state = dict(draft.get("requeueState") or {})
        if state.get("requeueAt") and parse_time(state["requeueAt"]) <= draft.now:
            state.pop("requeueAt")
            draft.set("requeueState", state)
        found = draft.condition("Requeued")
        if found is None or found.get("status") != "False" or not draft.workload.spec.active:
            return
        match draft.reason("Requeued"):
            case "PodsReadyTimeout" | "AdmissionCheck" | "StartRefused":
                if not state.get("requeueAt"):
                    draft.put("Requeued", True, "BackoffFinished", "The workload backoff was finished")
            case "ClusterQueueStopped" | "LocalQueueStopped" as reason:
                if self._stopped(draft) is None:
                    kind = reason.removesuffix("Stopped")
                    draft.put("Requeued", True, f"{kind}Restarted", f"The {kind} was restarted after being stopped")
            case reason if reason.startswith("Deactivated"):
                draft.put("Requeued", True, "Reactivated", "The workload was reactivated")

    def _reserve(self, draft: WorkloadDraft, gang: Gang, cluster_queue: ClusterQueue | None) -> None:
        if not draft.workload.spec.active:
            return
        reservation = self._decisions.reservation(gang.key, gang.uid)
        if reservation is not None:
            steps.reserve(draft, reservation.queue, reservation.assignment)
            backfill.note_reservation(draft, reservation)
            if clusters := self._clusters_of(gang.uid):
                draft.set("nominatedClusterNames", list(clusters))
            self._sync_checks(draft, self._caches.cluster_queue(reservation.queue) or cluster_queue)
            waited = max(0, draft.now - created_at(draft.workload)) // SECOND
            message = f"Quota reserved in ClusterQueue {reservation.queue}, wait time since queued was {waited}s"
            draft.tell("Normal", "QuotaReserved", message)
            return
        hold = self._decisions.hold(gang.key, gang.uid)
        if hold is not None and hold.term and self._telling.is_due(gang, draft.now):
            reason, message = draft.reason("QuotaReserved"), draft.message("QuotaReserved")
            asked = _asked(gang) if hold.term not in standing.OUT_OF_QUEUE else ()
            steps.wait(draft, hold.term, hold.explanation.message, asked)
            if reason != hold.term or not is_same_cause(message, draft.message("QuotaReserved")):
                draft.tell("Warning", hold.term, hold.explanation.message)
        elif hold is None:
            standing.renew(draft, self._caches, explicit=self._settings.explicit_status)

    def _admit(self, draft: WorkloadDraft, gang: Gang, cluster_queue: ClusterQueue | None) -> None:
        if self._decisions.turn(gang.key, gang.uid) is not None:
            backfill.note_turn(draft)
        moved = self._decisions.places(gang.key, gang.uid)
        if moved is not None:
            steps.place(draft, moved.assignment)
        admission = draft.get("admission") or {}
        queue = self._caches.cluster_queue(str(admission.get("clusterQueue") or "")) or cluster_queue
        used = checks.flavors_granted(admission)
        ready = checks.are_ready(draft, checks.applying(checks.rules_of(queue), checks.flavors_of(queue), used))
        if draft.is_true("Admitted"):
            return  # a check that changes its mind evicts; one that was added later does not stop what runs
        if ready and any(one.get("delayedTopologyRequest") == "Pending" for one in admission["podSetAssignments"]):
            message = "There are pending delayed topology requests"
            draft.put("Admitted", False, "PendingDelayedTopologyRequests", message)
            return
        if ready and self._decisions.admit(gang.key, gang.uid) is not None:
            steps.admit(draft)
            waited = max(0, draft.now - draft.since("QuotaReserved")) // SECOND
            name = admission.get("clusterQueue")
            message = f"Admitted by ClusterQueue {name}, wait time since reservation was {waited}s"
            draft.tell("Normal", "Admitted", message)
            return
        hold = self._decisions.no_room(gang.key, gang.uid)
        if ready and hold is not None:
            before = draft.message("Admitted")
            message = in_plain_words(hold.explanation.message, self._caches.known_as)
            message = discreet(message, draft.workload.metadata.namespace)
            steps.no_room(draft, message)
            if not is_same_cause(before, draft.message("Admitted")):
                draft.tell("Warning", "WaitingForRoom", message)
        elif not ready and draft.reason("Admitted") == "WaitingForRoom":
            draft.put("Admitted", False, "UnsatisfiedAdmissionChecks", "The workload has not all checks ready")

    def _reclaim(self, draft: WorkloadDraft, reclaimable: dict[str, int] | None) -> None:
        """Quota of pods that are done goes back at once, and is not asked for again after an eviction.

        While quota is held the counts never fall: what was given back may be another's.
        """
        if reclaimable is None:
            return
        known = {one["name"]: int(one.get("count") or 0) for one in draft.get("reclaimablePods") or ()}
        sizes = {one.name: one.count for one in draft.workload.spec.pod_sets}
        told = {name: min(count, sizes[name]) for name, count in reclaimable.items() if name in sizes}
        if draft.is_true("QuotaReserved"):
            told = {name: max(told.get(name, 0), known.get(name, 0)) for name in {**known, **told}}
        if told != known:
            draft.set("reclaimablePods", [{"name": name, "count": count} for name, count in sorted(told.items())])

    # --- time

    def _next_look(self, draft: WorkloadDraft, lacking: Lacking | None) -> float | None:
        moments = recovery.next_look(draft, lacking, self._settings.recovery_seconds)
        at = (draft.get("requeueState") or {}).get("requeueAt")
        if at and not draft.is_true("QuotaReserved"):
            moments.append(parse_time(at) - draft.now)
        left = self._time_left(draft)
        if left is not None:
            moments.append(left)
        if self._settings.pods_ready is not None:
            moments += readiness.deadline(draft, self._settings.pods_ready)
        return max(0.05, min(moments) / SECOND) if moments else None


def _are_ready(draft: WorkloadDraft) -> bool:
    return all(one.get("state") == "Ready" for one in draft.get("admissionChecks") or ())


def _asked(gang: Gang) -> list[Json]:
    """What a waiting gang asked for when it was looked at last, in all."""
    return [
        {
            "name": one.name,
            "resources": {name: show(name, amount * one.count) for name, amount in sorted(one.charged.items())},
        }
        for one in gang.pod_sets
    ]
