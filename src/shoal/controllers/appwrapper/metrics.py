"""Counts for Prometheus: kept as plain numbers, turned into its format only when Prometheus asks.

The Prometheus library is imported on the first call, so that a controller that is not scraped pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shoal.controllers.planning.spread import Spread
from shoal.engine.model import Amounts

WAIT_BOUNDS = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)
DISPATCH_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class AppWrapperMetrics:
    def __init__(self) -> None:
        self.wait = Spread(WAIT_BOUNDS)
        self.dispatch = Spread(DISPATCH_BOUNDS)
        self.requeues: dict[str, int] = {}
        self.preemptions: dict[str, int] = {}
        self.failures = 0
        self._used: Callable[[], Amounts] = dict

    def measure(self, used: Callable[[], Amounts]) -> None:
        """`used` gives what is used by resource, at the moment of asking."""
        self._used = used

    def admitted(self, waited: float) -> None:
        self.wait.add(max(0.0, waited))

    def dispatched(self, seconds: float) -> None:
        self.dispatch.add(max(0.0, seconds))

    def requeued(self, reason: str) -> None:
        self.requeues[reason] = self.requeues.get(reason, 0) + 1

    def preempted(self, cause: str) -> None:
        self.preemptions[cause] = self.preemptions.get(cause, 0) + 1

    def failed(self) -> None:
        self.failures += 1

    def collect(self) -> Iterator[Any]:
        """What prometheus_client calls on a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        gauge = GaugeMetricFamily(
            "shoal_used", "What the pods of admitted gangs request. cpu in milli.", labels=["resource"]
        )
        for resource, amount in sorted(self._used().items()):
            gauge.add_metric([resource], amount)
        yield gauge
        for name, text, spread in (
            ("shoal_appwrapper_wait_seconds", "From first sight to admission.", self.wait),
            ("shoal_appwrapper_dispatch_seconds", "From admission to the last object created.", self.dispatch),
        ):
            yield HistogramMetricFamily(name, text, buckets=spread.buckets(), sum_value=spread.sum)
        for name, text, label, counts in (
            ("shoal_appwrapper_requeues", "Gangs taken back to the queue.", "reason", self.requeues),
            ("shoal_appwrapper_preemptions", "Gangs that were preempted.", "cause", self.preemptions),
        ):
            counter = CounterMetricFamily(name, text, labels=[label])
            for value, count in sorted(counts.items()):
                counter.add_metric([value], count)
            yield counter
        yield CounterMetricFamily("shoal_appwrapper_failures", "AppWrappers that ended as Failed.", value=self.failures)
