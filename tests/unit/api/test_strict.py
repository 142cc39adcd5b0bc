"""Whole manifests: the ones that people bring pass, and a mistake is named with its place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.api import manifests, strict
from shoal.api.meta import Json

ROOT = Path(__file__).parents[3]
OURS = sorted((ROOT / "samples").rglob("*.yaml"))
SHARED = Path(os.environ.get("SHOAL_SAMPLES", ROOT.parent / "shared" / "samples"))
THEIRS = sorted(SHARED.glob("*.yaml")) if SHARED.is_dir() else []


def problems(obj: Json) -> list[str]:
    return [str(error) for error in strict.check(obj)]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_samples_pass(path: Path) -> None:
    objects = manifests.read(path.read_bytes(), path.name)
    assert objects and [problems(obj) for obj in objects] == [[]] * len(objects)


@pytest.mark.skipif(not THEIRS, reason="no shared samples beside this checkout (set SHOAL_SAMPLES to their folder)")
def test_manifests_that_others_published_pass() -> None:
    found = {path.name: manifests.read(path.read_bytes(), path.name) for path in THEIRS}
    assert all(found.values())
    assert {name: problems(obj) for name, objects in found.items() for obj in objects if problems(obj)} == {}


@pytest.mark.skipif(not THEIRS, reason="no shared tutorials beside this checkout (set SHOAL_SAMPLES to their folder)")
def test_manifests_inside_published_tutorials_pass() -> None:
    wrong = {}
    kinds = set()
    for path in sorted((SHARED.parent / "seeds").glob("*.txt")):
        for block in re.findall(r"^apiVersion:.*?(?=^```|\Z)", path.read_text(), re.M | re.S):
            if "\n..." in block:  # output that was shortened for the page
                continue
            for obj in manifests.read(block, path.name):
                kinds.add(obj["kind"])
                if problems(obj):
                    wrong[path.name, obj["kind"]] = problems(obj)
    assert wrong == {}
    assert {"Ray", "ClusterQueue", "ResourceFlavor"} <= kinds


def ray_cluster(**spec: Any) -> Json:
    head = {"template": {"spec": {"containers": [{"name": "ray-head"}]}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "c"},
        "spec": {"headGroupSpec": head, **spec},
    }


def pod_template(**requests: str) -> Json:
    return {"spec": {"containers": [{"name": "a", "resources": {"requests": requests}}]}}


def wrapping(template: Json, **metadata: Any) -> Json:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "w", **metadata},
        "spec": {"resources": {"GenericItems": [{"generictemplate": template}]}},
    }


@pytest.mark.parametrize(
    "obj, expected",
    [
        ({"kind": "Pod", "metadata": {"name": "x"}}, ["apiVersion: is required"]),
        ({"apiVersion": "v1", "kind": "Pod"}, ["metadata.name: name or generateName is required"]),
        (ray_cluster(rayVerson="2.9.0"), ['spec.rayVerson: unknown field "spec.rayVerson"']),
        (ray_cluster(suspend="yes"), ['spec.suspend: must be true or false, not "yes"']),
        (
            ray_cluster(workerGroupSpecs=[{"groupName": "g", "replicas": 2**31, "template": {}}]),
            ["spec.workerGroupSpecs[0].replicas: must be less than or equal to 2147483647"],
        ),
        (
            ray_cluster(workerGroupSpecs=[{"replicas": 1, "template": {"spec": {"contianers": []}}}]),
            [
                "spec.workerGroupSpecs[0].groupName: is required",
                'spec.workerGroupSpecs[0].template.spec.contianers: unknown field '
                '"spec.workerGroupSpecs[0].template.spec.contianers"',
            ],
        ),
        (
            ray_cluster(headGroupSpec={"template": pod_template(cpu="1 core")}),
            [
                "spec.headGroupSpec.template.spec.containers[0].resources.requests[cpu]: '1 core' is not a quantity; "
                "write a number with an optional suffix such as 500m or 2Gi"
            ],
        ),
        (ray_cluster(upgradeStrategy={"type": "Blue"}),
         ['spec.upgradeStrategy.type: supported values: "Recreate", "Rolling", "None"']),
        (
            wrapping(ray_cluster(rayVerson="2.9.0")),
            [
                "spec.resources.GenericItems[0].generictemplate.spec.rayVerson: unknown field "
                '"spec.resources.GenericItems[0].generictemplate.spec.rayVerson"'
            ],
        ),
        (
            wrapping(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "theirs"}},
                namespace="mine",
            ),
            [
                "spec.resources.GenericItems[0].generictemplate.metadata.namespace: AppWrappers can not create objects "
                "in other namespaces: write 'mine' or leave it out"
            ],
        ),
        (
            {
                "apiVersion": "ray.k8s.io/v1alpha1",
                "kind": "Ray",
                "metadata": {"name": "r"},
                "spec": {"targetUtilization": 0},
            },
            ["spec.targetUtilization: must be greater than or equal to 1"],
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(obj: Json, expected: list[str]) -> None:
    assert problems(obj) == expected


def test_old_habits_of_app_wrapper_manifests_are_tolerated() -> None:
    template = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    obj = wrapping(template)
    obj["spec"]["resources"].update({"Items": [], "metadata": {}})
    obj["spec"]["resources"]["GenericItems"][0].update({"metadata": {}, "allocated": 0, "priority": 0})
    assert problems(obj) == []


def test_a_stranger_is_only_asked_for_its_name() -> None:
    assert problems({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "anything": 1}) == []
