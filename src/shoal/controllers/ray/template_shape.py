"""Are the parts of a template that we read and write of the types that Kubernetes gives them?

Our CRDs leave pod templates open, so what the API server would say about a pod is said here, about the cluster, before
anything is built from it. Fields that we do not touch are the server's business. Pure; called by the validations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.api import quantity
from shoal.errors import BadInput

POD_TEMPLATE, SERVICE, AUTOSCALER, NETWORK_POLICY = "PodTemplate", "Service", "Autoscaler", "NetworkPolicy"
HISTORY, TLS = "History", "Tls"

# a field and the shape of its value; one that must be there has an exclamation mark
_SHAPES: dict[str, dict[str, str]] = {
    POD_TEMPLATE: {"metadata": "Metadata", "spec": "PodSpec"},
    "Metadata": {"name": "text", "namespace": "text", "labels": "texts", "annotations": "texts"},
    "PodSpec": {
        "containers": "[]Container", "initContainers": "[]Container", "volumes": "[]Volume", "restartPolicy": "text",
        "serviceAccountName": "text", "schedulerName": "text", "terminationGracePeriodSeconds": "number",
        "nodeSelector": "texts", "tolerations": "[]Any", "schedulingGates": "[]Any",
    },
    "Container": {
        "name": "text", "image": "text", "imagePullPolicy": "text", "command": "[]text", "args": "[]text",
        "env": "[]Variable", "envFrom": "[]Any", "ports": "[]Port", "volumeMounts": "[]Mount", "resources": "Resources",
        "securityContext": "Any", "livenessProbe": "Any", "readinessProbe": "Any", "lifecycle": "Any",
    },
    "Variable": {"name": "text!", "value": "text", "valueFrom": "Any"},
    "Port": {"name": "text", "containerPort": "port!"},
    "Mount": {"name": "text", "mountPath": "text"},
    "Volume": {"name": "text"},
    "Resources": {"limits": "amounts", "requests": "amounts"},
    SERVICE: {"metadata": "Metadata", "spec": "ServiceSpec"},
    "ServiceSpec": {"type": "text", "selector": "texts", "ports": "[]ServicePort"},
    "ServicePort": {"name": "text", "port": "port!"},
    AUTOSCALER: {
        "image": "text", "imagePullPolicy": "text", "command": "[]text", "args": "[]text", "env": "[]Variable",
        "envFrom": "[]Any", "volumeMounts": "[]Mount", "resources": "Resources", "securityContext": "Any",
    },
    NETWORK_POLICY: {"mode": "text", "head": "Rules", "worker": "Rules", "workerGroups": "[]Rules"},
    "Rules": {"groupName": "text", "ingressRules": "[]Any", "egressRules": "[]Any"},
    HISTORY: {"collectorOptions": "Collector"},
    "Collector": {"image": "text", "imagePullPolicy": "text", "env": "[]Variable", "resources": "Resources"},
    TLS: {"enabled": "truth"},
    "Any": {},
}  # fmt: skip


def problems_of_shape(value: Any, shape: str, where: str) -> Iterator[str]:
    """Every place that holds something else than it may; absent and null are fine but for items of a list."""
    if value is None:
        return
    if shape.startswith("[]"):
        if not isinstance(value, list):
            yield f"{where} must be a list"
            return
        for index, item in enumerate(value):
            if item is None:
                yield f"{where}[{index}] is empty"
            yield from problems_of_shape(item, shape[2:], f"{where}[{index}]")
    elif shape in _SHAPES:
        if not isinstance(value, dict):
            yield f"{where} must be an object, not {value!r:.40}"
            return
        for field, inner in _SHAPES[shape].items():
            if inner.endswith("!") and value.get(field) is None:
                yield f"{where}.{field} is missing"
            yield from problems_of_shape(value.get(field), inner.rstrip("!"), f"{where}.{field}")
    else:
        yield from _problems_of_value(value, shape, where)


def _problems_of_value(value: Any, shape: str, where: str) -> Iterator[str]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    match shape:
        case "text" if not isinstance(value, str):
            yield f"{where} must be a text, not {value!r:.40}; put it into quotes"
        case "truth" if not isinstance(value, bool):
            yield f"{where} must be true or false, not {value!r:.40}"
        case "number" if not whole:
            yield f"{where} must be a whole number, not {value!r:.40}"
        case "port" if not whole or not 0 < value < 65536:
            yield f"{where} must be a port from 1 to 65535, not {value!r:.40}"
        case "texts" | "amounts" if not isinstance(value, dict):
            yield f"{where} must be an object, not {value!r:.40}"
        case "texts":
            for key, item in value.items():
                if not isinstance(item, str):
                    yield f"{where}.{key} must be a text, not {item!r:.40}; put it into quotes"
        case "amounts":
            for key, item in value.items():
                try:
                    quantity.parse(item)
                except BadInput as error:
                    yield f"{where}.{key}: {error}"
