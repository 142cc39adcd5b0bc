"""A built-in object read as its Go type would be: wrong types refused, unknown fields dropped, quantities canonical.

The server calls `decode` on every written object of a built-in kind before anything else looks at it, so that
defaults, validation and controllers may rely on the types of what they find. Compiled once per type.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from shoal.api import quantity
from shoal.api.kind import Kind
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.primitives import builtin_types
from shoal.local.apiserver.primitives.builtin_types import TypeField
from shoal.local.apiserver.primitives.field_errors import MapKey, Path, text, tokens

Json = dict[str, Any]
Walk = Callable[[Any, Path, list[str]], Any]

_JSON_NAMES = {str: "string", int: "number", float: "number", bool: "bool", dict: "object", list: "array"}
_WITHOUT_KIND = ("PodTemplateSpec", "JobTemplateSpec", "PersistentVolumeClaimTemplate")
_EMPTY = frozenset((str, int, float, bool, list, dict))
_RANGES = {"int32": 2**31, "int64": 2**63}


class _WrongType(Exception):
    """Raised inside the walk; the struct around it adds its name, `decode` adds which object it was."""

    def __init__(self, words: str, path: Path = None, wanted: str = "") -> None:
        super().__init__(words)
        self.words = words
        self.path = path
        self.wanted = wanted
        self.owner = ""

    def __str__(self) -> str:
        if not self.wanted:
            return self.words
        steps = [step for step in tokens(self.path) if not isinstance(step, (int, MapKey))]
        return f"{self.words} into Go struct field {'.'.join([self.owner, *steps])} of type {_go_type(self.wanted)}"


def decode(kind: Kind, obj: Json) -> list[str]:
    """Bring `obj` to the shape of its kind, in place. Returns the paths of unknown fields that were dropped.

    Raises PatchError 400 for a value of the wrong type. Kinds that are not built in are left alone.
    """
    type_name = builtin_types.type_of(kind)
    if type_name is None:
        return []
    unknown: list[str] = []
    try:
        _walk_of(type_name)(obj, None, unknown)
    except _WrongType as wrong:
        subject = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        raise PatchError(400, "BadRequest", f"{subject}: {wrong}") from None
    return unknown


_walks: dict[str, Walk] = {}


def _walk_of(type_name: str) -> Walk:
    if type_name not in _walks:
        _walks[type_name] = lambda value, path, unknown: _walks[type_name](
            value, path, unknown
        )  # for types in themselves
        _walks[type_name] = _compile(type_name)
    return _walks[type_name]


def _compile(type_name: str) -> Walk:
    if type_name in builtin_types.OPAQUE:
        return lambda value, path, unknown: value
    if type_name in _SCALARS:
        return _SCALARS[type_name]
    if type_name.startswith("[]"):
        return _list(_walk_of(type_name[2:]), type_name)
    fields = builtin_types.fields(type_name)
    short = type_name.rpartition(".")[2]
    known = {name: _field_walk(field, short) for name, field in fields.items()}
    omitted = frozenset(field.name for field in fields.values() if _omitted_when_empty(field))
    if "metadata" in fields and short not in _WITHOUT_KIND:
        known["apiVersion"] = known["kind"] = _text

    def walk(value: Any, path: Path, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _wrong(value, path, type_name)
        dropped: list[str] = []
        try:
            for name, item in value.items():
                inner = known.get(name)
                if inner is None:
                    unknown.append(text((path, name)))
                    dropped.append(name)
                elif item is None:
                    dropped.append(name)
                else:
                    changed = inner(item, (path, name), unknown)  # an empty list is no empty map: the type counts first
                    if not changed and name in omitted and type(changed) in _EMPTY:
                        dropped.append(name)
                    elif changed is not item:
                        value[name] = changed
        except _WrongType as wrong:
            wrong.owner = wrong.owner or short
            raise
        for name in dropped:
            del value[name]
        return value

    return walk


def _omitted_when_empty(field: TypeField) -> bool:
    """As Go writes it: an empty list, map or plain value is the same as none, unless the type says otherwise."""
    if field.keep:
        return False
    return field.shape != "one" or (field.type in builtin_types.SCALARS and not field.pointer)


def _field_walk(field: TypeField, owner: str) -> Walk:
    if owner == "JSONSchemaProps" and field.name in ("items", "additionalProperties"):
        return _schema_or(bool if field.name == "additionalProperties" else object)
    element = _walk_of(field.type)
    if field.shape == "list":
        return _list(element, "[]" + field.type)
    return _map(element, "{}" + field.type) if field.shape == "map" else element


def _schema_or(other: type) -> Walk:
    """A schema, or something else in its place (of `items`, validation says what it must be).

    As Kubernetes: what is unknown below here goes without a word.
    """

    def walk(value: Any, path: Path, unknown: list[str]) -> Any:
        if type(value) is dict:
            return _walk_of("apiextensions.v1.JSONSchemaProps")(value, path, [])
        if not isinstance(value, other):
            raise _wrong(value, path, "JSONSchemaProps")
        return value

    return walk


def _list(element: Walk, name: str) -> Walk:
    is_object = "." in name and bool(builtin_types.fields(name[2:]))

    def walk(value: Any, path: Path, unknown: list[str]) -> Any:
        if type(value) is not list:
            raise _wrong(value, path, name)
        for index, item in enumerate(value):
            if item is None and is_object:
                value[index] = {}  # as Go: the empty value of its type
            changed = element(item, (path, index), unknown) if item is not None else value[index]
            if changed is not item:
                value[index] = changed
        return value if None not in value else [item for item in value if item is not None]

    return walk


def _map(element: Walk, name: str) -> Walk:
    def walk(value: Any, path: Path, unknown: list[str]) -> Any:
        if type(value) is not dict:
            raise _wrong(value, path, name)
        for key, item in value.items():
            changed = element(item, (path, MapKey(key)), unknown) if item is not None else ""
            if changed is not item:
                value[key] = changed
        return value

    return walk


# --- scalars


def _text(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise _wrong(value, path, "string")
    return value


def _truth(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) is not bool:
        raise _wrong(value, path, "bool")
    return value


def _whole(name: str) -> Walk:
    limit = _RANGES[name]

    def walk(value: Any, path: Path, unknown: list[str]) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise _wrong(value, path, name)
        return value

    return walk


def _real(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) not in (int, float):
        raise _wrong(value, path, "float64")
    return value


def _bytes(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise _wrong(value, path, "[]uint8")
    try:
        found = base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        raise _WrongType(f"illegal base64 data in {text(path)}") from None
    return base64.b64encode(found).decode()  # as Go writes it: a block of YAML comes with line breaks


def _quantity(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) not in (str, int, float):
        raise _wrong(value, path, "Quantity")
    try:
        return str(quantity.parse(value))
    except BadInput:
        raise _WrongType(
            f"{text(path)}: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ) from None


def _int_or_text(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) not in (int, str):
        raise _wrong(value, path, "int32 or string")
    return value


def _time(value: Any, path: Path, unknown: list[str]) -> Any:
    if type(value) is not str:
        raise _wrong(value, path, "Time")
    try:
        parse_time(value)
    except BadInput:
        raise _WrongType(
            f'{text(path)}: parsing time "{value[:40]}" as "2006-01-02T15:04:05Z07:00": not RFC 3339'
        ) from None
    return value


def _duration(value: Any, path: Path, unknown: list[str]) -> Any:
    return _text(value, path, unknown)


_SCALARS: dict[str, Walk] = {
    "string": _text, "bool": _truth, "int32": _whole("int32"), "int64": _whole("int64"), "uint32": _whole("int64"),
    "double": _real, "bytes": _bytes, "Quantity": _quantity, "IntOrString": _int_or_text, "Time": _time,
    "MicroTime": _time, "Duration": _duration,
}  # fmt: skip


def _wrong(value: Any, path: Path, wanted: str) -> _WrongType:
    return _WrongType(f"json: cannot unmarshal {_JSON_NAMES.get(type(value), 'null')}", path, wanted)


def _go_type(name: str) -> str:
    """`[]v1.Container`, as Go's messages spell the table's `[]core.v1.Container`."""
    if name.startswith("[]"):
        return "[]" + _go_type(name[2:])
    if name.startswith("{}"):
        return "map[string]" + _go_type(name[2:])
    return name.partition(".")[2] if name.count(".") == 2 else name
