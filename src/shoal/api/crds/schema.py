"""From a typed kind to the structural schema of its CRD.

Walks the type hints of a Struct; the `Rule`s beside the hints add limits, defaults and CEL. A hint that has no
structural form is an error here, at generation, never on a cluster.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from shoal.api.crds.descriptions import DESCRIPTIONS
from shoal.api.fields import Rule
from shoal.api.meta import Json, Object

_SCALARS: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_OWN_FORM = ("type", "x-kubernetes-int-or-string")
_UNION = "x-union-validations"
"""Not of any CRD: `settled` takes it away."""


def object_schema(kind: type[Object]) -> Json:
    """openAPIV3Schema of a kind: metadata stays open, everything else is typed."""
    schema = _struct_schema(kind)
    schema["properties"]["apiVersion"] = {"type": "string"}
    schema["properties"]["kind"] = {"type": "string"}
    schema["properties"]["metadata"] = {"type": "object"}
    ordered: Json = msgspec.json.decode(msgspec.json.encode(schema, order="sorted"))  # so that files are stable
    return ordered


def union(first: Json, second: Json) -> Json:
    """One schema that takes what either takes: fields of both, limits of neither where they differ.

    Used where two versions share storage without conversion; whatever is pruned at one version would be lost at both.
    A default is the first one's. CEL that both have stays; `union_rules` of a type are for this schema alone.
    """
    if first == second:
        return first
    if first.get("type") != "object" or second.get("type") != "object":
        return _loosened(first, second)
    merged = _loosened(first, second)
    ours, theirs = first.get("properties"), second.get("properties")
    if ours is not None and theirs is not None:
        merged["properties"] = {
            name: union(ours[name], theirs[name])
            if name in ours and name in theirs
            else ours.get(name, theirs.get(name))
            for name in sorted({*ours, *theirs})
        }
        required = sorted(set(first.get("required", ())) & set(second.get("required", ())))
        merged.pop("required", None)
        if required:
            merged["required"] = required
    return merged


def _loosened(first: Json, second: Json) -> Json:
    kept = {name: value for name, value in first.items() if second.get(name) == value}
    if "default" in first and "default" in second:
        kept["default"] = first["default"]
    own = [*first.get(_UNION, ()), *(rule for rule in second.get(_UNION, ()) if rule not in first.get(_UNION, ()))]
    if own:
        kept[_UNION] = own
    if "enum" in first and "enum" in second:
        kept["enum"] = [*first["enum"], *(value for value in second["enum"] if value not in first["enum"])]
    for name in ("type", "items", "additionalProperties"):
        if name in first:
            kept[name] = first[name]
    return kept


def settled(schema: Any, *, united: bool) -> Any:
    """The schema as it is written: with the rules that only a union has where it is one, and without the mark."""
    if isinstance(schema, list):
        return [settled(item, united=united) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: settled(value, united=united) for name, value in schema.items() if name != _UNION}
    if united and _UNION in schema:
        both = schema.get("x-kubernetes-validations", [])
        made["x-kubernetes-validations"] = [*both, *(rule for rule in schema[_UNION] if rule not in both)]
    return made


def hints(struct: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, Any]]:
    """Every field of a Struct with its whole hint, rules included."""
    return list(_hints(struct))


@cache
def _hints(struct: type[msgspec.Struct]) -> tuple[tuple[msgspec.structs.FieldInfo, Any], ...]:
    return tuple((field, field.type) for field in msgspec.structs.fields(struct))


def unwrap(hint: Any) -> tuple[Any, list[Rule]]:
    """The bare type of a hint, without `None`, and its rules from the inside out."""
    rules: list[Rule] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *metadata = get_args(hint)
            rules = [item for item in metadata if isinstance(item, Rule)] + rules
            continue
        if get_origin(hint) in (Union, types.UnionType):
            members = [member for member in get_args(hint) if member is not type(None)]
            if len(members) == 1:
                hint = members[0]
                continue
        return hint, rules


def _schema(hint: Any) -> Json:
    bare, rules = unwrap(hint)
    keywords: Json = {}
    cel: list[tuple[str, str]] = []
    for rule in rules:
        keywords.update(rule.keywords)
        cel += rule.cel
    schema = {} if any(name in keywords for name in _OWN_FORM) else _base(bare)
    schema.update(keywords)
    _add_rules(schema, cel)
    return schema


def _base(bare: Any) -> Json:
    if bare in _SCALARS:
        return {"type": _SCALARS[bare]}
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if origin in (tuple, list):
        return {"type": "array", "items": _schema(arguments[0])}
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return _struct_schema(bare)
    raise TypeError(f"{bare!r} has no structural schema; annotate it with a Rule that gives its type")


def _struct_schema(struct: type[msgspec.Struct]) -> Json:
    properties: Json = {}
    required: list[str] = []
    for field, hint in hints(struct):
        _, rules = unwrap(hint)
        if issubclass(struct, Object) and field.name in ("api_version", "kind", "metadata"):
            continue
        properties[field.encode_name] = _schema(hint)
        meaning = DESCRIPTIONS.get(struct.__name__, {}).get(field.encode_name)
        if meaning:
            properties[field.encode_name]["description"] = meaning
        if field.required or any(rule.required for rule in rules):
            required.append(field.encode_name)
    schema: Json = {"type": "object", "properties": properties}
    described = struct.__dict__.get("__doc__")
    if described:
        schema["description"] = " ".join(described.split())
    if required:
        schema["required"] = sorted(required)
    _add_rules(schema, list(getattr(struct, "rules", ())))
    of_union = [{"rule": rule, "message": message} for rule, message in getattr(struct, "union_rules", ())]
    if of_union:
        schema[_UNION] = of_union
    return schema


def _add_rules(schema: Json, cel: list[tuple[str, str]]) -> None:
    if cel:
        schema["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in cel]
