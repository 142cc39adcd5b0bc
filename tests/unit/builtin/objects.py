"""Small objects, and a stand-in for nodes that lets a test say how pods fare."""

from __future__ import annotations

from shoal.api import kinds
from shoal.kube.errors import NotFound


def container(**more):
    return {"name": "c", "image": "i:1", **more}


def template(labels=None, **spec):
    return {"metadata": {"labels": labels or {"app": "x"}}, "spec": {"containers": [container()], **spec}}


def workload(kind, name="x", **spec):
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template(), **spec},
    }


def job(name="j", **spec):
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template(restartPolicy="Never"), **spec},
    }


async def pods_of(cluster, **labels):
    selector = ",".join(f"{key.replace('__', '/')}={value}" for key, value in labels.items())
    return sorted(
        await cluster.client.list(kinds.POD, "default", label_selector=selector),
        key=lambda pod: pod["metadata"]["name"],
    )


async def report(cluster, pod, phase="Running", *, ready=None, **more):
    """Say what the node would say of a pod."""
    ready = phase == "Running" if ready is None else ready
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": "2024-01-01T00:00:00Z"}
    status = {"phase": phase, "conditions": [condition], **more}
    try:
        await cluster.client.patch(
            kinds.POD, pod["metadata"]["name"], "default", {"status": status}, subresource="status"
        )
    except NotFound:
        return  # a rollout took it away meanwhile


async def report_all(cluster, phase="Running", **labels):
    for pod in await pods_of(cluster, **labels):
        if not pod["metadata"].get("deletionTimestamp"):
            await report(cluster, pod, phase)
