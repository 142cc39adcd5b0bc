"""Half-sensible objects of every built-in kind, from a seed: each is refused in words or goes all the way through."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import pytest

from shoal.api import kinds
from shoal.local.apiserver.kinds import defaults
from shoal.local.apiserver.kinds.resources import ServedVersion
from shoal.local.apiserver.patch import field_shapes, managed_fields, strategic_merge
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.primitives import builtin_types
from shoal.local.apiserver.tables import table
from shoal.local.apiserver.validation import built_in, decoding

KINDS = [kind for kind in vars(kinds).values() if isinstance(kind, kinds.Kind) and builtin_types.type_of(kind)]
GOOD = {"string": ["", "x", "Always", "a b"], "bool": [True, False], "int32": [0, 1, -1, 80], "int64": [0, 30],
        "double": [1.5], "bytes": ["YQ=="], "Quantity": ["1", "1Gi", 2], "IntOrString": [1, "25%"],
        "Time": ["2024-01-01T00:00:00Z"], "MicroTime": ["2024-01-01T00:00:00.000000Z"]}  # fmt: skip
ODD = [None, True, 0, -1, 2**63, 1.5, "", "50%", "a b", "\x00", "é", [], {}, [None], {"a": None}]


def some(chance, type_name, depth=0):
    """A value that mostly has its type."""
    if depth > 7 or chance.random() < 0.04:
        return chance.choice(ODD)
    if type_name.startswith("[]"):
        return [some(chance, type_name[2:], depth + 1)]
    fields = builtin_types.fields(type_name)
    if not fields:
        return chance.choice(GOOD.get(type_name, ["x"]))
    found = {}
    for field in fields.values():
        if chance.random() > (0.5 if depth < 3 else 0.25):
            continue
        if field.shape == "list":
            found[field.name] = [some(chance, field.type, depth + 1) for _ in range(chance.randint(0, 3))]
        elif field.shape == "map":
            found[field.name] = {chance.choice("abc"): some(chance, field.type, depth + 1) for _ in range(2)}
        else:
            found[field.name] = some(chance, field.type, depth + 1)
    return found


def an_object(chance, kind):
    found = some(chance, builtin_types.type_of(kind))
    found = found if isinstance(found, dict) else {}
    if not isinstance(found.get("metadata"), dict):
        found["metadata"] = {"name": "x", "namespace": "d"}
    return found


@pytest.mark.parametrize("seed", range(8))
def test_nothing_falls_over(seed):
    chance = random.Random(seed)
    passed = 0
    for _ in range(120):
        kind = chance.choice(KINDS)
        old, new = an_object(chance, kind), an_object(chance, kind)
        try:
            for obj in (old, new):
                decoding.decode(kind, obj)
                defaults.default(kind, obj)
        except PatchError as refusal:
            assert refusal.code == 400
            continue
        passed += 1
        for error in (*built_in.validate(kind, new), *built_in.validate(kind, new, old)):
            assert error.path
            assert error.message
        shape = field_shapes.of_kind(kind)
        stored = copy.deepcopy(old)
        managed_fields.track(shape, None, stored, "one", now="t", api_version="v1")
        managed_fields.track(shape, stored, copy.deepcopy(new), "two", now="t", api_version="v1")
        new["metadata"].pop("managedFields", None)
        before = copy.deepcopy((stored, new))
        try:
            managed_fields.apply(shape, stored, new, "three", now="t", api_version="v1", force=True)
            strategic_merge.strategic_merge(kind, stored, new)
        except PatchError as refusal:
            assert refusal.message
        assert (stored, new) == before
        assert table.row_of(SimpleNamespace(version=ServedVersion(kind)), new, 10**15)
    assert passed > 20
