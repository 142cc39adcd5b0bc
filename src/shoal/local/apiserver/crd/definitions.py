"""Custom resource definitions: names that fit, one stored version, and schemas that are structural.

A CRD that passes here can be compiled and served; one that does not is refused with the place in its schema.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.errors import BadInput
from shoal.local.apiserver.cel.rules import compile_rules
from shoal.local.apiserver.cel.types import type_problems
from shoal.local.apiserver.primitives import jsonpath, names, patterns
from shoal.local.apiserver.primitives.field_errors import (
    InvalidField,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from shoal.local.apiserver.schema.structural import compiled as schema_of
from shoal.local.apiserver.schema.structural import digest

Json = dict[str, Any]

_APPROVAL = "api-approved.kubernetes.io"
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_NO_LOGIC = (
    "default",
    "nullable",
    "additionalProperties",
    "x-kubernetes-preserve-unknown-fields",
    "description",
    "type",
)
_LOGIC = ("allOf", "anyOf", "oneOf")
_DEEPEST = 200


def validate_crd(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = obj.get("spec") or {}
    before = (old or {}).get("spec") or {}
    errors = _identity(obj, spec)
    if before:
        for name in ("group", "scope"):
            if spec.get(name) != before.get(name):
                errors.append(invalid(f"spec.{name}", spec.get(name), "field is immutable"))
        for name in ("plural", "kind"):
            if (spec.get("names") or {}).get(name) != (before.get("names") or {}).get(name):
                path = f"spec.names.{name}"
                errors.append(invalid(path, (spec.get("names") or {}).get(name), "field is immutable"))
    if spec.get("preserveUnknownFields"):
        words = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        errors.append(invalid("spec.preserveUnknownFields", True, words))
    errors += _conversion(spec.get("conversion") or {})
    known = {version.get("name"): version for version in before.get("versions") or ()}
    return errors + _versions(spec.get("versions") or [], known, obj)


def _identity(obj: Json, spec: Json) -> list[InvalidField]:
    errors: list[InvalidField] = []
    group, called = str(spec.get("group") or ""), spec.get("names") or {}
    name = str((obj.get("metadata") or {}).get("name") or "")
    if not group:
        errors.append(required("spec.group"))
    else:
        errors += [invalid("spec.group", group, complaint) for complaint in names.dns_subdomain(group)]
        if "." not in group:
            errors.append(invalid("spec.group", group, "should be a domain with at least one dot"))
    if name != f"{called.get('plural')}.{group}":
        errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        scope = spec.get("scope")
        errors.append(
            not_supported("spec.scope", scope, ["Cluster", "Namespaced"]) if scope else required("spec.scope")
        )
    for field in ("plural", "singular", "kind", "listKind"):
        value = called.get(field)
        if not value:
            errors.append(required(f"spec.names.{field}"))
            continue
        words = "may have mixed case, but should otherwise match: " if field in ("kind", "listKind") else ""
        checked = value.lower() if words else value
        errors += [invalid(f"spec.names.{field}", value, words + c) for c in names.old_dns_label(checked)]
    for field in ("shortNames", "categories"):
        for index, value in enumerate(called.get(field) or ()):
            errors += [invalid(f"spec.names.{field}[{index}]", value, c) for c in names.old_dns_label(str(value))]
    if called.get("kind") and called.get("kind") == called.get("listKind"):
        errors.append(invalid("spec.names.listKind", called["listKind"], "kind and listKind may not be the same"))
    protected = group in ("k8s.io", "kubernetes.io") or group.endswith((".k8s.io", ".kubernetes.io"))
    if protected and not group.endswith(".x-k8s.io"):
        approval = ((obj.get("metadata") or {}).get("annotations") or {}).get(_APPROVAL)
        if not approval:
            words = f'protected groups must have approval annotation "{_APPROVAL}", see '
            link = "https://github.com/kubernetes/enhancements/pull/1111"
            errors.append(required(f"metadata.annotations[{_APPROVAL}]", words + link))
    return errors


def _conversion(conversion: Json) -> list[InvalidField]:
    strategy, webhook = conversion.get("strategy"), conversion.get("webhook")
    path = "spec.conversion"
    if strategy not in ("None", "Webhook"):
        return [not_supported(f"{path}.strategy", strategy, ["None", "Webhook"])]
    if strategy == "None":
        words = "should not be set when strategy is not set to Webhook"
        return [forbidden(f"{path}.webhook", words)] if webhook else []
    errors = []
    if not (webhook or {}).get("clientConfig"):
        errors.append(required(f"{path}.webhook.clientConfig", "required when strategy is set to Webhook"))
    if not (webhook or {}).get("conversionReviewVersions"):
        errors.append(required(f"{path}.webhook.conversionReviewVersions"))
    return errors


def _versions(versions: list[Json], known: dict[Any, Json], obj: Json) -> list[InvalidField]:
    errors: list[InvalidField] = []
    if not versions:
        return [required("spec.versions", "must have exactly one version marked as storage version")]
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        name = str(version.get("name") or "")
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
        errors += [invalid(f"{path}.name", name, complaint) for complaint in names.old_dns_label(name)]
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        where = f"{path}.schema.openAPIV3Schema"
        if schema is None:
            errors.append(required(where))
        elif schema != ((known.get(name) or {}).get("schema") or {}).get("openAPIV3Schema"):
            errors += schema_errors(schema, where)
        for place, column in enumerate(version.get("additionalPrinterColumns") or ()):
            errors += _column(column, f"{path}.additionalPrinterColumns[{place}]")
        errors += _warning(version, f"{path}.deprecationWarning")
        for place, field in enumerate(version.get("selectableFields") or ()):
            if not _is_property(schema, str(field.get("jsonPath") or "")):
                words = "is an invalid path: does not refer to a valid field"
                errors.append(invalid(f"{path}.selectableFields[{place}].jsonPath", field.get("jsonPath"), words))
        scale = (version.get("subresources") or {}).get("scale")
        if scale:
            errors += _scale(scale, f"{path}.subresources.scale")
    stored = (obj.get("status") or {}).get("storedVersions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(invalid("spec.versions", sorted(seen), "must have exactly one version marked as storage version"))
        if not stored:
            errors.append(invalid("status.storedVersions", None, "must have at least one stored version"))
    for index, name in enumerate(stored):
        if name not in seen:
            errors.append(invalid(f"status.storedVersions[{index}]", name, "must appear in spec.versions"))
    return errors


def _warning(version: Json, path: str) -> list[InvalidField]:
    words = version.get("deprecationWarning")
    if words is None:
        return []
    if not version.get("deprecated"):
        return [invalid(path, words, "can only be set for deprecated versions")]
    if not words:
        return [invalid(path, words, "must not be an empty string")]
    return [invalid(path, words, "must be <= 256 characters long")] if len(words) > 256 else []


def _is_property(schema: Any, path: str) -> bool:
    """Whether a path like `.spec.color` leads to a plain value that the schema describes."""
    found = schema if isinstance(schema, dict) else {}
    for word in path.removeprefix(".").split("."):
        found = _part(_part(found, "properties"), word)
    return found.get("type") in ("string", "boolean", "integer")


def _part(schema: Json, name: str) -> Json:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


def _column(column: Json, path: str) -> list[InvalidField]:
    errors = [required(f"{path}.{name}") for name in ("name", "type", "jsonPath") if not column.get(name)]
    allowed = ["boolean", "date", "integer", "number", "string"]
    if column.get("type") and column["type"] not in allowed:
        errors.append(not_supported(f"{path}.type", column["type"], allowed))
    if column.get("jsonPath"):
        try:
            jsonpath.compiled(str(column["jsonPath"]))
        except BadInput as error:
            errors.append(invalid(f"{path}.jsonPath", column["jsonPath"], str(error)))
    return errors


def _scale(scale: Json, path: str) -> list[InvalidField]:
    errors = []
    for name, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        value = str(scale.get(name) or "")
        if not value:
            errors.append(required(f"{path}.{name}"))
        elif not value.startswith(root):
            errors.append(invalid(f"{path}.{name}", value, f"should be a json path under {root.rstrip('.')}"))
    return errors


# --- structural schemas


_sound: dict[bytes, None] = {}
_MOST_SOUND = 256
"""Schemas that were found good lately: a CRD is written again with nearly every change of its status."""


def schema_errors(schema: Json, path: str) -> list[InvalidField]:
    """What keeps a schema from being structural: no type, lists without items, rules that do not compile."""
    key = digest(schema)
    if key in _sound:
        return []
    errors: list[InvalidField] = []
    if schema.get("type") != "object":
        found = schema.get("type")
        words = "must be object at the root"
        errors.append(
            invalid(f"{path}.type", found, words)
            if found
            else required(f"{path}.type", "must not be empty at the root")
        )
    _node(schema, path, errors, 0)
    of_metadata = _part(_part(schema, "properties"), "metadata")
    if not set(_part(of_metadata, "properties")) <= {"name", "generateName"}:
        words = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        errors.append(forbidden(f"{path}.properties[metadata]", words))
    if not errors:
        rules = compile_rules(schema)
        problems = {problem.path: problem for problem in type_problems(schema)} if rules is not None else {}
        if rules is not None:
            problems.update((problem.path, problem) for problem in rules.problems)
        for problem in problems.values():
            where = f"{path}.{problem.path}"
            if not problem.expression:
                errors.append(required(where, "rule is not specified"))
            else:
                errors.append(invalid(where, problem.expression, problem.message))
    if not errors:
        _sound[key] = None
        if len(_sound) > _MOST_SOUND:
            del _sound[next(iter(_sound))]
    return errors


def _node(schema: Any, path: str, errors: list[InvalidField], depth: int) -> None:
    if not isinstance(schema, dict):
        errors.append(invalid(path, schema, "must be a schema"))
        return
    if depth > _DEEPEST:
        errors.append(forbidden(path, f"schemas may not nest deeper than {_DEEPEST} levels"))
        return
    kind = schema.get("type")
    loose = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if kind is not None and kind not in _TYPES:
        errors.append(not_supported(f"{path}.type", kind, list(_TYPES)))
    elif not kind and depth and not loose:
        errors.append(required(f"{path}.type", "must not be empty for specified object fields"))
    if kind == "array" and not isinstance(schema.get("items"), dict):
        errors.append(required(f"{path}.items", "must be specified"))
    if schema.get("properties") and schema.get("additionalProperties") is not None:
        errors.append(
            forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
        )
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        words = "must be true or undefined"
        errors.append(invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, words))
    if schema.get("x-kubernetes-list-type") not in (None, "atomic", "set", "map"):
        found = schema["x-kubernetes-list-type"]
        errors.append(not_supported(f"{path}.x-kubernetes-list-type", found, ["atomic", "set", "map"]))
    if schema.get("default") is not None and not errors:
        errors += _default(schema, f"{path}.default")
    for name in ("$ref", "id", "definitions", "dependencies", "patternProperties", "additionalItems"):
        if schema.get(name):
            errors.append(forbidden(f"{path}.{name}", f"{name} is not supported"))
    if schema.get("uniqueItems"):
        words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(forbidden(f"{path}.uniqueItems", words))
    _details(schema, path, errors)
    for name, child in (schema.get("properties") or {}).items():
        _node(child, f"{path}.properties[{name}]", errors, depth + 1)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            _node(schema[name], f"{path}.{name}", errors, depth + 1)


def _default(schema: Json, path: str) -> list[InvalidField]:
    """A default must itself be good, and hold nothing that would be pruned."""
    kind = schema_of({"type": "object", "properties": {"default": schema}})
    trial = {"default": msgspec.json.decode(msgspec.json.encode(schema["default"]))}
    errors = [msgspec.structs.replace(error, path=path) for error in kind.validate(trial)]
    if not errors and kind.prune(trial):
        errors.append(invalid(path, schema["default"], "must not have unknown fields"))
    return errors


def _details(schema: Json, path: str, errors: list[InvalidField]) -> None:
    if schema.get("pattern"):
        try:
            patterns.matcher(str(schema["pattern"]))
        except BadInput as error:
            errors.append(
                invalid(f"{path}.pattern", schema["pattern"], f"must be a valid regular expression, but isn't: {error}")
            )
    if schema.get("x-kubernetes-list-type") == "map":
        keys = schema.get("x-kubernetes-list-map-keys") or []
        properties = ((schema.get("items") or {}).get("properties")) or {}
        if not keys:
            words = "must not be empty if x-kubernetes-list-type is map"
            errors.append(required(f"{path}.x-kubernetes-list-map-keys", words))
        given = (schema.get("items") or {}).get("required") or ()
        for index, key in enumerate(keys):
            if key in properties and key not in given and _part(properties, key).get("default") is None:
                words = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required"
                errors.append(required(f"{path}.items.properties[{key}].default", f"{words} property"))
            if key not in properties:
                where = f"{path}.x-kubernetes-list-map-keys[{index}]"
                words = "entries must all be names of item properties"
                errors.append(invalid(where, key, words))
    items = _part(schema, "items")
    if schema.get("x-kubernetes-list-type") == "set" and items.get("type") in ("object", "array"):
        word = "x-kubernetes-map-type" if items["type"] == "object" else "x-kubernetes-list-type"
        if items.get(word, None if items["type"] == "object" else "atomic") != "atomic":
            words = "must be atomic as item of a list with x-kubernetes-list-type=set"
            errors.append(invalid(f"{path}.items.{word}", items.get(word), words))
    whole, open_ = schema.get("x-kubernetes-embedded-resource"), schema.get("x-kubernetes-preserve-unknown-fields")
    if whole and not open_ and not schema.get("properties"):
        words = "must not be empty if x-kubernetes-embedded-resource is true without "
        errors.append(required(f"{path}.properties", words + "x-kubernetes-preserve-unknown-fields"))
    for word in _LOGIC:
        for index, child in enumerate(schema.get(word) or ()):
            _logic(child, f"{path}.{word}[{index}]", errors, bool(schema.get("x-kubernetes-int-or-string")))
    if isinstance(schema.get("not"), dict):
        _logic(schema["not"], f"{path}.not", errors, False)


def _logic(schema: Any, path: str, errors: list[InvalidField], may_type: bool) -> None:
    """Inside allOf, anyOf, oneOf and not there are value rules only: structure stands outside."""
    if not isinstance(schema, dict):
        errors.append(invalid(path, schema, "must be a schema"))
        return
    for name in _NO_LOGIC:
        if name in schema and not (name == "type" and may_type):
            errors.append(forbidden(f"{path}.{name}", "must be empty to be structural"))
    for name, child in (schema.get("properties") or {}).items():
        _logic(child, f"{path}.properties[{name}]", errors, False)
    if isinstance(schema.get("items"), dict):
        _logic(schema["items"], f"{path}.items", errors, False)
