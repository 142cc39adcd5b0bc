"""Builders for elastic Ray clusters in queues: the cluster, and its pods as the Ray operator makes them."""

from __future__ import annotations

import copy

from shoal.api import kinds
from shoal.api.meta import Json
from tests.cluster import Cluster
from tests.unit.queues.build import QUEUE, make, template

GATE = "kueue.x-k8s.io/elastic-job"


def ray_cluster(
    name: str, least: int = 1, most: int = 8, *, replicas: int | None = None, queue: str = "user-queue"
) -> Json:
    """With Ray's own autoscaler; the head asks for a core and so does each worker."""
    group = {
        "groupName": "small",
        "replicas": least if replicas is None else replicas,
        "minReplicas": least,
        "maxReplicas": most,
        "rayStartParams": {},
        "template": template("rayproject/ray:2.9.0", cpu="1"),
    }
    autoscaler = {"requests": {"cpu": "0", "memory": "0"}, "limits": {"cpu": "0", "memory": "0"}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {QUEUE: queue},
            "annotations": {GATE: "true"},
        },
        "spec": {
            "suspend": True,
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {"resources": autoscaler},
            "headGroupSpec": {"rayStartParams": {}, "template": template("rayproject/ray:2.9.0", cpu="1")},
            "workerGroupSpecs": [group],
        },
    }


async def started(cluster: Cluster, made: Json) -> Json:
    (stored,) = await make(cluster, made)
    return await cluster.until(
        kinds.RAY_CLUSTER, stored["metadata"]["name"], lambda one: one["spec"]["suspend"] is False
    )


async def pod(cluster: Cluster, of: Json, name: str, role: str = "worker") -> Json:
    """As the Ray operator makes it of the template that is stored."""
    spec = of["spec"]
    holder = spec["headGroupSpec"] if role == "head" else spec["workerGroupSpecs"][0]
    body = copy.deepcopy(holder["template"])
    metadata = body.setdefault("metadata", {})
    metadata |= {"name": name, "namespace": "default"}
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        "ray.io/node-type": role,
        "ray.io/cluster": of["metadata"]["name"],
    }
    metadata["ownerReferences"] = [
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": of["metadata"]["name"], "uid": of["metadata"]["uid"],
         "controller": True}
    ]  # fmt: skip
    return await cluster.create(kinds.POD, {"apiVersion": "v1", "kind": "Pod", **body})


def is_open(one: Json) -> bool:
    return not one["spec"].get("schedulingGates")


def is_gated(one: Json) -> bool:
    return [gate["name"] for gate in one["spec"].get("schedulingGates") or ()] == [GATE]


async def running(cluster: Cluster, name: str = "ray", workers: int = 1) -> Json:
    """A cluster whose head and floor were let in."""
    of = await started(cluster, ray_cluster(name, workers))
    await pod(cluster, of, f"{name}-head", "head")
    await cluster.until(kinds.POD, f"{name}-head", is_open)
    for index in range(workers):
        await pod(cluster, of, f"{name}-floor-{index}")
        await cluster.until(kinds.POD, f"{name}-floor-{index}", is_open)
    return of


async def told(cluster: Cluster, reason: str) -> list[str]:
    events = await cluster.client.list(kinds.EVENT, "default")
    return [one["message"] for one in events if one["reason"] == reason]
