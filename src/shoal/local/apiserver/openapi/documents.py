"""The server's OpenAPI documents, v2 and v3, from the registry of what it serves.

kubectl reads them for `explain`, to learn that it may leave validation to the server, and to validate a `kind: List`
itself. Built-in kinds are described by the names and types of their fields, custom kinds by their own schemas. Built
on first use and kept until the registry changes; nothing else in the server depends on them.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import msgspec

from shoal.local.apiserver.kinds.resources import Registry, Resource, ServedVersion
from shoal.local.apiserver.openapi import protobuf
from shoal.local.apiserver.openapi.descriptions import EVERY_OBJECT, OBJECT_META
from shoal.local.apiserver.primitives import builtin_types
from shoal.local.apiserver.primitives.builtin_types import TypeField
from shoal.local.apiserver.primitives.status import not_acceptable

Json = dict[str, Any]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_PREFIXES = {"meta": "io.k8s.apimachinery.pkg.apis.meta", "apiextensions":
             "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions", "apiregistration":
             "io.k8s.kube-aggregator.pkg.apis.apiregistration"}  # fmt: skip
_SCALARS: dict[str, Json] = {
    "string": {"type": "string"}, "bool": {"type": "boolean"}, "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"}, "uint32": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"}, "bytes": {"type": "string", "format": "byte"},
    "Time": {"type": "string", "format": "date-time"}, "MicroTime": {"type": "string", "format": "date-time"},
    "Duration": {"type": "string"}, "Quantity": {"type": "string"}, "Raw": {"type": "object"}, "JSON": {},
    "Fields": {"type": "object"},
}  # fmt: skip
_NUMBER = (int, float)
_V2_WORDS: dict[str, type | tuple[type, ...]] = {  # what OpenAPI v2 keeps of a custom schema
    "type": str, "format": str, "title": str, "description": str, "multipleOf": _NUMBER, "maximum": _NUMBER,
    "exclusiveMaximum": bool, "minimum": _NUMBER, "exclusiveMinimum": bool, "maxLength": _NUMBER, "minLength": _NUMBER,
    "pattern": str, "maxItems": _NUMBER, "minItems": _NUMBER, "uniqueItems": bool, "maxProperties": _NUMBER,
    "minProperties": _NUMBER, "required": list, "enum": list, "additionalProperties": (dict, bool), "items": dict,
    "properties": dict, "externalDocs": dict, "example": object,
    **dict.fromkeys(("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource",
                     "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
                     "x-kubernetes-map-type"), object),
}  # fmt: skip
_JSON = "application/json"
_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PROTOBUF_OLD = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"  # what kubectl still asks for


class Encoded(msgspec.Struct, frozen=True):
    """`tag` goes into the ETag header: kubectl keeps the document and asks whether it is still the same."""

    body: bytes
    content_type: str
    tag: str


class OpenApi:
    """Documents by path. One per server."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._seen = -1
        self._kept: dict[str, Json] = {}
        self._encoded: dict[tuple[str, str], Encoded] = {}

    def encoded(self, path: str, accept: str) -> Encoded | None:
        """A document in the form that the client accepts; None where there is none."""
        document = self.answer(path)
        if document is None:
            return None
        path = path.rstrip("/")
        offered = (_JSON, _PROTOBUF) if path == "/openapi/v2" else (_JSON,)
        form = _negotiated(accept, offered)
        if (path, form) not in self._encoded:
            write = protobuf.encode if form == _PROTOBUF else msgspec.json.encode
            body = write(document)
            self._encoded[path, form] = Encoded(body, form, f'"{hashlib.sha256(body).hexdigest().upper()}"')
        return self._encoded[path, form]

    def answer(self, path: str) -> Json | None:
        """The document at /openapi/v2, /openapi/v3 or /openapi/v3/…; None where there is none."""
        if self._seen != self.registry.generation:
            self._seen, self._kept, self._encoded = self.registry.generation, {}, {}
        path = path.rstrip("/")
        if path not in self._kept:
            found = self._build(path)
            if found is None:
                return None
            self._kept[path] = found
        return self._kept[path]

    def _build(self, path: str) -> Json | None:
        if path == "/openapi/v2":
            return self._v2()
        if path == "/openapi/v3":
            return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={self._hash(name)}"}
                              for name in self._names()}}  # fmt: skip
        name = path.removeprefix("/openapi/v3/")
        return self._v3(name) if name in self._names() else None

    def _names(self) -> dict[str, tuple[str, str]]:
        """`apis/apps/v1` and the like, with their group and version."""
        return {
            (f"apis/{group}/{version}" if group else f"api/{version}"): (group, version)
            for group, versions in self.registry.groups().items()
            for version in versions
        }

    def _hash(self, name: str) -> str:
        text = msgspec.json.encode(self.answer(f"/openapi/v3/{name}"), order="deterministic")
        return hashlib.sha256(text).hexdigest()[:32].upper()

    def _served(self, group: str | None = None, version: str | None = None) -> list[tuple[Resource, ServedVersion]]:
        return [
            (resource, one)
            for resource in self.registry.all()
            for one in resource.versions.values()
            if one.served and group in (None, resource.group) and version in (None, one.name)
        ]

    def _v3(self, name: str) -> Json:
        served = self._served(*self._names()[name])
        schemas: dict[str, Json] = {}
        paths: Json = {}
        for resource, version in served:
            _describe(resource, version, schemas, v3=True)
            paths.update(_paths(resource, version, v3=True))
        return {
            "openapi": "3.0.0",
            "info": _INFO,
            "paths": paths,
            "components": {"schemas": dict(sorted(schemas.items()))},
        }

    def _v2(self) -> Json:
        definitions: dict[str, Json] = {}
        paths: Json = {}
        for resource, version in self._served():
            _describe(resource, version, definitions, v3=False)
            paths.update(_paths(resource, version, v3=False))
        return {"swagger": "2.0", "info": _INFO, "paths": paths, "definitions": dict(sorted(definitions.items()))}


def _negotiated(accept: str, offered: tuple[str, ...]) -> str:
    """The best form that both sides know; what a client names outright goes before what it merely lets pass."""
    wishes = []
    for wish in accept.lower().split(",") if accept.strip() else ["*/*"]:
        form, *words = (word.strip() for word in wish.split(";"))
        weight = next((word[2:] for word in words if word.startswith("q=")), "1")
        with contextlib.suppress(ValueError):
            wishes.append((-float(weight), form.count("*"), form))
    for weighed, _, form in sorted(wishes, key=lambda wish: wish[:2]):
        form = _PROTOBUF if form == _PROTOBUF_OLD else form
        for offer in offered if weighed else ():
            if form in (offer, "*/*", "application/*"):
                return offer
    raise not_acceptable(offered)


_INFO = {"title": "Kubernetes", "version": "v1.36.4"}


def definition_name(version: ServedVersion, custom: bool) -> str:
    """`io.k8s.api.core.v1.Pod`, or the reversed group for custom kinds: `io.ray.v1.RayJob`."""
    kind = version.kind
    known = builtin_types.type_of(kind)
    if known is not None and not custom:
        return _type_name(known)
    return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])


def _type_name(type_name: str) -> str:
    package, _, rest = type_name.partition(".")
    return f"{_PREFIXES.get(package, 'io.k8s.api.' + package)}.{rest}"


def _reference(name: str, v3: bool) -> Json:
    return {"$ref": f"#/components/schemas/{name}" if v3 else f"#/definitions/{name}"}


# --- schemas


def _describe(resource: Resource, version: ServedVersion, into: dict[str, Json], *, v3: bool) -> None:
    name = definition_name(version, resource.custom)
    kind = version.kind
    mark = [{"group": kind.group, "version": kind.version, "kind": kind.kind}]
    if resource.custom:
        schema = _custom_schema(version.raw_schema or {}, into, v3)
    else:
        known = builtin_types.type_of(kind)
        if known is None:
            return
        _add_type(known, into, v3)
        schema = into[name]
        texts = {field: {**_SCALARS["string"], "description": EVERY_OBJECT[field]} for field in ("apiVersion", "kind")}
        schema["properties"] = {**texts, **schema["properties"]}
    schema["x-kubernetes-group-version-kind"] = mark
    into[name] = schema
    if "list" not in resource.verbs:
        return
    items = {"type": "array", "items": _reference(name, v3)}
    into[name + "List"] = {
        "type": "object", "required": ["items"],
        "properties": {"apiVersion": _SCALARS["string"], "kind": _SCALARS["string"], "items": items,
                       "metadata": _wrapped(_reference(f"{_META}.ListMeta", v3), v3)},
        "x-kubernetes-group-version-kind": [{**mark[0], "kind": resource.list_kind}],
    }  # fmt: skip
    _add_type("meta.v1.ListMeta", into, v3)


def _custom_schema(raw: Json, into: dict[str, Json], v3: bool) -> Json:
    _add_type("meta.v1.ObjectMeta", into, v3)
    if not raw or (not v3 and raw.get("x-kubernetes-preserve-unknown-fields")):
        return {"type": "object"}  # kubectl would refuse what is not among the properties
    schema: Json = dict(raw if v3 else _for_v2(raw))
    return {"type": "object", **schema, "properties": _object_fields(schema.get("properties"), v3)}


def _object_fields(properties: Json | None, v3: bool) -> Json:
    """The properties of an object, with those that every object has."""
    found = dict(properties or {})
    for field in ("apiVersion", "kind"):
        found[field] = {"description": EVERY_OBJECT[field], **(found.get(field) or {}), "type": "string"}
    found["metadata"] = {"description": EVERY_OBJECT["metadata"], **_wrapped(_reference(f"{_META}.ObjectMeta", v3), v3)}
    return found


def _for_v2(schema: Json) -> Json:
    """OpenAPI v2 lacks some words; as Kubernetes: left out, and what they held open is described as anything.

    kubectl takes properties for all there may be, null for a fault, and a list without items for a broken document.
    """
    kept: Json = {word: value for word, value in schema.items() if isinstance(value, _V2_WORDS.get(word, ()))}
    nullable, open_ = schema.get("nullable"), schema.get("x-kubernetes-preserve-unknown-fields")
    if nullable or open_:
        kept.pop("properties", None)
        kept.pop("items", None)
    if nullable or (open_ and kept.get("type") == "object") or (kept.get("type") == "array" and "items" not in kept):
        kept.pop("type", None)
    properties = kept.pop("properties", None) or {}
    children = {name: child for name, child in properties.items() if isinstance(child, dict)}
    if children:
        kept["properties"] = {name: _for_v2(child) for name, child in children.items()}
    needed = [name for name in kept.pop("required", ()) if not children.get(name, {}).get("nullable")]
    if needed:
        kept["required"] = needed
    for word in ("items", "additionalProperties"):
        if isinstance(kept.get(word), dict):
            kept[word] = _for_v2(kept[word])
    if schema.get("x-kubernetes-embedded-resource") and not open_ and not nullable:
        kept["properties"] = _object_fields(kept.get("properties"), v3=False)
        kept["required"] = list(dict.fromkeys([*(kept.get("required") or ()), "kind", "apiVersion"]))
    return kept


def _add_type(type_name: str, into: dict[str, Json], v3: bool) -> None:
    name = _type_name(type_name)
    if name in into:
        return
    schema: Json = {"type": "object"}
    into[name] = schema
    fields = builtin_types.fields(type_name)
    if fields:  # an empty list of properties would mean that there may be none
        said = OBJECT_META if type_name == "meta.v1.ObjectMeta" else {}
        schema["properties"] = {
            field.name: ({"description": said[field.name]} if field.name in said else {}) | _field(field, into, v3)
            for field in fields.values()
        }
    needed = [field.name for field in fields.values() if field.required]
    if needed:
        schema["required"] = needed


def _field(field: TypeField, into: dict[str, Json], v3: bool) -> Json:
    element = _element(field.type, into, v3)
    schema: Json
    if field.shape == "map":
        return {"type": "object", "additionalProperties": element}
    if field.shape == "one":
        schema = _wrapped(element, v3)
        return {**schema, "x-kubernetes-patch-strategy": "retainKeys"} if field.retain_keys else schema
    schema = {"type": "array", "items": element, "x-kubernetes-list-type": field.list_type}
    if field.list_type == "map":
        schema["x-kubernetes-list-map-keys"] = list(field.keys)
    if field.merge_key is not None:
        schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if field.retain_keys else "merge"
        if field.merge_key:
            schema["x-kubernetes-patch-merge-key"] = field.merge_key
    return schema


def _element(type_name: str, into: dict[str, Json], v3: bool) -> Json:
    if type_name.startswith("[]"):
        return {"type": "array", "items": _element(type_name[2:], into, v3)}
    if type_name == "IntOrString":
        either: Json = {"oneOf": [{"type": "integer"}, {"type": "string"}]} if v3 else {"type": "string"}
        return {**either, "format": "int-or-string"}
    if type_name in _SCALARS:
        return dict(_SCALARS[type_name])
    _add_type(type_name, into, v3)
    return _reference(_type_name(type_name), v3)


def _wrapped(schema: Json, v3: bool) -> Json:
    """In v3 a reference must stand alone; allOf lets other words stand beside it."""
    return {"allOf": [schema], "default": {}} if v3 and "$ref" in schema else schema


# --- paths


def _paths(resource: Resource, version: ServedVersion, *, v3: bool) -> Json:
    """The operations by which kubectl finds a kind and learns which parameters it may send."""
    kind = version.kind
    many = kind.path("{namespace}").replace("%7Bnamespace%7D", "{namespace}")
    one = f"{many}/{{name}}"
    name = definition_name(version, resource.custom)
    if not resource.custom and builtin_types.type_of(kind) is None:
        return {}
    found: Json = {many: {}, one: {}}
    for verb, method, where in (
        ("list", "get", many), ("create", "post", many), ("get", "get", one), ("update", "put", one),
        ("patch", "patch", one), ("delete", "delete", one),
    ):  # fmt: skip
        if verb in resource.verbs:
            found[where][method] = _operation(kind, verb, name, v3)
    for place, operations in found.items():
        operations["parameters"] = _place_parameters(place, v3)
    if kind.namespaced and "list" in resource.verbs:
        found[kind.path()] = {"get": _operation(kind, "list", name, v3)}
    return {place: operations for place, operations in found.items() if len(operations) > ("parameters" in operations)}


def _operation(kind: Any, verb: str, name: str, v3: bool) -> Json:
    answer = _reference(name + "List" if verb == "list" else name, v3)
    ok: Json = {"description": "OK"}
    if v3:
        ok["content"] = {"application/json": {"schema": answer}}
    else:
        ok["schema"] = answer
    writes = verb in ("create", "update", "patch")
    parameters = ["dryRun", "fieldManager", "fieldValidation"] if writes else []
    if verb == "patch":
        parameters.append("force")
    if verb == "list":
        parameters += ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"]
    operation: Json = {
        "operationId": verb + _camel(kind.group) + kind.version.title() + kind.kind,
        "parameters": [_query(parameter, v3) for parameter in parameters],
        "responses": {"200": ok, "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    }
    if writes:
        body: Json = {"type": "object"} if verb == "patch" else _reference(name, v3)
        if v3:
            media = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
            accepted = media if verb == "patch" else ("application/json", "application/yaml")
            content = {form: {"schema": body} for form in accepted}
            operation["requestBody"] = {"content": content, "required": True}
        else:
            operation["parameters"].append({"name": "body", "in": "body", "required": True, "schema": body})
    return operation


def _camel(group: str) -> str:
    return group.title().replace(".", "").replace("-", "")


def _query(name: str, v3: bool) -> Json:
    kind = {"limit": "integer", "watch": "boolean", "force": "boolean"}.get(name, "string")
    schema: Json = {"schema": {"type": kind}} if v3 else {"type": kind}
    return {"name": name, "in": "query", **schema}


def _place_parameters(place: str, v3: bool) -> list[Json]:
    text: Json = {"schema": {"type": "string"}} if v3 else {"type": "string"}
    return [{"name": name, "in": "path", "required": True, **text}
            for name in ("namespace", "name") if f"{{{name}}}" in place]  # fmt: skip
