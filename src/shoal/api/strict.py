"""Whole manifests against the types: unknown fields, wrong types and broken limits, each with its path.

What `kubectl apply` would be told by the server, without a server: used by the command line before it submits, and by
tests over every manifest we publish. Pod templates and wrapped objects are looked into. CEL is left to the server.
"""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin

import msgspec

from shoal.api import podshape
from shoal.api.crds.schema import hints, unwrap
from shoal.api.meta import Json, Object
from shoal.api.problems import FieldError, check_amounts
from shoal.api.registry import lookup
from shoal.api.rules import validate

_SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a string"),
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
}
_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_TEMPLATE_PATHS = {"Pod": "PodSpec:spec", "PodTemplate": "PodTemplateSpec:template"}
_OWNERS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"})


def check(obj: Any, path: str = "") -> list[FieldError]:
    """All problems of one object. Kinds that Shoal does not know are only asked for apiVersion, kind and a name."""
    if not isinstance(obj, dict):
        return [FieldError(path, "must be an object")]
    errors = [
        FieldError(_at(path, name), "is required", "Required")
        for name in ("apiVersion", "kind")
        if not isinstance(obj.get(name), str) or not obj[name]
    ]
    if errors:
        return errors
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        errors.append(FieldError(_at(path, "metadata.name"), "name or generateName is required", "Required"))
    if isinstance(metadata, dict):
        errors += podshape.check(metadata, "Metadata", _at(path, "metadata"))
    entry = lookup(obj["apiVersion"], obj["kind"])
    if entry is None:
        return errors
    if not entry.complete:
        return errors + _check_template(obj, path)
    errors += _struct(obj, entry.type, path)
    return errors or _prefixed(validate(obj), path)


def _check_template(obj: Json, path: str) -> list[FieldError]:
    """The pod template inside a built-in kind."""
    kind = obj["kind"]
    spec = obj.get("spec")
    if kind in _OWNERS and isinstance(spec, dict):
        return _shape(spec.get("template"), "PodTemplateSpec", _at(path, "spec.template"))
    if kind in _TEMPLATE_PATHS:
        shape, _, field = _TEMPLATE_PATHS[kind].partition(":")
        return _shape(obj.get(field), shape, _at(path, field))
    return []


def _value(value: Any, hint: Any, path: str) -> list[FieldError]:
    bare, rules = unwrap(hint)
    keywords = {name: found for rule in rules for name, found in rule.keywords.items()}
    shape = next((rule.shape for rule in reversed(rules) if rule.shape), "")
    if shape == "Object":
        return check(value, path)
    if shape:
        return _shape(value, shape, path)
    errors = _typed(value, bare, keywords, path)
    return errors or _limits(value, keywords, path)


def _typed(value: Any, bare: Any, keywords: Json, path: str) -> list[FieldError]:
    if keywords.get("x-kubernetes-int-or-string"):
        wrong = isinstance(value, bool) or not isinstance(value, (str, int))
        return [FieldError(path, "must be an integer or a string")] if wrong else []
    if bare is msgspec.Raw:
        wanted: Any = {"object": dict, "array": list}[keywords["type"]]
        return [] if isinstance(value, wanted) else [FieldError(path, f"must be an {keywords['type']}")]
    if bare in _SCALARS:
        accepted, words = _SCALARS[bare]
        wrong = not isinstance(value, accepted) or (isinstance(value, bool) and bare is not bool)
        return [FieldError(path, f"must be {words}, not {_shown(value)}")] if wrong else []
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is dict:
        if not isinstance(value, dict):
            return [FieldError(path, "must be an object")]
        return [error for name, item in value.items() for error in _value(item, arguments[1], f"{path}[{name}]")]
    if origin in (tuple, list):
        if not isinstance(value, list):
            return [FieldError(path, "must be a list")]
        return [error for index, item in enumerate(value) for error in _value(item, arguments[0], f"{path}[{index}]")]
    return _struct(value, bare, path)


def _struct(value: Any, struct: type[msgspec.Struct], path: str) -> list[FieldError]:
    if not isinstance(value, dict):
        return [FieldError(path, "must be an object")]
    errors: list[FieldError] = []
    known = set()
    top = issubclass(struct, Object)
    for field, hint in hints(struct):
        name = field.encode_name
        known.add(name)
        if top and name in ("apiVersion", "kind", "metadata"):
            continue
        if value.get(name) is not None:  # null counts as absent, as the server drops it
            errors += _value(value[name], hint, _at(path, name))
        elif _required(field, hint):
            errors.append(FieldError(_at(path, name), "is required", "Required"))
    errors += [
        FieldError(_at(path, name), f'unknown field "{_at(path, name)}"', "Unknown")
        for name in value
        if name not in known
    ]
    return errors


def _required(field: msgspec.structs.FieldInfo, hint: Any) -> bool:
    _, rules = unwrap(hint)
    has_default = any("default" in rule.keywords for rule in rules)
    return (field.required or any(rule.required for rule in rules)) and not has_default


def _limits(value: Any, keywords: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    size = len(value) if isinstance(value, (str, list, dict)) else 0
    if "enum" in keywords and value not in keywords["enum"]:
        allowed = ", ".join(f'"{option}"' for option in keywords["enum"])
        errors.append(FieldError(path, f"supported values: {allowed}", "NotSupported"))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = {"int32": _INT32, "int64": _INT64}.get(keywords.get("format", ""), _INT64)
        low, high = max(low, keywords.get("minimum", low)), min(high, keywords.get("maximum", high))
        if value < low:
            errors.append(FieldError(path, f"must be greater than or equal to {low}"))
        elif value > high:
            errors.append(FieldError(path, f"must be less than or equal to {high}"))
    most = keywords.get("maxItems", keywords.get("maxLength", keywords.get("maxProperties")))
    least = keywords.get("minItems", keywords.get("minLength"))
    if most is not None and size > most:
        errors.append(FieldError(path, f"must have at most {most} items or characters", "TooMany"))
    if least is not None and size < least:
        errors.append(FieldError(path, f"must have at least {least} items or characters"))
    if "pattern" in keywords and isinstance(value, str) and not re.search(keywords["pattern"], value, re.ASCII):
        errors.append(FieldError(path, f"must match {keywords['pattern']}"))
    return errors


def _shape(value: Any, shape: str, path: str) -> list[FieldError]:
    """Names inside a raw field, and the amounts of its containers."""
    errors = podshape.check(value, shape, path)
    if errors or not isinstance(value, dict):
        return errors
    spec, at = (value.get("spec") or {}, f"{path}.spec") if shape == "PodTemplateSpec" else (value, path)
    if shape == "ResourceRequirements":
        return _resources(value, path)
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            errors += _resources(container.get("resources") or {}, f"{at}.{group}[{index}].resources")
    return errors


def _resources(resources: Json, path: str) -> list[FieldError]:
    return [
        error for part in ("requests", "limits") for error in check_amounts(f"{path}.{part}", resources.get(part) or {})
    ]


def _prefixed(errors: list[FieldError], path: str) -> list[FieldError]:
    return [msgspec.structs.replace(error, path=_at(path, error.path)) for error in errors] if path else errors


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode(errors="replace")
    return text if len(text) <= 40 else text[:37] + "..."
