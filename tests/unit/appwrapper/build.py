"""Builders for AppWrapper tests: they hide noise, not meaning."""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.gang import GANG_UID
from shoal.api.meta import Json
from tests.cluster import Cluster


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **requests: str) -> Json:
    container = {"name": "main", "image": "busybox", "command": ["sleep", "60"], "resources": {"requests": requests}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def job(name: str, parallelism: int = 1, **requests: str) -> Json:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {**pod(name, **requests)["spec"], "restartPolicy": "Never"},
    }
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def ray_cluster(name: str) -> Json:
    template = {"spec": pod("x", cpu="1")["spec"]}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def app_wrapper(name: str, *wraps: Json, needs: list[Json] | None = None, **spec: Any) -> Json:
    """An AppWrapper around these objects; `needs` declares the pods of the first one."""
    items: list[Json] = [{"replicas": 1, "generictemplate": obj} for obj in wraps]
    if needs is not None:
        items[0]["custompodresources"] = needs
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**spec, "resources": {"GenericItems": items}},
    }


def needs(replicas: int = 1, **requests: str) -> Json:
    return {"replicas": replicas, "requests": requests}


def quota(tree: str, parent: str, *children: tuple[str, dict[str, str], bool]) -> Json:
    """A QuotaSubtree: children as (name, amounts, hard)."""
    return {
        "apiVersion": "quota.codeflare.dev/v1alpha1",
        "kind": "QuotaSubtree",
        "metadata": {"name": f"{tree}-{parent or 'top'}", "namespace": "default", "labels": {"tree": tree}},
        "spec": {
            "parent": parent,
            "children": [
                {"name": name, "quotas": {"requests": amounts, "hardLimit": hard}} for name, amounts, hard in children
            ],
        },
    }


def of_gang(wrapper: Json, obj: Json) -> Json:
    """A pod as an operator that we do not watch would make it from a template that we marked."""
    obj["metadata"].setdefault("annotations", {})[GANG_UID] = wrapper["metadata"]["uid"]
    owner = {"apiVersion": "example.com/v1", "kind": "Training", "name": "training", "controller": True}
    obj["metadata"].setdefault("ownerReferences", [{**owner, "uid": f"training-{wrapper['metadata']['uid']}"}])
    return obj


def kept(obj: Json) -> Json:
    """An object with a finalizer that no controller removes."""
    obj["metadata"]["finalizers"] = ["example.com/never-removed"]
    return obj


def dispatched(wrapper: Json) -> bool:
    return bool(wrapper.get("status", {}).get("queuejobstate") == "Dispatched")


def waits(wrapper: Json) -> bool:
    return bool(wrapper.get("status", {}).get("queuejobstate") == "Backoff")


def has_state(state: str) -> Any:
    return lambda wrapper: wrapper.get("status", {}).get("state") == state


def trail(wrapper: Json) -> list[tuple[str, str, str]]:
    """Type, reason and message of every condition, in order."""
    return [(one["type"], one.get("reason", ""), one.get("message", "")) for one in wrapper["status"]["conditions"]]


async def set_pod(cluster: Cluster, name: str, phase: str, node: str = "node-1", namespace: str = "default") -> None:
    """Play scheduler and kubelet: the pod is on the node and in this phase."""
    there = await cluster.get(kinds.POD, name, namespace)
    if not there["spec"].get("nodeName"):
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": node},
        }
        await cluster.client.create(kinds.POD, binding, namespace, name=name, subresource="binding")
    await cluster.client.patch(kinds.POD, name, namespace, {"status": {"phase": phase}}, subresource="status")
