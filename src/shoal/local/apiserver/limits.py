"""ResourceQuota, as far as pods at creation are concerned: what a pod counts for, and the one that would be too many.

Pure: works on the stored objects of the pod's namespace.
"""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json
from shoal.api.quantity import NANO, Quantity, parse
from shoal.errors import BadInput
from shoal.local.apiserver.call import decoded
from shoal.local.apiserver.collection import Record
from shoal.local.apiserver.status import forbidden

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


def check_quota(pod: Json, quotas: list[Record], pods: list[Record]) -> None:
    """Refuse the pod that would exceed a quota of its namespace. Usage is counted from the pods themselves."""
    if not quotas:
        return
    wanted = usage_of(pod)
    others: list[Json] | None = None
    for record in quotas:
        quota = decoded(record)
        hard = amounts_of((quota.get("spec") or {}).get("hard"))
        if not hard or not in_scope(pod, quota.get("spec") or {}):
            continue
        missing = [
            name
            for name in hard
            if name.removeprefix("requests.") in ("cpu", "memory") or name in ("limits.cpu", "limits.memory")
            if name not in wanted
        ]
        if missing:
            raise forbidden(
                "",
                "pods",
                pod["metadata"].get("name", ""),
                f"failed quota: {record.name}: must specify {','.join(sorted(missing))} for: "
                + ",".join(str(one.get("name", "")) for one in containers_of(pod)),
            )
        if others is None:
            others = [one for one in map(decoded, pods) if is_counted(one)]
        used = total([one for one in others if in_scope(one, quota.get("spec") or {})])
        exceeded = [name for name in sorted(hard) if name in wanted and used.get(name, 0) + wanted[name] > hard[name]]
        if exceeded:
            raise forbidden(
                "",
                "pods",
                pod["metadata"].get("name", ""),
                f"exceeded quota: {record.name}, "
                f"requested: {_listed(wanted, exceeded)}, used: {_listed(used, exceeded)}, "
                f"limited: {_listed(hard, exceeded)}",
            )


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


def total(pods: list[Json]) -> dict[str, int]:
    used: dict[str, int] = {}
    for pod in pods:
        for name, value in usage_of(pod).items():
            used[name] = used.get(name, 0) + value
    return used


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


def _listed(amounts: dict[str, int], names: list[str]) -> str:
    return ",".join(
        f"{name}={Quantity(amounts.get(name, 0), 'binary' if 'memory' in name else 'decimal')}" for name in names
    )
