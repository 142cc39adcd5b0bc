"""LimitRanges and ResourceQuotas: amounts that fit together, and names that can be counted."""

from __future__ import annotations

from typing import Any

from shoal.api.quantity import NANO, Quantity, parse
from shoal.errors import BadInput
from shoal.local.apiserver.primitives import names
from shoal.local.apiserver.primitives.field_errors import InvalidField, duplicate, forbidden, invalid, not_supported

Json = dict[str, Any]

_COMPUTE = frozenset(("cpu", "memory", "ephemeral-storage"))
_COUNTED = frozenset(
    (
        "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps",
        "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
    )
)  # fmt: skip
_QUOTED = _COMPUTE | _COUNTED | {"requests.storage", "storage"}
_SCOPES = ("BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating",
           "VolumeAttributesClass")  # fmt: skip
_WHOLE = "must be an integer"


def validate_quota(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = obj.get("spec") or {}
    errors: list[InvalidField] = []
    for name, text in (spec.get("hard") or {}).items():
        path = f"spec.hard[{name}]"
        errors += _quota_name(name, path)
        amount = _amount(text)
        if amount < 0:
            errors.append(invalid(path, str(text), "must be greater than or equal to 0"))
        if (name in _COUNTED or name.startswith("count/")) and amount % NANO:
            errors.append(invalid(path, str(Quantity(amount)), _WHOLE))
    for scope in spec.get("scopes") or ():
        if scope not in _SCOPES:
            errors.append(invalid("spec.scopes", spec["scopes"], "unsupported scope"))
    if old is not None and (spec.get("scopes") or []) != ((old.get("spec") or {}).get("scopes") or []):
        errors.append(invalid("spec.scopes", spec.get("scopes"), "field is immutable"))
    return errors


def _quota_name(name: str, path: str) -> list[InvalidField]:
    errors = [invalid(path, name, complaint) for complaint in names.qualified_name(name)]
    plain = name.removeprefix("requests.").removeprefix("limits.")
    if "/" not in name and name not in _QUOTED and plain not in _COMPUTE and not plain.startswith("hugepages-"):
        errors.append(invalid(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid(path, name, "must be a standard resource for quota"))
    return errors


def validate_limit_range(obj: Json, old: Json | None) -> list[InvalidField]:
    errors: list[InvalidField] = []
    seen: set[str] = set()
    for index, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        path = f"spec.limits[{index}]"
        kind = str(item.get("type") or "")
        errors += [invalid(f"{path}.type", kind, complaint) for complaint in names.qualified_name(kind)]
        if not errors and "/" not in kind and kind not in ("Container", "Pod", "PersistentVolumeClaim"):
            errors.append(invalid(f"{path}.type", kind, "must be a standard limit type or fully qualified"))
        if kind in seen:
            errors.append(duplicate(f"{path}.type", kind))
        seen.add(kind)
        if kind == "Pod":
            for name in ("default", "defaultRequest"):
                if item.get(name):
                    errors.append(forbidden(f"{path}.{name}", "may not be specified when `type` is 'Pod'"))
        errors += _bounds(item, path)
    return errors


def _bounds(item: Json, path: str) -> list[InvalidField]:
    errors: list[InvalidField] = []
    parts = {part: item.get(part) or {} for part in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")}
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        least, most, default, request, ratio = (
            _amount(part[name]) if name in part else None for part in parts.values()
        )

        def refuse(where: str, words: str, resource: str = name) -> None:
            errors.append(invalid(f"{path}.{where}[{resource}]", str(parts[where][resource]), words))

        if least is not None and most is not None and least > most:
            refuse("min", f"min value {parts['min'][name]} is greater than max value {parts['max'][name]}")
        if request is not None and least is not None and least > request:
            words = f"min value {parts['min'][name]} is greater than default request value"
            refuse("defaultRequest", f"{words} {parts['defaultRequest'][name]}")
        if request is not None and most is not None and request > most:
            words = f"default request value {parts['defaultRequest'][name]} is greater than max value"
            refuse("defaultRequest", f"{words} {parts['max'][name]}")
        if request is not None and default is not None and request > default:
            words = f"default request value {parts['defaultRequest'][name]} is greater than default limit value"
            refuse("defaultRequest", f"{words} {parts['default'][name]}")
        if default is not None and least is not None and least > default:
            refuse("default", f"min value {parts['min'][name]} is greater than default value {parts['default'][name]}")
        if default is not None and most is not None and default > most:
            refuse("default", f"default value {parts['default'][name]} is greater than max value {parts['max'][name]}")
        if ratio is not None and ratio < NANO:
            refuse("maxLimitRequestRatio", f"ratio {parts['maxLimitRequestRatio'][name]} is less than 1")
        if ratio is not None and least and most is not None and most * NANO < ratio * least:
            words = f"ratio {parts['maxLimitRequestRatio'][name]} is greater than max/min = {most / least:f}"
            refuse("maxLimitRequestRatio", words)
    return errors


def validate_taints(obj: Json, old: Json | None) -> list[InvalidField]:
    """Of a node."""
    errors: list[InvalidField] = []
    seen: set[tuple[Any, Any]] = set()
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        path = f"metadata.taints[{index}]"
        key, value, effect = str(taint.get("key") or ""), str(taint.get("value") or ""), taint.get("effect")
        errors += [invalid(f"{path}.key", key, complaint) for complaint in names.qualified_name(key)]
        errors += [invalid(f"{path}.value", value, complaint) for complaint in names.label_value(value)]
        if effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
            errors.append(not_supported(f"{path}.effect", effect or "", allowed))
        if (key, effect) in seen:
            errors.append(duplicate(path, taint))
        seen.add((key, effect))
    return errors


def _amount(text: Any) -> int:
    try:
        return parse(text).nano
    except BadInput:
        return 0  # the decoder has said so
