"""Pods and pod templates: what must be there, what must fit together, and what may change once a pod exists."""

from __future__ import annotations

import ipaddress
from typing import Any

from shoal.api import quantity
from shoal.errors import BadInput
from shoal.local.apiserver.kinds.strategy import quality_of_service
from shoal.local.apiserver.primitives import names
from shoal.local.apiserver.primitives.field_errors import (
    InvalidField,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from shoal.local.apiserver.primitives.values import clone, mark
from shoal.local.apiserver.validation.affinity import validate_affinity, validate_spread

Json = dict[str, Any]

_RESTART = ("Always", "OnFailure", "Never")
_STANDARD = frozenset(("cpu", "memory", "ephemeral-storage", "storage"))
_CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_pod(pod: Json, old: Json | None) -> list[InvalidField]:
    if old is None:
        spec = pod.get("spec") or {}
        errors = validate_pod_spec(spec, "spec")
        if spec.get("ephemeralContainers"):
            errors.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
        return errors
    return _update(pod.get("spec") or {}, old.get("spec") or {})


def validate_pod_status(pod: Json, old: Json | None) -> list[InvalidField]:
    """The addresses that a node reports: real ones, at most one of each family."""
    status = pod.get("status") or {}
    found = [one.get("ip") for one in status.get("podIPs") or ()] or ([status["podIP"]] if status.get("podIP") else [])
    errors: list[InvalidField] = []
    families = []
    for index, text in enumerate(found):
        try:
            families.append(ipaddress.ip_address(str(text)).version)
        except ValueError:
            words = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            errors.append(invalid(f"status.podIPs[{index}]", text, words))
    if len(set(families)) < len(families):
        words = "may specify no more than one IP for each IP family"
        errors.append(invalid("status.podIPs", [{"IP": text} for text in found], words))
    return errors


def validate_ephemeral_containers(pod: Json, old: Json | None) -> list[InvalidField]:
    """Debuggers are added to a pod that runs; those that are there stay as they are."""
    spec = pod.get("spec") or {}
    errors: list[InvalidField] = []
    volumes = {str(volume.get("name")) for volume in spec.get("volumes") or ()}
    seen = {str(one.get("name")) for part in ("initContainers", "containers") for one in spec.get(part) or ()}
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        path = f"spec.ephemeralContainers[{index}]"
        errors += _container(container, path, volumes, seen)
        for field in ("ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(field):
                errors.append(forbidden(f"{path}.{field}", "cannot be set for an Ephemeral Container"))
    now = {one.get("name"): one for one in spec.get("ephemeralContainers") or ()}
    for before in ((old or {}).get("spec") or {}).get("ephemeralContainers") or ():
        if now.get(before.get("name")) != before:
            words = f'existing ephemeral containers "{before.get("name")}" may not be '
            words += "changed" if before.get("name") in now else "removed"
            errors.append(forbidden("spec.ephemeralContainers", words))
    return errors


def validate_resize(pod: Json, old: Json | None) -> list[InvalidField]:
    """The resources of a pod that runs: good ones, and no other class of service."""
    spec = pod.get("spec") or {}
    errors: list[InvalidField] = []
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part) or ()):
            errors += _resources(container.get("resources") or {}, f"spec.{part}[{index}].resources")
    before = quality_of_service((old or {}).get("spec") or {})
    if not errors and quality_of_service(spec) != before:
        errors.append(invalid("spec", before, "Pod QOS Class may not change as a result of resizing"))
    return errors


def validate_template_resource(obj: Json, old: Json | None) -> list[InvalidField]:
    return validate_pod_spec((obj.get("template") or {}).get("spec") or {}, "template.spec")


def validate_pod_spec(spec: Json, path: str) -> list[InvalidField]:
    """A pod's spec, in a pod or a template."""
    errors: list[InvalidField] = []
    volumes = _volumes(spec.get("volumes") or [], f"{path}.volumes", errors)
    containers = spec.get("containers") or []
    if not containers:
        errors.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            errors += _container(container, f"{path}.{group}[{index}]", volumes, seen)
    if spec.get("restartPolicy") not in _RESTART:
        errors.append(not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), list(_RESTART)))
    if spec.get("dnsPolicy") not in ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"):
        allowed = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]
        errors.append(not_supported(f"{path}.dnsPolicy", spec.get("dnsPolicy"), allowed))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        words = "must be between 1 and 2147483647, inclusive"
        errors.append(invalid(f"{path}.activeDeadlineSeconds", deadline, words))
    for key, value in (spec.get("nodeSelector") or {}).items():
        errors += [invalid(f"{path}.nodeSelector", key, complaint) for complaint in names.qualified_name(key)]
        errors += [invalid(f"{path}.nodeSelector", value, complaint) for complaint in names.label_value(value)]
    errors += validate_affinity(spec.get("affinity") or {}, f"{path}.affinity")
    errors += validate_spread(spec.get("topologySpreadConstraints") or [], f"{path}.topologySpreadConstraints")
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        errors += _toleration(toleration, f"{path}.tolerations[{index}]")
    for name in ("hostname", "subdomain"):
        if spec.get(name):
            errors += [invalid(f"{path}.{name}", spec[name], complaint) for complaint in names.dns_label(spec[name])]
    if spec.get("serviceAccountName"):
        account = spec["serviceAccountName"]
        errors += [
            invalid(f"{path}.serviceAccountName", account, complaint) for complaint in names.dns_subdomain(account)
        ]
    return errors


def _volumes(volumes: list[Json], path: str, errors: list[InvalidField]) -> set[str]:
    found: set[str] = set()
    for index, volume in enumerate(volumes):
        name = str(volume.get("name") or "")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
            continue
        errors += [invalid(f"{path}[{index}].name", name, complaint) for complaint in names.dns_label(name)]
        if name in found:
            errors.append(duplicate(f"{path}[{index}].name", name))
        found.add(name)
        sources = [source for source in volume if source != "name"]
        if len(sources) > 1:
            words = "may not specify more than 1 volume type"
            errors.append(forbidden(f"{path}[{index}].{sources[1]}", words))
        errors += _source(volume, f"{path}[{index}]")
    return found


def _source(volume: Json, path: str) -> list[InvalidField]:
    needs = {"hostPath": "path", "secret": "secretName", "configMap": "name", "persistentVolumeClaim": "claimName"}
    return [
        required(f"{path}.{source}.{field}")
        for source, field in needs.items()
        if source in volume and not (volume[source] or {}).get(field)
    ]


def _container(container: Json, path: str, volumes: set[str], seen: set[str]) -> list[InvalidField]:
    errors: list[InvalidField] = []
    name = str(container.get("name") or "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid(f"{path}.name", name, complaint) for complaint in names.dns_label(name)]
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
    image = container.get("image")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if container.get("imagePullPolicy") not in ("Always", "IfNotPresent", "Never"):
        allowed = ["Always", "IfNotPresent", "Never"]
        errors.append(not_supported(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), allowed))
    errors += _ports(container.get("ports") or [], f"{path}.ports")
    for index, variable in enumerate(container.get("env") or ()):
        where = f"{path}.env[{index}]"
        if not variable.get("name"):
            errors.append(required(f"{where}.name"))
        else:
            errors += [invalid(f"{where}.name", variable["name"], c) for c in names.env_name(variable["name"])]
        if variable.get("value") and variable.get("valueFrom"):
            errors.append(invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty"))
    errors += _mounts(container.get("volumeMounts") or [], f"{path}.volumeMounts", volumes)
    errors += _resources(container.get("resources") or {}, f"{path}.resources")
    return errors


def _ports(ports: list[Json], path: str) -> list[InvalidField]:
    errors: list[InvalidField] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        name = port.get("name")
        if name:
            errors += [invalid(f"{where}.name", name, complaint) for complaint in names.port_name(name)]
            if name in seen:
                errors.append(duplicate(f"{where}.name", name))
            seen.add(name)
        if not port.get("containerPort"):
            errors.append(required(f"{where}.containerPort"))
        else:
            number = port["containerPort"]
            errors += [invalid(f"{where}.containerPort", number, c) for c in names.port_number(number)]
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            errors.append(not_supported(f"{where}.protocol", port.get("protocol"), ["SCTP", "TCP", "UDP"]))
    return errors


def _mounts(mounts: list[Json], path: str, volumes: set[str]) -> list[InvalidField]:
    errors: list[InvalidField] = []
    seen: set[str] = set()
    for index, mount in enumerate(mounts):
        where = f"{path}[{index}]"
        if not mount.get("name"):
            errors.append(required(f"{where}.name"))
        elif mount["name"] not in volumes:
            errors.append(InvalidField(f"{where}.name", "NotFound", f'Not found: "{mount["name"]}"'))
        if not mount.get("mountPath"):
            errors.append(required(f"{where}.mountPath"))
        elif mount["mountPath"] in seen:
            errors.append(invalid(f"{where}.mountPath", mount["mountPath"], "must be unique"))
        seen.add(str(mount.get("mountPath")))
    return errors


def _resources(resources: Json, path: str) -> list[InvalidField]:
    errors: list[InvalidField] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, written in amounts.items():
            where = f"{path}.{part}[{name}]"
            errors += [invalid(where, name, complaint) for complaint in names.qualified_name(name)]
            if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
                errors.append(invalid(where, name, "must be a standard resource for containers"))
            amount = _nano(written)
            if amount is not None and amount < 0:
                errors.append(invalid(where, str(written), "must be greater than or equal to 0"))
            if amount is not None and _is_extended(name) and amount % quantity.NANO:
                errors.append(invalid(where, str(written), "must be an integer"))
    for name, written in requests.items():
        most = limits.get(name)
        wanted, allowed = _nano(written), _nano(most) if most is not None else None
        if _is_extended(name) and most is None:
            errors.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif allowed is not None and wanted is not None:
            where = f"{path}.requests"
            if _is_extended(name) and wanted != allowed:
                errors.append(invalid(where, str(written), f"must be equal to {name} limit of {most}"))
            elif wanted > allowed:
                errors.append(invalid(where, str(written), f"must be less than or equal to {name} limit of {most}"))
    return errors


def _is_extended(name: str) -> bool:
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _nano(written: Any) -> int | None:
    try:
        return quantity.parse(written).nano
    except BadInput:
        return None


def _toleration(toleration: Json, path: str) -> list[InvalidField]:
    errors: list[InvalidField] = []
    operator = toleration.get("operator") or "Equal"
    if toleration.get("key"):
        errors += [invalid(f"{path}.key", toleration["key"], c) for c in names.qualified_name(toleration["key"])]
    elif operator != "Exists":
        words = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(f"{path}.operator", operator, words))
    if operator not in ("Equal", "Exists", "Lt", "Gt"):
        errors.append(not_supported(f"{path}.operator", operator, ["Equal", "Exists"]))
    if operator == "Exists" and toleration.get("value"):
        words = "value must be empty when `operator` is 'Exists'"
        errors.append(invalid(f"{path}.operator", toleration, words))
    if toleration.get("effect") not in (None, "", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
        errors.append(not_supported(f"{path}.effect", toleration["effect"], allowed))
    return errors


# --- updates


def _update(spec: Json, old: Json) -> list[InvalidField]:
    """What may change on a pod that exists: images, deadlines, more tolerations, and gates that open."""
    if spec == old:
        return []
    errors: list[InvalidField] = []
    trial = clone(spec)
    gated = bool(old.get("schedulingGates"))
    for group in ("containers", "initContainers"):
        now, before = trial.get(group) or [], old.get(group) or []
        if len(now) != len(before):
            words = "pod updates may not add or remove containers"
            return [forbidden(f"spec.{group}", words)]
        for index, (container, was) in enumerate(zip(now, before, strict=True)):
            if not container.get("image"):
                errors.append(required(f"spec.{group}[{index}].image"))
            container["image"] = was.get("image")
    now, before = trial.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if before is not None and now is None:
        words = "must not update from a positive integer to nil value"
        errors.append(invalid("spec.activeDeadlineSeconds", None, words))
    elif before is not None and now > before:
        words = "must be less than or equal to previous value"
        errors.append(invalid("spec.activeDeadlineSeconds", now, words))
    _restore(trial, old, "activeDeadlineSeconds")
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and trial.get("terminationGracePeriodSeconds") == 1:
        _restore(trial, old, "terminationGracePeriodSeconds")
    tolerations = trial.get("tolerations") or []
    if set(map(mark, old.get("tolerations") or ())) <= set(map(mark, tolerations)):
        _restore(trial, old, "tolerations")
    else:
        words = "existing toleration can not be modified except its tolerationSeconds"
        errors.append(forbidden("spec.tolerations", words))
        _restore(trial, old, "tolerations")
    gates = [gate.get("name") for gate in old.get("schedulingGates") or ()]
    for index, gate in enumerate(trial.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            words = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            errors.append(forbidden(f"spec.schedulingGates[{index}].name", words))
    _restore(trial, old, "schedulingGates")
    if gated:  # a pod that waits behind a gate may still be told where to go, but only more narrowly
        if (old.get("nodeSelector") or {}).items() <= (trial.get("nodeSelector") or {}).items():
            _restore(trial, old, "nodeSelector")
        _restore(trial, old, "affinity")
    if trial != old:
        changed = sorted(name for name in trial.keys() | old.keys() if trial.get(name) != old.get(name))
        errors.append(forbidden("spec", f"{_CHANGEABLE}; changed here: {', '.join(changed)}"))
    return errors


def _restore(trial: Json, old: Json, name: str) -> None:
    if name in old:
        trial[name] = old[name]
    else:
        trial.pop(name, None)
