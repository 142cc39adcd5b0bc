"""OpenAPI documents: references resolve, kinds are found by their marks, kubectl learns what it may send."""

from __future__ import annotations

import pytest

from shoal.api.kind import Kind
from shoal.local.apiserver.kinds.resources import Registry, Resource, ServedVersion
from shoal.local.apiserver.openapi.documents import OpenApi
from shoal.local.apiserver.storage.store import Storage

SCHEMA = {
    "type": "object",
    "description": "A thing.",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "nullable": True, "description": "How large."},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}


@pytest.fixture
def registry():
    return Registry(Storage(None))


def thing(registry):
    kind = Kind("example.org", "v1", "Thing", "things")
    collection = registry.storage.collection("things.example.org")
    return Resource({"v1": ServedVersion(kind, raw_schema=SCHEMA)}, "v1", collection, singular="thing", custom=True)


def references(value):
    if isinstance(value, dict):
        here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return here + [reference for item in value.values() for reference in references(item)]
    return [reference for item in value for reference in references(item)] if isinstance(value, list) else []


def of_kind(schemas, group, version, kind):
    wanted = {"group": group, "version": version, "kind": kind}
    [found] = [s for s in schemas.values() if wanted in s.get("x-kubernetes-group-version-kind", ())]
    return found


def test_every_group_version_has_a_document_whose_references_resolve(registry):
    api = OpenApi(registry)
    index = api.answer("/openapi/v3")["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/batch/v1"} <= set(index)
    for name, entry in index.items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{name}?hash=")
        document = api.answer(f"/openapi/v3/{name}")
        schemas = document["components"]["schemas"]
        for reference in references(document):
            assert reference.removeprefix("#/components/schemas/") in schemas
    document = api.answer("/openapi/v2")
    for reference in references(document):
        assert reference.removeprefix("#/definitions/") in document["definitions"]


def test_built_in_kinds_have_names_types_and_list_keys(registry):
    schemas = OpenApi(registry).answer("/openapi/v3/apis/apps/v1")["components"]["schemas"]
    deployment = of_kind(schemas, "apps", "v1", "Deployment")
    assert list(deployment["properties"]) == ["apiVersion", "kind", "metadata", "spec", "status"]
    spec = schemas["io.k8s.api.apps.v1.DeploymentSpec"]
    assert spec["properties"]["replicas"] == {"type": "integer", "format": "int32"}
    assert spec["required"] == ["selector", "template"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"


def test_kubectl_learns_that_the_server_validates(registry):
    paths = OpenApi(registry).answer("/openapi/v3/api/v1")["paths"]
    patch = paths["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert {"fieldValidation", "dryRun"} <= {parameter["name"] for parameter in patch["parameters"]}
    assert "/api/v1/nodes/{name}" in paths


def test_custom_kinds_come_with_their_schema_and_go_with_their_definition(registry):
    api = OpenApi(registry)
    assert api.answer("/openapi/v3/apis/example.org/v1") is None
    registry.add(thing(registry))
    found = of_kind(
        api.answer("/openapi/v3/apis/example.org/v1")["components"]["schemas"], "example.org", "v1", "Thing"
    )
    assert found["description"] == "A thing."
    assert found["properties"]["spec"]["properties"]["size"] == SCHEMA["properties"]["spec"]["properties"]["size"]
    second = api.answer("/openapi/v2")["definitions"]["org.example.v1.Thing"]["properties"]["spec"]["properties"]
    assert second["size"] == {"description": "How large."}  # v2 has no word for null: described as anything
    assert second["free"] == {"x-kubernetes-preserve-unknown-fields": True}
    registry.drop("example.org", "things")
    assert api.answer("/openapi/v3/apis/example.org/v1") is None


def test_other_paths_are_not_here(registry):
    assert OpenApi(registry).answer("/openapi/v4") is None
    assert OpenApi(registry).answer("/openapi/v3/apis/no.such/v1") is None
