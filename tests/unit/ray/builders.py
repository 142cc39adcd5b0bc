"""Small Ray objects for tests: what a case does not care about is filled in."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def container(name: str, cpu: str = "1", memory: str = "2Gi", **more: Any) -> Json:
    amounts = {"cpu": cpu, "memory": memory}
    return {
        "name": name,
        "image": "rayproject/ray:2.60.0",
        "resources": {"limits": amounts, "requests": amounts},
        **more,
    }


def group(name: str = "workers", replicas: int = 2, **more: Any) -> Json:
    template = {"spec": {"containers": [container("ray-worker", memory="1Gi")]}}
    defaults = {"minReplicas": 0, "maxReplicas": 10, "numOfHosts": 1}
    return {"groupName": name, "replicas": replicas, **defaults, "template": template, **more}


def cluster_spec(*groups: Json, head: Json | None = None, **more: Any) -> Json:
    template = {"spec": {"containers": [container("ray-head")]}}
    return {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"template": template, **(head or {})},
        "workerGroupSpecs": list(groups),
        **more,
    }


def ray_cluster(
    name: str = "demo", *groups: Json, head: Json | None = None, metadata: Json | None = None, **more: Any
) -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": "default", **(metadata or {})},
        "spec": cluster_spec(*(groups or (group(),)), head=head, **more),
    }


def ray_job(name: str = "train", mode: str = "K8sJobMode", **more: Any) -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "entrypoint": "python train.py",
            "submissionMode": mode,
            "rayClusterSpec": cluster_spec(group(replicas=1)),
            **more,
        },
    }


def ray(name: str = "sample", **spec: Any) -> Json:
    return {
        "apiVersion": "ray.k8s.io/v1alpha1",
        "kind": "Ray",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
