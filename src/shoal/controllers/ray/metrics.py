"""The operator's numbers for Prometheus, under KubeRay's names so that existing dashboards keep working.

Everything is read from the live copies when somebody asks; nothing is counted in between, so a restart loses nothing.
The Prometheus library is imported on the first scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import status, submission, view
from shoal.controllers.ray.caches import Caches
from shoal.errors import BadInput

_STAGES = ("Initializing", "Waiting", "Running", "Complete", "Failed", "Suspending", "Suspended", "Retrying",
           "ValidationFailed")  # fmt: skip


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
    for cluster in caches.clusters.list():
        labels = _labels(cluster)
        info.add_metric([*labels, view.origin(cluster)], 1)
        stands = status.condition_status(cluster, status.PROVISIONED) == "True"
        provisioned.add_metric([*labels, str(stands).lower()], 1)
        seconds = _provisioned_after(cluster) if stands else None
        if seconds is not None:
            took.add_metric(labels, seconds)
    yield from (info, provisioned, took)
    yield from _jobs(caches, named)


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
    for job in caches.jobs.list():
        labels, held = _labels(job), submission.status(job)
        stage = str(held.get("jobDeploymentStatus") or "New")
        info.add_metric(labels, 1)
        stages.add_metric([*labels, stage if stage in _STAGES else "New"], 1)
        seconds = _between(held.get("startTime"), held.get("endTime"))
        if seconds is not None:
            attempts = int(held.get("failed") or 0) + int(held.get("succeeded") or 0)
            took.add_metric([*labels, stage, str(max(0, attempts - 1))], seconds)
    yield from (info, stages, took)


def _labels(thing: Json) -> list[str]:
    return [view.name(thing), view.namespace(thing), view.uid(thing)]


def _provisioned_after(cluster: Json) -> float | None:
    for condition in (cluster.get("status") or {}).get("conditions") or []:
        if condition.get("type") == status.PROVISIONED:
            return _between(view.metadata(cluster).get("creationTimestamp"), condition.get("lastTransitionTime"))
    return None


def _between(start: object, end: object) -> float | None:
    try:
        return (parse_time(str(end)) - parse_time(str(start))) / 1_000_000 if start and end else None
    except BadInput:
        return None
