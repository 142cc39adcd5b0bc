"""Conversion and admission of Kueue's kinds against recorded outcomes of the reference, where those are at hand."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import pytest

from shoal.api import strict
from shoal.api.meta import Json
from tests.conformance.kueue_api import convert_differences, webhook_differences
from tests.conformance.recorded import Recorded

CASES = Recorded("kueue.json")

pytestmark = CASES.needed


@lru_cache(maxsize=1)
def cases() -> list[Json]:
    found: list[Json] = msgspec.json.decode(CASES.path.read_bytes())["cases"] if CASES.is_there else []
    return found


def chosen(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in cases() if case["kind"] == kind]


@pytest.mark.parametrize("case", chosen("convert"))
def test_conversion(case: Json) -> None:
    assert convert_differences(case["input"], case["expect"]) == []


@pytest.mark.parametrize("case", chosen("webhook"))
def test_admission(case: Json) -> None:
    assert webhook_differences(case["input"], case["expect"]) == []


def published() -> list[Any]:
    samples = Recorded("kuberay.json")
    found = msgspec.json.decode(samples.path.read_bytes())["cases"] if samples.is_there else []
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
