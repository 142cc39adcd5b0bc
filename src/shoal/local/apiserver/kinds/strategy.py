"""What particular built-in kinds do when they are written: initial status, allocated addresses, who may touch which
part.

Called by the writing verbs between decoding and admission. Defaults and validation of fields live elsewhere; here is
only what depends on the verb, the subresource or other stored objects.
"""

from __future__ import annotations

import base64
import ipaddress
import random
from collections.abc import Iterable

import msgspec

from shoal.api.labels import NAMESPACE_NAME
from shoal.api.meta import Json
from shoal.local.apiserver.kinds import defaults
from shoal.local.apiserver.kinds.resources import Resource, ServedVersion
from shoal.local.apiserver.primitives.status import cause, invalid
from shoal.local.apiserver.storage.collection import Collection

SERVICE_NETWORK = ipaddress.ip_network("10.96.0.0/16")
NODE_PORTS = range(30000, 32768)
_KEEPS_STATUS_ON_CREATE = frozenset(("Node",))
_FIRST_STATUS: dict[str, Json] = {
    "Ingress": {"loadBalancer": {}},
    "ReplicaSet": {"replicas": 0},
    "StatefulSet": {"replicas": 0, "availableReplicas": 0},
    "ReplicationController": {"replicas": 0},
    "DaemonSet": {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0},
    "PodDisruptionBudget": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
}


def fold(resource: Resource, obj: Json) -> None:
    """What is written in one place and kept in another, before anyone looks at the object."""
    if resource.kind == "Secret" and not resource.group:
        merge_string_data(obj)
    elif resource.kind == "Namespace" and not resource.group:
        labels = obj["metadata"].setdefault("labels", {})
        labels[NAMESPACE_NAME] = obj["metadata"].get("name", "")


def prepare_create(resource: Resource, version: ServedVersion, obj: Json) -> None:
    """The first status is the server's, not the client's."""
    if resource.custom:
        if version.status:
            obj.pop("status", None)
        return
    if resource.kind == "Job" and resource.group == "batch":
        defaults.select_own_pods(obj)
    match resource.kind if resource.group in ("", "batch") else "":
        case "Pod":
            spec = obj.get("spec") or {}
            grace = spec.get("terminationGracePeriodSeconds") if type(spec) is dict else None
            if type(grace) is int and grace < 0:
                spec["terminationGracePeriodSeconds"] = 1
            obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}
            if type(spec) is dict and spec.get("schedulingGates"):
                obj["status"]["conditions"] = [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "lastProbeTime": None,
                        "reason": "SchedulingGated",
                        "lastTransitionTime": obj["metadata"]["creationTimestamp"],
                        "message": "Scheduling is blocked due to non-empty scheduling gates",
                    }
                ]
        case "Namespace":
            spec = obj.setdefault("spec", {})
            if type(spec) is dict:
                finalizers = spec.setdefault("finalizers", [])
                if type(finalizers) is list and "kubernetes" not in finalizers:
                    finalizers.append("kubernetes")
            obj["status"] = {"phase": "Active"}
        case "PersistentVolumeClaim" | "PersistentVolume":
            obj["status"] = {"phase": "Pending"}
        case "ResourceQuota":
            obj["status"] = {}
        case "Service":
            obj["status"] = {"loadBalancer": {}}
        case "Event":
            _complete_event(obj)
        case _:
            if resource.has_status and resource.kind not in _KEEPS_STATUS_ON_CREATE:
                obj.pop("status", None)
                if resource.kind == "APIService":
                    obj["status"] = {"conditions": [_served_here(obj)]}
                elif resource.group in ("", "apps", "batch", "networking.k8s.io", "policy"):
                    obj["status"] = dict(_FIRST_STATUS.get(resource.kind, {}))


def _complete_event(obj: Json) -> None:
    for name, empty in (("source", {}), ("reportingComponent", ""), ("reportingInstance", "")):
        obj.setdefault(name, empty)


def _served_here(obj: Json) -> Json:
    local = not (obj.get("spec") or {}).get("service")
    return {
        "type": "Available",
        "status": "True" if local else "False",
        "reason": "Local" if local else "ServiceNotFound",
        "message": "Local APIServices are always available"
        if local
        else "aggregated API servers are not supported here",
        "lastTransitionTime": obj["metadata"]["creationTimestamp"],
    }


def prepare_update(resource: Resource, version: ServedVersion, new: Json, old: Json, subresource: str) -> Json:
    """Each way in may change its own part only; the rest is the stored object's."""
    if subresource == "status":
        return _status_only(resource, new, old)
    if subresource == "binding":
        return new
    if subresource in ("ephemeralcontainers", "resize"):
        return _containers_only(new, old, subresource)
    if subresource == "finalize":
        kept = dict(old)
        kept["metadata"] = new["metadata"]
        fold(resource, kept)
        spec = dict(old.get("spec") or {})
        wanted = new.get("spec")
        if type(wanted) is dict:
            spec["finalizers"] = wanted.get("finalizers") or []
            if not spec["finalizers"]:
                del spec["finalizers"]
        kept["spec"] = spec
        return kept
    if version.status:
        if "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
    if resource.custom:
        return new
    if resource.kind == "Secret" and not resource.group:
        merge_string_data(new)
    elif resource.kind == "Namespace" and not resource.group:
        new["spec"] = old.get("spec", {})  # finalizers only through /finalize
        new["metadata"].setdefault("labels", {})[NAMESPACE_NAME] = old["metadata"]["name"]
    elif resource.kind == "Service" and not resource.group:
        _keep_addresses(new, old)
    elif resource.kind == "Event" and not resource.group:
        _complete_event(new)
    return new


def _status_only(resource: Resource, new: Json, old: Json) -> Json:
    kept = dict(old)
    if resource.custom:
        managed = new["metadata"].get("managedFields")
        kept["metadata"] = dict(old["metadata"])
        if managed is not None:
            kept["metadata"]["managedFields"] = managed
    else:
        kept["metadata"] = new["metadata"]
        if "ownerReferences" in old["metadata"]:
            kept["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
        if resource.name == "deployments.apps":  # as Kubernetes: of the built-in kinds this one alone
            kept["metadata"].pop("labels", None)
            if "labels" in old["metadata"]:
                kept["metadata"]["labels"] = old["metadata"]["labels"]
        fold(resource, kept)
    if "status" in new and new["status"] is not None:
        kept["status"] = new["status"]
    else:
        kept.pop("status", None)
    return kept


def _containers_only(new: Json, old: Json, subresource: str) -> Json:
    """Of a pod, its ephemeral containers, or the resources of its containers, and nothing else."""
    kept: Json = msgspec.json.decode(msgspec.json.encode(old))
    managed = new["metadata"].get("managedFields")
    if managed is not None:
        kept["metadata"]["managedFields"] = managed
    spec, wanted = kept["spec"], new.get("spec")
    wanted = wanted if type(wanted) is dict else {}
    if subresource == "ephemeralcontainers":
        spec.pop("ephemeralContainers", None)
        if wanted.get("ephemeralContainers"):
            spec["ephemeralContainers"] = wanted["ephemeralContainers"]
        return kept
    for part in ("containers", "initContainers"):
        named = {one.get("name"): one for one in _items(wanted, part)}
        for container in _items(spec, part):
            for field in ("resources", "resizePolicy"):
                given = named.get(container.get("name"), container)
                if field in given:
                    container[field] = given[field]
                else:
                    container.pop(field, None)
    return kept


def merge_string_data(secret: Json) -> None:
    """Plain text in, base64 stored."""
    plain = secret.pop("stringData", None)
    if type(plain) is not dict or not plain:
        return
    data = secret.setdefault("data", {})
    if type(data) is dict:
        for name, value in plain.items():
            data[name] = base64.b64encode(str(value).encode()).decode()


def quality_of_service(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from the containers' requests and limits."""
    if type(spec) is not dict:
        return "BestEffort"
    anything, guaranteed = False, True
    for container in [*_items(spec, "containers"), *_items(spec, "initContainers")]:
        resources = container.get("resources")
        resources = resources if type(resources) is dict else {}
        requests = _amounts(resources, "requests")
        limits = _amounts(resources, "limits")
        if requests or limits:
            anything = True
        for name in ("cpu", "memory"):
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _items(spec: Json, name: str) -> list[Json]:
    found = spec.get(name)
    return [one for one in found if type(one) is dict] if type(found) is list else []


def _amounts(resources: Json, name: str) -> dict[str, str]:
    found = resources.get(name)
    return {key: str(value) for key, value in found.items() if key in ("cpu", "memory")} if type(found) is dict else {}


# --- services


class _ServiceSpec(msgspec.Struct, rename="camel", frozen=True):
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    ports: list[dict[str, object]] | None = None


class _Service(msgspec.Struct):
    spec: _ServiceSpec = _ServiceSpec()


def allocate_addresses(service: Json, services: Collection, chance: random.Random, *, old: Json | None = None) -> None:
    """A cluster IP and node ports that no other service has. One that it has already cannot be changed: validation
    refuses that."""
    spec = service.get("spec")
    if type(spec) is not dict or spec.get("type") == "ExternalName":
        return
    taken, ports_taken = _taken(services, service["metadata"])
    asked = spec.get("clusterIP")
    if asked in (None, ""):
        spec["clusterIP"] = _free_address(taken, chance)
    elif asked != "None" and not ((old or {}).get("spec") or {}).get("clusterIP"):
        _check_address(service, asked, taken)
    spec["clusterIPs"] = [spec["clusterIP"]]
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        _check_node_ports(service, old, ports_taken)
        free = [one for one in NODE_PORTS if one not in ports_taken]
        chance.shuffle(free)
        for port in spec.get("ports") or ():
            if type(port) is dict and not port.get("nodePort"):
                if not free:
                    raise invalid(
                        "",
                        "Service",
                        service["metadata"].get("name", ""),
                        [cause("FieldValueInvalid", "Internal error: no node port is free", "spec.ports[0].nodePort")],
                    )
                port["nodePort"] = free.pop()


def _check_node_ports(service: Json, old: Json | None, taken: set[int]) -> None:
    """A port that is asked for is one for Services, and no other Service's: the machine's own are not given away."""
    had = {port.get("nodePort") for port in _items((old or {}).get("spec") or {}, "ports")}
    for place, port in enumerate(_items(service["spec"], "ports")):
        asked = port.get("nodePort")
        if type(asked) is not int or asked <= 0 or asked in had:
            continue
        why = "provided port is already allocated" if asked in taken else ""
        if asked not in NODE_PORTS:
            why = (
                f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            )
        if why:
            said = cause("FieldValueInvalid", f"Invalid value: {asked}: {why}", f"spec.ports[{place}].nodePort")
            raise invalid("", "Service", service["metadata"].get("name", ""), [said])


def _taken(services: Collection, metadata: Json) -> tuple[set[str], set[int]]:
    addresses, ports = set(), set()
    for record in services.all_heads():
        if record.namespace == metadata.get("namespace") and record.name == metadata.get("name"):
            continue
        spec = msgspec.json.decode(record.raw, type=_Service).spec
        if spec.cluster_ip and spec.cluster_ip != "None":
            addresses.add(spec.cluster_ip)
        for port in spec.ports or ():
            number = port.get("nodePort")
            if isinstance(number, int):
                ports.add(number)
    return addresses, ports


def _free_address(taken: Iterable[str], chance: random.Random) -> str:
    used = set(taken)
    while True:
        found = str(SERVICE_NETWORK[chance.randrange(256, SERVICE_NETWORK.num_addresses - 1)])
        if found not in used:
            return found


def _check_address(service: Json, asked: object, taken: set[str]) -> None:
    name = service["metadata"].get("name", "")
    try:
        inside = ipaddress.ip_address(str(asked)) in SERVICE_NETWORK
    except ValueError:
        inside = False
    why = ""
    if not inside:
        why = (
            f"failed to allocate IP {asked}: the provided IP is not in the valid range. The range of valid IPs is "
            f"{SERVICE_NETWORK}"
        )
    elif asked in taken:
        why = f"failed to allocate IP {asked}: provided IP is already allocated"
    if why:
        raise invalid(
            "", "Service", name, [cause("FieldValueInvalid", f'Invalid value: ["{asked}"]: {why}', "spec.clusterIPs")]
        )


def _keep_addresses(new: Json, old: Json) -> None:
    spec, before = new.get("spec"), old.get("spec") or {}
    if type(spec) is not dict or spec.get("type") == "ExternalName":
        return
    for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if not spec.get(name) and name in before:
            spec[name] = before[name]
    node_ports = {
        (port.get("protocol", "TCP"), port.get("port")): port.get("nodePort")
        for port in before.get("ports") or ()
        if type(port) is dict
    }
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        for port in spec.get("ports") or ():
            if type(port) is dict and not port.get("nodePort"):
                found = node_ports.get((port.get("protocol", "TCP"), port.get("port")))
                if found:
                    port["nodePort"] = found
