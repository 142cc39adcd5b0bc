"""What one pod counts for in ResourceQuotas and LimitRanges, and which quotas mean it. Pure."""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json
from shoal.api.quantity import NANO, parse
from shoal.errors import BadInput

_PLAIN = {"cpu": "requests.cpu", "memory": "requests.memory", "ephemeral-storage": "requests.ephemeral-storage"}


def amounts_of(found: Any) -> dict[str, int]:
    """Billionths by resource; what is no quantity is left to validation."""
    amounts = {}
    for name, text in (found if type(found) is dict else {}).items():
        try:
            amounts[name] = parse(text).nano
        except BadInput:
            continue
    return amounts


def containers_of(pod: Json, part: str = "containers") -> list[Json]:
    found = (pod.get("spec") or {}).get(part)
    return [one for one in found if type(one) is dict] if type(found) is list else []


def usage_of(pod: Json) -> dict[str, int]:
    """What one pod counts for in quota: its requests and limits, init containers as a maximum, overhead, and itself."""
    usage: dict[str, int] = {"pods": NANO, "count/pods": NANO}
    sums: dict[str, int] = {}
    for part, prefix in (("requests", "requests."), ("limits", "limits.")):
        amounts: dict[str, int] = {}
        for container in containers_of(pod):
            resources = container.get("resources")
            found = amounts_of(resources.get(part)) if type(resources) is dict else {}
            if part == "requests" and type(resources) is dict:
                found = {**amounts_of(resources.get("limits")), **found}
            for name, value in found.items():
                amounts[name] = amounts.get(name, 0) + value
        for container in containers_of(pod, "initContainers"):
            resources = container.get("resources")
            for name, value in (amounts_of(resources.get(part)) if type(resources) is dict else {}).items():
                if container.get("restartPolicy") == "Always":
                    amounts[name] = amounts.get(name, 0) + value
                else:
                    amounts[name] = max(amounts.get(name, 0), value)
        for name, value in amounts.items():
            sums[prefix + name] = value
            if part == "requests" and name in _PLAIN:
                sums[name] = value
    usage.update(sums)
    return usage


def is_counted(pod: Json) -> bool:
    """Pods that are over count no more."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def in_scope(pod: Json, spec: Json) -> bool:
    for scope in spec.get("scopes") or ():
        if not _matches_scope(pod, str(scope), {}):
            return False
    for expression in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        if not _matches_scope(pod, str(expression.get("scopeName")), expression):
            return False
    return True


def _matches_scope(pod: Json, scope: str, expression: Json) -> bool:
    spec = pod.get("spec") or {}
    match scope:
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return (pod.get("status") or {}).get("qosClass") == "BestEffort"
        case "NotBestEffort":
            return (pod.get("status") or {}).get("qosClass") != "BestEffort"
        case "PriorityClass":
            name = spec.get("priorityClassName")
            match expression.get("operator"):
                case "In":
                    return name in (expression.get("values") or ())
                case "NotIn":
                    return name not in (expression.get("values") or ())
                case "DoesNotExist":
                    return not name
                case _:
                    return bool(name)
    return True
