"""What became of a dispatched gang: pods counted, items completed, limits passed.

Pure: reads the AppWrapper, its pods and its wrapped objects, returns a verdict. MCAD polls for these once a minute;
we are called when something changed, and say when to be called again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from shoal.api.appwrapper import AppWrapper, AppWrapperStatus, GenericItem, PendingPod, Requeuing
from shoal.api.codec import sealed
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.planning.pods import GangPod
from shoal.controllers.planning.words import printable
from shoal.errors import BadInput

SECOND = 1_000_000
GPU = "nvidia.com/gpu"
MOST_LISTED = 50
"""Unschedulable pods listed in a status; a status never grows with the size of a gang."""


class WrappedPodCounts(msgspec.Struct, frozen=True, kw_only=True):
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    unbound: int = 0
    unbound_since: int = 0
    """Since when the one that has been without a node longest could have had one."""
    seen_since: int = 0
    """When we first saw one of those without a node."""
    bound_at: int = 0
    """When we last saw a pod get its node."""
    cpu: int = 0
    memory: int = 0
    gpu: int = 0
    unschedulable: tuple[tuple[str, str], ...] = ()
    """Name and message of pods that the scheduler could not place."""
    unschedulable_conditions: tuple[tuple[str, tuple[Json, ...]], ...] = ()

    @property
    def live(self) -> int:
        return self.pending + self.running

    @property
    def bound(self) -> int:
        """On a node, or done there."""
        return self.live - self.unbound + self.succeeded

    @property
    def only_pending(self) -> bool:
        """Pods are on their way, and none of them failed or is unschedulable."""
        return not (self.running or self.succeeded or self.failed or self.unschedulable)


def count(pods: Iterable[GangPod]) -> WrappedPodCounts:
    """Pods by phase; totals over those that run or succeeded. A running pod that is being deleted counts no more."""
    tally = {"Pending": 0, "Running": 0, "Succeeded": 0, "Failed": 0}
    totals = {"cpu": 0, "memory": 0, GPU: 0}
    unbound = 0
    unbound_since = seen_since = bound_at = 0
    unschedulable: list[tuple[str, str]] = []
    conditions: list[tuple[str, tuple[Json, ...]]] = []
    for pod in sorted(pods, key=lambda one: one.fact.name):
        fact = pod.fact
        bound_at = max(bound_at, pod.bound_since)
        if fact.phase == "Running" and fact.deleting:
            continue
        if fact.phase in tally:
            tally[fact.phase] += 1
        if fact.phase in ("Running", "Succeeded"):
            for name in totals:
                totals[name] += fact.requests.get(name, 0)
        if fact.phase == "Pending" and not fact.node and not fact.deleting:
            unbound += 1
            unbound_since = min(unbound_since or pod.unbound_since, pod.unbound_since)
            seen_since = min(seen_since or pod.seen_since, pod.seen_since)
            if pod.refusals:
                unschedulable.append((fact.name, printable(str(pod.refusals[-1].get("message") or ""))))
                conditions.append((fact.name, pod.refusals))
    return WrappedPodCounts(
        pending=tally["Pending"],
        running=tally["Running"],
        succeeded=tally["Succeeded"],
        failed=tally["Failed"],
        unbound=unbound,
        unbound_since=unbound_since,
        seen_since=seen_since,
        bound_at=bound_at,
        cpu=totals["cpu"],
        memory=totals["memory"],
        gpu=totals[GPU],
        unschedulable=tuple(unschedulable),
        unschedulable_conditions=tuple(conditions[:MOST_LISTED]),
    )


def with_counts(status: AppWrapperStatus, counts: WrappedPodCounts) -> AppWrapperStatus:
    """Counts and totals; never the sender, the queue state or the conditions."""
    return msgspec.structs.replace(
        status,
        pending=counts.pending,
        running=counts.running,
        succeeded=counts.succeeded,
        failed=counts.failed,
        total_cpu=counts.cpu,
        total_memory=counts.memory,
        total_gpu=counts.gpu,
        pending_pod_conditions=tuple(
            PendingPod(pod_name=name, conditions=sealed(list(refusals)))
            for name, refusals in counts.unschedulable_conditions
        )
        or None,
    )


# --- completion


def completion(items: Sequence[GenericItem], objects: Sequence[Json | None]) -> str | None:
    """What completed every item that names a completion status, such as `Complete`; None while one is not done."""
    matched: list[str] = []
    watched = [(item, obj) for item, obj in zip(items, objects, strict=True) if item.completion_status.strip()]
    for item, obj in watched:
        found = _completed_by(item.completion_status, obj) if obj is not None else None
        if found is None:
            return None
        matched.append(found)
    return ", ".join(dict.fromkeys(matched)) if watched else None


def _completed_by(wanted: str, obj: Json) -> str | None:
    """The condition type that ends this item: an exact match before one that merely contains the token."""
    tokens = [token.strip().lower() for token in wanted.split(",") if token.strip()]
    types = [*true_conditions(obj), *_told_otherwise(obj)]
    for matches in (lambda type, token: type == token, lambda type, token: token in type):
        for type in types:
            if any(matches(type.lower(), token) for token in tokens):
                return type
    return None


def true_conditions(obj: Json) -> list[str]:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return [
        str(one.get("type") or "")
        for one in conditions
        if isinstance(one, dict) and one.get("status", "True") in ("True", True)
    ]


def _told_otherwise(obj: Json) -> list[str]:
    """Kinds that report their end through other fields, as the condition types that Jobs use."""
    status: dict[str, Any] = obj.get("status") or {}
    ends = {"SUCCEEDED": ["Complete"], "FAILED": ["Failed"], "STOPPED": ["Failed"]}
    match obj.get("kind"):
        case "RayJob":
            return ends.get(str(status.get("jobStatus")), [])
        case "RayCluster":
            return ["Failed"] if status.get("state") == "failed" else []
        case "Pod":
            return {"Succeeded": ["Complete"], "Failed": ["Failed"]}.get(str(status.get("phase")), [])
    return []


# --- limits


class PodsVerdict(msgspec.Struct, frozen=True):
    """What to do about a running gang, and after how many seconds to look again when nothing else happens."""

    action: Literal["none", "requeue", "give up", "deadline"] = "none"
    reason: str = ""
    message: str = ""
    again: float | None = None


def judge_duration(wrapper: AppWrapper, now: int) -> PodsVerdict:
    """Run time since the first dispatch against `dispatchDuration.limit`; requeues do not reset it."""
    limit = wrapper.spec.scheduling_spec.dispatch_duration.limit
    started = wrapper.status.controller_first_dispatch_timestamp
    if limit <= 0 or not started:
        return PodsVerdict()
    left = _moment(started) + limit * SECOND - now
    return PodsVerdict("deadline") if left <= 0 else PodsVerdict(again=left / SECOND)


def judge_minimum(wrapper: AppWrapper, counts: WrappedPodCounts, enough_until: int, now: int) -> PodsVerdict:
    """Fewer pods running or succeeded than `minAvailable`, for longer than the grace: back to the queue.

    The grace starts over when pods get their nodes (an image may take long) and when there were enough until just now
    (one that is being replaced is not a failure).
    """
    least = wrapper.spec.scheduling_spec.min_available
    if least <= 0 or wrapper.status.state != "Running" or counts.running + counts.succeeded >= least:
        return PodsVerdict()
    requeuing = wrapper.spec.scheduling_spec.requeuing
    wait = wrapper.status.requeueing_time_in_seconds or requeuing.time_in_seconds
    left = max(_grace_base(wrapper.status), counts.bound_at, enough_until) + wait * SECOND - now
    if left > 0:
        return PodsVerdict(again=left / SECOND)
    message = (
        "Insufficient number of Running and Completed pods, "
        f"minimum={least}, running={counts.running}, completed={counts.succeeded}."
    )
    done = wrapper.status.number_of_requeueings + requeuing.num_requeuings
    if requeuing.max_num_requeuings > 0 and done >= requeuing.max_num_requeuings:
        return PodsVerdict("give up", "MinPodsNotRunning", message)
    return PodsVerdict("requeue", "MinPodsNotRunning", message)


def judge_binding(wrapper: AppWrapper, counts: WrappedPodCounts, limit: float, now: int, size: int = 0) -> PodsVerdict:
    """Pods of a gang that are not all bound in time: the whole gang goes back, with the scheduler's reason.

    `size` is what it was admitted with: once so many are bound, a pod without a node is growth, and what runs stays.
    Where no scheduler has said or bound anything yet, as after an upgrade of the whole cluster, the time before we saw
    the pods does not count: nothing could have bound them.
    """
    if limit <= 0 or wrapper.status.state != "Running" or not counts.unbound or 0 < size <= counts.bound:
        return PodsVerdict()
    heard = counts.bound or counts.unschedulable
    since = counts.unbound_since if heard else max(counts.unbound_since, counts.seen_since)
    left = max(last_dispatch(wrapper.status), since) + int(limit * SECOND) - now
    if left > 0:
        return PodsVerdict(again=left / SECOND)
    message = f"Pods failed scheduling failed={counts.unbound}, running={counts.running}."
    if counts.unschedulable:
        name, reason = counts.unschedulable[0]
        message = f"{message} {name}: {reason}"
    return PodsVerdict("requeue", "PodsFailedScheduling", printable(message))


def next_wait(requeuing: Requeuing, requeued: int) -> int:
    """Seconds of grace after the n-th requeue: T·2ⁿ, T·(n+1) or T, capped."""
    base = requeuing.time_in_seconds
    factors: dict[str, int] = {"exponential": 1 << min(requeued, 40), "linear": requeued + 1}
    grown = base * factors.get(requeuing.growth_type, 1)
    return min(grown, requeuing.max_time_in_seconds) if requeuing.max_time_in_seconds > 0 else grown


def last_dispatch(status: AppWrapperStatus) -> int:
    """The moment of the newest start; 0 when there was none."""
    times = [one.last_transition_micro_time for one in status.conditions or () if one.type == "Dispatched"]
    return max((_moment(time) for time in times), default=0)


def _grace_base(status: AppWrapperStatus) -> int:
    """The later of the last dispatch and the last condition in the list."""
    conditions = status.conditions or ()
    last = conditions[-1].last_transition_micro_time if conditions else None
    return max(last_dispatch(status), _moment(last))


def _moment(text: str | None) -> int:
    try:
        return parse_time(text) if text else 0
    except BadInput:
        return 0
