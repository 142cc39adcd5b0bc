"""The numbers of the planning loop and of its sources for Prometheus, turned into its format only when it asks.

The Prometheus library is imported on the first call, so that a controller that is not scraped pays nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from shoal.controllers.planning.decision_log import DecisionLog
from shoal.controllers.planning.source import WorkloadSource
from shoal.engine import Engine

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class PlanningMetrics:
    def __init__(self, engine: Engine, sources: list[WorkloadSource], decisions: DecisionLog) -> None:
        self._engine = engine
        self._decisions = decisions
        self._took_over = 0.0
        self._sources = sources
        self._took = {result: [0] * (len(BOUNDS) + 1) for result in ("success", "inadmissible")}
        self._seconds = dict.fromkeys(self._took, 0.0)

    def planned(self, seconds: float, admits: bool) -> None:
        """A plan was made, and let some gang start or none."""
        result = "success" if admits else "inadmissible"
        self._took[result][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[result] += seconds

    def took_over(self, seconds: float) -> None:
        """The first plan of this leader was made."""
        self._took_over = seconds

    def registry(self) -> Any:
        """A prometheus_client registry that shows these numbers."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Any]:
        """What prometheus_client calls on a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        took = HistogramMetricFamily(
            "shoal_plan_duration_seconds", "How long one plan for all gangs takes.", labels=["result"]
        )
        for result, counts in self._took.items():
            sums = list(zip((*map(str, BOUNDS), "+Inf"), accumulate(counts), strict=True))
            took.add_metric([result], sums, self._seconds[result])
        yield took
        yield CounterMetricFamily(
            "shoal_engine_cycles", "Cycles over quota and room that plans took.", self._engine.cycles
        )
        text = "From the start of leading until the first plan; 0 before that."
        yield GaugeMetricFamily("shoal_take_over_seconds", text, value=self._took_over)
        waiting = self._engine.waiting
        yield GaugeMetricFamily("shoal_appwrappers_waiting", "AppWrappers in the queue.", value=waiting)
        reserved = GaugeMetricFamily(
            "shoal_reserved",
            "Room kept for pods of admitted gangs that do not exist yet. cpu in milli.",
            labels=["resource"],
        )
        for resource, amount in sorted(self._engine.reserved.items()):
            reserved.add_metric([resource], amount)
        yield reserved
        for name, text, amounts in (
            ("shoal_allocatable", "What all nodes offer. cpu in milli.", self._engine.allocatable),
            ("shoal_room", "Free on all nodes, less what is planned there. cpu in milli.", self._engine.free_room),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["resource"])
            for resource, amount in sorted(amounts.items()):
                gauge.add_metric([resource], amount)
            yield gauge
        for name, text, spread in (
            ("shoal_decision_store_seconds", "From a decision until the watch shows it stored.", self._decisions.store),
            (
                "shoal_hand_over_seconds",
                "From the end of a gang until the start of the next is stored.",
                self._decisions.hand_over,
            ),
            (
                "shoal_estimate_error_seconds",
                "Between the first estimate of a start that users were told and the start.",
                self._decisions.estimate_error,
            ),
        ):
            yield HistogramMetricFamily(name, text, buckets=spread.buckets(), sum_value=spread.sum)
        for source in self._sources:
            yield from source.collect()
