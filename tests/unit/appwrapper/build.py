"""Builders for AppWrapper tests: they hide noise, not meaning."""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **requests: str) -> Json:
    container = {"name": "main", "image": "busybox", "command": ["sleep", "60"], "resources": {"requests": requests}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


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
