"""The rarer of Kueue's counts, under its names and labels: by LocalQueue, and how long each part of a stay took.

Fed by `metrics` with every status that was stored. Times are between conditions as they are stored, in whole seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.cohort_metrics import known
from shoal.controllers.queues.stored import created_at, is_true, since
from shoal.controllers.queues.workloads import class_of

BOUNDS = (1.0, *(2.5 * 2.0**step for step in range(15)))
_ROLE = "standalone"
_QUEUE = ("cluster_queue", "priority_class")
_LOCAL = ("name", "namespace", "priority_class")

COUNTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "evicted_workloads_once": (
        "Workloads that were evicted for the first time for this reason and cause.",
        ("cluster_queue", "reason", "underlying_cause", "priority_class"),
    ),
    "local_queue_quota_reserved_workloads": ("Workloads of a LocalQueue that got quota.", _LOCAL),
    "local_queue_admitted_workloads": ("Workloads of a LocalQueue that were admitted.", _LOCAL),
    "local_queue_finished_workloads": ("Workloads of a LocalQueue that ended.", _LOCAL),
    "local_queue_evicted_workloads": (
        "Workloads of a LocalQueue that were evicted.",
        ("name", "namespace", "reason", "underlying_cause", "priority_class"),
    ),
}  # fmt: skip
TIMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "admission_checks_wait_time_seconds": ("From quota to admission.", _QUEUE),
    "execution_time_seconds": ("From admission to the end.", _QUEUE),
    "ready_wait_time_seconds": ("From creation until all pods are ready.", _QUEUE),
    "admitted_until_ready_wait_time_seconds": ("From admission until all pods are ready.", _QUEUE),
    "pods_ready_to_evicted_time_seconds": (
        "From ready pods to the eviction.", ("cluster_queue", "reason", "underlying_cause"),
    ),
    "workload_eviction_latency_seconds": ("From the eviction until its quota is free.", ("cluster_queue", "reason")),
    "local_queue_quota_reserved_wait_time_seconds": ("From creation to quota, by LocalQueue.", _LOCAL),
    "local_queue_admission_wait_time_seconds": ("From creation to admission, by LocalQueue.", _LOCAL),
    "local_queue_admission_checks_wait_time_seconds": ("From quota to admission, by LocalQueue.", _LOCAL),
    "local_queue_execution_time_seconds": ("From admission to the end, by LocalQueue.", _LOCAL),
    "local_queue_ready_wait_time_seconds": ("From creation until all pods are ready, by LocalQueue.", _LOCAL),
    "local_queue_admitted_until_ready_wait_time_seconds": (
        "From admission until all pods are ready, by LocalQueue.", _LOCAL,
    ),
}  # fmt: skip


class StayMetrics:
    def __init__(self, caches: QueueCaches) -> None:
        self._caches = caches
        self._counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in COUNTS}
        self._times: dict[str, dict[tuple[str, ...], list[int]]] = {name: {} for name in TIMES}
        self._sums: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def stored(self, draft: WorkloadDraft, queue: str) -> None:
        """A Workload's status was written; `queue`: the ClusterQueue that it holds quota of, or would."""
        before, now = draft.workload, draft.now
        named = class_of(before)
        local = (before.spec.queue_name, before.metadata.namespace)
        whole, part = (queue, named), (*local, named)

        def became(kind: str, holds: bool = True) -> bool:
            return draft.is_true(kind) is holds and is_true(before, kind) is not holds

        def took(name: str, start: int, labels: tuple[str, ...] = whole, own: bool = True) -> None:
            self._add(name, labels, now - start)
            if own:
                self._add(f"local_queue_{name}", part, now - start)

        if became("QuotaReserved"):
            self._counts["local_queue_quota_reserved_workloads"][part] += 1
            self._add("local_queue_quota_reserved_wait_time_seconds", part, now - created_at(before))
        if became("Admitted"):
            self._counts["local_queue_admitted_workloads"][part] += 1
            self._add("local_queue_admission_wait_time_seconds", part, now - created_at(before))
            took("admission_checks_wait_time_seconds", draft.since("QuotaReserved"))
        if became("PodsReady") and is_true(before, "Admitted"):
            took("ready_wait_time_seconds", created_at(before))
            took("admitted_until_ready_wait_time_seconds", since(before, "Admitted"))
        if became("Finished"):
            self._counts["local_queue_finished_workloads"][part] += 1
            if is_true(before, "Admitted"):
                took("execution_time_seconds", since(before, "Admitted"))
        reason = draft.reason("Evicted")
        if became("Evicted") and is_true(before, "QuotaReserved"):
            cause = cause_of(draft)
            self._counts["local_queue_evicted_workloads"][*local, *cause, named] += 1
            if cause not in _evictions((before.raw.get("status") or {}).get("schedulingStats")):
                self._counts["evicted_workloads_once"][queue, *cause, named] += 1
            if is_true(before, "PodsReady"):
                took("pods_ready_to_evicted_time_seconds", since(before, "PodsReady"), (queue, *cause), own=False)
        if became("QuotaReserved", holds=False) and is_true(before, "Evicted"):
            took("workload_eviction_latency_seconds", since(before, "Evicted"), (queue, reason), own=False)

    def forget(self, label: str, values: tuple[str, ...]) -> None:
        """A queue is gone: `label` is the first of the metrics that tell of it, `values` its names there."""
        for name, (_, labels) in (*COUNTS.items(), *TIMES.items()):
            if labels[0] != label:
                continue
            counts: dict[tuple[str, ...], Any] = self._counts[name] if name in COUNTS else self._times[name]
            for key in [key for key in counts if key[: len(values)] == values]:
                del counts[key]
                self._sums.pop((name, key), None)

    def _add(self, name: str, labels: tuple[str, ...], microseconds: int) -> None:
        seconds = max(0, microseconds) // SECOND
        counts = self._times[name].setdefault(labels, [0] * (len(BOUNDS) + 1))
        counts[bisect_left(BOUNDS, seconds)] += 1
        self._sums[name, labels] += seconds

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        for name, (text, labels) in COUNTS.items():
            counter = CounterMetricFamily(f"kueue_{name}", text, labels=[*labels, "replica_role"])
            for values, count in sorted(self._counts[name].items()):
                counter.add_metric([*values, _ROLE], count)
            yield counter
        for name, (text, labels) in TIMES.items():
            spread = HistogramMetricFamily(f"kueue_{name}", text, labels=[*labels, "replica_role"])
            for values, counts in sorted(self._times[name].items()):
                spread.add_metric([*values, _ROLE], _buckets(counts), self._sums[name, values])
            yield spread
        yield from self._hierarchy()

    def _hierarchy(self) -> Iterator[Any]:
        """What a query joins queues and cohorts by."""
        from prometheus_client.core import GaugeMetricFamily

        above = ["parent_cohort", "root_cohort", "replica_role"]
        queues = GaugeMetricFamily("kueue_cluster_queue_info", "1; the cohorts above a queue.",
                                   labels=["cluster_queue", *above])  # fmt: skip
        for queue in self._caches.cluster_queues.list():
            parent = queue.spec.cohort_name
            queues.add_metric([queue.metadata.name, parent, self._root(parent), _ROLE], 1)
        yield queues
        cohorts = GaugeMetricFamily("kueue_cohort_info", "1; the cohorts above a cohort.", labels=["cohort", *above])
        parents = {one.metadata.name: one.spec.parent_name for one in self._caches.cohorts.list()}
        for name in known(self._caches):
            cohorts.add_metric([name, parents.get(name, ""), self._root(name), _ROLE], 1)
        yield cohorts
        states = GaugeMetricFamily("kueue_local_queue_status", "1 for whether a LocalQueue is active.",
                                   labels=["name", "namespace", "active", "replica_role"])  # fmt: skip
        for local in self._caches.local_queues.list():
            conditions = {one.type: one.status for one in local.status.conditions or ()}
            now = conditions.get("Active", "Unknown")
            for one in ("True", "False", "Unknown"):
                states.add_metric([local.metadata.name, local.metadata.namespace, one, _ROLE], int(one == now))
        yield states

    def _root(self, cohort: str) -> str:
        seen: list[str] = []
        while cohort and cohort not in seen:
            seen.append(cohort)
            found = self._caches.cohorts.get(Key("", cohort))
            cohort = found.spec.parent_name if found is not None else ""
        return seen[-1] if seen else ""


def cause_of(draft: WorkloadDraft) -> tuple[str, str]:
    """Reason of an eviction and what lies under it: the entry of `schedulingStats` that this eviction counts in."""
    before = _evictions((draft.workload.raw.get("status") or {}).get("schedulingStats"))
    for cause, count in _evictions(draft.get("schedulingStats")).items():
        if count > before.get(cause, 0):
            return cause
    return draft.reason("Evicted"), ""


def _evictions(stats: Json | None) -> dict[tuple[str, str], int]:
    """How often for each reason and cause."""
    entries = (stats or {}).get("evictions") or ()
    return {(one["reason"], one.get("underlyingCause") or ""): int(one.get("count") or 0) for one in entries}


def _buckets(counts: list[int]) -> list[tuple[str, int]]:
    total, found = 0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, total))
    return found
