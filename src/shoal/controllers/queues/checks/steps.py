"""The steps of a Workload's life, each a change of its status: reserve, admit, evict, release, finish.

Called by the reconciler on a Draft; conditions, reasons and texts are Kueue's, because users and tools read them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.api.gang import PREEMPTED_FOR
from shoal.api.meta import Json
from shoal.api.quantity import show
from shoal.controllers.queues.checks.draft import SECOND, Draft
from shoal.engine.kueue import stored_placement
from shoal.engine.model import PodSetAssignment

PREVIOUSLY = "Previously: "
RETURNS_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which a gang may be considered again right away."""


def reserve(draft: Draft, cluster_queue: str, assignment: Sequence[PodSetAssignment]) -> None:
    draft.set("admission", {"clusterQueue": cluster_queue, "podSetAssignments": [_given(one) for one in assignment]})
    draft.put("QuotaReserved", True, "QuotaReserved", f"Quota reserved in ClusterQueue {cluster_queue}")
    if draft.is_true("Evicted"):
        forget_answers(draft)
    for kind in ("Evicted", "Preempted", "BlockedOnPreemptionGates"):
        if draft.is_true(kind):
            text = draft.message(kind).removeprefix(PREVIOUSLY)
            draft.put(kind, False, "QuotaReserved", PREVIOUSLY + text)
    draft.set("resourceRequests", None)


def place(draft: Draft, assignment: Sequence[PodSetAssignment]) -> None:
    """Its pods have other places, or places at last: nothing else of its admission changes."""
    admission = dict(draft.get("admission") or {})
    admission["podSetAssignments"] = [_given(one) for one in assignment]
    draft.set("admission", admission)
    draft.set("unhealthyNodes", None)


def admit(draft: Draft) -> None:
    draft.put("Admitted", True, "Admitted", "The workload is admitted")


def no_room(draft: Draft, message: str) -> None:
    """Quota and checks said yes; its pods cannot be placed now."""
    draft.put("Admitted", False, "WaitingForRoom", message)


def unadmit(draft: Draft, reason: str, message: str) -> None:
    if not draft.is_true("Admitted"):
        return
    spent = max(0, draft.now - draft.since("Admitted")) // SECOND
    total = int(draft.get("accumulatedPastExecutionTimeSeconds") or 0) + spent
    draft.set("accumulatedPastExecutionTimeSeconds", total)
    draft.put("Admitted", False, reason, message)


def evict(draft: Draft, reason: str, message: str, cause: str = "") -> None:
    """It has to stop. It keeps its quota until its job has."""
    draft.put("Evicted", True, reason, message)
    for name in ("clusterName", "nominatedClusterNames", "unhealthyNodes"):
        draft.set(name, None)
    forget_answers(draft)
    _count_eviction(draft, reason, cause)


def forget_answers(draft: Draft) -> None:
    """Checks answer for one attempt: what they said about the last, or say while it ends, is not about the next."""
    draft.set("admissionChecks", [_reset(one, draft) for one in draft.get("admissionChecks") or ()])


def preempt(draft: Draft, reason: str, message: str, preemptor: str) -> None:
    """`preemptor` is the gang that it makes way for, as it is stored in this namespace; the message is for people."""
    evict(draft, "Preempted", message)
    draft.put("Preempted", True, reason, message)
    draft.annotations[PREEMPTED_FOR] = f"{preemptor}@{(draft.condition('Evicted') or {}).get('lastTransitionTime')}"


def release(draft: Draft, reason: str, message: str) -> None:
    """Its quota is free for others."""
    draft.set("admission", None)
    draft.put("QuotaReserved", False, reason, message)
    unadmit(draft, "NoReservation", "The workload has no reservation")
    if draft.condition("Admitted") is not None:
        draft.put("Admitted", False, "NoReservation", "The workload has no reservation")


def give_back(draft: Draft) -> None:
    """The job of an evicted gang has stopped: it waits again, at once or when told."""
    reason, message = draft.reason("Evicted"), draft.message("Evicted")
    draft.put("Requeued", reason in RETURNS_AT_ONCE, reason, message)
    release(draft, "PendingEvaluation", message)


def wait(draft: Draft, reason: str, message: str, requests: Iterable[Json] = ()) -> None:
    """It was looked at and has to wait. Written only where reason or text differ from what is there."""
    draft.put("QuotaReserved", False, reason, message)
    draft.set("resourceRequests", list(requests))


def finish(draft: Draft, reason: str, message: str) -> None:
    draft.put("Finished", True, reason, message)


def _given(one: PodSetAssignment) -> Json:
    made: Json = {"name": one.name, "count": one.count}
    if one.flavors:
        made["flavors"] = dict(one.flavors)
    if one.usage:
        made["resourceUsage"] = {name: show(name, amount) for name, amount in sorted(one.usage.items())}
    if one.topology is not None:
        made["topologyAssignment"] = stored_placement(one.topology)
    if one.delayed_topology:
        made["delayedTopologyRequest"] = one.delayed_topology
    return made


def _reset(check: Json, draft: Draft) -> Json:
    state = check.get("state")
    if state == "Pending":
        return check
    made = {
        "name": check["name"],
        "state": "Pending",
        "lastTransitionTime": draft.moment(check),
        "message": f"Reset to Pending after eviction. Previously: {state}",
    }
    if check.get("requeueAfterSeconds") is not None:
        made["requeueAfterSeconds"] = check["requeueAfterSeconds"]
    if state == "Retry":
        made["retryCount"] = int(check.get("retryCount") or 0) + 1
    return made


def _count_eviction(draft: Draft, reason: str, cause: str) -> None:
    reason = "Deactivated" if cause and reason == f"DeactivatedDueTo{cause}" else reason
    stats = dict(draft.get("schedulingStats") or {})
    entries = [dict(one) for one in stats.get("evictions") or ()]
    for one in entries:
        if (one.get("reason"), one.get("underlyingCause") or "") == (reason, cause):
            one["count"] = int(one.get("count") or 0) + 1
            break
    else:
        entries.append({"reason": reason, "underlyingCause": cause, "count": 1})
    draft.set("schedulingStats", {**stats, "evictions": entries})
