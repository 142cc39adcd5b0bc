"""Health, readiness and metrics over HTTP, for probes and Prometheus.

Alive means that the event loop answers. Ready means that every check says so; the answer names those that do not.
Probes need no token; metrics name queues and what they use, and are for users that a review lets read them. The
metrics library is loaded with the first scrape and may be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aiohttp import web

from shoal.kube.cache import Cache
from shoal.kube.scraping import ScrapeReview
from shoal.kube.writes import Writes

METRICS = "/metrics"
Check = Callable[[], str | None]
"""None when all is well, else what is wrong."""
Sample = tuple[str, str, dict[str, str], float]
"""Name, help, labels and value of one counter (its name ends with `_total`) or gauge."""


class HealthServer:
    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._sources: list[Callable[[], Iterable[Sample]]] = []
        self._families: list[Callable[[], Iterable[Any]]] = []
        self._registry: Any = None
        self._runner: web.AppRunner | None = None
        self.review: ScrapeReview | None = None
        """Who may read metrics; None: anyone who reaches the port."""

    def require(self, name: str, check: Check) -> None:
        """Not ready while this check names a trouble."""
        self._checks[name] = check

    def add_metrics(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Counters and gauges, read at each scrape."""
        self._sources.append(source)

    def add_families(self, source: Callable[[], Iterable[Any]]) -> None:
        """Metric families of prometheus_client, for what needs more than counters and gauges."""
        self._families.append(source)

    def troubles(self) -> dict[str, str]:
        """What keeps us from being ready."""
        said = {name: check() for name, check in self._checks.items()}
        return {name: trouble for name, trouble in said.items() if trouble}

    async def start(self, host: str = "127.0.0.1", port: int = 8081) -> int:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get(METRICS, self.metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        troubles = self.troubles()
        lines = [f"[-] {name}: {troubles[name]}" if name in troubles else f"[+] {name}" for name in self._checks]
        return web.Response(
            status=503 if troubles else 200, text="\n".join([*lines, "not ready" if troubles else "ready", ""])
        )

    async def metrics(self, request: web.Request) -> web.Response:
        if self.review is not None:
            refusal = await self.review.refusal(request.headers.get("Authorization", ""), METRICS)
            if refusal is not None:
                asked = {"WWW-Authenticate": "Bearer"} if refusal.code == 401 else {}
                return web.Response(status=refusal.code, text=f"{refusal.message}\n", headers=asked)
        try:
            import prometheus_client
        except ImportError:
            return web.Response(
                status=501, text="metrics need the prometheus-client package: pip install shoal-ray[controller]\n"
            )
        if self._registry is None:
            self._registry = prometheus_client.CollectorRegistry()
            self._registry.register(_Collector(self._sources, self._families))
            prometheus_client.ProcessCollector(registry=self._registry)
        now = prometheus_client.CollectorRegistry()
        now.register(_Collected(list(self._registry.collect())))
        body = await asyncio.to_thread(prometheus_client.generate_latest, now)  # seconds of it with a thousand queues
        return web.Response(body=body, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})


class _Collected:
    """Families as they were at one moment, to be written out while the controller goes on."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


class _Collector:
    """Turns the samples of all sources into metric families at each scrape."""

    def __init__(
        self, sources: list[Callable[[], Iterable[Sample]]], families: list[Callable[[], Iterable[Any]]]
    ) -> None:
        self._sources = sources
        self._families = families

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        sums: dict[tuple[str, tuple[str, ...]], float] = {}
        for source in self._sources:
            for name, help, labels, value in source():
                if name not in families:
                    make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    families[name] = make(name, help, labels=list(labels))
                series = (name, tuple(labels.values()))  # a kind may be watched twice: Prometheus takes a series once
                sums[series] = sums.get(series, 0.0) + value
        for (name, values), value in sums.items():
            families[name].add_metric(list(values), value)
        yield from families.values()
        for more in self._families:
            yield from more()


def cache_samples(cache: Cache[Any]) -> Iterator[Sample]:
    labels, counts = {"kind": cache.kind.resource}, cache.feed.counts
    yield "shoal_cache_objects", "Objects held.", labels, float(len(cache))
    yield "shoal_cache_undecodable_objects", "Objects that cannot be read.", labels, float(len(cache.undecodable))
    yield "shoal_cache_lists_total", "Full lists.", labels, float(counts.lists)
    yield "shoal_cache_watches_total", "Watches opened.", labels, float(counts.watches)
    yield "shoal_cache_events_total", "Watch events.", labels, float(counts.events)
    yield "shoal_cache_gone_total", "Watches that had to start over.", labels, float(counts.gone)
    yield "shoal_cache_repairs_total", "Differences found by comparison.", labels, float(counts.repairs)


def write_samples(writes: Writes) -> Iterator[Sample]:
    counts = writes.counts
    yield "shoal_writes_sent_total", "Writes sent.", {}, float(counts.sent)
    yield "shoal_writes_spared_total", "Writes not sent because they would change nothing.", {}, float(counts.spared)
    yield "shoal_writes_unknown_total", "Writes of unknown fate.", {}, float(counts.unknown)
    yield "shoal_writes_repeated_total", "Writes sent again after a look.", {}, float(counts.repeated)


def request_samples(requests: Mapping[tuple[str, str], int]) -> Iterator[Sample]:
    for (verb, resource), count in sorted(requests.items()):
        labels = {"verb": verb, "resource": resource}
        yield "shoal_requests_total", "Requests sent to the API server.", labels, float(count)


def lease_samples(leads: bool, term: int) -> Iterator[Sample]:
    yield "shoal_leading", "1 in the replica that holds the lease.", {}, float(leads)
    yield "shoal_lease_term", "Number of the term of leading; grows with every hand-over.", {}, float(term)
