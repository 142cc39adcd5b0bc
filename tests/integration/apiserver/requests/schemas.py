"""Custom kinds in their corners: rules, transitions, keyed lists, defaults, pruning, embedded objects, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import APPLY, JSON_PATCH, Step, delete, get, patch, post, put

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GADGETS = "/apis/diff.example/v1/namespaces/diff/gadgets"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

SPEC: dict[str, Any] = {
    "type": "object",
    "default": {"mode": "auto"},
    "properties": {
        "mode": {"type": "string", "default": "auto", "enum": ["auto", "manual", ""]},
        "fixed": {
            "type": "string",
            "maxLength": 9,
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is fixed"}],
        },
        "grows": {
            "type": "integer",
            "format": "int32",
            "x-kubernetes-validations": [{"rule": "self >= oldSelf", "messageExpression": "'may not ' + 'shrink'"}],
        },
        "once": {
            "type": "string",
            "maxLength": 20,
            "x-kubernetes-validations": [
                {"rule": "!oldSelf.hasValue() || self == oldSelf.value()", "optionalOldSelf": True}
            ],
        },
        "ports": {
            "type": "array",
            "maxItems": 4,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["number", "protocol"],
            "items": {
                "type": "object",
                "required": ["number", "protocol"],
                "properties": {
                    "number": {"type": "integer", "minimum": 1, "maximum": 65535, "exclusiveMaximum": True},
                    "protocol": {"type": "string", "default": "TCP"},
                    "note": {"type": "string", "nullable": True},
                },
            },
        },
        "tags": {
            "type": "array",
            "maxItems": 5,
            "x-kubernetes-list-type": "set",
            "items": {"type": "string", "maxLength": 9},
        },
        "whole": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "atomic", "items": {"type": "string"}},
        "either": {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^[0-9]+%$",
        },
        "limits": {
            "type": "object",
            "maxProperties": 2,
            "additionalProperties": {"x-kubernetes-int-or-string": True},
        },
        "inner": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "partly": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"strict": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        },
        "when": {"type": "string", "format": "date-time"},
        "address": {"type": "string", "format": "ipv4"},
        "data": {"type": "string", "format": "byte"},
        "span": {"type": "string", "format": "duration"},
        "ratio": {"type": "number", "multipleOf": 0.5},
        "big": {"type": "integer", "format": "int64"},
        "maybe": {"type": "string", "nullable": True},
        "one": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        "not": {"type": "string", "not": {"enum": ["never"]}},
        "unique": {"type": "array", "maxItems": 3, "items": {"type": "integer"}},
        "word": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
    },
    "x-kubernetes-validations": [
        {
            "rule": "!has(self.ports) || self.ports.all(p, p.number != 13)",
            "message": "thirteen",
            "fieldPath": ".ports",
            "reason": "FieldValueForbidden",
        },
        {
            "rule": "self.mode != 'manual' || has(self.word)",
            "message": "manual needs a word",
            "reason": "FieldValueRequired",
            "fieldPath": ".word",
        },
    ],
}


_WORD = {"type": "string", "maxLength": 9}
TYPED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "share": {"type": "number"},
        "word": _WORD,
        "words": {"type": "array", "maxItems": 3, "items": _WORD},
        "table": {"type": "array", "maxItems": 3, "items": {"type": "array", "maxItems": 3, "items": _WORD}},
        "labels": {"type": "object", "maxProperties": 3, "additionalProperties": _WORD},
        "port": {"x-kubernetes-int-or-string": True, "maxLength": 5},
        "when": {"type": "string", "format": "date-time"},
        "span": {"type": "string", "format": "duration"},
        "data": {"type": "string", "format": "byte", "maxLength": 9},
        "part": {"type": "object", "properties": {"a-b": {"type": "boolean"}, "in": {"type": "integer"}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "anything": {"x-kubernetes-preserve-unknown-fields": True},
        "inner": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"x": {"type": "integer"}}},
    },
}
TYPED_RULES: tuple[str | dict[str, Any], ...] = (
    "self.size > 1 && self.share < 0.5 && self.word.startsWith('a')",
    "self.words.all(n, n != '') && size(self.words) < 3",
    "self.table.all(row, row.all(cell, cell != ''))",
    "'a' in self.labels && self.labels['a'] == 'b' && self.labels.all(k, k.size() < 9)",
    "self.port == 80 || self.port == 'http'",
    "self.when > timestamp('2024-01-01T00:00:00Z') && self.span < duration('1h')",
    "self.data == b'x'",
    "self.part.a__dash__b || self.part.__in__ == 3",
    "has(self.part) && has(self.open) && self.?word.orValue('') == ''",
    "self.inner.metadata.name == 'x' && self.inner.kind == 'Y' && self.inner.x == 1",
    "self == oldSelf",
    {"rule": "!oldSelf.hasValue() || self.size >= oldSelf.value().size", "optionalOldSelf": True},
    {"rule": "self.size > 1", "messageExpression": "'only ' + self.word"},
    "self.size == 'a'",
    "self.size < 1.5",
    "self.share == 1",
    "self.words.all(n, n > 1)",
    "self.words == 'a'",
    "self.table.all(row, row > 1)",
    "self.labels['a'] == 1",
    "self.labels.a == 'x'",
    "self.when == 'now'",
    "self.when > self.span",
    "self.data == 'x'",
    "self.part.c",
    "self.part.a-b",
    "self.open.x == 1",
    "self.anything == 1",
    "self.inner.metadata.labels.size() == 0",
    "self.metadata.name == 'x'",
    "self.size in self.words",
    "self.size + 1",
    "self.word + 1 == 'x'",
    "size(self.size) == 1",
    "self.word.nothing()",
    "self.size == null",
    "self.part == null",
    {"rule": "true", "optionalOldSelf": True},
    {"rule": "!oldSelf.hasValue() || self.size >= oldSelf.value().word", "optionalOldSelf": True},
    {"rule": "self.size > 1", "messageExpression": "self.size"},
    {"rule": "self.size > 1", "messageExpression": "self.nothing"},
    {"rule": "self.size > 1", "fieldPath": ".size"},
    {"rule": "self.size > 1", "fieldPath": ".nothing"},
    {"rule": "self.size > 1", "reason": "Bogus"},
)


def gadget(name: str, spec: Any = None, **more: Any) -> dict[str, Any]:
    found = {"apiVersion": "diff.example/v1", "kind": "Gadget", "metadata": {"name": name}, **more}
    return found if spec is None else {**found, "spec": spec}


def definition() -> dict[str, Any]:
    status = {
        "type": "object",
        "properties": {
            "phase": {"type": "string", "default": "New"},
            "replicas": {"type": "integer"},
            "selector": {"type": "string"},
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status"],
                    "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                },
            },
        },
    }
    old = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.diff.example"},
        "spec": {
            "group": "diff.example",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "categories": ["all"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": status}}},
                    "selectableFields": [{"jsonPath": ".spec.mode"}],
                    "additionalPrinterColumns": [
                        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
                        {"name": "Tags", "type": "string", "jsonPath": ".spec.tags", "priority": 1},
                        {"name": "Number", "type": "integer", "jsonPath": ".spec.ports[0].number"},
                    ],
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.grows",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                },
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": False,
                    "deprecated": True,
                    "schema": {"openAPIV3Schema": old},
                },
                {"name": "v0", "served": False, "storage": False, "schema": {"openAPIV3Schema": old}},
            ],
        },
    }


def schemas() -> Iterator[Step]:
    yield from bad_definitions()
    yield post(CRDS, definition())
    yield Step("WAIT", GADGETS)
    yield post(GADGETS, gadget("g"))
    for number, spec in enumerate(
        (
            {"mode": None},
            {"mode": ""},
            {"mode": "other"},
            {"mode": "manual"},
            {"mode": "manual", "word": "abc"},
            {"word": "a"},
            {"word": "abcde"},
            {"word": "AB"},
            {"ports": [{"number": 80}]},
            {"ports": [{"number": 80}, {"number": 80, "protocol": "TCP"}]},
            {"ports": [{"protocol": "UDP"}]},
            {"ports": [{"number": 65535}]},
            {"ports": [{"number": 0}]},
            {"ports": [{"number": 13}]},
            {"ports": [{"number": 1, "note": None, "extra": 1}]},
            {"ports": [None]},
            {"ports": None},
            {"ports": [{"number": n} for n in range(1, 7)]},
            {"tags": ["a", "a"]},
            {"tags": ["a", "b"]},
            {"tags": ["0123456789"]},
            {"either": "5"},
            {"either": "5%"},
            {"either": 5},
            {"either": 1.5},
            {"limits": {"cpu": 1, "memory": "2Gi"}},
            {"limits": {"cpu": 1, "memory": "2Gi", "more": 1}},
            {"limits": {"cpu": True}},
            {"inner": {}},
            {"inner": {"apiVersion": "v1", "kind": "Pod"}},
            {"inner": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "Bad Name", "labels": {"a": 1}}}},
            {"inner": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "bogus": 1}, "spec": {"x": 1}}},
            {"partly": {"any": 1, "strict": {"a": 1, "b": 2}}},
            {"when": "yesterday"},
            {"when": "2024-01-01T00:00:00Z"},
            {"address": "1.2.3"},
            {"address": "::1"},
            {"data": "***"},
            {"data": "aGk="},
            {"span": "5 parsecs"},
            {"span": "5m"},
            {"ratio": 0.7},
            {"ratio": 1.5},
            {"grows": 3000000000},
            {"grows": 2.0},
            {"big": 9223372036854775807},
            {"big": 9223372036854775808},
            {"maybe": None},
            {"one": {}},
            {"one": {"a": "x"}},
            {"one": {"a": "x", "b": "y"}},
            {"not": "never"},
            {"not": "ever"},
            {"unique": [1, 2, 3, 4]},
            {"unknown": {"deep": 1}},
            {"fixed": 5},
        )
    ):
        yield post(GADGETS, gadget(f"g{number}", spec))
    yield from changes()
    yield from versions()
    yield from parts()


def bad_definitions() -> Iterator[Step]:
    def changed(**schema: Any) -> dict[str, Any]:
        found = definition()
        found["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {"type": "object", "properties": {"spec": schema}}
        found["spec"]["versions"][0].pop("selectableFields")
        return found

    text = {"type": "string"}
    for schema in (
        {"type": "object", "x-kubernetes-validations": [{"rule": "self.none == 1"}]},
        {"type": "object", "x-kubernetes-validations": [{"rule": "self +"}]},
        {"type": "object", "x-kubernetes-validations": [{"rule": ""}]},
        {"type": "object", "properties": {"a": text}, "x-kubernetes-validations": [{"rule": "self.a == 1"}]},
        {"type": "object", "properties": {"a": text}, "x-kubernetes-validations": [{"rule": "self.a"}]},
        {"type": "array"},
        {"type": "array", "items": text, "x-kubernetes-list-type": "map"},
        {"type": "array", "items": text, "x-kubernetes-list-type": "bogus"},
        {"type": "array", "items": text, "uniqueItems": True},
        {"type": "string", "pattern": "["},
        {"type": "string", "default": 5},
        {"type": "text"},
        {"type": "integer", "minimum": 5, "default": 1},
        {"type": "object", "properties": {"a": text}, "additionalProperties": text},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {"a": {"$ref": "#/x"}}},
        {"type": "object", "nullable": True, "anyOf": [{"type": "object"}]},
        {"x-kubernetes-int-or-string": True, "type": "string"},
        {"type": "object", "x-kubernetes-preserve-unknown-fields": False},
        {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": text}}}},
    ):
        yield post(f"{CRDS}?dryRun=All", changed(**schema))
    for rule in TYPED_RULES:
        given = {"rule": rule} if isinstance(rule, str) else rule
        yield post(f"{CRDS}?dryRun=All", changed(**TYPED, **{"x-kubernetes-validations": [given]}))
    fixed = {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
    for kept in ({}, {"x-kubernetes-list-type": "atomic"}, {"x-kubernetes-list-type": "set"}):
        yield post(f"{CRDS}?dryRun=All", changed(type="array", items=fixed, maxItems=3, **kept))
    for change in (
        {"scope": "Galaxy"},
        {"group": "diff"},
        {"names": {"plural": "Gadgets", "kind": "Gadget"}},
        {"names": {"plural": "gadgets", "kind": "gad get"}},
        {"names": {"plural": "gadgets"}},
        {"versions": []},
        {"conversion": {"strategy": "Webhook"}},
        {"conversion": {"strategy": "Bogus"}},
        {"preserveUnknownFields": True},
    ):
        found = definition()
        found["spec"].update(change)
        yield post(f"{CRDS}?dryRun=All", found)
    found = definition()
    found["spec"]["versions"].append(dict(found["spec"]["versions"][0]))
    yield post(f"{CRDS}?dryRun=All", found)
    found = definition()
    found["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"] = ".status.x"
    yield post(f"{CRDS}?dryRun=All", found)
    found = definition()
    found["spec"]["versions"][0]["additionalPrinterColumns"] = [{"name": "", "type": "bogus", "jsonPath": "x"}]
    yield post(f"{CRDS}?dryRun=All", found)
    found = definition()
    found["spec"]["group"], found["metadata"]["name"] = "diff.k8s.io", "gadgets.diff.k8s.io"
    yield post(f"{CRDS}?dryRun=All", found)


def changes() -> Iterator[Step]:
    one = f"{GADGETS}/change"
    yield post(GADGETS, gadget("change", {"fixed": "a", "grows": 3, "ports": [{"number": 1}, {"number": 2}]}))
    for body in (
        {"spec": {"fixed": "b"}},
        {"spec": {"fixed": None}},
        {"spec": {"fixed": "c"}},
        {"spec": {"grows": 2}},
        {"spec": {"grows": 5}},
        {"spec": {"once": "x"}},
        {"spec": {"once": "y"}},
        {"spec": {"ports": [{"number": 2, "note": "two"}]}},
        {"spec": None},
        {"status": {"phase": "Old"}},
        {"metadata": {"labels": {"a": "b"}}},
        {"extra": 1},
    ):
        yield patch(one, body)
    yield patch(one, [{"op": "add", "path": "/spec/ports", "value": [{"number": 5}]}], JSON_PATCH)
    yield patch(one, [{"op": "replace", "path": "/spec/ports/0/note", "value": "n"}], JSON_PATCH)
    port = {"number": 5, "protocol": "TCP", "note": "mine"}
    yield patch(f"{one}?fieldManager=ann", gadget("change", {"ports": [port]}), APPLY)
    yield patch(f"{one}?fieldManager=ann&force=true", gadget("change", {"ports": [port]}), APPLY)
    yield patch(f"{one}?fieldManager=bob", gadget("change", {"ports": [{"number": 6, "protocol": "TCP"}]}), APPLY)
    yield patch(f"{one}?fieldManager=cat", gadget("change", {"ports": [{"number": 7}]}), APPLY)
    yield patch(f"{one}?fieldManager=bob", gadget("change", {"tags": ["a"]}), APPLY)
    yield patch(f"{one}?fieldManager=cat", gadget("change", {"tags": ["b"]}), APPLY)
    yield patch(f"{one}?fieldManager=bob", gadget("change", {"whole": ["a"]}), APPLY)
    yield patch(f"{one}?fieldManager=cat", gadget("change", {"whole": ["b"]}), APPLY)
    yield patch(f"{one}?fieldManager=cat", gadget("change", {"tags": ["c", "c"]}), APPLY)
    yield patch(f"{one}?fieldManager=cat", gadget("change", {"unknown": 1}), APPLY)
    yield patch(f"{one}?fieldManager=bob", gadget("change", {}), APPLY)
    yield patch(f"{one}?fieldManager=ann", gadget("change"), APPLY)
    yield get(one)
    yield put(one, gadget("change", {"fixed": "z"}))
    yield put(
        one, {**gadget("change", {"fixed": "z"}), "metadata": {"name": "change", "resourceVersion": "{{rv_change}}"}}
    )
    yield put(one, {**gadget("change", {"fixed": "z"}), "metadata": {"name": "change", "resourceVersion": "1"}})


def versions() -> Iterator[Step]:
    beta = "/apis/diff.example/v1beta1/namespaces/diff/gadgets"
    other = {"apiVersion": "diff.example/v1beta1", "kind": "Gadget", "metadata": {"name": "beta"}, "spec": {"x": 1}}
    yield post(beta, other)
    yield get(f"{GADGETS}/beta")
    yield get(f"{beta}/change")
    yield get(beta)
    yield post(GADGETS, other)
    yield patch(f"{beta}/change?fieldManager=beta", {"spec": {"word": "hey"}})
    yield get(f"{GADGETS}/change")
    yield get("/apis/diff.example/v0/namespaces/diff/gadgets")
    yield get("/apis/diff.example")
    yield get("/apis/diff.example/v1")
    yield get("/apis/diff.example/v0")
    yield delete(f"{beta}/beta")


def parts() -> Iterator[Step]:
    one = f"{GADGETS}/change"
    yield put(f"{one}/status", gadget("change", {"fixed": "other"}, status={"phase": "Up"}))
    yield put(
        f"{one}/status",
        {
            **gadget("change", {"fixed": "other"}, status={"phase": "Up", "replicas": 2, "selector": "a=b"}),
            "metadata": {"name": "change", "resourceVersion": "{{rv_change}}", "labels": {"from": "status"}},
        },
    )
    yield patch(f"{one}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    yield patch(f"{one}/status", {"status": {"conditions": [{"type": "Ready"}]}})
    yield patch(f"{one}/status", {"status": None})
    yield patch(f"{one}/status", {"status": {"unknown": 1}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    yield patch(f"{one}/status?fieldManager=con", gadget("change", status=ready), APPLY)
    more = {"conditions": [{"type": "Other", "status": "False"}]}
    yield patch(f"{one}/status?fieldManager=con2", gadget("change", status=more), APPLY)
    yield patch(f"{one}/status?fieldManager=con", gadget("change", status={}), APPLY)
    yield get(f"{one}/status")
    yield get(f"{one}/scale")
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "change", "namespace": "diff"}}
    yield put(f"{one}/scale", {**scale, "spec": {"replicas": 9}})
    yield put(f"{one}/scale", {**scale, "spec": {"replicas": 1}})
    yield put(f"{one}/scale", {**scale, "spec": {"replicas": -1}})
    yield get(f"{GADGETS}/g/scale")
    yield patch(f"{GADGETS}/g/scale", {"spec": {"replicas": 4}})
    yield get(GADGETS, accept=TABLE)
    yield get(f"{GADGETS}?fieldSelector=spec.mode%3Dauto,metadata.name%3Dg")
    yield get(f"{GADGETS}?fieldSelector=spec.mode%3Dmanual")
    yield get(f"{GADGETS}?fieldSelector=spec.word%3Dx")
    yield post(GADGETS, {**gadget("x"), "metadata": {"generateName": "many-"}})
    yield delete(f"{GADGETS}?fieldSelector=spec.mode%3Dmanual")
    yield patch(f"{GADGETS}/g", {"metadata": {"finalizers": ["example.com/x"]}})
    yield delete(f"{GADGETS}/g")
    yield patch(f"{GADGETS}/g", {"spec": {"mode": "manual", "word": "abc"}})
    yield patch(f"{GADGETS}/g", {"metadata": {"finalizers": None}})
    yield get(f"{GADGETS}/g")
    yield delete(GADGETS)
    yield patch(
        f"{CRDS}/gadgets.diff.example", {"spec": {"versions": [{"name": "v2", "served": True, "storage": True}]}}
    )
    yield patch(f"{CRDS}/gadgets.diff.example", [{"op": "remove", "path": "/spec/versions/0"}], JSON_PATCH)
    yield get(f"{CRDS}/gadgets.diff.example/status")
