"""ResourceQuota: what an object of any kind counts for, and the one that would be too many.

Pure: works on the stored objects of one namespace. Pods count by what they ask for (`limits.py`), everything else as
one of its kind; a Service also by its kind of port, a claim by its size.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api.meta import Json
from shoal.api.quantity import NANO, Quantity
from shoal.local.apiserver.admission import limits
from shoal.local.apiserver.kinds.resources import Resource
from shoal.local.apiserver.primitives.status import forbidden
from shoal.local.apiserver.requests.call import decoded
from shoal.local.apiserver.storage.collection import StoredObject

_COUNTED_PLAINLY = frozenset(
    ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services")
)
_READ = frozenset(("pods", "services", "persistentvolumeclaims"))  # whose objects must be looked into


def counter_of(name: str) -> str:
    """The resource whose objects a line of a quota counts, named as in `deployments.apps`."""
    if name.startswith("count/"):
        return name.removeprefix("count/")
    if name in _COUNTED_PLAINLY:
        return name
    if name.startswith("services."):
        return "services"
    return "persistentvolumeclaims" if name == "requests.storage" else "pods"


def usage_of(resource: str, obj: Json) -> dict[str, int]:
    """Billionths by line of a quota that one object counts for."""
    if resource == "pods":
        return limits.usage_of(obj)
    usage = _one(resource)
    spec = obj.get("spec") or {}
    if resource == "services":
        kind = spec.get("type")
        if kind == "LoadBalancer":
            usage["services.loadbalancers"] = NANO
        if kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False):
            usage["services.nodeports"] = NANO * len(spec.get("ports") or ())
    elif resource == "persistentvolumeclaims":
        asked = limits.amounts_of((spec.get("resources") or {}).get("requests"))
        usage["requests.storage"] = asked.get("storage", 0)
    return usage


def used_by(resource: str, spec: Json, records: list[StoredObject]) -> dict[str, int]:
    """What all objects of a resource count for in a quota of this spec."""
    if resource in _READ:
        found = map(decoded, records)
        return _total(usage_of(resource, obj) for obj in found if _counts(resource, obj, spec))
    return {} if _has_scopes(spec) else {name: len(records) * each for name, each in _one(resource).items()}


def may_grow(resource: Resource, subresource: str) -> bool:
    """Whether an update can make an object count for more: a resized pod, a Service's type, the size of a claim."""
    return (resource.name, subresource) in (("pods", "resize"), ("services", ""), ("persistentvolumeclaims", ""))


def check_quota(resource: Resource, obj: Json, quotas: list[StoredObject], old: Json | None = None) -> None:
    """Refuse the object that would exceed a quota of its namespace. Usage is counted from the objects themselves.

    An update counts by what the object takes more than before.
    """
    for record in quotas:
        quota = decoded(record)
        spec = quota.get("spec") or {}
        hard = limits.amounts_of(spec.get("hard"))
        if not hard or not _counts(resource.name, obj, spec):
            continue
        wanted = usage_of(resource.name, obj)
        if old is not None and _counts(resource.name, old, spec):
            before = usage_of(resource.name, old)
            wanted = {name: more for name, each in wanted.items() if (more := each - before.get(name, 0)) > 0}
        elif resource.name == "pods":
            _check_named(record.name, obj, hard, wanted)
        if hard.keys().isdisjoint(wanted):
            continue
        used = used_by(resource.name, spec, resource.collection.heads(quota["metadata"]["namespace"]))
        exceeded = [name for name in sorted(hard) if name in wanted and used.get(name, 0) + wanted[name] > hard[name]]
        if exceeded:
            raise forbidden(
                resource.group,
                resource.plural,
                obj["metadata"].get("name", ""),
                f"exceeded quota: {record.name}, requested: {_listed(wanted, exceeded)}, "
                f"used: {_listed(used, exceeded)}, limited: {_listed(hard, exceeded)}",
            )


def _check_named(quota: str, pod: Json, hard: dict[str, int], wanted: dict[str, int]) -> None:
    """A pod under a quota of cpu or memory must say how much it wants."""
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
            f"failed quota: {quota}: must specify {','.join(sorted(missing))} for: "
            + ",".join(str(one.get("name", "")) for one in limits.containers_of(pod)),
        )


def _one(resource: str) -> dict[str, int]:
    usage = {f"count/{resource}": NANO}
    if resource in _COUNTED_PLAINLY:
        usage[resource] = NANO
    return usage


def _counts(resource: str, obj: Json, spec: Json) -> bool:
    if resource == "pods":
        return limits.is_counted(obj) and limits.in_scope(obj, spec)
    return not _has_scopes(spec)  # scopes are of pods


def _has_scopes(spec: Json) -> bool:
    return bool(spec.get("scopes") or (spec.get("scopeSelector") or {}).get("matchExpressions"))


def _total(usages: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for usage in usages:
        for name, value in usage.items():
            found[name] = found.get(name, 0) + value
    return found


def _listed(amounts: dict[str, int], names: list[str]) -> str:
    return ",".join(
        f"{name}={Quantity(amounts.get(name, 0), 'binary' if 'memory' in name else 'decimal')}" for name in names
    )
