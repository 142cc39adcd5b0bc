"""What every cluster has from the first moment: namespaces, system priorities, the usual roles, a list of its APIs."""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.local.apiserver import authorization
from shoal.local.apiserver.admission import SYSTEM_PRIORITIES
from shoal.local.apiserver.resources import Registry


def objects(registry: Registry) -> list[Json]:
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in ("default", "kube-system", "kube-public", "kube-node-lease")
    ]
    found += [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "Used for system pods that must run.",
        }
        for name, value in SYSTEM_PRIORITIES.items()
    ]
    found += authorization.bootstrap()
    for group, versions in registry.groups().items():
        found += [api_service(group, version) for version in versions if not group.count(".") or _is_own(group)]
    return found


def api_service(group: str, version: str) -> Json:
    """That a group and version are served right here."""
    spec = {"group": group, "version": version, "groupPriorityMinimum": 17000, "versionPriority": 15}
    name = f"{version}.{group}" if group else f"{version}."
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec}


def _is_own(group: str) -> bool:
    return group.endswith(".k8s.io")
