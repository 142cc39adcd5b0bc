"""The operator's numbers for Prometheus, under KubeRay's names so that existing dashboards keep working.

What can be read from the live copies is read when Prometheus asks, so a restart loses nothing; only the operator's own
work is counted as it happens. The Prometheus library is imported on the first scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import status
from shoal.controllers.ray.pods import observed, submission
from shoal.errors import BadInput
from shoal.kube.clock import Clock
from shoal.kube.runtime import Controller

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

_STAGES = ("Initializing", "Waiting", "Running", "Complete", "Failed", "Suspending", "Suspended", "Retrying",
           "ValidationFailed")  # fmt: skip


class Stopwatch:
    """How long the passes of one reconciler take."""

    def __init__(self, reconcile: Callable[[Key], Awaitable[float | None]], clock: Clock) -> None:
        self._reconcile, self._clock = reconcile, clock
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    async def __call__(self, key: Key) -> float | None:
        began = self._clock.monotonic()
        try:
            return await self._reconcile(key)
        finally:
            took = self._clock.monotonic() - began
            self.counts[bisect_left(BOUNDS, took)] += 1
            self.sum += took

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        total, found = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


def own_work(timed: Iterable[tuple[Controller[Key], Stopwatch]]) -> Iterator[Any]:
    """What the operator itself does: passes, how long they took, failures, what waits."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    took = HistogramMetricFamily(
        "shoal_ray_reconcile_duration_seconds", "How long passes over one object take.", labels=["controller"]
    )
    failed = CounterMetricFamily("shoal_ray_reconcile_errors", "Passes that failed.", labels=["controller"])
    waiting = GaugeMetricFamily("shoal_ray_reconcile_queue_length", "Objects that wait.", labels=["controller"])
    for controller, watch in timed:
        took.add_metric([controller.name], watch.buckets(), watch.sum)
        failed.add_metric([controller.name], controller.counts.failed)
        waiting.add_metric([controller.name], len(controller.queue))
    yield from (took, failed, waiting)


def families(caches: Caches) -> Iterator[Any]:
    """What prometheus_client calls metric families."""
    from prometheus_client.core import GaugeMetricFamily

    named = ["name", "namespace", "uid"]
    info = GaugeMetricFamily("kuberay_cluster_info", "RayClusters, and what made them.", labels=[*named, "owner_kind"])
    provisioned = GaugeMetricFamily(
        "kuberay_cluster_condition_provisioned", "Whether all pods once stood.", labels=[*named, "condition"]
    )
    took = GaugeMetricFamily(
        "kuberay_cluster_provisioned_duration_seconds", "From creation until all pods stood.", labels=named
    )
    waited = GaugeMetricFamily(
        "shoal_raycluster_queue_wait_seconds", "From creation until the head had a node.", labels=named
    )
    bound = GaugeMetricFamily(
        "shoal_raycluster_gang_admission_seconds", "From the head's node to the last pod's.", labels=named
    )
    for cluster in caches.clusters.list():
        labels = _labels(cluster)
        info.add_metric([*labels, view.origin(cluster)], 1)
        stands = status.condition_status(cluster, status.PROVISIONED) == "True"
        provisioned.add_metric([*labels, str(stands).lower()], 1)
        seconds = _provisioned_after(cluster) if stands else None
        if seconds is not None:
            took.add_metric(labels, seconds)
        first, last = _bound(cluster, caches.pods_of(cluster))
        for family, begin, end in (
            (waited, view.metadata(cluster).get("creationTimestamp"), first),
            (bound, first, last),
        ):
            seconds = _between(begin, end)
            if seconds is not None:
                family.add_metric(labels, seconds)
    yield from (info, provisioned, took, waited, bound)
    yield from _jobs(caches, named)
    yield from _services(caches, named)


def _services(caches: Caches, named: list[str]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    info = GaugeMetricFamily("kuberay_service_info", "RayServices.", labels=named)
    ready = GaugeMetricFamily(
        "kuberay_service_condition_ready", "Whether pods answer for a RayService.", labels=[*named, "condition"]
    )
    upgrading = GaugeMetricFamily(
        "kuberay_service_condition_upgrade_in_progress",
        "Whether a second cluster of a RayService starts.",
        labels=[*named, "condition"],
    )
    for service in caches.ray_services.list():
        labels = _labels(service)
        info.add_metric(labels, 1)
        for family, kind in ((ready, "Ready"), (upgrading, "UpgradeInProgress")):
            family.add_metric([*labels, str(status.condition_status(service, kind) == "True").lower()], 1)
    yield from (info, ready, upgrading)


def _jobs(caches: Caches, named: list[str]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    info = GaugeMetricFamily("kuberay_job_info", "RayJobs.", labels=named)
    stages = GaugeMetricFamily(
        "kuberay_job_deployment_status", "RayJobs by stage.", labels=[*named, "deployment_status"]
    )
    took = GaugeMetricFamily(
        "kuberay_job_execution_duration_seconds",
        "From the start of an attempt to its end.",
        labels=[*named, "job_deployment_status", "retry_count"],
    )
    first_task = GaugeMetricFamily(
        "shoal_rayjob_time_to_first_task_seconds", "From creation until Ray ran the entrypoint.", labels=named
    )
    for job in caches.jobs.list():
        labels, held = _labels(job), submission.status(job)
        stage = str(held.get("jobDeploymentStatus") or "New")
        info.add_metric(labels, 1)
        stages.add_metric([*labels, stage if stage in _STAGES else "New"], 1)
        began = _between(view.metadata(job).get("creationTimestamp"), (held.get("rayJobInfo") or {}).get("startTime"))
        if began is not None:
            first_task.add_metric(labels, began)
        seconds = _between(held.get("startTime"), held.get("endTime"))
        if seconds is not None:
            attempts = int(held.get("failed") or 0) + int(held.get("succeeded") or 0)
            took.add_metric([*labels, stage, str(max(0, attempts - 1))], seconds)
    yield from (info, stages, took, first_task)


def _labels(thing: Json) -> list[str]:
    return [view.name(thing), view.namespace(thing), view.uid(thing)]


def _provisioned_after(cluster: Json) -> float | None:
    for condition in (cluster.get("status") or {}).get("conditions") or []:
        if condition.get("type") == status.PROVISIONED:
            return _between(view.metadata(cluster).get("creationTimestamp"), condition.get("lastTransitionTime"))
    return None


def _bound(cluster: Json, pods: list[Json]) -> tuple[str | None, str | None]:
    """When the head and the last pod of a cluster that stands got their nodes; None once its first head is gone."""
    stands: Json = next(
        (one for one in (cluster.get("status") or {}).get("conditions") or [] if one.get("type") == status.PROVISIONED),
        {},
    )
    if stands.get("status") != "True":
        return None, None
    until = str(stands.get("lastTransitionTime") or "")
    moments = {}
    for pod in pods:
        scheduled = observed.condition(pod, "PodScheduled") or {}
        at = str(scheduled.get("lastTransitionTime") or "")
        if scheduled.get("status") == "True" and at and at <= until:
            moments[view.name(pod)] = (view.labels(pod).get(names.NODE_TYPE), at)
    heads = [at for kind, at in moments.values() if kind == names.HEAD]
    return (heads[0], max(at for _, at in moments.values())) if heads else (None, None)


def _between(start: object, end: object) -> float | None:
    try:
        return (parse_time(str(end)) - parse_time(str(start))) / 1_000_000 if start and end else None
    except BadInput:
        return None
