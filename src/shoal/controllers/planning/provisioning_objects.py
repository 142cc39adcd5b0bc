"""The objects of a request for nodes: a PodTemplate per pod set, as the engine judged it, and the request. Pure."""

from __future__ import annotations

from typing import Any

from shoal.api.autoscaling import BEST_EFFORT_ATOMIC
from shoal.api.kinds import PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.api.quantity import show
from shoal.engine.model import Gang, PodSet
from shoal.errors import BadInput

MOST_POD_SETS = 32
"""As many as the API takes."""


def request_objects(name: str, gang: Gang, annotations: dict[str, str]) -> tuple[list[Json], Json]:
    """Templates and request. Raises BadInput when the API cannot hold that many pod sets."""
    wanted = [pods for pods in gang.pod_sets if pods.count > 0]
    if len(wanted) > MOST_POD_SETS:
        raise BadInput(f"its {len(wanted)} pod sets are more than one request can name ({MOST_POD_SETS})")
    templates = [_template(f"{name}-{index}", pods, gang) for index, pods in enumerate(wanted)]
    sets = [
        {"podTemplateRef": {"name": template["metadata"]["name"]}, "count": pods.count}
        for template, pods in zip(templates, wanted, strict=True)
    ]
    request = {
        "apiVersion": PROVISIONING_REQUEST.api_version,
        "kind": PROVISIONING_REQUEST.kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"provisioningClassName": BEST_EFFORT_ATOMIC, "podSets": sets},
    }
    return templates, request


def reference_to(request: Json) -> Json:
    """The owner reference of what belongs to a request."""
    return {
        "apiVersion": PROVISIONING_REQUEST.api_version,
        "kind": PROVISIONING_REQUEST.kind,
        "name": request["metadata"]["name"],
        "uid": request["metadata"]["uid"],
        "controller": True,
    }


def _template(name: str, pods: PodSet, gang: Gang) -> Json:
    """A template that asks for what one pod of this set asks for, and may go where it may go."""
    requests = {resource: show(resource, amount) for resource, amount in pods.requests.items()}
    container: Json = {"name": "pod", "image": "pause", "resources": {"requests": requests, "limits": requests}}
    if pods.host_ports:
        container["ports"] = [
            {"containerPort": one.port, "hostPort": one.port, "protocol": one.protocol, "hostIP": one.address}
            for one in pods.host_ports
        ]
    spec: Json = {
        "containers": [container],
        "nodeSelector": {**gang.node_selector, **pods.node_selector},
        "tolerations": [_toleration(one) for one in pods.tolerations],
    }
    if pods.affinity:
        spec["affinity"] = pods.affinity
    metadata = {"labels": pods.labels} if pods.labels else {}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name},
        "template": {"metadata": metadata, "spec": spec},
    }


def _toleration(one: Any) -> Json:
    found = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
    return {name: value for name, value in found.items() if value}
