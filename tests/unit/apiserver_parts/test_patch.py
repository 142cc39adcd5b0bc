"""JSON Patch and merge patch: what each operation does, what is refused, and that nothing given is ever changed."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.patch.json_patch import json_patch, merge_patch
from shoal.local.apiserver.primitives.values import clone, same

DOC = {"spec": {"replicas": 2, "tags": ["a", "b"], "odd/name": {"til~de": 1}}, "kind": "Thing"}


@pytest.mark.parametrize(
    "operation, path, expected",
    [
        ({"op": "add", "path": "/spec/paused", "value": True}, ("spec", "paused"), True),
        ({"op": "add", "path": "/spec/tags/0", "value": "z"}, ("spec", "tags"), ["z", "a", "b"]),
        ({"op": "add", "path": "/spec/tags/-", "value": "c"}, ("spec", "tags"), ["a", "b", "c"]),
        ({"op": "add", "path": "/spec/tags/2", "value": "c"}, ("spec", "tags"), ["a", "b", "c"]),
        ({"op": "add", "path": "/spec/tags/-1", "value": "c"}, ("spec", "tags"), ["a", "b", "c"]),
        ({"op": "remove", "path": "/spec/tags/0"}, ("spec", "tags"), ["b"]),
        ({"op": "remove", "path": "/spec/tags/-1"}, ("spec", "tags"), ["a"]),
        ({"op": "replace", "path": "/spec/replicas", "value": 5}, ("spec", "replicas"), 5),
        ({"op": "replace", "path": "/spec/absent", "value": 5}, ("spec", "absent"), 5),  # Kubernetes' own habit
        ({"op": "replace", "path": "/spec/tags/1", "value": "B"}, ("spec", "tags"), ["a", "B"]),
        ({"op": "replace", "path": "/spec/odd~1name/til~0de", "value": 2}, ("spec", "odd/name", "til~de"), 2),
        ({"op": "move", "from": "/spec/tags/0", "path": "/spec/first"}, ("spec", "first"), "a"),
        ({"op": "copy", "from": "/spec/tags", "path": "/spec/more"}, ("spec", "more"), ["a", "b"]),
        ({"op": "test", "path": "/spec/replicas", "value": 2}, ("spec", "replicas"), 2),
        ({"op": "test", "path": "/spec/absent", "value": None}, ("spec", "replicas"), 2),
        ({"op": "replace", "path": "", "value": {"a": 1}}, ("a",), 1),
        ({"op": "add", "path": "", "value": {"a": 1}}, ("a",), 1),
    ],
)
def test_each_operation(operation, path, expected):
    before = copy.deepcopy(DOC)
    found = json_patch(DOC, [operation])
    for name in path:
        found = found[name]
    assert found == expected
    assert before == DOC


@pytest.mark.parametrize(
    "operations, code",
    [
        ({"op": "add"}, 400),
        (["add"], 400),
        ([{"op": "grow", "path": "/spec"}], 422),
        ([{"op": "add", "path": "/spec/x"}], 422),
        ([{"op": "add", "value": 1}], 422),
        ([{"op": "add", "path": "spec", "value": 1}], 422),
        ([{"op": "add", "path": "/absent/deep", "value": 1}], 422),
        ([{"op": "add", "path": "/spec/tags/9", "value": 1}], 422),
        ([{"op": "add", "path": "/spec/tags/one", "value": 1}], 422),
        ([{"op": "replace", "path": "/spec/tags/9", "value": 1}], 422),
        ([{"op": "remove", "path": "/spec/absent"}], 422),
        ([{"op": "remove", "path": "/spec/tags/5"}], 422),
        ([{"op": "test", "path": "/spec/replicas", "value": 3}], 422),
        ([{"op": "test", "path": "/spec/replicas", "value": True}], 422),
        ([{"op": "copy", "from": "/spec/tags/9", "path": "/spec/x"}], 422),
        ([{"op": "move", "from": "/spec", "path": "/spec/inner"}], 422),
        ([{"op": "remove", "path": ""}], 422),
        ([{"op": "move", "from": "", "path": "/spec"}], 422),
        ([{"op": "test", "path": "/kind", "value": "Thing"}] * 10_001, 413),
    ],
)
def test_what_does_not_apply_says_so(operations, code):
    before = copy.deepcopy(DOC)
    with pytest.raises(PatchError) as refusal:
        json_patch(DOC, operations)
    assert refusal.value.code == code
    assert refusal.value.message
    assert before == DOC


def test_operations_apply_in_order_or_not_at_all():
    operations = [
        {"op": "add", "path": "/spec/seen", "value": []},
        {"op": "add", "path": "/spec/seen/-", "value": 1},
        {"op": "test", "path": "/spec/seen/0", "value": 1},
    ]
    assert json_patch(DOC, operations)["spec"]["seen"] == [1]
    with pytest.raises(PatchError):
        json_patch(DOC, [*operations, {"op": "remove", "path": "/nowhere"}])
    assert "seen" not in DOC["spec"]


def test_a_patch_cannot_blow_an_object_up():
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(60)]
    with pytest.raises(PatchError) as refusal:
        json_patch({"a": {"text": "x" * 100}}, doubling)
    assert refusal.value.code == 413
    deepening = [{"op": "add", "path": "/a" * number, "value": {}} for number in range(1, 3000)]
    with pytest.raises(PatchError, match="nests deeper") as refusal:
        json_patch({}, deepening)
    assert refusal.value.code == 422


@pytest.mark.parametrize(
    "doc, patch, expected",
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c", "d": 1}}, {"a": {"b": None}}, {"a": {"d": 1}}),
        ({"a": [{"b": 1}]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {"b": {"c": None, "d": {"e": None}}}, {"a": 1, "b": {"d": {}}}),
        ({"a": "text"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ],
)
def test_merge_patch(doc, patch, expected):
    before = copy.deepcopy((doc, patch))
    assert merge_patch(doc, patch) == expected
    assert (doc, patch) == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("abc/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc/~", max_size=2), inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.text("abcd", max_size=2), json_values, max_size=4)


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


@given(objects, objects)
def test_merging_twice_is_merging_once(doc, patch):
    once = merge_patch(doc, patch)
    assert merge_patch(once, patch) == once


@given(objects, objects)
def test_every_non_null_leaf_of_the_patch_is_there_afterwards(doc, patch):
    merged = merge_patch(doc, patch)
    for name, value in patch.items():
        if value is None:
            assert name not in merged
        elif not isinstance(value, dict):
            assert same(merged[name], value)


@given(objects, objects)
def test_a_merge_patch_of_the_difference_reaches_the_target(doc, target):
    target = without_nulls(target)
    patch = {name: None for name in doc if name not in target} | {
        name: value for name, value in target.items() if not isinstance(value, dict)
    }
    nested = {name: value for name, value in target.items() if isinstance(value, dict)}
    merged = merge_patch(merge_patch(doc, patch | dict.fromkeys(nested)), nested)
    assert same(merged, target)


@given(json_values)
def test_a_clone_is_equal_and_shares_nothing(value):
    copied = clone(value)
    assert same(copied, value)
    if isinstance(value, (dict, list)):
        assert copied is not value


@given(objects, json_values)
def test_add_then_test_then_remove_gives_the_document_back(doc, value):
    token = "fresh~1name"
    changed = json_patch(
        doc,
        [
            {"op": "add", "path": f"/{token}", "value": value},
            {"op": "test", "path": f"/{token}", "value": value},
            {"op": "remove", "path": f"/{token}"},
        ],
    )
    assert same(changed, doc)
