"""Whether a Workload may stand in its queue at all, beside quota and room: gates, queues that are gone or stopped.

Called by the state machine with a Draft; conditions, reasons and texts are Kueue's. Reads caches, decides no quota. A
plan says the rest of a gang in its queue.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api.kueue_names import GATED_BY
from shoal.api.objects import annotation
from shoal.controllers.queues.caches import QueueCaches, is_stopped
from shoal.controllers.queues.checks import steps
from shoal.controllers.queues.checks.draft import WorkloadDraft

GATED = "AdmissionGated"
PENDING = "Workload is pending evaluation in the scheduling queue"
NO_RESERVATION = ("NoReservation", "The workload has no reservation")
UNSATISFIED = ("UnsatisfiedAdmissionChecks", "The workload has not all checks ready")
OUT_OF_QUEUE = ("Misconfigured", "Suspended")
"""Reasons of a plan about gangs that it does not look at."""
_OUTDATED = ("Deactivated", "Pending", "Inadmissible", "OnHold")
"""Reasons that say nothing any more of a gang that is in its queue."""


def gate(draft: WorkloadDraft) -> bool:
    """True while other controllers hold it back by name: it gets no quota, or gives it back unused."""
    gates = annotation(draft.workload, GATED_BY)
    if gates and draft.is_true("Admitted"):
        return False
    was_gated = draft.reason("QuotaReserved") == GATED
    if gates:
        steps.release(draft, GATED, f"Admission is gated by: {gates}")
        if not was_gated:
            draft.tell("Normal", GATED, f"Workload admission is gated by: {gates}")
        return True
    if was_gated:
        steps.release(draft, "PendingEvaluation", "AdmissionGatedBy cleared, waiting for quota reservation")
        draft.tell("Normal", "AdmissionGateCleared", "Admission gate cleared, workload is now admissible")
    return was_gated


def drain(draft: WorkloadDraft, caches: QueueCaches, evict: Callable[[WorkloadDraft, str, str], None]) -> bool:
    """A stopped queue lets an admitted gang go on unless it drains, and takes quota back that is not used yet."""
    workload, admitted = draft.workload, draft.is_true("Admitted")
    for queue in (caches.local_queue(workload), caches.cluster_queue_of(workload)):
        if queue is None or not is_stopped(queue):
            continue
        if admitted and queue.spec.stop_policy == "HoldAndDrain":
            evict(draft, f"{queue.kind}Stopped", f"The {queue.kind} is stopped")
            return True
        if not admitted:
            steps.release(draft, "Suspended", f"{queue.kind} {queue.metadata.name} is stopped")
            return True
    return False


def release_lost(draft: WorkloadDraft, caches: QueueCaches) -> None:
    """Quota of a queue that is gone, or on its way, is given back by a gang that still waits for its checks.

    Without checks to wait for, Kueue has admitted it: such a reservation is not taken away under its writer's hands.
    """
    if all(one.get("state") == "Ready" for one in draft.get("admissionChecks") or ()):
        return
    if draft.is_true("Admitted") or not draft.is_true("QuotaReserved") or draft.is_true("DeactivationTarget"):
        return
    workload = draft.workload
    named = (
        ("LocalQueue", workload.spec.queue_name, caches.local_queue(workload)),
        ("ClusterQueue", caches.cluster_queue_name(workload), caches.cluster_queue_of(workload)),
    )
    for kind, name, queue in named:
        if queue is None or queue.metadata.deletion_timestamp:
            steps.release(draft, "Misconfigured", f"{kind} {name} is terminating or missing")
            return


def renew(draft: WorkloadDraft, caches: QueueCaches, *, explicit: bool) -> None:
    """It is in its queue, and what stands there is from before: it will be looked at. `explicit`: of new ones, too."""
    if not _is_in_queue(draft, caches):
        return
    reason, message = draft.reason("QuotaReserved"), draft.message("QuotaReserved")
    about_queue = reason in OUT_OF_QUEUE and message.startswith(("LocalQueue ", "ClusterQueue "))
    is_new = draft.condition("QuotaReserved") is None
    if reason in _OUTDATED or about_queue or (is_new and explicit):
        draft.put("QuotaReserved", False, "PendingEvaluation", PENDING)


def note_admitted(draft: WorkloadDraft, *, checks_ready: bool | None) -> None:
    """`Admitted` says why not. `checks_ready` is None where that is not known yet."""
    if draft.is_true("Admitted") or draft.condition("QuotaReserved") is None:
        return
    if not draft.is_true("QuotaReserved"):
        draft.put("Admitted", False, *NO_RESERVATION)
    elif checks_ready is False:
        draft.put("Admitted", False, *UNSATISFIED)


def _is_in_queue(draft: WorkloadDraft, caches: QueueCaches) -> bool:
    local, cluster = caches.local_queue(draft.workload), caches.cluster_queue_of(draft.workload)
    there = draft.workload.spec.active and local is not None and cluster is not None
    return there and not any(is_stopped(one) for one in (local, cluster) if one is not None)
