"""Structural schemas: pruning, defaulting and validation, with the messages that Kubernetes gives."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.local.apiserver.schema.structural import Structural


def wrap(**properties):
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}


def errors(schema, spec, old=None):
    before = {"spec": old} if old is not None else None
    return [str(error) for error in Structural(wrap(**schema)).validate({"spec": spec}, before)]


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "properties, given_spec, kept, dropped",
    [
        ({"a": {"type": "string"}}, {"a": "x", "b": 1}, {"a": "x"}, ["spec.b"]),
        ({"a": OBJECT}, {"a": {"a": "x", "b": 1}}, {"a": {"a": "x"}}, ["spec.a.b"]),
        ({"a": {"type": "array", "items": OBJECT}}, {"a": [{"a": "x", "b": 1}]}, {"a": [{"a": "x"}]}, ["spec.a[0].b"]),
        (
            {"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            {"a": {"b": {"c": 1}}},
            {"a": {"b": {"c": 1}}},
            [],
        ),
        # preserved around, pruned within a field that has a schema of its own
        (
            {"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"in": OBJECT}}},
            {"a": {"free": {"x": 1}, "in": {"a": "y", "z": 1}}},
            {"a": {"free": {"x": 1}, "in": {"a": "y"}}},
            ["spec.a.in.z"],
        ),
        (
            {"a": {"type": "object", "additionalProperties": OBJECT}},
            {"a": {"k": {"a": "x", "b": 1}}},
            {"a": {"k": {"a": "x"}}},
            ["spec.a.k.b"],
        ),
        (
            {"a": {"type": "object", "additionalProperties": {"type": "string"}}},
            {"a": {"k": "v"}},
            {"a": {"k": "v"}},
            [],
        ),
        (
            {"a": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": OBJECT}}},
            {"a": {"kind": "K", "apiVersion": "v1", "metadata": {"labels": {}}, "extra": 1}},
            {"a": {"kind": "K", "apiVersion": "v1", "metadata": {"labels": {}}}},
            ["spec.a.extra"],
        ),
    ],
)
def test_pruning(properties, given_spec, kept, dropped):
    obj = {"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "labels": {"a": "b"}}, "spec": given_spec}
    assert Structural(wrap(**properties)).prune(obj) == dropped
    assert obj["spec"] == kept
    assert obj["metadata"] == {"name": "n", "labels": {"a": "b"}}


def test_defaults_fill_what_is_absent_and_nulls_that_may_not_be():
    schema = Structural(
        wrap(
            replicas={"type": "integer", "default": 1},
            nested={"type": "object", "default": {}, "properties": {"mode": {"type": "string", "default": "Auto"}}},
            items={
                "type": "array",
                "items": {"type": "object", "properties": {"on": {"type": "boolean", "default": True}}},
            },
            either={"type": "string", "nullable": True, "default": "x"},
            plain={"type": "string"},
        )
    )
    obj = {"spec": {"replicas": None, "items": [{}, {"on": False}], "either": None, "plain": None}}
    schema.default(obj)
    assert obj["spec"] == {
        "replicas": 1,
        "nested": {"mode": "Auto"},
        "items": [{"on": True}, {"on": False}],
        "either": None,
    }
    obj["spec"]["nested"]["mode"] = "changed"
    fresh = {"spec": {}}
    schema.default(fresh)
    assert fresh["spec"]["nested"] == {"mode": "Auto"}, "defaults are copied, never shared"


@pytest.mark.parametrize(
    "schema, value, message",
    [
        (
            {"type": "integer"},
            "many",
            'spec.x: Invalid value: "string": spec.x in body must be of type integer: "string"',
        ),
        ({"type": "boolean"}, 1, 'spec.x: Invalid value: "integer": spec.x in body must be of type boolean: "integer"'),
        ({"type": "string"}, None, 'spec.x: Invalid value: "null": spec.x in body must be of type string: "null"'),
        (
            {"type": "integer", "minimum": 1},
            0,
            "spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1",
        ),
        (
            {"type": "integer", "maximum": 5},
            6,
            "spec.x: Invalid value: 6: spec.x in body should be less than or equal to 5",
        ),
        (
            {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            0,
            "spec.x: Invalid value: 0: spec.x in body should be greater than 0",
        ),
        ({"type": "integer", "multipleOf": 2}, 3, "spec.x: Invalid value: 3: spec.x in body should be a multiple of 2"),
        ({"type": "string", "maxLength": 2}, "abc", "spec.x: Too long: may not be more than 2 bytes"),
        (
            {"type": "string", "minLength": 2},
            "a",
            'spec.x: Invalid value: "a": spec.x in body should be at least 2 chars long',
        ),
        (
            {"type": "string", "pattern": "^b+$"},
            "a",
            "spec.x: Invalid value: \"a\": spec.x in body should match '^b+$'",
        ),
        (
            {"type": "string", "pattern": "^b+$"},
            "b\n",
            "spec.x: Invalid value: \"b\\n\": spec.x in body should match '^b+$'",
        ),
        ({"type": "string", "enum": ["A", "B"]}, "C", 'spec.x: Unsupported value: "C": supported values: "A", "B"'),
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 1},
            ["a", "b"],
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            [],
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            ["a", "b", "a"],
            'spec.x[2]: Duplicate value: "a"',
        ),
        (
            {"type": "array", "items": OBJECT, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]},
            [{"a": "1"}, {"a": "1"}],
            'spec.x[1]: Duplicate value: {"a":"1"}',
        ),
        (
            {"type": "object", "required": ["need"], "properties": {"need": {"type": "string"}}},
            {},
            "spec.x.need: Required value",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"k": "v"},
            'spec.x.k: Invalid value: "string": spec.x.k in body must be of type integer: "string"',
        ),
        (
            {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True},
            {"kind": "K"},
            "spec.x.apiVersion: Required value",
        ),
        (
            {"x-kubernetes-int-or-string": True},
            True,
            'spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean"',
        ),
        (
            {"type": "string", "format": "ipv4"},
            "1.2.3",
            'spec.x: Invalid value: "1.2.3": spec.x in body must be of type ipv4: "1.2.3"',
        ),
        (
            {"type": "string", "format": "date-time"},
            "today",
            'spec.x: Invalid value: "today": spec.x in body must be of type date-time: "today"',
        ),
        (
            {"type": "integer", "format": "int32"},
            2**31,
            '<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.x',
        ),
    ],
)
def test_what_is_wrong_is_said_as_kubernetes_says_it(schema, value, message):
    assert errors({"x": schema}, {"x": value}) == [message]


@pytest.mark.parametrize(
    "schema, value",
    [
        ({"type": "integer"}, 3.0),
        ({"type": "number"}, 3),
        ({"type": "string", "nullable": True}, None),
        ({"x-kubernetes-int-or-string": True}, "50%"),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}, 3),
        ({"x-kubernetes-preserve-unknown-fields": True}, {"any": ["thing"]}),
        ({"type": "string", "format": "date-time"}, "2024-05-05T10:00:00Z"),
        ({"type": "string", "format": "duration"}, "1h30m"),
        ({"type": "string", "format": "no-such-format"}, "whatever"),
        ({"type": "string", "pattern": r"^\p{Lu}"}, "Ärger"),
        ({"type": "string", "pattern": r"^[[:alpha:]]+$"}, "abc"),
        ({"type": "string", "enum": ["A"]}, "A"),
        ({"enum": [1, {"a": 1}]}, {"a": 1}),
    ],
)
def test_good_values_pass(schema, value):
    assert errors({"x": schema}, {"x": value}) == []


def test_a_broken_number_where_a_whole_one_belongs_is_said_twice_as_in_kubernetes():
    assert errors({"x": {"type": "integer"}}, {"x": 1.5}) == [
        'spec.x: Invalid value: "number": spec.x in body must be of type integer: "number"',
        '<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.x',
    ]


def test_logic():
    one = {
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert errors({"x": one}, {"x": {"a": 1}}) == []
    assert any("(oneOf). Found none valid" in error for error in errors({"x": one}, {"x": {}}))
    assert any("(oneOf). Found 2 valid" in error for error in errors({"x": one}, {"x": {"a": 1, "b": 1}}))
    several = {"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 10}], "not": {"enum": [0]}}
    assert errors({"x": several}, {"x": 11}) == []
    assert any("(anyOf)" in error for error in errors({"x": several}, {"x": 5}))
    assert any("(not)" in error for error in errors({"x": several}, {"x": 0}))
    assert any("(allOf)" in error for error in errors({"x": {"type": "integer", "allOf": [{"minimum": 3}]}}, {"x": 1}))


def test_an_update_may_keep_an_old_fault_but_not_add_one():
    schema = {
        "x": {"type": "integer", "minimum": 1},
        "y": {"type": "string"},
        "l": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {
                "type": "object",
                "required": ["v"],
                "properties": {"k": {"type": "string"}, "v": {"type": "integer", "minimum": 1}},
            },
        },
    }
    assert errors(schema, {"x": 0, "y": "b"}, old={"x": 0, "y": "a"}) == []
    assert len(errors(schema, {"x": -1}, old={"x": 0})) == 1
    old = {"l": [{"k": "a", "v": 0}, {"k": "b", "v": 1}]}
    assert errors(schema, {"l": [{"k": "b", "v": 2}, {"k": "a", "v": 0}]}, old=old) == []
    assert len(errors(schema, {"l": [{"k": "a", "v": -1}]}, old=old)) == 1
    assert len(errors(schema, {"l": [{"k": "c"}]}, old=old)) == 1


def test_a_status_write_is_judged_by_its_status_alone():
    schema = Structural(
        {
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {"type": "object", "required": ["a"]},
                "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
            },
        }
    )
    assert schema.validate({"status": {"phase": "x"}}, status_only=True) == []
    [error] = schema.validate({"status": {"phase": 1}}, status_only=True)
    assert (error.path, error.type, error.reason) == ("status.phase", "TypeInvalid", "FieldValueTypeInvalid")


def test_an_error_is_a_cause():
    [error] = Structural(wrap(x={"type": "string", "maxLength": 1})).validate({"spec": {"x": "ab"}})
    assert error.cause == {
        "reason": "FieldValueTooLong",
        "message": "Too long: may not be more than 1 byte",
        "field": "spec.x",
    }


schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "integer", "default": 3},
            {"type": "boolean"},
            {"x-kubernetes-int-or-string": True},
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            {"type": "string", "nullable": True},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda p: {"type": "object", "properties": p}, st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        ),
        st.builds(
            lambda p: {"type": "object", "default": {}, "properties": p},
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        ),
        st.builds(lambda i: {"type": "array", "items": i}, inner),
        st.builds(lambda i: {"type": "object", "additionalProperties": i}, inner),
    ),
    max_leaves=8,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "50%"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdz"), inner, max_size=4),
    max_leaves=10,
)


@given(schemas, values)
def test_pruning_and_defaulting_twice_is_doing_it_once_and_validating_changes_nothing(schema, value):
    structural = Structural(wrap(x=schema))
    obj = {"spec": {"x": value}}
    structural.prune(obj)
    structural.default(obj)
    once = copy.deepcopy(obj)
    assert structural.prune(obj) == []
    structural.default(obj)
    structural.validate(obj)
    assert obj == once
