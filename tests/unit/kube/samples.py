"""Small objects for the tests of this layer."""

from __future__ import annotations

from typing import Any

from shoal.api.kind import Kind
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


def bound_to(node: str) -> Json:
    """What a scheduler posts to `pods/binding`."""
    return {"apiVersion": "v1", "kind": "Binding", "target": {"apiVersion": "v1", "kind": "Node", "name": node}}


def crd(kind: Kind) -> Json:
    """A definition that takes anything."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": kind.version, "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [version],
        },
    }


def custom(kind: Kind, name: str, **fields: Any) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, **fields}
