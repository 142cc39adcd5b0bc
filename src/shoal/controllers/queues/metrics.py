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
from shoal.api.quantity import show
from shoal.controllers.queues import losses
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND, WorkloadDraft
from shoal.controllers.queues.cohort_metrics import CohortSums, above, cohort_families, known
from shoal.controllers.queues.quota_metrics import quota_families, units
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.stay_metrics import StayMetrics, cause_of
from shoal.controllers.queues.stored import created_at, is_true
from shoal.controllers.queues.workloads import class_of
from shoal.engine import Engine
from shoal.engine.model import Plan
from shoal.kube.selectors import label_selector

BOUNDS = (1.0, 5.0, 10.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0, 43200.0)
_ROLE = "standalone"
_LOCAL = "kueue_local_queue_"
_CLASSED = ("cluster_queue", "priority_class")


class Waits:
    """A histogram per cluster queue and class."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], list[int]] = {}
        self.sums: Counter[tuple[str, str]] = Counter()

    def add(self, queue: tuple[str, str], microseconds: int) -> None:
        seconds = max(0, microseconds) // SECOND
        self.counts.setdefault(queue, [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1
        self.sums[queue] += seconds

    def buckets(self, queue: tuple[str, str]) -> list[tuple[str, int]]:
        total, found = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts[queue], strict=True):
            total += count
            found.append((bound, total))
        return found


class QueueMetrics:
    def __init__(
        self,
        caches: QueueCaches,
        problems: Callable[[ClusterQueue], list[tuple[str, str]]],
        engine: Engine,
        settings: QueueSettings,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._selects_local = label_selector(settings.local_queue_metrics_selector)
        self._problems = problems
        self._engine = engine
        self.reserved: Counter[tuple[str, str]] = Counter()
        self.admitted: Counter[tuple[str, str]] = Counter()
        self.finished: Counter[tuple[str, str]] = Counter()
        self.below: Counter[tuple[str, str]] = Counter()
        """Admitted Workloads by each cohort above their queue, and by class."""
        self.attempts: Counter[str] = Counter()
        self.evicted: Counter[tuple[str, str, str, str]] = Counter()
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

        named = class_of(before)
        if became("QuotaReserved"):
            self.reserved[queue, named] += 1
            self.reserved_wait.add((queue, named), waited)
        if became("Admitted"):
            self.admitted[queue, named] += 1
            self.admitted_wait.add((queue, named), waited)
            found_queue = self._caches.cluster_queue(queue)
            cohort = found_queue.spec.cohort_name if found_queue is not None else ""
            for one in above(self._caches, cohort):
                self.below[one, named] += 1
        if became("Finished"):
            self.finished[queue, named] += 1
        if became("Evicted") and is_true(before, "QuotaReserved"):
            self.evicted[queue, *cause_of(draft), named] += 1
        if became("Preempted"):
            self.preempted[draft.preempted_by, draft.reason("Preempted")] += 1
            found = self._caches.job_of(key_of(before))
            loss = losses.lost(before, found[1] if found is not None else None, draft.now)
            self.lost[queue] += loss.accelerator_seconds if loss is not None else 0

    def collect(self) -> Iterator[Any]:
        """What prometheus_client calls on a scrape."""
        tells, selector = self._settings.local_queue_metrics, self._settings.local_queue_metrics_selector
        if tells and not selector:
            yield from self._families()
            return
        told = {
            (one.metadata.name, one.metadata.namespace)
            for one in self._caches.local_queues.list()
            if tells and self._selects_local(one.metadata.labels or {})
        }
        for family in self._families():
            if family.name.startswith(_LOCAL):
                family.samples = [
                    one for one in family.samples if (one.labels.get("name"), one.labels.get("namespace")) in told
                ]
            yield family

    def _families(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, text, totals in (
            ("quota_reserved_workloads", "Workloads that got quota.", self.reserved),
            ("admitted_workloads", "Workloads that were admitted.", self.admitted),
            ("finished_workloads", "Workloads that ended.", self.finished),
        ):
            counter = CounterMetricFamily(f"kueue_{name}", text, labels=[*_CLASSED, "replica_role"])
            for key, count in sorted(totals.items()):
                counter.add_metric([*key, _ROLE], count)
            yield counter
        counter = CounterMetricFamily(
            "kueue_evicted_workloads",
            "Workloads that were evicted.",
            labels=["cluster_queue", "reason", "underlying_cause", "priority_class", "replica_role"],
        )
        for of_eviction, count in sorted(self.evicted.items()):
            counter.add_metric([*of_eviction, _ROLE], count)
        yield counter
        counter = CounterMetricFamily(
            "kueue_preempted_workloads",
            "Workloads that were preempted.",
            labels=["preempting_cluster_queue", "reason", "replica_role"],
        )
        for (queue, reason), count in sorted(self.preempted.items()):
            counter.add_metric([queue, reason, _ROLE], count)
        yield counter
        counter = CounterMetricFamily(
            "kueue_admission_attempts",
            "Plans about queues: success where a Workload got quota in it.",
            labels=["result", "replica_role"],
        )
        for result in ("success", "inadmissible"):
            counter.add_metric([result, _ROLE], self.attempts[result])
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
            spread = HistogramMetricFamily(f"kueue_{name}", text, labels=[*_CLASSED, "replica_role"])
            for key in sorted(waits.counts):
                spread.add_metric([*key, _ROLE], waits.buckets(key), waits.sums[key])
            yield spread
        yield from self._gauges(GaugeMetricFamily)
        yield from quota_families(self._caches)
        yield from cohort_families(CohortSums(self._caches), self.below)
        yield from self._shares(GaugeMetricFamily)
        yield from self._unadmitted(GaugeMetricFamily)
        yield from self._ended(GaugeMetricFamily)
        yield from self._stays.collect()

    def forget(self, queue: str) -> None:
        """The ClusterQueue is gone: another of its name begins at nought."""
        every: tuple[Counter[Any], ...] = (
            self.reserved, self.admitted, self.finished, self.evicted, self.preempted,
        )  # fmt: skip
        for counts in every:
            for key in [key for key in counts if key[0] == queue]:
                del counts[key]
        self.lost.pop(queue, None)
        for waits in (self.reserved_wait, self.admitted_wait):
            for pair in [pair for pair in waits.counts if pair[0] == queue]:
                del waits.counts[pair], waits.sums[pair]
        self._stays.forget("cluster_queue", (queue,))

    def forget_cohorts(self) -> None:
        """A cohort, or a queue of one, has changed: counts of cohorts that are no more are forgotten."""
        if self.below:
            left = set(known(self._caches))
            for key in [key for key in self.below if key[0] not in left]:
                del self.below[key]

    def forget_local(self, name: str, namespace: str) -> None:
        self._stays.forget("name", (name, namespace))

    def planned(self, plan: Plan) -> None:
        """One look at what waits, with what came of it."""
        if plan.reservations or plan.holds or plan.preempts:
            self.attempts["success" if plan.reservations else "inadmissible"] += 1

    def _shares(self, family: Any) -> Iterator[Any]:
        """Where shares are told, and not rounded as a status has them."""
        text = "Usage above nominal quota against what the cohort lends, by weight."
        of_queue = family(
            "kueue_cluster_queue_weighted_share", text, labels=["cluster_queue", "cohort", "replica_role"]
        )
        for queue in self._caches.cluster_queues.list():
            share = self._engine.exact_share("ClusterQueue", queue.metadata.name)
            if queue.status.fair_sharing is not None and share is not None:
                of_queue.add_metric([queue.metadata.name, queue.spec.cohort_name, _ROLE], share)
        of_cohort = family("kueue_cohort_weighted_share", text, labels=["cohort", "replica_role"])
        for cohort in self._caches.cohorts.list():
            share = self._engine.exact_share("Cohort", cohort.metadata.name)
            if cohort.status.fair_sharing is not None and share is not None:
                of_cohort.add_metric([cohort.metadata.name, _ROLE], share)
        yield from (of_queue, of_cohort)

    def _unadmitted(self, family: Any) -> Iterator[Any]:
        """Why Workloads are not admitted, as their conditions say it."""
        told = ["reason", "underlying_cause", "replica_role"]
        text = "Workloads that are not admitted: the reason, and what lies under it, as their conditions have them."
        of_queue = family("kueue_unadmitted_workloads", text, labels=["cluster_queue", *told])
        labels = ["name", "namespace", "cluster_queue", *told]
        of_local = family("kueue_local_queue_unadmitted_workloads", text, labels=labels)
        found: Counter[tuple[str, ...]] = Counter()
        for workload in self._caches.workloads.list():
            if is_true(workload, "Finished") or is_true(workload, "Admitted") or workload.metadata.deletion_timestamp:
                continue
            conditions = {one.type: one for one in workload.status.conditions or ()}
            admitted, quota = conditions.get("Admitted"), conditions.get("QuotaReserved")
            reason = admitted.reason if admitted is not None else "NoReservation"
            cause = "PendingEvaluation" if quota is None else quota.reason if quota.status != "True" else ""
            queue = self._caches.cluster_queue_name(workload)
            if queue:
                found[workload.spec.queue_name, workload.metadata.namespace, queue, reason, cause] += 1
        for key, count in sorted(found.items()):
            of_local.add_metric([*key, _ROLE], count)
        whole: Counter[tuple[str, ...]] = Counter()
        for key, count in found.items():
            whole[key[2:]] += count
        for key, count in sorted(whole.items()):
            of_queue.add_metric([*key, _ROLE], count)
        yield from (of_queue, of_local)

    def _ended(self, family: Any) -> Iterator[Any]:
        """Workloads that ended and are kept, beside the counts of all that ever ended."""
        kept: Counter[tuple[str, str]] = Counter()
        for workload in self._caches.workloads.list():
            if is_true(workload, "Finished"):
                kept[workload.metadata.namespace, workload.spec.queue_name] += 1
        text = "Workloads that ended and are still there."
        of_queue = family("kueue_finished_workloads", text, labels=["cluster_queue", "replica_role"])
        of_local = family("kueue_local_queue_finished_workloads", text, labels=["name", "namespace", "replica_role"])
        whole: Counter[str] = Counter()
        for local in self._caches.local_queues.list():
            count = kept[local.metadata.namespace, local.metadata.name]
            of_local.add_metric([local.metadata.name, local.metadata.namespace, _ROLE], count)
            whole[local.spec.cluster_queue] += count
        for queue in self._caches.cluster_queues.list():
            of_queue.add_metric([queue.metadata.name, _ROLE], whole[queue.metadata.name])
        yield from (of_queue, of_local)

    def _gauges(self, family: Any) -> Iterator[Any]:
        queues = self._caches.cluster_queues.list()
        pending = family(
            "kueue_pending_workloads",
            "Workloads that wait for quota: active, which would be tried, or inadmissible until something changes.",
            labels=["cluster_queue", "status", "replica_role"],
        )
        for queue in queues:
            active, aside = self._engine.waiting_counts(queue.metadata.name)
            if not is_true(queue, "Active"):
                active, aside = 0, queue.status.pending_workloads
            pending.add_metric([queue.metadata.name, "active", _ROLE], active)
            pending.add_metric([queue.metadata.name, "inadmissible", _ROLE], aside)
        yield pending
        asked = family(
            "kueue_cluster_queue_resource_pending",
            "What Workloads that wait for quota ask for.",
            labels=["cluster_queue", "resource", "replica_role"],
        )
        for queue in queues:
            covered = {name: 0 for group in queue.spec.resource_groups or () for name in group.covered_resources}
            found = {**covered, **self._engine.waiting_amounts(queue.metadata.name)}
            for resource, amount in sorted(found.items()):
                asked.add_metric([queue.metadata.name, resource, _ROLE], units(show(resource, amount)))
        yield asked
        shown = {
            "reserving_workloads": ("kueue_reserving_active_workloads", "Workloads that hold quota."),
            "admitted_workloads": ("kueue_admitted_active_workloads", "Workloads that are admitted."),
        }
        for field, (name, text) in shown.items():
            gauge = family(name, text, labels=["cluster_queue", "replica_role"])
            for queue in queues:
                gauge.add_metric([queue.metadata.name, _ROLE], getattr(queue.status, field))
            yield gauge
        status = family("kueue_cluster_queue_status", "1 for the state a queue is in.",
                        labels=["cluster_queue", "status", "replica_role"])  # fmt: skip
        for queue in queues:
            now = "terminating" if queue.metadata.deletion_timestamp else "active"
            now = "pending" if now == "active" and self._problems(queue) else now
            for one in ("pending", "active", "terminating"):
                status.add_metric([queue.metadata.name, one, _ROLE], int(one == now))
        yield status
