"""Small objects for the tests of this layer."""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json


def config_map(name: str, *, namespace: str = "team", labels: dict[str, str] | None = None, **data: str) -> Json:
    metadata: Json = {"name": name, "namespace": namespace}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str, *, namespace: str = "team", node: str = "", **metadata: Any) -> Json:
    spec: Json = {"containers": [{"name": "main", "image": "busybox"}]}
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }
