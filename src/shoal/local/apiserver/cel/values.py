"""Values as CEL rules see them: numbers, times, durations and bytes of the schema's type, names that are identifiers.

`rules.py` makes an adapter once per rule's place in a schema; `types.py` uses the same names. The CEL library is
imported only when a value needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shoal.api.times import parse_time
from shoal.errors import BadInput

Json = dict[str, Any]
Adapt = Callable[[Any], Any]

_RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


def adapter(schema: Json, *, root: bool = False) -> Adapt | None:
    """How a value must be changed before CEL sees it, or None where it goes in as it is.

    Whole numbers in a `number` field are doubles, timestamps and durations are values of their own, and property names
    that are no identifiers are escaped (`self.a__dash__b`).
    """
    kind = schema.get("type")
    if kind == "number":
        return lambda value: float(value) if type(value) is int else value
    if kind == "string":
        return _text_adapter(str(schema.get("format") or "").replace("-", ""))
    if kind == "array" or "items" in schema:
        items = schema.get("items")
        each = adapter(items) if isinstance(items, dict) else None
        return None if each is None else lambda value: [each(v) for v in value] if type(value) is list else value
    properties = schema.get("properties") or {}
    members = {name: adapt for name, child in properties.items() if (adapt := adapter(child)) is not None}
    renamed = {name: inside for name in properties if (inside := spellings(name)) != (name,)}
    rest = schema.get("additionalProperties")
    others = adapter(rest) if isinstance(rest, dict) else None
    if not members and not renamed and others is None and not root:
        return None

    def adapt_object(value: Any) -> Any:
        if type(value) is not dict:
            return value
        seen: Json = {}
        for name, item in value.items():
            inner = members.get(name) if name in properties else others
            adapted = item if inner is None else inner(item)
            for told in renamed.get(name) or (str(name),):
                seen[told] = adapted
        if root and type(seen.get("metadata")) is dict:  # rules may read the name only, and the rest is dear to convert
            seen["metadata"] = {k: v for k, v in seen["metadata"].items() if k in ("name", "generateName")}
        return seen

    return adapt_object


def _text_adapter(name: str) -> Adapt | None:
    if name == "byte":
        return _bytes
    if name in ("datetime", "date"):
        return _timestamp
    if name == "duration":
        return _duration
    return None


def _bytes(value: Any) -> Any:
    import base64

    try:
        return base64.b64decode(value)
    except (ValueError, TypeError):
        return value


def _timestamp(value: Any) -> Any:
    from google.protobuf.timestamp_pb2 import Timestamp  # comes with the CEL library

    try:
        moment = parse_time(value if "T" in value.upper() else f"{value}T00:00:00Z")
    except (BadInput, TypeError, AttributeError):
        return value
    return Timestamp(seconds=moment // 1_000_000, nanos=moment % 1_000_000 * 1000)


_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
          "d": 86400 * 10**9, "w": 7 * 86400 * 10**9}  # fmt: skip


def _duration(value: Any) -> Any:
    from google.protobuf.duration_pb2 import Duration

    if not isinstance(value, str):
        return value
    total = 0
    for number, unit in re.findall(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|μs|ms|s|m|h|d|w)", value):
        total += int(float(number) * _UNITS[unit])
    sign = -1 if value.lstrip().startswith("-") else 1
    return Duration(seconds=sign * (total // 10**9), nanos=sign * (total % 10**9))


def spellings(name: str) -> tuple[str, ...]:
    """How rules may write the name of a field. A word of CEL has two: as in Kubernetes, `namespace` is read, too."""
    if name in _RESERVED:
        return f"__{name}__", name
    if re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) and "__" not in name:
        return (name,)
    text_ = name.replace("__", "\0").replace(".", "__dot__").replace("-", "__dash__").replace("/", "__slash__")
    return (text_.replace("\0", "__underscores__"),)
