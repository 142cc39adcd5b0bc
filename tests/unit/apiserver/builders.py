"""Objects for these tests: as small as validation allows."""

from __future__ import annotations

from typing import Any

from shoal.api.kind import Kind
from shoal.api.meta import Json

WIDGET = Kind("example.com", "v1", "Widget", "widgets")


def config_map(name: str, /, **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}


def pod(
    name: str, /, *, labels: dict[str, str] | None = None, requests: dict[str, str] | None = None, **spec: Any
) -> Json:
    container: Json = {"name": "main", "image": "none"}
    if requests:
        container["resources"] = {"requests": requests, "limits": requests}
    metadata: Json = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def widget_definition(*, spec: Json | None = None, status: bool = True, scale: bool = False, **version: Any) -> Json:
    """A CRD for widgets; `spec` is the schema of its spec."""
    subresources: Json = {"status": {}} if status else {}
    if scale:
        subresources["scale"] = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    schema = {
        "type": "object",
        "properties": {
            "spec": spec or {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                    **version,
                }
            ],
        },
    }


def widget(name: str, /, **spec: Any) -> Json:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}
