"""The numbers of the planning loop and of its sources for Prometheus, turned into its format only when it asks.

The Prometheus library is imported on the first call, so that a controller that is not scraped pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.controllers.planning.source import WorkloadSource
from shoal.engine import Engine


class PlanningMetrics:
    def __init__(self, engine: Engine, sources: list[WorkloadSource]) -> None:
        self._engine = engine
        self._sources = sources

    def registry(self) -> Any:
        """A prometheus_client registry that shows these numbers."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Any]:
        """What prometheus_client calls on a scrape."""
        from prometheus_client.core import GaugeMetricFamily

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
        for source in self._sources:
            yield from source.collect()
