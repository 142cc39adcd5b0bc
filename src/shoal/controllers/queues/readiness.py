"""waitForPodsReady: is an admitted gang up, and for how long may it not be? As Kueue's `PodsReady`. Pure."""

from __future__ import annotations

from collections.abc import Callable

from shoal.api.objects import key_of
from shoal.api.times import seconds_text
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.settings import PodsReady

NOT_READY = "Not all pods are ready or succeeded"
READY = "All pods reached readiness and the workload is running"
LOST = "At least one pod has failed, waiting for recovery"


def note(draft: WorkloadDraft, ready: bool | None) -> None:
    if not draft.is_true("Admitted"):
        if draft.condition("QuotaReserved") is not None:
            draft.put("PodsReady", False, "WaitForStart", NOT_READY)
        return
    if ready is None:
        return
    was = draft.condition("PodsReady")
    if ready:
        recovered = was is not None and was.get("reason") in ("WaitForRecovery", "Recovered")
        draft.put("PodsReady", True, "Recovered" if recovered else "Started", READY)
    elif was is not None and was.get("status") == "True":
        draft.put("PodsReady", False, "WaitForRecovery", LOST)
    elif was is None or was.get("reason") != "WaitForRecovery":
        draft.put("PodsReady", False, "WaitForStart", NOT_READY)


def enforce(draft: WorkloadDraft, rules: PodsReady, evict: Callable[[WorkloadDraft, str, str, str], None]) -> None:
    """An admitted gang that is not up in time goes back to the queue, each time later; after its last try for good."""
    left = deadline(draft, rules)
    if not left or left[0] > 0:
        return
    state = dict(draft.get("requeueState") or {})
    count = int(state.get("count") or 0) + 1
    if rules.backoff_limit is not None and count > rules.backoff_limit:
        message = "exceeding the maximum number of re-queuing retries"
        draft.put("DeactivationTarget", True, "RequeuingLimitExceeded", message)
        return
    key = key_of(draft.workload)
    cause = draft.reason("PodsReady") or "WaitForStart"
    evict(draft, "PodsReadyTimeout", f"Exceeded the PodsReady timeout {key}", cause)
    wait = min(rules.backoff_most, rules.backoff_base * 2.0 ** min(count - 1, 30))
    draft.set("requeueState", {"count": count, "requeueAt": seconds_text(draft.now + int(wait * SECOND))})


def deadline(draft: WorkloadDraft, rules: PodsReady) -> list[int]:
    """Microseconds until it is given up, where it is not up."""
    if not draft.is_true("Admitted") or draft.is_true("PodsReady") or draft.is_true("Evicted"):
        return []
    recovering = draft.reason("PodsReady") == "WaitForRecovery"
    since = draft.since("PodsReady") if recovering else draft.since("Admitted")
    limit = rules.recovery_timeout if recovering else rules.timeout
    return [since + int(limit * SECOND) - draft.now]
