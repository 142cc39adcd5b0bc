"""Reading YAML within bounds, as Kubernetes reads it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api import manifests
from shoal.api.manifests import MOST_BYTES, read
from shoal.errors import BadInput
from tests.faults import proven


def value(text: str) -> Any:
    return read(f"field: {text}\n")[0]["field"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1", 1),
        ("-7", -7),
        ("0x1f", 31),
        ("0644", 420),  # file modes are written so
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ("true", True),
        ("off", False),
        ("y", "y"),
        ("~", None),
        ("2023-08-29", "2023-08-29"),  # dates stay text
        ("1:30", "1:30"),  # no base sixty
        ("1Gi", "1Gi"),
        ("[a, 2]", ["a", 2]),
        ("{a: {b: c}}", {"a": {"b": "c"}}),
        ('"a\\u00e9"', "aé"),
    ],
)
def test_values_are_read_as_kubernetes_reads_them(text: str, expected: Any) -> None:
    found = value(text)
    assert found == expected and type(found) is type(expected)


def test_several_documents_and_empty_ones() -> None:
    assert read("a: 1\n---\n---\n# nothing\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert read('{"apiVersion": "v1"}') == [{"apiVersion": "v1"}]


def test_anchors_and_merges_work_and_share_nothing() -> None:
    found = read("base: &b {x: 1, y: [1]}\none: *b\ntwo: {<<: *b, x: 2}\n")[0]
    assert found == {"base": {"x": 1, "y": [1]}, "one": {"x": 1, "y": [1]}, "two": {"x": 2, "y": [1]}}
    found["one"]["y"].append(2)
    assert found["base"]["y"] == [1]


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 6)
)
HOSTILE = [
    (LAUGHS, "once its aliases are expanded"),
    ("[" * 5000 + "]" * 5000, "nested deeper than 100 levels"),
    ("a: " + "{a: " * 300 + "1" + "}" * 300, "nested deeper than 100 levels"),
    ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is given twice"),
    ("a: " + "9" * 5000, "more digits than any field can hold"),
    ("a: 1e999", "larger than any number"),
    ("a: .nan", "has no JSON form"),
    ("a: \0", "NUL"),
    ("a: \ud800", "not UTF-8"),
    (b"a: \xff", "not UTF-8"),
    ("a: *nowhere", "has no anchor"),
    ("a: [1, 2", "line 2: did not find expected"),
    ("? {a: b}\n: c\n", "a key must be plain text"),
    ("just text", "expected an object"),
    ("x" * (MOST_BYTES + 1), "the limit is"),
]


def _without_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manifests, "MOST_NODES", 10**12)
    patch.setattr(manifests, "DEEPEST", 10**12)


@proven(without=_without_limits)
@pytest.mark.timeout(20)
def test_f122_hostile_yaml_is_refused_in_bounded_time() -> None:
    """F122: alias bombs, deep nesting, huge numbers, duplicate keys, NUL, surrogates. Holds: each refused clearly."""
    for text, expected in HOSTILE:
        with pytest.raises(BadInput, match=expected):
            read(text)


@given(st.text(max_size=60))
def test_any_text_is_objects_or_a_clear_refusal(text: str) -> None:
    try:
        found = read(text)
    except BadInput:
        return
    assert all(isinstance(document, dict) for document in found)


def test_the_source_is_named() -> None:
    with pytest.raises(BadInput, match=r"mine\.yaml, line 2"):
        manifests.read("a: [", "mine.yaml")
