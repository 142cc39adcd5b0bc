"""The OpenAPI v2 document as protobuf: gnostic's `openapi.v2.Document`, in which kubectl reads it.

kubectl asks for this form alone when it validates on its own side, as it does for every `kind: List`. The tables hold
the words that our documents use, with their field numbers; a word that OpenAPI v2 does not know is left out, since
one would make clients refuse the whole document. `documents.py` calls this on demand and keeps what it gives.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from shoal.api.meta import Json

Write = Callable[[int, Any], bytes]  # the bytes of a field, by its number and value
Table = dict[str, tuple[int, Write]]
_EXTENSIONS = ""  # in a table: where words that begin with x- go

_ENCODER = msgspec.json.Encoder()
_VARINT, _EIGHT_BYTES, _BLOCK = 0, 1, 2  # wire types
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # allowed in JSON, not in YAML


def encode(document: Json) -> bytes:
    """A whole document, swagger 2.0."""
    return _message(_DOCUMENT, document)


# --- the wire


@lru_cache(4096)  # tags and small lengths, over and over
def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers are sent as their complement
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _block(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BLOCK) + _varint(len(content)) + content


def _text(number: int, value: Any) -> bytes:
    return _block(number, str(value).encode()) if value else b""


def _texts(number: int, values: Iterable[Any]) -> bytes:
    return b"".join(_block(number, str(value).encode()) for value in values)


def _whole(number: int, value: Any) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(int(value)) if value else b""


def _double(number: int, value: Any) -> bytes:
    return _varint(number << 3 | _EIGHT_BYTES) + struct.pack("<d", value) if value else b""


def _any(number: int, value: Any) -> bytes:
    """Any value travels as YAML; JSON is YAML, but for a few characters."""
    text = _ENCODER.encode(value).decode()
    return _block(number, _text(2, _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)))


def _anys(number: int, values: Iterable[Any]) -> bytes:
    return b"".join(_any(number, value) for value in values)


# --- messages


def _message(table: Table, value: Json) -> bytes:
    """The members that the table names, and the extensions where the table has room for them."""
    parts = []
    for word, item in value.items():
        if word in table and item is not None:
            number, write = table[word]
            parts.append(write(number, item))
        elif word.startswith("x-") and _EXTENSIONS in table:
            number, write = table[_EXTENSIONS]
            parts.append(write(number, {word: item}))
    return b"".join(parts)


def _one(table: Table) -> Write:
    return lambda number, value: _block(number, _message(table, value))


def _many(write: Write) -> Write:
    return lambda number, values: b"".join(write(number, value) for value in values)


def _named(write: Write) -> Write:
    """A map: repeated pairs of a name and a value."""
    return lambda number, values: b"".join(
        _block(number, _text(1, name) + write(2, value)) for name, value in values.items()
    )


def _inside(write: Write, inner: int = 1) -> Write:
    """A message that holds nothing but this one field."""
    return lambda number, value: _block(number, write(inner, value))


def _schema(number: int, value: Any) -> bytes:
    return _block(number, _message(_SCHEMA, value))


def _type(number: int, value: Any) -> bytes:
    return _block(number, _texts(1, [value] if isinstance(value, str) else value))


def _additional(number: int, value: Any) -> bytes:
    """A schema, or whether there may be any: one of two, so that False is said, too."""
    if isinstance(value, bool):
        return _block(number, _varint(2 << 3 | _VARINT) + _varint(value))
    return _block(number, _schema(1, value))


def _parameter(number: int, value: Any) -> bytes:
    """ParametersItem, Parameter and, but for a body, NonBodyParameter lie around it."""
    if value["in"] == "body":
        inner = _block(1, _message(_BODY, value))
    else:
        place, table = _PLACES[value["in"]]
        inner = _block(2, _block(place, _message(table, value)))
    return _block(number, _block(1, inner))


# --- tables: the words of the JSON document with their field numbers


_SCHEMA: Table = {
    "$ref": (1, _text), "format": (2, _text), "title": (3, _text), "description": (4, _text), "default": (5, _any),
    "multipleOf": (6, _double), "maximum": (7, _double), "exclusiveMaximum": (8, _whole), "minimum": (9, _double),
    "exclusiveMinimum": (10, _whole), "maxLength": (11, _whole), "minLength": (12, _whole), "pattern": (13, _text),
    "maxItems": (14, _whole), "minItems": (15, _whole), "uniqueItems": (16, _whole), "maxProperties": (17, _whole),
    "minProperties": (18, _whole), "required": (19, _texts), "enum": (20, _anys),
    "additionalProperties": (21, _additional), "type": (22, _type), "items": (23, _inside(_schema)),
    "allOf": (24, _many(_schema)), "properties": (25, _inside(_named(_schema))),
    "externalDocs": (29, _one({"description": (1, _text), "url": (2, _text)})), "example": (30, _any),
    _EXTENSIONS: (31, _named(_any)),
}  # fmt: skip
_BODY: Table = {
    "description": (1, _text), "name": (2, _text), "in": (3, _text), "required": (4, _whole), "schema": (5, _schema),
}  # fmt: skip
_QUERY: Table = {
    "required": (1, _whole), "in": (2, _text), "description": (3, _text), "name": (4, _text), "type": (6, _text),
}  # fmt: skip
_PATH: Table = {**_QUERY, "type": (5, _text)}
_PLACES = {"query": (3, _QUERY), "path": (4, _PATH)}
_RESPONSE: Table = {"description": (1, _text), "schema": (2, _inside(_schema))}
_OPERATION: Table = {
    "description": (3, _text), "operationId": (5, _text), "produces": (6, _texts), "consumes": (7, _texts),
    "parameters": (8, _many(_parameter)), "responses": (9, _inside(_named(_inside(_one(_RESPONSE))))),
    _EXTENSIONS: (13, _named(_any)),
}  # fmt: skip
_PATH_ITEM: Table = {
    "get": (2, _one(_OPERATION)), "put": (3, _one(_OPERATION)), "post": (4, _one(_OPERATION)),
    "delete": (5, _one(_OPERATION)), "patch": (8, _one(_OPERATION)), "parameters": (9, _many(_parameter)),
}  # fmt: skip
_DOCUMENT: Table = {
    "swagger": (1, _text), "info": (2, _one({"title": (1, _text), "version": (2, _text)})),
    "paths": (8, _inside(_named(_one(_PATH_ITEM)), 2)), "definitions": (9, _inside(_named(_schema))),
}  # fmt: skip
