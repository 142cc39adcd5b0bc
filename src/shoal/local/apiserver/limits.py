"""LimitRange and ResourceQuota, as far as pods at creation are concerned.

Limit ranges fill in missing requests and limits and refuse what is outside their bounds; quotas refuse the pod that
would exceed them. Both are pure: they get the stored objects of the pod's namespace.
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


def _amounts(found: Any) -> dict[str, int]:
    """Billionths by resource; what is no quantity is left to validation."""
    amounts = {}
    for name, text in (found if type(found) is dict else {}).items():
        try:
            amounts[name] = parse(text).nano
        except BadInput:
            continue
    return amounts


def _containers(pod: Json, part: str = "containers") -> list[Json]:
    found = (pod.get("spec") or {}).get(part)
    return [one for one in found if type(one) is dict] if type(found) is list else []


# --- limit ranges


def apply_limit_ranges(pod: Json, ranges: list[Record]) -> None:
    for record in ranges:
        limits = (decoded(record).get("spec") or {}).get("limits") or ()
        for item in limits:
            if item.get("type") == "Container":
                for container in [*_containers(pod), *_containers(pod, "initContainers")]:
                    _fill(container, item)
                    _bound(pod, item, container.get("resources") or {}, "per Container")


def _fill(container: Json, item: Json) -> None:
    """Missing limits from `default`, missing requests from `defaultRequest` (or the limit)."""
    resources = container.get("resources")
    if type(resources) is not dict:
        resources = container["resources"] = {}
    for name, text in (item.get("default") or {}).items():
        limits = resources.setdefault("limits", {})
        if type(limits) is dict:
            limits.setdefault(name, text)
    limits = resources.get("limits")
    for name, text in (item.get("defaultRequest") or item.get("default") or {}).items():
        requests = resources.setdefault("requests", {})
        if type(requests) is dict and name not in requests:
            requests[name] = text


def _bound(pod: Json, item: Json, resources: Json, where: str) -> None:
    name = pod["metadata"].get("name", "")
    requests, limits = _amounts(resources.get("requests")), _amounts(resources.get("limits"))
    for resource, least in _amounts(item.get("min")).items():
        asked = requests.get(resource, limits.get(resource))
        if asked is None:
            raise forbidden(
                "",
                "pods",
                name,
                f"minimum {resource} usage {where} is {item['min'][resource]}.  No request is specified",
            )
        if asked < least:
            raise forbidden(
                "",
                "pods",
                name,
                f"minimum {resource} usage {where} is {item['min'][resource]}, but request is {Quantity(asked)}",
            )
    for resource, most in _amounts(item.get("max")).items():
        asked = limits.get(resource)
        if asked is None:
            raise forbidden(
                "", "pods", name, f"maximum {resource} usage {where} is {item['max'][resource]}.  No limit is specified"
            )
        if asked > most:
            raise forbidden(
                "",
                "pods",
                name,
                f"maximum {resource} usage {where} is {item['max'][resource]}, but limit is {Quantity(asked)}",
            )


# --- quota


def check_quota(pod: Json, quotas: list[Record], pods: list[Record]) -> None:
    """Refuse the pod that would exceed a quota of its namespace. Usage is counted from the pods themselves."""
    if not quotas:
        return
    wanted = usage_of(pod)
    others: list[Json] | None = None
    for record in quotas:
        quota = decoded(record)
        hard = _amounts((quota.get("spec") or {}).get("hard"))
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
                + ",".join(str(one.get("name", "")) for one in _containers(pod)),
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
        for container in _containers(pod):
            resources = container.get("resources")
            found = _amounts(resources.get(part)) if type(resources) is dict else {}
            if part == "requests" and type(resources) is dict:
                found = {**_amounts(resources.get("limits")), **found}
            for name, value in found.items():
                amounts[name] = amounts.get(name, 0) + value
        for container in _containers(pod, "initContainers"):
            resources = container.get("resources")
            for name, value in (_amounts(resources.get(part)) if type(resources) is dict else {}).items():
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
