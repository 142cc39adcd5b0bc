"""An AppWrapper's status, step by step, in the words that MCAD's users and scripts match on.

Pure: each function takes a status and returns the next one. The order of conditions, their reasons (stray dots
included) and `sender` are contracts; what we add beside them (`message`, `admission`, counts) never touches those.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.api.appwrapper import AppWrapperCondition, AppWrapperStatus
from shoal.api.times import micro_text
from shoal.controllers.appwrapper.status.admission import StoredAdmission, ended, read, write

INSUFFICIENT_RESOURCES = "Insufficient resources to dispatch AppWrapper."
INSUFFICIENT_QUOTA = "Insufficient quota and/or resources to dispatch AppWrapper."
NO_CLUSTER = "Cannot find a cluster with enough resources to dispatch AppWrapper."
NOT_RUNNABLE = "AppWrapperNotRunnable."
QUOTA_EXCEEDED = "quota limit exceeded"
PREEMPTION_TRIGGERED = "PreemptionTriggered"

HAD_ITS_CHANCE = frozenset({"MinPodsNotRunning", "PodsFailedScheduling", "ItemCreationFailure."})
"""Why a gang is taken back that had room and could not use it. One that makes way for another did nothing wrong."""
TERMINAL = frozenset({"Completed", "Failed", "Deleted"})
KEPT_CONDITIONS = 50

# HeadOfLine and Backoff are told apart by their message too; the others by type and reason alone.
_BY_MESSAGE = frozenset({"HeadOfLine", "Backoff"})

_BEFORE_START = frozenset({"Init", "Queueing", "HeadOfLine", "Backoff", "PreemptCandidate"})
"""What a hub itself has to say of an AppWrapper that runs in another cluster."""
_NO_PRIORITY = AppWrapperStatus().system_priority  # left out as in MCAD: only the very same nought is
Now = Callable[[], int]
replace = msgspec.structs.replace


def first_seen(status: AppWrapperStatus, priority: int, now: Now) -> AppWrapperStatus:
    """Init and Queueing, persisted together."""
    seen = ranked(replace(status, controller_first_timestamp=micro_text(now())), float(priority))
    return queued(_with(seen, "Init", now), now)


def queued(status: AppWrapperStatus, now: Now) -> AppWrapperStatus:
    """Entered the queue, for the first time or again; what the last run counted is forgotten."""
    first = not any(condition.type == "Queueing" for condition in status.conditions or ())
    waiting = replace(
        status,
        state="Pending",
        queue_job_state="Queueing" if first else status.queue_job_state,
        sender="before worker - setQueueing",
        filter_ignore=True,
        can_run=False,
        is_dispatched=False,
        pending=0,
        running=0,
        succeeded=0,
        failed=0,
        pending_pod_conditions=None,
    )
    return _with(waiting, "Queueing", now, "AwaitingHeadOfLine")


def ranked(status: AppWrapperStatus, priority: float) -> AppWrapperStatus:
    """The priority that the queue went by; a spec may be edited while it waits, and age may count."""
    return replace(status, system_priority=priority or _NO_PRIORITY)


def head_of_line(status: AppWrapperStatus, now: Now) -> AppWrapperStatus:
    headed = replace(status, queue_job_state="HeadOfLine", sender="before ScheduleNext - setHOL")
    return _with(headed, "HeadOfLine", now, "FrontOfQueue.")


def admitted(status: AppWrapperStatus, admission: StoredAdmission, now: Now) -> AppWrapperStatus:
    """The decision, stored before the first object exists."""
    before = read(status.admission)
    numbered = replace(admission, epoch=before.epoch + 1, setbacks=before.setbacks)
    return replace(
        head_of_line(status, now),
        can_run=True,
        sender="before ScheduleNext - setCanRun",
        message="",
        explanation="",
        admission=write(numbered),
    )


def dispatched(status: AppWrapperStatus, now: Now) -> AppWrapperStatus:
    """Every wrapped object was created."""
    moment = now()
    running = replace(
        status,
        state="Running",
        queue_job_state="Dispatched",
        can_run=True,
        sender="before manageQueueJob - afterEtcdDispatching",
        message="",
        controller_first_dispatch_timestamp=status.controller_first_dispatch_timestamp or micro_text(moment),
    )
    return _with(running, "Dispatched", now, "AppWrapperRunnable")


def sent(status: AppWrapperStatus, now: Now, cluster: str) -> AppWrapperStatus:
    """Its copy exists in another cluster, which queues and runs it."""
    return replace(
        status,
        is_dispatched=True,
        sender="before [manageQueueJob] [Dispatcher]  -- set dispatched true",
        message=f"sent to cluster {cluster}",
        controller_first_dispatch_timestamp=status.controller_first_dispatch_timestamp or micro_text(now()),
    )


def mirrored(status: AppWrapperStatus, there: AppWrapperStatus) -> AppWrapperStatus:
    """What its copy in another cluster says, beside what was said here before it was sent."""
    own = [one for one in status.conditions or () if one.type in _BEFORE_START]
    told = [one for one in there.conditions or () if one.type not in _BEFORE_START]
    return replace(
        status,
        state=there.state or status.state,
        queue_job_state=there.queue_job_state or status.queue_job_state,
        can_run=there.state not in TERMINAL,
        conditions=(*own, *told),
        pending=there.pending,
        running=there.running,
        succeeded=there.succeeded,
        failed=there.failed,
        message=there.message,
        pending_pod_conditions=there.pending_pod_conditions,
        total_cpu=there.total_cpu,
        total_memory=there.total_memory,
        total_gpu=there.total_gpu,
        requeueing_time_in_seconds=there.requeueing_time_in_seconds,
        number_of_requeueings=there.number_of_requeueings,
    )


def backed_off(
    status: AppWrapperStatus, now: Now, *, sender: str, quota: bool = False, nowhere: bool = False
) -> AppWrapperStatus:
    """Not enough room or quota. The literal message stays as scripts know it; the explanation beside it says more."""
    waiting = replace(status, state="Pending", queue_job_state="Backoff", can_run=False, sender=sender)
    if quota:
        return _with(waiting, "Backoff", now, QUOTA_EXCEEDED, INSUFFICIENT_QUOTA)
    return _with(waiting, "Backoff", now, NOT_RUNNABLE, NO_CLUSTER if nowhere else INSUFFICIENT_RESOURCES)


def preempt_candidate(
    status: AppWrapperStatus, now: Now, *, reason: str, message: str, sender: str
) -> AppWrapperStatus:
    """Chosen to give its room back: `canrun` falls first, the objects go next, the queue follows."""
    marked = _with(status, "PreemptCandidate", now, reason, message)
    stopping = replace(read(status.admission), stopping=reason)
    marked = replace(
        marked, can_run=False, queue_job_state="Backoff", sender=sender, message=message, admission=write(stopping)
    )
    return _with(marked, "Backoff", now, PREEMPTION_TRIGGERED, message)


def failed(status: AppWrapperStatus, now: Now, *, message: str) -> AppWrapperStatus:
    """An item could not be created. Terminal; the other items are removed."""
    ended = replace(
        status,
        state="Failed",
        queue_job_state="Failed",
        can_run=False,
        sender="before manageQueueJob - afterEtcdDispatching",
        message=message,
        pending=0,
        running=0,
    )
    return _append(ended, "Failed", now, "ItemCreationFailure.", message)


def deadline_exceeded(status: AppWrapperStatus, now: Now, *, limit: int) -> AppWrapperStatus:
    """Ran longer than `dispatchDuration.limit`. Terminal."""
    message = f"Dispatch deadline exceeded. allowed to run for {limit} seconds"
    ended = replace(
        status,
        state="Failed",
        queue_job_state="Failed",
        can_run=False,
        pending=0,
        running=0,
        message=message,
        sender="before PreemptQueueJobs - CanRun: false -- DispatchDeadlineExceeded",
    )
    return _with(ended, "PreemptCandidate", now, "DispatchDeadlineExceeded", message)


def held_for_completion(status: AppWrapperStatus, now: Now) -> AppWrapperStatus:
    """All watched items are done, pods remain."""
    held = replace(
        status,
        state="RunningHoldCompletion",
        queue_job_state="RunningHoldCompletion",
        sender="before [UpdateQueueJobs]  setRunningHoldCompletion",
    )
    return _with(held, "RunningHoldCompletion", now, "SomeItemsCompleted")


def completed(status: AppWrapperStatus, now: Now, *, message: str = "") -> AppWrapperStatus:
    """Done, and no pod is left: room and quota are free. Terminal."""
    ended = replace(
        status,
        state="Completed",
        queue_job_state="Completed",
        can_run=False,
        sender="before [UpdateQueueJobs] setCompleted",
        message=message,
    )
    return _with(ended, "Completed", now, "PodsCompleted", message)


def given_up(status: AppWrapperStatus, *, message: str) -> AppWrapperStatus:
    """The budget of requeuings is used up: objects removed, the AppWrapper stays. Terminal."""
    ended = replace(status, state="Deleted", queue_job_state="Deleted", can_run=False, message=message)
    return replace(ended, pending=0, running=0)


def making_room_for(status: AppWrapperStatus, preemptor: str) -> AppWrapperStatus:
    """Remember the gang that the freed room is for."""
    return replace(status, admission=write(replace(read(status.admission), stopping_for=preemptor)))


def set_back(status: AppWrapperStatus, resume_at: int) -> AppWrapperStatus:
    """A start came to nothing: count it, and do not try again before that moment."""
    record = read(status.admission)
    counted = replace(record, setbacks=record.setbacks + 1, resume_at=resume_at)
    return replace(status, admission=write(counted))


def reseated(status: AppWrapperStatus, admission: StoredAdmission) -> AppWrapperStatus:
    return replace(status, admission=write(admission))


def back_in_queue(status: AppWrapperStatus, now: Now, *, aside: int = 0) -> AppWrapperStatus:
    """Every object of the last run is gone: it waits again, with its old place in the line.

    One that had its chance and could not use it stands aside for so many microseconds: else it would get the very room
    that it left, before any gang that could use it, for ever.
    """
    record = read(status.admission)
    kept = ended(record)
    if record.stopping in HAD_ITS_CHANCE:
        kept = replace(kept, resume_at=max(kept.resume_at, now() + aside))
    return queued(replace(status, admission=write(kept)), now)


def was_told(status: AppWrapperStatus) -> bool:
    """Has it been told before that it must wait?"""
    return any(one.type == "Backoff" for one in status.conditions or ())


def is_terminal(status: AppWrapperStatus) -> bool:
    return status.state in TERMINAL


def is_stopping(status: AppWrapperStatus) -> bool:
    """Its run was called off, and what it had may still be there."""
    if status.can_run or is_terminal(status):
        return False
    return status.state not in ("", "Pending") or bool(read(status.admission).stopping)


def _with(status: AppWrapperStatus, type: str, now: Now, reason: str = "", message: str = "") -> AppWrapperStatus:
    """Record a condition: where it first stood if it is known, at the end if not."""
    updated, transitioned = now(), now()
    conditions = list(status.conditions or ())
    for index, known in enumerate(conditions):
        if known.type == type and known.reason == reason and (type not in _BY_MESSAGE or known.message == message):
            moved = known.last_transition_micro_time if type in _BY_MESSAGE else micro_text(transitioned)
            conditions[index] = replace(
                known, message=message, last_update_micro_time=micro_text(updated), last_transition_micro_time=moved
            )
            return replace(status, conditions=tuple(conditions))
    return _append(status, type, now, reason, message)


def _append(status: AppWrapperStatus, type: str, now: Now, reason: str, message: str) -> AppWrapperStatus:
    updated, transitioned = now(), now()
    fresh = AppWrapperCondition(
        type=type,
        status="True",
        reason=reason,
        message=message,
        last_update_micro_time=micro_text(updated),
        last_transition_micro_time=micro_text(transitioned),
    )
    conditions = (*(status.conditions or ()), fresh)
    if len(conditions) > KEPT_CONDITIONS:
        conditions = (conditions[0], *conditions[-(KEPT_CONDITIONS - 1) :])
    return replace(status, conditions=conditions)
