"""Conversion and admission of Kueue's kinds against recorded outcomes of the reference, where those are at hand."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.api import strict
from shoal.api.kueue_convert import GROUP, convert
from shoal.api.meta import Json
from shoal.api.rules import validate

CASES = Path(os.environ.get("SHOAL_CASES", Path(__file__).parents[3] / "shared" / "cases")) / "kueue.json"

pytestmark = pytest.mark.skipif(not CASES.is_file(), reason=f"no recorded cases at {CASES} (set SHOAL_CASES)")


@lru_cache(maxsize=1)
def cases() -> list[Json]:
    found: list[Json] = msgspec.json.decode(CASES.read_bytes())["cases"] if CASES.is_file() else []
    return found


def chosen(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in cases() if case["kind"] == kind]


def named(obj: Json | None, kind: str, version: str = "v1beta2") -> Json | None:
    return None if obj is None else {**obj, "apiVersion": f"{GROUP}/{version}", "kind": kind}


@pytest.mark.parametrize("case", chosen("convert"))
def test_conversion(case: Json) -> None:
    given = case["input"]
    obj = named(given["object"], given["kind"], given["from"])
    assert obj is not None
    found = convert(obj, f"{GROUP}/{given['to']}")
    assert _filled(found) == _filled(
        {**case["expect"]["object"], "apiVersion": found["apiVersion"], "kind": given["kind"]}
    )


def _filled(value: Any) -> Any:
    """Without zeros and empty parts: the reference writes or leaves them out as its language does."""
    if isinstance(value, dict):
        return {name: found for name, part in value.items() if (found := _filled(part)) not in (None, 0, "", [], {})}
    return [_filled(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", chosen("webhook"))
def test_admission(case: Json) -> None:
    given = case["input"]
    obj = named(given["object"], given["kind"])
    assert obj is not None
    errors = validate(obj, named(given.get("oldObject"), given["kind"]), gates=given["featureGates"])
    assert sorted((f"FieldValue{error.type}", error.path) for error in errors) == sorted(
        (error["type"], error["field"]) for error in case["expect"]["errors"]
    )


def published() -> list[Any]:
    path = CASES.with_name("kuberay.json")
    found = msgspec.json.decode(path.read_bytes())["cases"] if path.is_file() else []
    return [
        pytest.param(case["given"], id=case["id"])
        for case in found
        if case["family"] in ("sample-raycluster", "sample-rayjob")
    ]


@pytest.mark.parametrize("given", published())
def test_published_samples_pass_strict_validation(given: Json) -> None:
    manifest = next(
        given[name] for name in ("object", "cluster", "job", "manifest") if isinstance(given.get(name), dict)
    )
    obj = {"metadata": {"name": "sample"}, **manifest}
    if "kind" not in obj:
        spec = obj.get("spec") or {}
        obj = {**obj, "apiVersion": "ray.io/v1", "kind": "RayCluster" if "headGroupSpec" in spec else "RayJob"}
    assert [str(error) for error in strict.check(obj)] == []
