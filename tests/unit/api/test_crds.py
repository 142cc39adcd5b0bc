"""The CRDs are made from the types, and stay within what API servers and kubectl take."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from shoal.api.crds import DEFINITIONS, DIRECTORY, Definition, load_crds, render, yaml_text
from shoal.api.meta import Json
from shoal.api.registry import lookup

every_definition = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)


def find(name: str) -> Json:
    return next(crd for crd in load_crds() if crd["metadata"]["name"] == name)


def columns(name: str) -> list[str]:
    return [column["name"] for column in find(name)["spec"]["versions"][0]["additionalPrinterColumns"]]


@every_definition
def test_the_yaml_in_the_repository_is_fresh(definition: Definition) -> None:
    path = DIRECTORY / f"{definition.name}.yaml"
    assert path.read_text(encoding="utf-8") == yaml_text(definition), "stale: run `python -m shoal.api.crds`"


def test_there_is_no_yaml_without_a_definition() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.yaml")} == {definition.name for definition in DEFINITIONS}


@every_definition
def test_plain_kubectl_apply_can_keep_its_copy(definition: Definition) -> None:
    """kubectl apply stores the object in an annotation, and annotations end at 256 KiB; we stay far below."""
    assert len(yaml_text(definition)) < 100_000


@every_definition
def test_the_yaml_says_what_the_dictionary_says(definition: Definition) -> None:
    assert msgspec.yaml.decode(yaml_text(definition)) == render(definition)


@every_definition
def test_schemas_are_structural(definition: Definition) -> None:
    for crd in (render(definition), render(definition, "webhook", {"url": "https://example.com"})):
        for version in crd["spec"]["versions"]:
            problems = list(_unstructured(version["schema"]["openAPIV3Schema"], "", top=True))
            assert problems == []


def _unstructured(schema: Json, path: str, top: bool = False) -> Any:
    """What would make an API server call the schema non-structural, or refuse it."""
    if not schema.get("x-kubernetes-int-or-string") and schema.get("type") not in _TYPES:
        yield f"{path}: no type"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties"
    if schema.get("x-kubernetes-embedded-resource") and not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path}: embedded resource that prunes"
    if schema.get("x-kubernetes-list-type") == "map":
        item = schema["items"]
        for key in schema["x-kubernetes-list-map-keys"]:
            if key not in item.get("required", ()) and "default" not in item["properties"][key]:
                yield f"{path}: list map key {key} may be absent"
    if "pattern" in schema:
        re.compile(schema["pattern"])
    if any(name not in schema.get("properties", {}) for name in schema.get("required", ())):
        yield f"{path}: requires what it does not have"
    for name, part in schema.get("properties", {}).items():
        if name in ("n", "y", "on", "off", "yes", "no"):
            yield f"{path}.{name}: YAML reads this key as a boolean"
        if not (top and name == "metadata"):
            yield from _unstructured(part, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _unstructured(schema[name], f"{path}[]")


_TYPES = ("object", "array", "string", "integer", "number", "boolean")


def test_app_wrapper_keeps_v1beta1_in_storage_and_serves_both_with_one_schema() -> None:
    spec = find("appwrappers.workload.codeflare.dev")["spec"]
    assert [(version["name"], version["storage"]) for version in spec["versions"]] == [
        ("v1beta1", True),
        ("v1beta2", False),
    ]
    assert spec["conversion"] == {"strategy": "None"}
    first, second = (version["schema"] for version in spec["versions"])
    assert first == second
    properties = first["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert {"resources", "components"} <= properties.keys()
    item = properties["resources"]["properties"]["GenericItems"]["items"]["properties"]
    assert item["generictemplate"] == {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }


@pytest.mark.parametrize("name", ["quotasubtrees.quota.codeflare.dev", "quotasubtrees.ibm.com"])
def test_a_quota_subtree_has_one_stored_version_and_no_status_subresource(name: str) -> None:
    (version,) = find(name)["spec"]["versions"]
    assert version["storage"] and "subresources" not in version


def test_columns_are_those_that_users_know() -> None:
    assert columns("rayjobs.ray.io") == [
        "job status", "deployment status", "ray cluster name", "start time", "end time", "age",
    ]  # fmt: skip
    assert columns("rays.ray.k8s.io") == ["Launcher", "Head", "Workers", "Ready", "Age"]
    assert columns("provisioningrequests.autoscaling.x-k8s.io") == ["Accepted", "Provisioned", "Failed", "Age"]
    assert columns("workloads.kueue.x-k8s.io") == ["Queue", "Reserved in", "Admitted", "Finished", "Age"]
    assert [name for name in columns("appwrappers.workload.codeflare.dev") if name in ("State", "QueueState", "Reason")]


def test_pod_templates_are_left_open() -> None:
    schema = find("rayclusters.ray.io")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    head = schema["properties"]["spec"]["properties"]["headGroupSpec"]
    assert head["properties"]["template"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert "template" in head["required"]


def test_a_reserved_group_carries_its_approval_annotation() -> None:
    assert find("rays.ray.k8s.io")["metadata"]["annotations"]["api-approved.kubernetes.io"].startswith("unapproved")


def test_kueue_versions_convert_by_webhook_where_shapes_differ() -> None:
    client = {"service": {"namespace": "shoal", "name": "webhook", "path": "/convert"}}
    converted = {
        crd["spec"]["names"]["kind"]
        for crd in load_crds("webhook", client)
        if crd["spec"]["conversion"]["strategy"] == "Webhook"
    }
    assert converted == {"ClusterQueue", "LocalQueue", "Workload", "Cohort", "MultiKueueCluster"}
    queue = render(next(found for found in DEFINITIONS if found.kind == "ClusterQueue"), "webhook", client)
    assert queue["spec"]["conversion"]["webhook"]["clientConfig"] == client
    fields = [
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].keys()
        for version in queue["spec"]["versions"]
    ]
    assert "cohortName" in fields[0] and "cohort" not in fields[0]
    assert "cohort" in fields[1] and "cohortName" not in fields[1]


def test_without_a_webhook_nothing_of_either_version_is_pruned() -> None:
    versions = find("clusterqueues.kueue.x-k8s.io")["spec"]["versions"]
    for version in versions:
        fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        assert {"cohort", "cohortName", "admissionChecks", "admissionChecksStrategy"} <= fields.keys()
        assert fields["flavorFungibility"]["properties"]["whenCanBorrow"]["enum"] == [
            "MayStopSearch", "TryNextFlavor", "Borrow",
        ]  # fmt: skip
    assert [(version["name"], version.get("deprecationWarning")) for version in versions] == [
        ("v1beta2", None),
        ("v1beta1", "This version is deprecated. Use v1beta2 instead."),
    ]


def test_a_webhook_without_an_address_is_refused_early() -> None:
    with pytest.raises(ValueError, match="pass client_config"):
        load_crds("webhook")


def test_legacy_groups_can_be_left_out() -> None:
    names = {crd["metadata"]["name"] for crd in load_crds(legacy=False)}
    assert not any(name.endswith("ibm.com") for name in names) and "appwrappers.workload.codeflare.dev" in names


@every_definition
def test_every_served_version_has_its_type(definition: Definition) -> None:
    for version in definition.versions:
        entry = lookup(f"{definition.group}/{version.name}", definition.kind)
        assert entry is not None and entry.type is version.type and entry.kind.plural == definition.plural


def test_callers_own_what_they_get() -> None:
    load_crds()[0]["spec"]["group"] = "changed"
    assert load_crds()[0]["spec"]["group"] == DEFINITIONS[0].group
