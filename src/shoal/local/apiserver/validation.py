"""What the API server refuses: metadata of every object, and the fields of built-in kinds.

`validate` is called on every write after defaults and admission. It returns faults in Kubernetes' words and changes
nothing. Objects of built-in kinds have been decoded, so their types are right; custom kinds have their schema for
the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.local.apiserver import validation_names as names
from shoal.local.apiserver.builtin_types import type_of
from shoal.local.apiserver.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from shoal.local.apiserver.patch import same
from shoal.local.apiserver.validation_crd import validate_crd
from shoal.local.apiserver.validation_limits import validate_limit_range, validate_quota, validate_taints
from shoal.local.apiserver.validation_pods import validate_pod, validate_pod_status, validate_template_resource
from shoal.local.apiserver.validation_workloads import (
    validate_claim,
    validate_cron_job,
    validate_daemon_set,
    validate_deployment,
    validate_job,
    validate_replica_set,
    validate_replication_controller,
    validate_stateful_set,
)

Json = dict[str, Any]
Check = Callable[[Json, Json | None], list[FieldError]]

MOST_ANNOTATIONS = 256 * 1024
MOST_DATA = 1024 * 1024
_PLAIN_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")


def validate(kind: Kind, obj: Json, old: Json | None = None, *, subresource: str = "") -> list[FieldError]:
    """Everything that is wrong with `obj`; with `old` it is an update of that."""
    errors = validate_metadata(kind, obj.get("metadata") or {}, (old or {}).get("metadata") if old else None)
    check = _CHECKS.get(kind.group_kind) if not subresource else _STATUS_CHECKS.get(kind.group_kind)
    if check is not None and subresource in ("", "status"):
        errors += check(obj, old)
    return errors


# --- metadata


def validate_metadata(kind: Kind, metadata: Json, old: Json | None = None) -> list[FieldError]:
    """Names, labels, annotations, owners and finalizers. What was stored before is not judged again."""
    errors: list[FieldError] = []
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


def _labels(found: Any, path: str, *, values: bool) -> list[FieldError]:
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


def _owners(owners: Any) -> list[FieldError]:
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


def _finalizers(kind: Kind, metadata: Json, old: Json | None) -> list[FieldError]:
    path = "metadata.finalizers"
    found = metadata.get("finalizers") or []
    before = (old or {}).get("finalizers") or []
    if found == before:
        return []
    errors = []
    plain = kind.group != kinds.CRD.group and type_of(kind) is not None  # custom kinds and CRDs are less strict
    for index, finalizer in enumerate(found):
        complaints = names.qualified_name(str(finalizer))
        errors += [invalid(path, finalizer, complaint) for complaint in complaints]
        if not complaints and plain and "/" not in str(finalizer) and finalizer not in _PLAIN_FINALIZERS:
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


def _service(obj: Json, old: Json | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
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


def _config(obj: Json, old: Json | None) -> list[FieldError]:
    """ConfigMaps and Secrets."""
    errors = []
    size = 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            errors += [invalid(f"{part}[{key}]", key, complaint) for complaint in names.config_key(key)]
            size += len(str(value).encode())
    for key in obj.get("binaryData") or {}:
        if key in (obj.get("data") or {}):
            errors.append(invalid(f"data[{key}]", key, f'duplicate of key present in binaryData: "{key}"'))
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
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


def _binding(obj: Json, old: Json | None) -> list[FieldError]:
    errors = []
    role = obj.get("roleRef") or {}
    if role.get("kind") not in ("Role", "ClusterRole"):
        errors.append(not_supported("roleRef.kind", role.get("kind") or "", ["Role", "ClusterRole"]))
    if not role.get("name"):
        errors.append(required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or ()):
        path = f"subjects[{index}]"
        if not subject.get("name"):
            errors.append(required(f"{path}.name"))
        if subject.get("kind") not in ("ServiceAccount", "User", "Group"):
            kinds_ = ["Group", "ServiceAccount", "User"]
            errors.append(not_supported(f"{path}.kind", subject.get("kind") or "", kinds_))
            continue
        if subject["kind"] == "ServiceAccount" and not subject.get("namespace") and _is_cluster_wide(obj):
            errors.append(required(f"{path}.namespace"))
        group = "" if subject["kind"] == "ServiceAccount" else kinds.ROLE.group
        if (subject.get("apiGroup") or "") not in (group, ""):
            errors.append(not_supported(f"{path}.apiGroup", subject["apiGroup"], [group]))
    if old is not None and obj.get("roleRef") != old.get("roleRef"):
        errors.append(invalid("roleRef", obj.get("roleRef"), "cannot change roleRef"))
    return errors


def _is_cluster_wide(obj: Json) -> bool:
    return not (obj.get("metadata") or {}).get("namespace")


def _role(obj: Json, old: Json | None) -> list[FieldError]:
    errors = []
    if obj.get("aggregationRule") is not None and not (obj["aggregationRule"] or {}).get("clusterRoleSelectors"):
        words = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required("aggregationRule.clusterRoleSelectors", words))
    for index, rule in enumerate(obj.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            errors.append(required(f"{path}.verbs", "verbs must contain at least one value"))
        if rule.get("nonResourceURLs"):
            continue
        if not rule.get("apiGroups"):
            errors.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            errors.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
    return errors


def _priority_class(obj: Json, old: Json | None) -> list[FieldError]:
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


def _lease(obj: Json, old: Json | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors = []
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        errors.append(invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
    return errors


def _event(obj: Json, old: Json | None) -> list[FieldError]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    namespace = (obj.get("metadata") or {}).get("namespace") or ""
    fits = (namespace,) if about.get("namespace") else ("", "default")  # those of cluster-wide objects
    if (about.get("namespace") or namespace) not in fits:
        return [invalid("involvedObject.namespace", about.get("namespace") or "", "does not match event.namespace")]
    return []


def _webhooks(obj: Json, old: Json | None) -> list[FieldError]:
    errors = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        complaints = names.dns_subdomain(str(hook.get("name") or ""))
        if str(hook.get("name") or "").count(".") < 2:
            complaints.append("should be a domain with at least three segments separated by dots")
        errors += [invalid(f"{path}.name", hook.get("name") or "", complaint) for complaint in complaints]
        config = hook.get("clientConfig") or {}
        if bool(config.get("url")) == bool(config.get("service")):
            errors.append(required(f"{path}.clientConfig", "exactly one of url or service is required"))
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            values = ["None", "NoneOnDryRun"]
            errors.append(not_supported(f"{path}.sideEffects", hook.get("sideEffects") or "", values))
        if not hook.get("admissionReviewVersions"):
            words = "must specify one of v1, v1beta1"
            errors.append(required(f"{path}.admissionReviewVersions", words))
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            words = "the timeout value must be between 1 and 30 seconds"
            errors.append(invalid(f"{path}.timeoutSeconds", hook["timeoutSeconds"], words))
        if hook.get("failurePolicy") not in ("Ignore", "Fail"):
            errors.append(not_supported(f"{path}.failurePolicy", hook.get("failurePolicy"), ["Fail", "Ignore"]))
        errors += _match_conditions(hook.get("matchConditions") or [], f"{path}.matchConditions")
    return errors


def _match_conditions(conditions: list[Json], path: str) -> Iterator[FieldError]:
    if not conditions:
        return
    from shoal.local.apiserver.match_conditions import complaint  # brings CEL, which few need

    for index, condition in enumerate(conditions):
        expression = str(condition.get("expression") or "").strip()
        if not condition.get("name"):
            yield required(f"{path}[{index}].name")
        if not expression:
            yield required(f"{path}[{index}].expression")
        elif words := complaint(expression):
            yield invalid(f"{path}[{index}].expression", condition["expression"], words)


def _budget(obj: Json, old: Json | None) -> list[FieldError]:
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


def _namespace_status(obj: Json, old: Json | None) -> list[FieldError]:
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
    kinds.JOB.group_kind: validate_job,
    kinds.CRON_JOB.group_kind: validate_cron_job,
    kinds.CRD.group_kind: validate_crd,
    kinds.ROLE.group_kind: _role,
    kinds.CLUSTER_ROLE.group_kind: _role,
    kinds.ROLE_BINDING.group_kind: _binding,
    kinds.CLUSTER_ROLE_BINDING.group_kind: _binding,
    kinds.PRIORITY_CLASS.group_kind: _priority_class,
    kinds.LEASE.group_kind: _lease,
    kinds.EVENT.group_kind: _event,
    kinds.MUTATING_WEBHOOK.group_kind: _webhooks,
    kinds.VALIDATING_WEBHOOK.group_kind: _webhooks,
    kinds.POD_DISRUPTION_BUDGET.group_kind: _budget,
    kinds.RESOURCE_QUOTA.group_kind: validate_quota,
    kinds.LIMIT_RANGE.group_kind: validate_limit_range,
    kinds.NODE.group_kind: validate_taints,
}

_STATUS_CHECKS: dict[str, Check] = {
    kinds.POD.group_kind: validate_pod_status,
    kinds.NAMESPACE.group_kind: _namespace_status,
}
