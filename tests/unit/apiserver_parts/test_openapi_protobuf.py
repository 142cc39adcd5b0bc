"""The OpenAPI document as protobuf says what the JSON says: read back by a walk that knows the wire and no more."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from shoal.api.kind import Kind
from shoal.local.apiserver.kinds.resources import Registry, Resource, ServedVersion
from shoal.local.apiserver.openapi.documents import OpenApi
from shoal.local.apiserver.openapi.protobuf import encode
from shoal.local.apiserver.primitives.status import Refused
from shoal.local.apiserver.storage.store import Storage

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OLDER = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"

THING = {
    "type": "object",
    "description": "Größe, 測る, 😀",
    "required": ["spec", "maybe"],
    "properties": {
        "maybe": {"type": "string", "nullable": True},
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "format": "int32", "minimum": -3, "maximum": 9.5, "exclusiveMaximum": True},
                "name": {"type": "string", "pattern": "^a+$", "maxLength": 300, "enum": ["a", "aa"], "title": "Name"},
                "tags": {"type": "array", "maxItems": 5, "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "ports": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}},
                "closed": {"type": "object", "additionalProperties": False, "example": {"a": [1, "\x7f\u2028"]}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {}}},
                "bag": {"type": "array", "x-kubernetes-preserve-unknown-fields": True, "items": {"type": "object"}},
                "none": {"type": "object", "properties": {}},
                "inner": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {}}},
            },
        },
    },
}


def api_with(thing: dict[str, Any]) -> OpenApi:
    registry = Registry(Storage(None))
    kind = Kind("example.org", "v1", "Thing", "things")
    collection = registry.storage.collection("things.example.org")
    versions = {"v1": ServedVersion(kind, raw_schema=thing)}
    registry.add(Resource(versions, "v1", collection, singular="thing", custom=True))
    return OpenApi(registry)


@pytest.fixture
def api() -> OpenApi:
    return api_with(THING)


# --- an independent reader


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        elif tag & 7 == 1:
            yield tag >> 3, struct.unpack("<d", data[at : at + 8])[0]
            at += 8
        else:
            assert tag & 7 == 2
            size = number()
            assert at + size <= len(data)
            yield tag >> 3, data[at : at + size]
            at += size


def only(data: bytes, wanted: int) -> Any:
    [(number, value)] = fields(data)
    assert number == wanted
    return value


def pairs(data: bytes, wanted: int = 1) -> dict[str, bytes]:
    found = {}
    for number, pair in fields(data):
        assert number == wanted
        parts = dict(fields(pair))
        found[parts[1].decode()] = parts.get(2, b"")
    return found


def value_of(data: bytes) -> Any:
    return yaml.safe_load(only(data, 2).decode())


TEXTS = {1: "$ref", 2: "format", 3: "title", 4: "description", 13: "pattern"}
NUMBERS = {7: "maximum", 9: "minimum", 11: "maxLength", 14: "maxItems"}


def schema(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, raw in fields(data):
        if number in TEXTS:
            found[TEXTS[number]] = raw.decode()
        elif number in NUMBERS:
            found[NUMBERS[number]] = raw
        elif number == 8:
            found["exclusiveMaximum"] = bool(raw)
        elif number == 19:
            found.setdefault("required", []).append(raw.decode())
        elif number == 20:
            found.setdefault("enum", []).append(value_of(raw))
        elif number == 21:
            of_kind, inside = next(fields(raw))
            found["additionalProperties"] = schema(inside) if of_kind == 1 else bool(inside)
        elif number == 22:
            found["type"] = only(raw, 1).decode()
        elif number == 23:
            found["items"] = schema(only(raw, 1))
        elif number == 25:
            found["properties"] = {name: schema(one) for name, one in pairs(raw).items()}
        elif number == 30:
            found["example"] = value_of(raw)
        else:
            assert number == 31
            parts = dict(fields(raw))
            found[parts[1].decode()] = value_of(parts[2])
    return found


# --- the document


def test_every_definition_reads_back_as_the_json_says(api: OpenApi) -> None:
    document, whole = api.answer("/openapi/v2"), api.encoded("/openapi/v2", PROTOBUF)
    assert document is not None and whole is not None
    parts = dict(fields(whole.body))
    assert parts[1] == b"2.0" and dict(fields(parts[2])) == {1: b"Kubernetes", 2: b"v1.36.4"}
    definitions = {name: schema(one) for name, one in pairs(parts[9]).items()}
    assert len(definitions) > 100 and definitions == document["definitions"]


def test_operations_tell_kinds_and_parameters(api: OpenApi) -> None:
    whole = api.encoded("/openapi/v2", PROTOBUF)
    assert whole is not None
    paths = pairs(dict(fields(whole.body))[8], 2)
    item = list(fields(paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]))
    patch = list(fields(dict(item)[8]))
    extensions = [dict(fields(raw)) for number, raw in patch if number == 13]
    marks = {one[1].decode(): value_of(one[2]) for one in extensions}
    assert marks["x-kubernetes-group-version-kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    parameters = [next(fields(only(raw, 1))) for number, raw in patch if number == 8]
    query = [dict(fields(only(raw, 3))) for number, raw in parameters if number == 2]
    assert [(one[4], one[2]) for one in query] == [
        (name, b"query") for name in (b"dryRun", b"fieldManager", b"fieldValidation", b"force")
    ]
    [body] = [dict(fields(raw)) for number, raw in parameters if number == 1]
    assert body[2] == b"body" and schema(body[5]) == {"type": "object"}
    places = [dict(fields(only(only(only(raw, 1), 2), 4))) for number, raw in item if number == 9]
    assert [(one[4], one[2], one[1], one[5]) for one in places] == [
        (name, b"path", 1, b"string") for name in (b"namespace", b"name")
    ]
    answers = pairs(dict(patch)[9])
    ok = dict(fields(only(answers["200"], 1)))
    assert schema(only(ok[2], 1)) == {"$ref": "#/definitions/io.k8s.api.apps.v1.Deployment"}


def test_custom_schemas_hold_nothing_that_kubectl_would_stumble_over(api: OpenApi) -> None:
    """One custom kind whose schema kubectl cannot read would keep it from validating any list."""
    document = api.answer("/openapi/v2")
    assert document is not None
    thing = document["definitions"]["org.example.v1.Thing"]
    assert thing["required"] == ["spec"] and thing["properties"]["maybe"] == {}
    spec = thing["properties"]["spec"]["properties"]
    assert spec["open"] == spec["bag"] == {"x-kubernetes-preserve-unknown-fields": True}
    assert spec["none"] == {"type": "object"}
    assert set(spec["inner"]["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    assert spec["inner"]["required"] == ["kind", "apiVersion"]


def test_a_stored_schema_of_wrong_types_spoils_nothing_else() -> None:
    wrong = {
        "type": 3,
        "minimum": "3",
        "required": "a",
        "enum": {},
        "items": "x",
        "additionalProperties": [],
        "title": 1,
    }
    api = api_with({"type": "object", "properties": {"a": wrong, "b": None, "c": {"type": "array", "items": wrong}}})
    found = api.encoded("/openapi/v2", PROTOBUF)
    assert found is not None
    properties = schema(pairs(dict(fields(found.body))[9])["org.example.v1.Thing"])["properties"]
    assert properties["a"] == {} and "b" not in properties and properties["c"] == {"type": "array", "items": {}}


def test_words_that_v2_does_not_know_are_left_out() -> None:
    held = encode({"swagger": "2.0", "definitions": {"a": {"type": "string", "nullable": True, "oneOf": [{}]}}})
    assert {name: schema(one) for name, one in pairs(dict(fields(held))[9]).items()} == {"a": {"type": "string"}}


def test_the_client_chooses_the_form(api: OpenApi) -> None:
    def form(accept: str, path: str = "/openapi/v2") -> str:
        found = api.encoded(path, accept)
        assert found is not None
        return found.content_type

    assert form(PROTOBUF) == form(OLDER) == form(f"application/json;q=0.5, {OLDER}") == PROTOBUF
    assert (
        form("") == form("*/*") == form("application/json, */*") == form(f"{PROTOBUF};q=0.1,*/*") == "application/json"
    )
    assert form("application/json", "/openapi/v3/api/v1") == "application/json"
    for accept, path in (("text/html", "/openapi/v2"), (f"{PROTOBUF};q=0", "/openapi/v2"), (PROTOBUF, "/openapi/v3")):
        with pytest.raises(Refused) as refused:
            api.encoded(path, accept)
        assert refused.value.code == 406


def test_encoded_once_until_a_kind_comes_or_goes(api: OpenApi) -> None:
    first = api.encoded("/openapi/v2", OLDER)
    assert first is not None and api.encoded("/openapi/v2", PROTOBUF) is first
    api.registry.drop("example.org", "things")
    second = api.encoded("/openapi/v2", PROTOBUF)
    assert second is not None and second.tag != first.tag and len(second.body) < len(first.body)
