"""What a trace sees when it looks: one RayCluster or RayJob and what there is around it, in the words of the cases.

Pure: given the objects, says what the cases compare. Called by the stage (kuberay_traces) at every `observe`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.controllers.ray import names, view

Json = dict[str, Any]

OURS_ONLY = ("Valid", "SpecDrift", "Degraded")
"""Conditions that the reference does not have."""


def cluster_seen(found: Json | None, pods: list[Json]) -> Json:
    """A RayCluster, if it is still there, and the pods."""
    built: Json = {"podsPerGroup": dict(Counter(view.labels(pod).get(names.GROUP, "") for pod in pods))}
    indices: dict[str, list[list[str | None]]] = {}
    for pod in pods:
        labels = view.labels(pod)
        if names.REPLICA_INDEX in labels:
            pair = [labels[names.REPLICA_INDEX], labels.get(names.HOST_INDEX)]
            indices.setdefault(labels[names.GROUP], []).append(pair)
    if indices:
        built["replicaIndexLabels"] = {group: sorted(pairs, key=str) for group, pairs in indices.items()}
    if found is None:
        return built
    status = found.get("status") or {}
    conditions = {
        one["type"]: {"status": one["status"], "reason": one["reason"]}
        for one in status.get("conditions") or []
        if one["type"] not in OURS_ONLY
    }
    head = status.get("head") or {}
    numbers = ("desired", "min", "max", "ready", "available")
    built["status"] = {
        "state": status.get("state") or "",
        "conditions": conditions,
        **{f"{name}WorkerReplicas": status.get(f"{name}WorkerReplicas") or 0 for name in numbers},
        **{f"desired{name}": str(status.get(f"desired{name}") or "0") for name in ("CPU", "Memory", "GPU", "TPU")},
        "head": {"serviceName": head.get("serviceName") or "", "podNameSet": bool(head.get("podName"))},
    }
    return built


def job_seen(found: Json | None, clusters: list[Json], submitters: list[Json]) -> Json:
    """A RayJob, if it is still there, the clusters and the submitter."""
    built: Json = {"status": _job_status(found.get("status") or {})} if found is not None else {}
    if clusters:
        built["clusters"] = [_job_cluster(cluster) for cluster in clusters]
    if submitters:
        built["submitterJob"] = _submitter(submitters[0])
    return built


def _job_status(status: Json) -> Json:
    return {
        "jobDeploymentStatus": status.get("jobDeploymentStatus") or "",
        "jobStatus": status.get("jobStatus") or "",
        "reason": status.get("reason") or "",
        "succeeded": status.get("succeeded") or 0,
        "failed": status.get("failed") or 0,
        "jobIdSet": bool(status.get("jobId")),
        "rayClusterNameSet": bool(status.get("rayClusterName")),
        "dashboardURLSet": bool(status.get("dashboardURL")),
        "startTimeSet": bool(status.get("startTime")),
        "endTimeSet": bool(status.get("endTime")),
        "statusCheckFailing": bool(status.get("jobStatusCheckFailureStartTime")),
    }


def _job_cluster(cluster: Json) -> Json:
    head = view.pod_spec(view.head(cluster))
    owners = view.metadata(cluster).get("ownerReferences") or []
    return {
        "annotations": view.annotations_of(cluster),
        "headContainers": [container["name"] for container in head["containers"]],
        "headRestartPolicy": head.get("restartPolicy") or "",
        "labels": view.labels(cluster),
        "owner": owners[0]["kind"] if owners else "",
        "workerGroupsSuspended": [group.get("suspend") is True for group in view.groups(cluster)],
    }


def _submitter(job: Json) -> Json:
    template = job["spec"]["template"]
    container = template["spec"]["containers"][0]
    return {
        "backoffLimit": job["spec"].get("backoffLimit"),
        "container": container["name"],
        "image": container.get("image"),
        "labels": _as_made(view.labels(job)),
        "name": view.name(job),
        "podLabels": _as_made((template.get("metadata") or {}).get("labels")),
        "restartPolicy": template["spec"].get("restartPolicy"),
    }


def _as_made(labels: dict[str, str] | None) -> dict[str, str]:
    """Without those by which an API server ties a Job to its pods."""
    added = ("controller-uid", "job-name")
    return {name: value for name, value in (labels or {}).items() if name.rpartition("/")[2] not in added}
