"""Which parts of an object are owned one by one and which as a whole.

Server-side apply needs, for every field, to know whether it is a map of separate members, a list of keyed items, a
set of values, or one atomic value. For custom kinds the schema says so, for built-in kinds the table of their types.
Fields that neither knows are taken as they look: maps by member, lists whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from shoal.api.kind import Kind
from shoal.local.apiserver.primitives import builtin_types

Json = dict[str, Any]
Granularity = Literal["map", "keyed", "set", "atomic"]


class FieldShape:
    """How one value is divided. `member` is the shape of a named field, `item` that of a list's items."""

    __slots__ = ("_closed", "_members", "_others", "always", "defaults", "granularity", "is_built_in", "item", "keys")

    def __init__(
        self,
        granularity: Granularity,
        members: dict[str, FieldShape] | None = None,
        others: FieldShape | None = None,
        item: FieldShape | None = None,
        keys: tuple[str, ...] = (),
        defaults: Json | None = None,
    ) -> None:
        self.granularity = granularity
        self._members = members or {}
        self._others = others
        self.item = item
        self.keys = keys
        self.defaults = defaults or {}  # of the keys: an item may leave out a key that has one
        self.always: frozenset[str] = frozenset()  # members that exist in every object, empty or not
        self._closed = False
        self.is_built_in = False  # an item of a built-in kind

    def knows(self, name: str) -> bool:
        """Whether an object may have this member at all."""
        return not self._closed or name in self._members

    def member(self, name: str) -> FieldShape:
        return self._members.get(name) or self._others or GUESSED


GUESSED = FieldShape("map")
WHOLE = FieldShape("atomic")


@cache
def of_kind(kind: Kind) -> FieldShape | None:
    """The shape of a built-in kind, or None for others."""
    type_name = builtin_types.type_of(kind)
    return None if type_name is None else _of_type(type_name)


@cache
def _of_type(type_name: str) -> FieldShape:
    if type_name in builtin_types.SCALARS or type_name in builtin_types.atomic_types():
        return WHOLE
    if type_name in builtin_types.OPAQUE:
        return GUESSED
    known = builtin_types.fields(type_name)
    if not known:
        return WHOLE  # times, quantities and the like
    shape = FieldShape("map")
    _RECURSIVE.setdefault(type_name, shape)
    shape._members = {name: _of_field(field) for name, field in known.items()}
    shape.always = frozenset(f.name for f in known.values() if f.required or (f.shape == "one" and not f.pointer))
    shape._closed = shape.is_built_in = True
    return shape


_RECURSIVE: dict[str, FieldShape] = {}


def _of_field(field: builtin_types.TypeField) -> FieldShape:
    if field.shape == "list":
        if field.list_type == "map":
            defaults = {"protocol": "TCP"} if "protocol" in field.keys else {}
            return FieldShape("keyed", item=_element(field.type), keys=field.keys, defaults=defaults)
        return FieldShape("set") if field.list_type == "set" else WHOLE
    if field.list_type == "atomic" or field.type == "Raw":
        return WHOLE
    if field.shape == "map":
        return FieldShape("map", others=_element(field.type))
    return _element(field.type)


def _element(type_name: str) -> FieldShape:
    return _RECURSIVE.get(type_name) or _of_type(type_name)


@cache
def _metadata() -> FieldShape:
    return _of_type("meta.v1.ObjectMeta")


def of_schema(schema: Json | None) -> FieldShape:
    """The shape of a custom kind from its schema; its metadata is that of every object."""
    shape = _of_node(schema or {})
    if shape is GUESSED or shape is WHOLE:
        shape = FieldShape("map")
    shape._members["metadata"] = _metadata()
    shape.always = frozenset(("metadata",))
    return shape


def _of_node(schema: Json) -> FieldShape:
    if schema.get("x-kubernetes-map-type") == "atomic":
        return WHOLE
    items = schema.get("items")
    if schema.get("type") == "array" or isinstance(items, dict):
        kind = schema.get("x-kubernetes-list-type")
        if kind == "map" and isinstance(items, dict):
            keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
            properties = items.get("properties") or {}
            defaults = {key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})}
            return FieldShape("keyed", item=_of_node(items), keys=keys, defaults=defaults)
        return FieldShape("set") if kind == "set" else WHOLE
    properties = schema.get("properties") or {}
    rest = schema.get("additionalProperties")
    others = _of_node(rest) if isinstance(rest, dict) else None
    if not properties and others is None:
        return WHOLE if schema.get("type") in ("string", "integer", "number", "boolean") else GUESSED
    shape = FieldShape("map", {name: _of_node(child) for name, child in properties.items()}, others)
    if schema.get("x-kubernetes-embedded-resource"):
        shape._members.setdefault("metadata", _metadata())
    else:
        shape._closed = bool(properties) and others is None and not schema.get("x-kubernetes-preserve-unknown-fields")
    return shape
