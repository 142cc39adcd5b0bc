"""What every cluster has from the first moment: namespaces, system priorities, the usual roles, a list of its APIs, and
the Service that stands for the server itself, with its address behind it."""

from __future__ import annotations

from shoal.api.labels import SERVICE_NAME
from shoal.api.meta import Json
from shoal.local.apiserver.admission.plugins import SYSTEM_PRIORITIES
from shoal.local.apiserver.auth import authorization
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.kinds.strategy import SERVICE_NETWORK


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
    found.append(own_service(registry))
    for group, versions in registry.groups().items():
        found += [api_service(group, version) for version in versions if not group.count(".") or _is_own(group)]
    return found


def own_service(registry: Registry) -> Json:
    """`kubernetes`, at the first address of the network unless another Service already has that."""
    services = registry.find("", "services")
    assert services is not None
    first = str(next(SERVICE_NETWORK.hosts()))
    port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 443}
    spec: Json = {"ports": [port], "type": "ClusterIP", "sessionAffinity": "None"}
    if not any(first.encode() in record.raw for record in services.collection.all_heads()):
        spec["clusterIP"] = first
    return {"apiVersion": "v1", "kind": "Service", "metadata": _own(), "spec": spec}


def own_address(host: str, port: int) -> list[Json]:
    """What stands behind that Service."""
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    slice_: Json = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _own({SERVICE_NAME: "kubernetes"}),
        "addressType": "IPv6" if ":" in host else "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": ports,
    }
    mirrored = _own({"endpointslice.kubernetes.io/skip-mirror": "true"})
    subsets = [{"addresses": [{"ip": host}], "ports": ports}]
    return [slice_, {"apiVersion": "v1", "kind": "Endpoints", "metadata": mirrored, "subsets": subsets}]


def _own(labels: dict[str, str] | None = None) -> Json:
    plain = {"component": "apiserver", "provider": "kubernetes"}
    return {"name": "kubernetes", "namespace": "default", "labels": labels if labels is not None else plain}


def api_service(group: str, version: str) -> Json:
    """That a group and version are served right here."""
    spec = {"group": group, "version": version, "groupPriorityMinimum": 17000, "versionPriority": 15}
    name = f"{version}.{group}" if group else f"{version}."
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec}


def _is_own(group: str) -> bool:
    return group.endswith(".k8s.io")
