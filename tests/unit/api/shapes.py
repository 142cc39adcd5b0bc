"""Random JSON for any typed kind, with unknown fields mixed in, made from the same hints that make its CRD."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from shoal.api.crds.schema import hints, unwrap

WORDS = st.text(alphabet="abcxyz-019", max_size=6)
QUANTITIES = st.sampled_from(["0", "1", "100m", "1.5Gi", "1e3", "2G", 3, 0.5])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: WORDS,
    bool: st.booleans(),
    int: st.integers(-(2**31), 2**31 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False, width=32),
}


@cache
def objects(struct: type[msgspec.Struct], depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """JSON that decodes as `struct`: some of its fields, and some that it does not know."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {"x-unknown": ANYTHING, "zz9": ANYTHING}
    for field, hint in hints(struct):
        (required if field.required else optional)[field.encode_name] = st.deferred(
            lambda hint=hint: values(hint, depth + 1)
        )
    return st.fixed_dictionaries(required, optional=optional)


def values(hint: Any, depth: int) -> st.SearchStrategy[Any]:
    bare, rules = unwrap(hint)
    keywords = {name: value for rule in rules for name, value in rule.keywords.items()}
    if keywords.get("x-kubernetes-int-or-string"):
        return QUANTITIES if float in get_args(bare) else WORDS | st.integers(0, 65535)
    if bare is msgspec.Raw:
        wide = st.dictionaries(WORDS, ANYTHING, max_size=2)
        return st.lists(wide, max_size=2) if keywords.get("type") == "array" else wide
    if bare is Any:
        return ANYTHING
    if bare in _SCALARS:
        return _SCALARS[bare]
    arguments = get_args(bare)
    if get_origin(bare) is dict:
        return st.dictionaries(WORDS, values(arguments[1], depth), max_size=2)
    if get_origin(bare) in (tuple, list):
        return st.lists(values(arguments[0], depth + 1), max_size=1 if depth > 3 else 2)
    return (
        objects(bare, depth)
        if depth < 5
        else st.fixed_dictionaries(
            {field.encode_name: values(inner, depth) for field, inner in hints(bare) if field.required}
        )
    )
