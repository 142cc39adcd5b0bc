"""The CRDs on both API servers: taken without a warning, and objects judged with the words that a user sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.api.crds import DEFINITIONS, DIRECTORY, load_crds
from shoal.api.kueue_convert import upgrade
from tests.controlplane.embedded import EmbeddedPlane
from tests.controlplane.plane import ControlPlane, await_kinds, await_openapi

pytestmark = pytest.mark.controlplane

SAMPLES = Path(__file__).parents[3] / "samples"


Plane = ControlPlane | EmbeddedPlane


@pytest.fixture(scope="module", params=["embedded", "real"])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Either server with every CRD applied from its file, as a user would, warnings being errors."""
    own = EmbeddedPlane(tmp_path_factory.mktemp("embedded")).start() if request.param == "embedded" else None
    plane: Plane = own or request.getfixturevalue("control_plane")
    try:
        plane.kubectl("apply", "--warnings-as-errors", "-f", str(DIRECTORY))
        await_kinds(plane.kubectl)
        plane.kubectl("create", "namespace", "research")
        yield plane
    finally:
        if own is not None:
            own.stop()


def refusal(plane: Plane, obj: dict[str, Any]) -> str:
    with pytest.raises(RuntimeError) as refused:
        plane.kubectl("create", "-f", "-", stdin=json.dumps(obj))
    return str(refused.value)


def test_every_crd_is_structural_and_its_names_are_accepted(plane: Plane) -> None:
    found = json.loads(plane.kubectl("get", "crd", "-o", "json"))["items"]
    assert {crd["metadata"]["name"] for crd in found} >= {definition.name for definition in DEFINITIONS}
    for crd in found:
        conditions = {entry["type"]: entry["status"] for entry in crd["status"]["conditions"]}
        assert conditions["NamesAccepted"] == conditions["Established"] == "True"
        assert "NonStructuralSchema" not in conditions
    stored = {crd["metadata"]["name"]: crd["status"]["storedVersions"] for crd in found}
    assert stored["appwrappers.workload.codeflare.dev"] == ["v1beta1"]
    assert stored["quotasubtrees.quota.codeflare.dev"] == ["v1alpha1"]


def test_they_are_explained(plane: Plane) -> None:
    await_openapi(plane.kubectl)
    told = plane.kubectl("explain", "appwrapper.spec")
    assert "FIELDS" in told and "resources\t<Object>" in told
    assert "lend each other" in plane.kubectl("explain", "clusterqueue.spec.cohortName")
    assert "<integer>" in plane.kubectl("explain", "raycluster.spec.workerGroupSpecs.maxReplicas")


def test_the_crds_with_a_conversion_webhook_are_valid_too(plane: Plane) -> None:
    for crd in load_crds("webhook", {"url": "https://127.0.0.1:1/convert"}):
        told = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(crd))
        assert crd["metadata"]["name"] in told and "server dry run" in told


@pytest.mark.parametrize("path", sorted(SAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_our_samples_are_accepted_under_strict_validation(plane: Plane, path: Path) -> None:
    """None is kept: samples for several clusters share names."""
    assert "created" in plane.kubectl("create", "--validate=strict", "--dry-run=server", "-f", str(path))


def meta(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default"}


TEMPLATE = {"spec": {"containers": [{"name": "c"}]}}
QUOTA = {"name": "cpu", "nominalQuota": "1"}


@pytest.mark.parametrize(
    "api_version, kind, body, words",
    [
        ("workload.codeflare.dev/v1beta1", "AppWrapper", {"spec": {}},
         "exactly one of spec.resources (v1beta1) and spec.components (v1beta2) must be set"),
        ("workload.codeflare.dev/v1beta1", "AppWrapper",
         {"spec": {"resources": {"GenericItems": [{"generictemplate": {"metadata": {"name": "x"}}}]}}},
         "spec.resources.GenericItems[0].generictemplate.kind: Required value"),
        ("workload.codeflare.dev/v1beta1", "AppWrapper", {"spec": {"resources": {"GenericItem": []}}},
         'unknown field "spec.resources.GenericItem"'),
        ("workload.codeflare.dev/v1beta1", "AppWrapper",
         {"spec": {"resources": {"GenericItems": [{"custompodresources": [{"replicas": -1, "requests": {}}]}]}}},
         "should be greater than or equal to 0"),
        ("ray.io/v1", "RayCluster", {"spec": {"headGroupSpec": {"template": TEMPLATE}, "managedBy": "me"}},
         "the managedBy field value must be either"),
        ("ray.io/v1", "RayCluster", {"spec": {"headGroupSpec": {}}}, "spec.headGroupSpec.template: Required value"),
        ("ray.io/v1", "RayCluster",
         {"spec": {"headGroupSpec": {"template": TEMPLATE}, "upgradeStrategy": {"type": "Blue"}}},
         'supported values: "Recreate", "Rolling", "None"'),
        ("ray.k8s.io/v1alpha1", "Ray", {"spec": {"targetUtilization": 101}}, "should be less than or equal to 100"),
        ("kueue.x-k8s.io/v1beta2", "ClusterQueue",
         {"spec": {"resourceGroups": [{"coveredResources": ["cpu", "memory"],
                                       "flavors": [{"name": "f", "resources": [QUOTA]}]}]}},
         "flavors must have the same number of resources as the coveredResources"),
        ("kueue.x-k8s.io/v1beta2", "Workload",
         {"spec": {"podSets": [{"name": "a", "count": 1, "minCount": 2, "template": TEMPLATE}]}},
         "minCount should be positive and less or equal to count"),
        ("kueue.x-k8s.io/v1beta2", "Topology",
         {"spec": {"levels": [{"nodeLabel": "kubernetes.io/hostname"}, {"nodeLabel": "rack"}]}},
         "can only be used at the lowest level of topology"),
        ("autoscaling.x-k8s.io/v1", "ProvisioningRequest",
         {"spec": {"provisioningClassName": "c", "podSets": [{"count": 0, "podTemplateRef": {"name": "t"}}]}},
         "should be greater than or equal to 1"),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup", {"spec": {"minMember": 0}},
         "should be greater than or equal to 1"),
    ],
)  # fmt: skip
def test_a_bad_object_is_refused_in_words(
    plane: Plane, api_version: str, kind: str, body: dict[str, Any], words: str
) -> None:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": meta("bad"), **body}
    if kind in ("ClusterQueue", "Topology"):
        obj["metadata"] = {"name": "bad"}
    assert words in refusal(plane, obj)


def test_what_may_not_change_does_not(plane: Plane) -> None:
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": meta("fixed"),
             "spec": {"clusterQueue": "a"}}  # fmt: skip
    plane.kubectl("create", "-f", "-", stdin=json.dumps(queue))
    with pytest.raises(RuntimeError, match="field is immutable"):
        plane.kubectl("patch", "localqueue", "fixed", "--type=merge", "-p", '{"spec": {"clusterQueue": "b"}}')


def test_an_app_wrapper_of_either_version_keeps_its_fields_at_the_other(plane: Plane) -> None:
    wrapped = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}
    for version, spec in (
        ("v1beta1", {"priority": 3, "resources": {"GenericItems": [{"generictemplate": wrapped}]}}),
        ("v1beta2", {"components": [{"template": wrapped}]}),
    ):
        obj = {
            "apiVersion": f"workload.codeflare.dev/{version}",
            "kind": "AppWrapper",
            "metadata": meta(f"made-{version}"),
        }
        plane.kubectl("create", "-f", "-", stdin=json.dumps({**obj, "spec": spec}))
        for read in ("v1beta1", "v1beta2"):
            name = f"appwrappers.{read}.workload.codeflare.dev"
            plane.kubectl("label", name, f"made-{version}", f"seen-{read}=yes")
            found = json.loads(plane.kubectl("get", name, f"made-{version}", "-o", "json"))
            assert found["spec"] == spec


def test_without_a_webhook_a_v1beta1_queue_keeps_all_and_upgrades_on_read(plane: Plane) -> None:
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": "old-spelling"},
        "spec": {"cohort": "team", "admissionChecks": ["gpu"], "namespaceSelector": {}},
    }
    plane.kubectl("create", "-f", "-", stdin=json.dumps(queue))
    stored = json.loads(plane.kubectl("get", "clusterqueues.v1beta2.kueue.x-k8s.io", "old-spelling", "-o", "json"))
    spec = upgrade(stored)["spec"]
    assert spec["cohortName"] == "team"
    assert spec["admissionChecksStrategy"] == {"admissionChecks": [{"name": "gpu"}]}


def test_a_ray_is_scaled_like_anything_else(plane: Plane) -> None:
    ray = {"apiVersion": "ray.k8s.io/v1alpha1", "kind": "Ray", "metadata": meta("scaled"), "spec": {"minWorkers": 1}}
    plane.kubectl("create", "-f", "-", stdin=json.dumps(ray))
    plane.kubectl("scale", "rays.ray.k8s.io/scaled", "--replicas=2")
    found = json.loads(plane.kubectl("get", "rays.ray.k8s.io", "scaled", "-o", "json"))
    assert found["spec"] == {"minWorkers": 1, "initialWorkers": 2}


def test_a_null_counts_as_absent(plane: Plane) -> None:
    spec = {"suspend": None, "rayVersion": None, "headGroupSpec": {"template": TEMPLATE}}
    obj = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta("nulls"), "spec": spec}
    plane.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(obj))
    found = json.loads(plane.kubectl("get", "raycluster", "nulls", "-o", "json"))
    assert found["spec"] == {"headGroupSpec": {"template": TEMPLATE}}


def test_columns_are_shown(plane: Plane) -> None:
    request = {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": meta("asked"),
        "spec": {"provisioningClassName": "check", "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}]},
    }
    plane.kubectl("create", "-f", "-", stdin=json.dumps(request))
    conditions = [
        {"type": name, "status": status, "reason": "Set", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for name, status in (("Accepted", "True"), ("Provisioned", "False"), ("Failed", "False"))
    ]
    patch = msgspec.json.encode({"status": {"conditions": conditions}}).decode()
    plane.kubectl("patch", "provreq", "asked", "--subresource=status", "--type=merge", "-p", patch)
    header, row = plane.kubectl("get", "provisioningrequest", "asked").splitlines()
    assert header.split() == ["NAME", "ACCEPTED", "PROVISIONED", "FAILED", "AGE"]
    assert row.split()[:4] == ["asked", "True", "False", "False"]
