"""Builders for queue tests: they hide noise, not meaning."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.queues.names import workload_name
from tests.cluster import Cluster
from tests.patience import PATIENCE, patiently

QUEUE = "kueue.x-k8s.io/queue-name"


def flavor(name: str = "default-flavor", **spec: Any) -> Json:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def cluster_queue(name: str = "cluster-queue", flavor: str = "default-flavor", **spec: Any) -> Json:
    """One flavor; amounts as `quota={"cpu": "4"}`, the rest as in the spec."""
    quota = spec.pop("quota", {"cpu": "4", "memory": "8Gi"})
    group = {
        "coveredResources": list(quota),
        "flavors": [{"name": flavor, "resources": [{"name": one, "nominalQuota": quota[one]} for one in quota]}],
    }
    checks = spec.pop("checks", [])
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": one} for one in checks]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
    }


def local_queue(name: str = "user-queue", to: str = "cluster-queue", **spec: Any) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterQueue": to, **spec},
    }


def provisioning_check(name: str = "nodes", config: str = "nodes-config") -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {
            "controllerName": "kueue.x-k8s.io/provisioning-request",
            "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": config},
        },
    }


def provisioning_config(name: str = "nodes-config", **spec: Any) -> Json:
    given = {"provisioningClassName": "queued-provisioning.gke.io", **spec}
    kind = "ProvisioningRequestConfig"
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": given}


def template(image: str = "busybox", **requests: str) -> Json:
    amounts = {name.replace("_", "/").replace("nvidia/com", "nvidia.com"): value for name, value in requests.items()}
    container = {"name": "main", "image": image, "command": ["sleep", "60"], "resources": {"requests": amounts}}
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def job(
    name: str, pods: int = 1, *, queue: str = "user-queue", labels: dict[str, str] | None = None, **requests: str
) -> Json:
    spec = {
        "parallelism": pods,
        "completions": pods,
        "suspend": True,
        "template": template(**(requests or {"cpu": "1"})),
    }
    metadata = {"name": name, "namespace": "default", "labels": {QUEUE: queue, **(labels or {})}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def ray_job(name: str, workers: int = 2, *, queue: str = "user-queue", **requests: str) -> Json:
    asks = requests or {"cpu": "1"}
    cluster = {
        "rayVersion": "2.9.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template("rayproject/ray:2.9.0", cpu="1")},
        "workerGroupSpecs": [
            {
                "groupName": "small",
                "replicas": workers,
                "minReplicas": workers,
                "maxReplicas": workers,
                "rayStartParams": {},
                "template": template("rayproject/ray:2.9.0", **asks),
            }
        ],
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "namespace": "default", "labels": {QUEUE: queue}},
        "spec": {
            "entrypoint": "true",
            "shutdownAfterJobFinishes": True,
            "submissionMode": "K8sJobMode",  # as the API server fills it in
            "suspend": True,
            "rayClusterSpec": cluster,
        },
    }


def pod(name: str, *, queue: str = "user-queue", **requests: str) -> Json:
    metadata = {"name": name, "namespace": "default", "labels": {QUEUE: queue}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **template(**(requests or {"cpu": "1"}))}


def job_set(name: str, *, queue: str = "user-queue", **replicas: int) -> Json:
    """Replicated jobs by name, each of one pod with one core: `workers=2`."""
    jobs = [
        {"name": one, "replicas": count, "template": {"spec": {"parallelism": 1, "template": template(cpu="1")}}}
        for one, count in (replicas or {"leader": 1, "workers": 2}).items()
    ]
    metadata = {"name": name, "namespace": "default", "labels": {QUEUE: queue}}
    spec = {"suspend": True, "replicatedJobs": jobs}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


TRAINER = "trainer.kubeflow.org/v1alpha1"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def training_runtime(name: str, *, kind: str = "ClusterTrainingRuntime", nodes: int = 1, cpu: str = "1") -> Json:
    """A runtime of one step: training, on so many nodes."""
    metadata = {"name": name, **({} if kind.startswith("Cluster") else {"namespace": "default"})}
    replicated = replicated_job("node", step="trainer", cpu=cpu)
    spec = {"mlPolicy": {"numNodes": nodes, "torch": {}}, "template": {"spec": {"replicatedJobs": [replicated]}}}
    return {"apiVersion": TRAINER, "kind": kind, "metadata": metadata, "spec": spec}


def replicated_job(name: str, *, step: str = "", container: str = "node", **requests: str) -> Json:
    pods = template(**(requests or {"cpu": "1"}))
    pods["spec"]["containers"][0]["name"] = container
    made: Json = {"spec": {"template": pods}}
    if step:
        made["metadata"] = {"labels": {STEP: step}}
    return {"name": name, "replicas": 1, "template": made}


def train_job(name: str, *, runtime: str = "torch", queue: str = "user-queue", **trainer: Any) -> Json:
    """What it says of its trainer by the names of its fields: `numNodes=2`."""
    metadata = {"name": name, "namespace": "default", "labels": {QUEUE: queue}}
    spec: Json = {"runtimeRef": {"name": runtime}, "suspend": True}
    if trainer:
        spec["trainer"] = trainer
    return {"apiVersion": TRAINER, "kind": "TrainJob", "metadata": metadata, "spec": spec}


KIND_OF: dict[str, Kind] = {
    "ResourceFlavor": kinds.RESOURCE_FLAVOR,
    "ClusterQueue": kinds.CLUSTER_QUEUE,
    "LocalQueue": kinds.LOCAL_QUEUE,
    "Cohort": kinds.COHORT,
    "AdmissionCheck": kinds.ADMISSION_CHECK,
    "ProvisioningRequestConfig": kinds.PROVISIONING_REQUEST_CONFIG,
    "WorkloadPriorityClass": kinds.WORKLOAD_PRIORITY_CLASS,
    "Job": kinds.JOB,
    "RayJob": kinds.RAY_JOB,
    "RayCluster": kinds.RAY_CLUSTER,
    "Workload": kinds.WORKLOAD,
    "JobSet": kinds.JOB_SET,
    "TrainJob": kinds.TRAIN_JOB,
    "TrainingRuntime": kinds.TRAINING_RUNTIME,
    "ClusterTrainingRuntime": kinds.CLUSTER_TRAINING_RUNTIME,
    "Pod": kinds.POD,
    "Deployment": kinds.DEPLOYMENT,
    "StatefulSet": kinds.STATEFUL_SET,
}


async def make(cluster: Cluster, *objects: Json) -> list[Json]:
    return [await cluster.create(KIND_OF[one["kind"]], one) for one in objects]


def true(kind: str) -> Any:
    """Has the object this condition?"""
    return lambda obj: condition(obj, kind).get("status") == "True"


def condition(obj: Json, kind: str) -> Json:
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind), {})


def said(obj: Json, kind: str) -> tuple[str, str, str]:
    found = condition(obj, kind)
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def name_of(made: Json, kind: str = "Job", group: str = "batch") -> str:
    """The name of this job's Workload."""
    return workload_name(kind, group, made["metadata"]["name"], made["metadata"]["uid"])


def counts(queue: Json) -> tuple[int, int, int]:
    """Who waits, who holds quota, who is admitted."""
    status = queue.get("status") or {}
    return tuple(status.get(f"{word}Workloads", -1) for word in ("pending", "reserving", "admitted"))  # type: ignore[return-value]


def usage(queue: Json) -> dict[str, str]:
    """What admitted gangs use of the first flavor."""
    flavors = (queue.get("status") or {}).get("flavorsUsage") or [{"resources": []}]
    return {one["name"]: one["total"] for one in flavors[0]["resources"]}


async def pods_of(cluster: Cluster, name: str, count: int) -> list[Json]:
    """The pods of a Job, once there are so many."""
    selector = f"batch.kubernetes.io/job-name={name}"
    async with asyncio.timeout(PATIENCE):
        while len(found := await cluster.client.list(kinds.POD, "default", label_selector=selector)) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def complete(cluster: Cluster, name: str, pods: int) -> None:
    """All pods of a Job end well."""
    for pod in await pods_of(cluster, name, pods):
        await cluster.client.patch(
            kinds.POD, pod["metadata"]["name"], "default", {"status": {"phase": "Succeeded"}}, subresource="status"
        )


async def warning(cluster: Cluster, about: Json, reason: str) -> str:
    """The message of a warning about this object, once there is one."""
    async with patiently(PATIENCE):
        async for event in cluster.client.watch(kinds.EVENT, "default", send_initial_events=True):
            if event.type in ("ADDED", "MODIFIED"):
                told = msgspec.json.decode(event.object)
                if told["involvedObject"].get("uid") == about["metadata"]["uid"] and told["reason"] == reason:
                    assert told["type"] == "Warning"
                    return str(told["message"])
    raise AssertionError("the watch ended")
