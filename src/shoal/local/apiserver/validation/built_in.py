"""What the API server refuses: metadata of every object, and the fields of built-in kinds.

`validate` is called on every write after defaults and admission. It returns faults in Kubernetes' words and changes
nothing. Objects of built-in kinds have been decoded, so their types are right; custom kinds have their schema for
the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import TLS_SECRET
from shoal.local.apiserver.crd.definitions import validate_crd
from shoal.local.apiserver.primitives import names
from shoal.local.apiserver.primitives.builtin_types import type_of
from shoal.local.apiserver.primitives.field_errors import (
    InvalidField,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from shoal.local.apiserver.primitives.values import same
from shoal.local.apiserver.validation.access import validate_binding, validate_role, validate_webhooks
from shoal.local.apiserver.validation.claims import validate_claim, validate_storage_class
from shoal.local.apiserver.validation.limits import validate_limit_range, validate_quota, validate_taints
from shoal.local.apiserver.validation.pods import (
    validate_ephemeral_containers,
    validate_pod,
    validate_pod_status,
    validate_resize,
    validate_template_resource,
)
from shoal.local.apiserver.validation.workloads import (
    validate_cron_job,
    validate_daemon_set,
    validate_deployment,
    validate_job,
    validate_replica_set,
    validate_replication_controller,
    validate_stateful_set,
)

Json = dict[str, Any]
Check = Callable[[Json, Json | None], list[InvalidField]]

MOST_ANNOTATIONS = 256 * 1024
MOST_DATA = 1024 * 1024
_PLAIN_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")


def validate(kind: Kind, obj: Json, old: Json | None = None, *, subresource: str = "") -> list[InvalidField]:
    """Everything that is wrong with `obj`; with `old` it is an update of that."""
    errors = validate_metadata(kind, obj.get("metadata") or {}, (old or {}).get("metadata") if old else None)
    check = _CHECKS.get(kind.group_kind) if not subresource else _PART_CHECKS.get((kind.group_kind, subresource))
    if check is not None:
        errors += check(obj, old)
    return errors


# --- metadata


def validate_metadata(kind: Kind, metadata: Json, old: Json | None = None) -> list[InvalidField]:
    """Names, labels, annotations, owners and finalizers. What was stored before is not judged again."""
    errors: list[InvalidField] = []
    rule = _NAME_RULES.get(kind.group_kind, names.dns_subdomain)
    if old is None:
        if metadata.get("generateName"):
            prefix = str(metadata["generateName"])
            trial = (
                prefix[:-1] + "a" if prefix.endswith("-") else prefix
            )  # what follows the hyphen is made by the server
            errors += [invalid("metadata.generateName", prefix, c) for c in rule(trial)]
        name = metadata.get("name")
        if not name:
            errors.append(required("metadata.name", "name or generateName is required"))
        else:
            errors += [invalid("metadata.name", name, complaint) for complaint in rule(str(name))]
    for part in ("labels", "annotations"):
        if old is None or not same(metadata.get(part), old.get(part)):
            errors += _labels(metadata.get(part), f"metadata.{part}", values=part == "labels")
    if old is None or not same(metadata.get("ownerReferences"), old.get("ownerReferences")):
        errors += _owners(metadata.get("ownerReferences") or [])
    errors += _finalizers(kind, metadata, old)
    return errors


def _labels(found: Any, path: str, *, values: bool) -> list[InvalidField]:
    if not isinstance(found, dict):
        return [] if found is None else [invalid(path, found, "must be a map of text to text")]
    errors = []
    size = 0
    for key, value in found.items():
        size += len(key.encode()) + len(str(value).encode())
        checked = key if values else key.lower()
        errors += [invalid(path, key, complaint) for complaint in names.qualified_name(checked)]
        if not isinstance(value, str):
            errors.append(invalid(f"{path}[{key}]", value, "must be text"))
        elif values:
            errors += [invalid(path, value, complaint) for complaint in names.label_value(value)]
    if not values and size > MOST_ANNOTATIONS:
        errors.append(too_long(path, MOST_ANNOTATIONS))
    return errors


def _owners(owners: Any) -> list[InvalidField]:
    path = "metadata.ownerReferences"
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        return [invalid(path, owners, "must be a list of references")]
    errors = []
    for owner in owners:
        for name, words in (("apiVersion", "version must not be empty"), ("kind", "must not be empty"),
                            ("name", "must not be empty"), ("uid", "must not be empty")):  # fmt: skip
            if not owner.get(name):
                errors.append(invalid(f"{path}.{name}", owner.get(name) or "", words))
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            errors.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
    leaders = [owner for owner in owners if owner.get("controller")]
    if len(leaders) > 1:
        pair = " and ".join(f"{owner.get('kind')}/{owner.get('name')}" for owner in leaders[:2])
        words = f'Only one reference can have Controller set to true. Found "true" in references for {pair}'
        errors.append(invalid(path, owners, words))
    return errors


def _finalizers(kind: Kind, metadata: Json, old: Json | None) -> list[InvalidField]:
    path = "metadata.finalizers"
    found = metadata.get("finalizers") or []
    before = (old or {}).get("finalizers") or []
    if found == before:
        return []
    errors = []
    plain = kind.group != kinds.CRD.group and type_of(kind) is not None  # custom kinds and CRDs are less strict
    for index, finalizer in enumerate(found):
        errors += [invalid(path, finalizer, complaint) for complaint in names.qualified_name(str(finalizer))]
        if plain and "/" not in str(finalizer) and finalizer not in _PLAIN_FINALIZERS:
            words = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(f"{path}[{index}]", finalizer, words))
    if old is not None and old.get("deletionTimestamp"):
        added = [finalizer for finalizer in found if finalizer not in before]
        if added:
            shown = ", ".join(f'"{name}"' for name in added)
            words = "no new finalizers can be added if the object is being deleted, found new finalizers []string{"
            errors.append(forbidden(path, f"{words}{shown}}}"))
    return errors


# --- small kinds


def _service(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = obj.get("spec") or {}
    errors: list[InvalidField] = []
    ports = spec.get("ports") or []
    if not ports and spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None":
        errors.append(required("spec.ports"))
    if spec.get("type") not in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"):
        errors.append(not_supported("spec.type", spec.get("type"),
                                    ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]))  # fmt: skip
    if spec.get("type") == "ExternalName" and not spec.get("externalName"):
        errors.append(required("spec.externalName"))
    seen_names: set[str] = set()
    seen: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        name = port.get("name")
        if not name and len(ports) > 1:
            errors.append(required(f"{path}.name"))
        elif name:
            errors += [invalid(f"{path}.name", name, complaint) for complaint in names.dns_label(name)]
            if name in seen_names:
                errors.append(duplicate(f"{path}.name", name))
            seen_names.add(name)
        errors += [invalid(f"{path}.port", port.get("port") or 0, c) for c in names.port_number(port.get("port"))]
        target = port.get("targetPort")
        complaints = names.port_number(target) if isinstance(target, int) else names.port_name(target or "")
        if target is not None:
            errors += [invalid(f"{path}.targetPort", target, complaint) for complaint in complaints]
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            errors.append(not_supported(f"{path}.protocol", port.get("protocol"), ["SCTP", "TCP", "UDP"]))
        key = (port.get("port"), port.get("protocol"))
        if key in seen:
            errors.append(duplicate(path, {"port": key[0], "protocol": key[1]}))
        seen.add(key)
    errors += _labels(spec.get("selector"), "spec.selector", values=True)
    before = (old or {}).get("spec") or {}
    fixed = before.get("clusterIP") and before.get("type") != "ExternalName" and spec.get("type") != "ExternalName"
    if fixed and spec.get("clusterIP") != before["clusterIP"]:
        words = "may not change once set"
        errors.append(invalid("spec.clusterIPs[0]", spec.get("clusterIPs") or [spec.get("clusterIP")], words))
    return errors


def _service_status(obj: Json, old: Json | None) -> list[InvalidField]:
    ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    if ingress and (obj.get("spec") or {}).get("type") != "LoadBalancer":
        words = "may only be used when `spec.type` is 'LoadBalancer'"
        return [forbidden("status.loadBalancer.ingress", words)]
    return []


def _config(obj: Json, old: Json | None) -> list[InvalidField]:
    """ConfigMaps and Secrets."""
    errors = []
    size = 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            errors += [invalid(f"{part}[{key}]", key, complaint) for complaint in names.config_key(key)]
            size += len(str(value).encode())
    for key in obj.get("binaryData") or {}:
        if key in (obj.get("data") or {}):
            errors.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    if size > (MOST_DATA * 4 // 3 if obj.get("type") else MOST_DATA):  # a secret's data is written in base64
        errors.append(too_long("data" if obj.get("type") else "[]", MOST_DATA))
    for key in _SECRET_KEYS.get(str(obj.get("type") or ""), ()):
        if key not in (obj.get("data") or {}):
            errors.append(required(f"data[{key}]"))
    if obj.get("type") == "kubernetes.io/basic-auth" and not {"username", "password"} & set(obj.get("data") or {}):
        errors += [required("data[username]"), required("data[password]")]
    if old is not None:
        if old.get("immutable"):
            if not obj.get("immutable"):
                errors.append(forbidden("immutable", "field is immutable when `immutable` is set"))
            for part in ("data", "binaryData"):
                if (obj.get(part) or {}) != (old.get(part) or {}):
                    errors.append(forbidden(part, "field is immutable when `immutable` is set"))
        if obj.get("type") != old.get("type"):
            errors.append(invalid("type", obj.get("type"), "field is immutable"))
    return errors


_SECRET_KEYS = {
    TLS_SECRET: ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


def _priority_class(obj: Json, old: Json | None) -> list[InvalidField]:
    errors = []
    value, name = obj.get("value") or 0, str((obj.get("metadata") or {}).get("name") or "")
    if name.startswith("system-") and name not in ("system-cluster-critical", "system-node-critical"):
        words = "priority class names with 'system-' prefix are reserved for system use only. error: "
        errors.append(forbidden("metadata.name", f"{words}{name} is not a known system priority class"))
    elif value > 1_000_000_000 and not name.startswith("system-"):
        words = "maximum allowed value of a user defined priority is 1000000000"
        errors.append(forbidden("value", words))
    if old is not None and value != (old.get("value") or 0):
        errors.append(forbidden("value", "may not be changed in an update."))
    if old is not None and obj.get("preemptionPolicy") != old.get("preemptionPolicy"):
        errors.append(invalid("preemptionPolicy", obj.get("preemptionPolicy"), "field is immutable"))
    return errors


def _lease(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = obj.get("spec") or {}
    errors = []
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        errors.append(invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
    return errors


def _event(obj: Json, old: Json | None) -> list[InvalidField]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    namespace = (obj.get("metadata") or {}).get("namespace") or ""
    fits = (namespace,) if about.get("namespace") else ("", "default")  # those of cluster-wide objects
    if (about.get("namespace") or namespace) not in fits:
        return [invalid("involvedObject.namespace", about.get("namespace") or "", "does not match event.namespace")]
    return []


def _budget(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    errors = []
    for name in ("minAvailable", "maxUnavailable"):
        value = spec.get(name)
        if isinstance(value, str) and re.fullmatch("[0-9]+%", value) is None:
            words = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
            errors.append(invalid(f"spec.{name}", value, words + "regex used for validation is '[0-9]+%')"))
        elif isinstance(value, int) and value < 0:
            errors.append(invalid(f"spec.{name}", value, "must be greater than or equal to 0"))
        elif isinstance(value, str) and int(value[:-1]) > 100:
            errors.append(invalid(f"spec.{name}", value, "must not be greater than 100%"))
    return errors


def _namespace_status(obj: Json, old: Json | None) -> list[InvalidField]:
    phase = (obj.get("status") or {}).get("phase")
    leaving = bool((obj.get("metadata") or {}).get("deletionTimestamp"))
    if leaving and phase != "Terminating":
        words = "may only be 'Terminating' if `deletionTimestamp` is not empty"
        return [invalid("status.Phase", phase, words)]
    if not leaving and phase != "Active":
        return [invalid("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")]
    return []


_NAME_RULES: dict[str, Callable[[str], list[str]]] = {
    kinds.NAMESPACE.group_kind: names.dns_label,
    kinds.SERVICE.group_kind: names.dns_label,
    kinds.ROLE.group_kind: names.path_segment,
    kinds.ROLE_BINDING.group_kind: names.path_segment,
    kinds.CLUSTER_ROLE.group_kind: names.path_segment,
    kinds.CLUSTER_ROLE_BINDING.group_kind: names.path_segment,
    kinds.API_SERVICE.group_kind: names.path_segment,
}

_CHECKS: dict[str, Check] = {
    kinds.POD.group_kind: validate_pod,
    kinds.POD_TEMPLATE.group_kind: validate_template_resource,
    kinds.SERVICE.group_kind: _service,
    kinds.CONFIG_MAP.group_kind: _config,
    kinds.SECRET.group_kind: _config,
    kinds.DEPLOYMENT.group_kind: validate_deployment,
    kinds.REPLICA_SET.group_kind: validate_replica_set,
    kinds.STATEFUL_SET.group_kind: validate_stateful_set,
    kinds.DAEMON_SET.group_kind: validate_daemon_set,
    "ReplicationController": validate_replication_controller,
    kinds.PERSISTENT_VOLUME_CLAIM.group_kind: validate_claim,
    "StorageClass.storage.k8s.io": validate_storage_class,
    kinds.JOB.group_kind: validate_job,
    kinds.CRON_JOB.group_kind: validate_cron_job,
    kinds.CRD.group_kind: validate_crd,
    kinds.ROLE.group_kind: validate_role,
    kinds.CLUSTER_ROLE.group_kind: validate_role,
    kinds.ROLE_BINDING.group_kind: validate_binding,
    kinds.CLUSTER_ROLE_BINDING.group_kind: validate_binding,
    kinds.PRIORITY_CLASS.group_kind: _priority_class,
    kinds.LEASE.group_kind: _lease,
    kinds.EVENT.group_kind: _event,
    kinds.MUTATING_WEBHOOK.group_kind: validate_webhooks,
    kinds.VALIDATING_WEBHOOK.group_kind: validate_webhooks,
    kinds.POD_DISRUPTION_BUDGET.group_kind: _budget,
    kinds.RESOURCE_QUOTA.group_kind: validate_quota,
    kinds.LIMIT_RANGE.group_kind: validate_limit_range,
    kinds.NODE.group_kind: validate_taints,
}

_PART_CHECKS: dict[tuple[str, str], Check] = {
    (kinds.SERVICE.group_kind, "status"): _service_status,
    (kinds.POD.group_kind, "status"): validate_pod_status,
    (kinds.POD.group_kind, "ephemeralcontainers"): validate_ephemeral_containers,
    (kinds.POD.group_kind, "resize"): validate_resize,
    (kinds.NAMESPACE.group_kind, "status"): _namespace_status,
}
