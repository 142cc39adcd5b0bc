"""Protobuf bodies of built-in kinds, decoded into the objects that JSON would have given.

kubectl and clients on controller-runtime send built-in kinds this way. Field numbers come from the table of built-in
types; answers stay JSON. Bounded by the size of the body: a length that points past its end, or a deep nest, is
refused.
"""

from __future__ import annotations

import base64
import struct
from functools import cache
from typing import Any

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import micro_text, seconds_text
from shoal.local.apiserver.primitives.builtin_types import TypeField, type_of, wire
from shoal.local.apiserver.primitives.status import Refused, bad_request

MAGIC = b"k8s\x00"
DEEPEST = 64
_SCHEMA = "apiextensions.v1.JSONSchemaProps"


def decode(data: bytes) -> Json:
    """An object from a body that begins with the magic number of Kubernetes."""
    if not data.startswith(MAGIC):
        raise bad_request("the body of the request is not a Kubernetes protobuf message")
    try:
        envelope = dict(_fields(memoryview(data)[4:]))
        meta = dict(_fields(envelope.get(1, memoryview(b""))))
        api_version, kind = bytes(meta.get(1, b"")).decode(), bytes(meta.get(2, b"")).decode()
        raw = envelope.get(2, memoryview(b""))
        if envelope.get(4) and b"json" in bytes(envelope[4]):
            return dict(msgspec.json.decode(bytes(raw)))
        group, _, version = api_version.rpartition("/")
        name = type_of(Kind(group, version, kind, "")) or _shared(api_version, kind)
        if name is None:
            raise Refused(
                415, "UnsupportedMediaType", f"{kind} in {api_version!r} is not known as protobuf here; send JSON"
            )
        return {"apiVersion": api_version, "kind": kind, **_message(raw, name, 1)}
    except (ValueError, IndexError, TypeError, struct.error, msgspec.MsgspecError, OverflowError) as error:
        raise bad_request(f"the body of the request is not a valid protobuf message: {error}") from None


def _shared(api_version: str, kind: str) -> str | None:
    """Kinds that every group shares, such as DeleteOptions."""
    return type_of(Kind("meta.k8s.io", "v1", kind, ""))


@cache
def _numbered(type_name: str) -> dict[int, TypeField]:
    return {field.number: field for field in wire(type_name).values()}


def _fields(data: Any) -> list[tuple[int, Any]]:
    """Field numbers with their values: integers for varints, bytes for the rest."""
    found: list[tuple[int, Any]] = []
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, shape = tag >> 3, tag & 7
        if shape == 0:
            value, at = _varint(data, at)
            found.append((number, value))
        elif shape == 2:
            size, at = _varint(data, at)
            if size > end - at:
                raise ValueError("a field is longer than the message")
            found.append((number, data[at : at + size]))
            at += size
        elif shape in (1, 5):
            size = 8 if shape == 1 else 4
            if size > end - at:
                raise ValueError("a field is longer than the message")
            found.append((number, data[at : at + size]))
            at += size
        else:
            raise ValueError(f"wire type {shape} is not used by Kubernetes")
    return found


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _message(data: Any, type_name: str, depth: int) -> Json:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    known = _numbered(type_name)
    found: Json = {}
    for number, raw in _fields(data):
        field = known.get(number)
        if field is None:
            continue
        if field.inline:
            found.update(_message(raw, field.type, depth + 1))
        elif type_name == _SCHEMA and field.name in _EITHER:
            found[field.name] = _EITHER[field.name](raw, depth)
        elif field.shape == "list":
            found.setdefault(field.name, []).append(_value(raw, field.type, depth))
        elif field.shape == "map":
            entry = dict(_fields(raw))
            found.setdefault(field.name, {})[bytes(entry.get(1, b"")).decode()] = _entry(
                entry.get(2), field.type, depth
            )
        else:
            value = _value(raw, field.type, depth)
            # A pointer is sent only when it was set, other noughts always: those are what JSON leaves out.
            nought = value is None or value == "" or (value == 0 and type(value) in (int, bool, float))
            if not nought or ((field.pointer or field.keep) and value is not None):
                found[field.name] = value
    return found


def _entry(raw: Any, type_name: str, depth: int) -> Any:
    if type_name.startswith("[]"):
        return [_value(item, type_name[2:], depth) for number, item in _fields(raw or b"") if number == 1]
    if raw is None:
        return "" if type_name in ("string", "bytes") else {}
    return _value(raw, type_name, depth)


def _value(raw: Any, type_name: str, depth: int) -> Any:
    match type_name:
        case "string":
            return bytes(raw).decode()
        case "bool":
            return bool(raw)
        case "int32" | "int64":
            return raw - (1 << 64) if raw >= 1 << 63 else raw
        case "uint32":
            return raw
        case "double":
            return struct.unpack("<d", raw)[0]
        case "bytes":
            return base64.b64encode(raw).decode()
        case "Quantity":
            return bytes(dict(_fields(raw)).get(1, b"")).decode() or "0"
        case "IntOrString":
            parts = dict(_fields(raw))
            return bytes(parts.get(3, b"")).decode() if parts.get(1) == 1 else _value(parts.get(2, 0), "int32", depth)
        case "Time" | "MicroTime":
            parts = dict(_fields(raw))
            seconds, nanos = _value(parts.get(1, 0), "int64", depth), _value(parts.get(2, 0), "int64", depth)
            if not seconds and not nanos:
                return None
            if not -62135596800 <= seconds < 253402300800:
                raise ValueError("a time is out of range")
            moment = seconds * 1_000_000 + nanos // 1000
            return seconds_text(moment) if type_name == "Time" else micro_text(moment)
        case "Raw" | "JSON" | "Fields":
            text = bytes(dict(_fields(raw)).get(1, b""))
            return msgspec.json.decode(text) if text else None
    return _message(raw, type_name, depth + 1)


def _one_or_many(raw: Any, depth: int) -> Any:
    """`items`: a schema, or a list of them."""
    parts = _fields(raw)
    one = dict(parts).get(1)
    return _message(one, _SCHEMA, depth + 1) if one is not None else [_message(i, _SCHEMA, depth + 1) for _, i in parts]


def _allowed_or_schema(raw: Any, depth: int) -> Any:
    """`additionalProperties`, `additionalItems`: whether any, or which."""
    parts = dict(_fields(raw))
    return _message(parts[2], _SCHEMA, depth + 1) if 2 in parts else bool(parts.get(1))


def _dependencies(raw: Any, depth: int) -> Any:
    """An entry of `dependencies`: a schema, or names of members."""
    entry = dict(_fields(raw))
    parts = _fields(entry.get(2, b""))
    names = [bytes(name).decode() for number, name in parts if number == 2]
    return {bytes(entry.get(1, b"")).decode(): names or _message(dict(parts).get(1, b""), _SCHEMA, depth + 1)}


_EITHER = {
    "items": _one_or_many,
    "additionalItems": _allowed_or_schema,
    "additionalProperties": _allowed_or_schema,
    "dependencies": _dependencies,
}
