"""Types are found by name, and finding them is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.api import kinds, registry
from shoal.api.appwrapper import AppWrapper
from shoal.api.kind import Kind
from shoal.api.meta import Object
from shoal.api.ray import RayCluster

CUSTOM_GROUPS = {"workload.codeflare.dev", "mcad.ibm.com", "ray.io", "ray.k8s.io", "kueue.x-k8s.io"}


@pytest.mark.parametrize(
    "api_version, kind, type_",
    [
        ("ray.io/v1", "RayCluster", RayCluster),
        ("ray.io/v1alpha1", "RayCluster", RayCluster),
        ("workload.codeflare.dev/v1beta2", "AppWrapper", AppWrapper),
        ("mcad.ibm.com/v1beta1", "AppWrapper", AppWrapper),
    ],
)
def test_a_kind_is_found_at_each_of_its_versions(api_version: str, kind: str, type_: type[Object]) -> None:
    entry = registry.lookup(api_version, kind)
    assert entry is not None and entry.type is type_ and entry.complete


def test_a_stranger_is_not_found_and_still_decodes_as_far_as_its_metadata() -> None:
    assert registry.lookup("example.com/v1", "Widget") is None
    assert registry.type_of(Kind("example.com", "v1", "Widget", "widgets")) is Object


@pytest.mark.parametrize(
    "kind", [found for found in vars(kinds).values() if isinstance(found, Kind) and found.group in CUSTOM_GROUPS],
    ids=lambda kind: f"{kind.api_version}-{kind.kind}",
)  # fmt: skip
def test_every_named_custom_kind_is_registered_with_the_same_names(kind: Kind) -> None:
    entry = registry.lookup(kind.api_version, kind.kind)
    assert entry is not None and entry.kind == kind


def test_importing_the_types_brings_no_heavy_package() -> None:
    code = "import sys, shoal.api.registry, shoal.api.codec, shoal.api.pods; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert loaded.isdisjoint({"yaml", "numpy", "aiohttp", "asyncio", "cryptography", "click"})
