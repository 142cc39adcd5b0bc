"""Kueue's counts for Prometheus, under its names: plain numbers, turned into its format only when Prometheus asks.

Fed with every status that was stored: what it changed is what is counted, so nothing is counted that did not happen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from shoal.api.kueue import ClusterQueue
from shoal.api.objects import key_of
from shoal.controllers.queues import losses
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.quota_metrics import quota_families
from shoal.controllers.queues.stay_metrics import StayMetrics
from shoal.controllers.queues.stored import created_at, is_true

BOUNDS = (1.0, 5.0, 10.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0, 43200.0)
_ROLE = "standalone"


class Waits:
    """A histogram per cluster queue."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self.sums: Counter[str] = Counter()

    def add(self, queue: str, microseconds: int) -> None:
        seconds = max(0, microseconds) // SECOND
        self.counts.setdefault(queue, [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1
        self.sums[queue] += seconds

    def buckets(self, queue: str) -> list[tuple[str, int]]:
        total, found = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts[queue], strict=True):
            total += count
            found.append((bound, total))
        return found


class QueueMetrics:
    def __init__(self, caches: QueueCaches, problems: Callable[[ClusterQueue], list[tuple[str, str]]]) -> None:
        self._caches = caches
        self._problems = problems
        self.reserved: Counter[str] = Counter()
        self.admitted: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.evicted: Counter[tuple[str, str]] = Counter()
        self.preempted: Counter[tuple[str, str]] = Counter()
        self.lost: Counter[str] = Counter()
        self.reserved_wait, self.admitted_wait = Waits(), Waits()
        self._stays = StayMetrics(caches)

    def stored(self, draft: WorkloadDraft) -> None:
        """A Workload's status was written."""
        before = draft.workload
        admission = draft.get("admission") or {}
        queue = str(admission.get("clusterQueue") or self._caches.cluster_queue_name(before))
        waited = draft.now - created_at(before)
        self._stays.stored(draft, queue)

        def became(kind: str) -> bool:
            return draft.is_true(kind) and not is_true(before, kind)

        if became("QuotaReserved"):
            self.reserved[queue] += 1
            self.reserved_wait.add(queue, waited)
        if became("Admitted"):
            self.admitted[queue] += 1
            self.admitted_wait.add(queue, waited)
        if became("Finished"):
            self.finished[queue] += 1
        if became("Evicted") and is_true(before, "QuotaReserved"):
            self.evicted[queue, draft.reason("Evicted")] += 1
        if became("Preempted"):
            self.preempted[queue, draft.reason("Preempted")] += 1
            found = self._caches.job_of(key_of(before))
            loss = losses.lost(before, found[1] if found is not None else None, draft.now)
            self.lost[queue] += loss.accelerator_seconds if loss is not None else 0

    def collect(self) -> Iterator[Any]:
        """What prometheus_client calls on a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, text, totals in (
            ("quota_reserved_workloads", "Workloads that got quota.", self.reserved),
            ("admitted_workloads", "Workloads that were admitted.", self.admitted),
            ("finished_workloads", "Workloads that ended.", self.finished),
        ):
            counter = CounterMetricFamily(f"kueue_{name}", text, labels=["cluster_queue", "replica_role"])
            for queue, count in sorted(totals.items()):
                counter.add_metric([queue, _ROLE], count)
            yield counter
        for name, label, text, pairs in (
            ("evicted_workloads", "reason", "Workloads that were evicted.", self.evicted),
            ("preempted_workloads", "reason", "Workloads that were preempted.", self.preempted),
        ):
            which = "preempting_cluster_queue" if name.startswith("preempted") else "cluster_queue"
            counter = CounterMetricFamily(f"kueue_{name}", text, labels=[which, label, "replica_role"])
            for (queue, reason), count in sorted(pairs.items()):
                counter.add_metric([queue, reason, _ROLE], count)
            yield counter
        text = "Accelerator-seconds that preempted Workloads had done and not saved."
        wasted = CounterMetricFamily("shoal_preemption_lost_accelerator_seconds", text, labels=["cluster_queue"])
        for queue, seconds in sorted(self.lost.items()):
            wasted.add_metric([queue], seconds)
        yield wasted
        for name, text, waits in (
            ("quota_reserved_wait_time_seconds", "From creation to quota.", self.reserved_wait),
            ("admission_wait_time_seconds", "From creation to admission.", self.admitted_wait),
        ):
            spread = HistogramMetricFamily(f"kueue_{name}", text, labels=["cluster_queue", "replica_role"])
            for queue in sorted(waits.counts):
                spread.add_metric([queue, _ROLE], waits.buckets(queue), waits.sums[queue])
            yield spread
        yield from self._gauges(GaugeMetricFamily)
        yield from quota_families(self._caches)
        yield from self._stays.collect()

    def _gauges(self, family: Any) -> Iterator[Any]:
        shown = {
            "pending_workloads": ("kueue_pending_workloads", "Workloads that wait for quota."),
            "reserving_workloads": ("kueue_reserving_active_workloads", "Workloads that hold quota."),
            "admitted_workloads": ("kueue_admitted_active_workloads", "Workloads that are admitted."),
        }
        queues = self._caches.cluster_queues.list()
        for field, (name, text) in shown.items():
            is_pending = field == "pending_workloads"
            labels = ["cluster_queue", *(["status"] if is_pending else []), "replica_role"]
            gauge = family(name, text, labels=labels)
            for queue in queues:
                state = ["active" if is_true(queue, "Active") else "inadmissible"] if is_pending else []
                gauge.add_metric([queue.metadata.name, *state, _ROLE], getattr(queue.status, field))
            yield gauge
        status = family("kueue_cluster_queue_status", "1 for the state a queue is in.",
                        labels=["cluster_queue", "status", "replica_role"])  # fmt: skip
        for queue in queues:
            now = "terminating" if queue.metadata.deletion_timestamp else "active"
            now = "pending" if now == "active" and self._problems(queue) else now
            for one in ("pending", "active", "terminating"):
                status.add_metric([queue.metadata.name, one, _ROLE], int(one == now))
        yield status
