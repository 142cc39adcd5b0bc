"""What bench/jobs.py submits: Jobs and RayJobs of three pods each, and the one ClusterQueue that they go through."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
NAMESPACE, QUEUE = "default", "team"
PODS = 3
"""Of every job: a Job with parallelism 3, or a Ray cluster of a head and two workers."""
CPU, MEMORY = 500, 512
"""Millicores and MiB of every pod. KubeRay adds an init container of 200m to workers, so a pod has to ask for more."""
JOB, RAY_JOB = "job-", "ray-"
"""What the names begin with."""


def queues(jobs_at_once: int) -> list[Json]:
    """Quota for so many jobs, and not for one pod more."""
    pods = jobs_at_once * PODS
    quotas = [
        {"name": "cpu", "nominalQuota": f"{pods * CPU}m"},
        {"name": "memory", "nominalQuota": f"{pods * MEMORY}Mi"},
    ]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "any", "resources": quotas}]}
    version = "kueue.x-k8s.io/v1beta2"
    return [
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}},
        {
            "apiVersion": version,
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": NAMESPACE},
            "spec": {"clusterQueue": "all"},
        },
    ]


def job(number: int) -> Json:
    spec = {"restartPolicy": "Never", "containers": [_container("main", "busybox")]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(f"{JOB}{number}"),
        "spec": {"parallelism": PODS, "completions": PODS, "suspend": True, "template": {"spec": spec}},
    }


def ray_job(number: int) -> Json:
    """In InteractiveMode: both operators make the whole cluster, and neither asks a dashboard that is not there."""
    image = "rayproject/ray:2.60.0"
    group = {
        "groupName": "workers",
        "replicas": PODS - 1,
        "minReplicas": PODS - 1,
        "maxReplicas": PODS - 1,
        "rayStartParams": {},
        "template": {"spec": {"containers": [_container("ray-worker", image)]}},
    }
    cluster = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"spec": {"containers": [_container("ray-head", image)]}},
        },
        "workerGroupSpecs": [group],
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(f"{RAY_JOB}{number}"),
        "spec": {
            "submissionMode": "InteractiveMode",
            "suspend": True,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster,
        },
    }


def mixed(jobs: int, ray_jobs: int) -> list[Json]:
    """All of them, the RayJobs spread evenly between the Jobs."""
    made = [(number / max(1, jobs), job(number)) for number in range(jobs)]
    made += [((number + 0.5) / max(1, ray_jobs), ray_job(number)) for number in range(ray_jobs)]
    return [one for _, one in sorted(made, key=lambda entry: entry[0])]


def _metadata(name: str) -> Json:
    return {"name": name, "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}}


def _container(name: str, image: str) -> Json:
    amounts = {"cpu": f"{CPU}m", "memory": f"{MEMORY}Mi"}
    return {"name": name, "image": image, "resources": {"requests": amounts, "limits": amounts}}
