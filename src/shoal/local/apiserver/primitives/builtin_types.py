"""What the built-in kinds look like: names, types, protobuf numbers, merge keys and list types of their fields.

One table (builtin_types.json, written by tools/builtin_types.py) feeds strategic merge, server-side apply, reports of
unknown fields, OpenAPI and protobuf decoding, so these never disagree. Read on first use; knows no custom kinds.

A field's text is `number type [words]`: type is `[]T` for lists, `{}T` for maps from string; words are `inline` (the
fields appear one level up in JSON but nested in protobuf), `merge=KEY` and `retainKeys` (strategic merge),
`map=KEYS|set|atomic` (server-side apply), `required`, `pointer`,
`keep`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import msgspec

from shoal.api.kind import Kind

Shape = Literal["one", "list", "map"]

SCALARS = frozenset(("string", "bool", "int32", "int64", "uint32", "double", "bytes"))
OPAQUE = frozenset(("Raw", "JSON", "Fields"))  # any JSON below here

_PACKAGES = {
    "": "core", "apps": "apps", "batch": "batch", "rbac.authorization.k8s.io": "rbac", "policy": "policy",
    "networking.k8s.io": "networking", "events.k8s.io": "events", "discovery.k8s.io": "discovery",
    "coordination.k8s.io": "coordination", "scheduling.k8s.io": "scheduling", "storage.k8s.io": "storage",
    "authentication.k8s.io": "authentication", "authorization.k8s.io": "authorization", "node.k8s.io": "node",
    "admissionregistration.k8s.io": "admissionregistration", "apiextensions.k8s.io": "apiextensions",
    "apiregistration.k8s.io": "apiregistration", "autoscaling": "autoscaling", "meta.k8s.io": "meta",
}  # fmt: skip


class TypeField(NamedTuple):
    """One JSON member of a built-in type."""

    name: str
    number: int
    type: str  # of the element, for lists and maps
    shape: Shape
    merge_key: str | None  # strategic merge: the key of a list of objects, "" for plain values, None to replace
    retain_keys: bool
    list_type: Literal["atomic", "set", "map"]
    keys: tuple[str, ...]
    required: bool
    inline: bool
    pointer: bool  # in Go: whether its absence can be told from its emptiness
    keep: bool  # written even when it is empty


@cache
def _table() -> dict[str, Any]:
    text = files("shoal.local.apiserver.primitives").joinpath("builtin_types.json").read_bytes()
    table: dict[str, Any] = msgspec.json.decode(text)
    return table


@cache
def atomic_types() -> frozenset[str]:
    """Types that server-side apply owns whole."""
    return frozenset(_table()["atomic"])


def type_of(kind: Kind) -> str | None:
    """The table's name for a kind, or None for kinds that are not built in."""
    package = _PACKAGES.get(kind.group)
    name = f"{package}.{kind.version}.{kind.kind}"
    return name if package and name in _table()["types"] else None


@cache
def wire(type_name: str) -> dict[str, TypeField]:
    """Fields as they lie in protobuf: inlined types are one field."""
    return {name: _parse(name, text) for name, text in _table()["types"][type_name].items()}


@cache
def fields(type_name: str) -> dict[str, TypeField]:
    """Fields as they lie in JSON: inlined types are spread out. Empty for scalars and opaque types."""
    if type_name not in _table()["types"]:
        return {}
    spread: dict[str, TypeField] = {}
    for name, field in wire(type_name).items():
        if field.inline:
            spread.update(fields(field.type))
        else:
            spread[name] = field
    return spread


def _parse(name: str, text: str) -> TypeField:
    number, written, *words = text.split()
    shape: Shape = "list" if written.startswith("[]") else "map" if written.startswith("{}") else "one"
    element = written if shape == "one" else written[2:]
    merge_key: str | None = None
    list_type: Literal["atomic", "set", "map"] | None = None
    keys: tuple[str, ...] = ()
    for word in words:
        if word.startswith("merge="):
            merge_key = word[6:]
        elif word.startswith("map="):
            list_type, keys = "map", tuple(word[4:].split(","))
        elif word in ("set", "atomic"):
            list_type = "set" if word == "set" else "atomic"
    if list_type is None and merge_key is not None and shape == "list":
        list_type, keys = ("map", (merge_key,)) if merge_key else ("set", ())  # as Kubernetes: the older mark stands in
    if list_type is None:
        list_type = "atomic" if shape == "list" else "map"
    return TypeField(
        name,
        int(number),
        element,
        shape,
        merge_key,
        "retainKeys" in words,
        list_type,
        keys,
        "required" in words,
        "inline" in words,
        "pointer" in words,
        "keep" in words or "required" in words,
    )
