"""Custom kinds: served at once, judged by their schema, gone with their definition."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.api.kind import Kind
from shoal.api.kinds import CRD
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound
from shoal.kube.transport import Request
from shoal.local.apiserver import Server
from tests.unit.apiserver.builders import WIDGET, widget, widget_definition
from tests.unit.apiserver.conftest import turns

SIZED = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1, "default": 3}}}


async def test_a_kind_can_be_used_as_soon_as_its_definition_is_created(client: Client) -> None:
    begin = time.process_time()
    made = await client.create(CRD, widget_definition(spec=SIZED))
    await client.create(WIDGET, widget("w"), "default")
    assert time.process_time() - begin < 1.0
    conditions = {one["type"]: one["status"] for one in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert made["status"]["storedVersions"] == ["v1"] and made["spec"]["names"]["listKind"] == "WidgetList"


async def test_schema_fills_in_drops_and_refuses(client: Client) -> None:
    await client.create(CRD, widget_definition(spec=SIZED))
    made = await client.create(WIDGET, widget("w", unknown=1), "default")
    assert made["spec"] == {"size": 3}
    with pytest.raises(Invalid, match=r"spec.size") as caught:
        await client.create(WIDGET, widget("x", size=0), "default")
    assert caught.value.causes[0]["field"] == "spec.size"
    body = b'{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"y"},"spec":{"unknown":1}}'
    with pytest.raises(BadRequest, match=r'unknown field "spec.unknown"'):
        await client.request("POST", WIDGET.path("default"), query={"fieldValidation": "Strict"}, body=body)
    answer = await client.request("POST", WIDGET.path("default"), query={"fieldValidation": "Warn"}, body=body)
    assert 'unknown field \\"spec.unknown\\"' in answer.headers["warning"]


@pytest.mark.parametrize("place", ["items", "additionalProperties"])
async def test_schemas_of_items_and_of_other_members_are_read_as_strictly_as_the_rest(
    client: Client, place: str
) -> None:
    def definition(inner: object) -> Json:
        outer = {"type": "array" if place == "items" else "object", place: inner}
        return widget_definition(spec={"type": "object", "properties": {"x": outer}})

    for wrong in ({"minimum": "3"}, {"maxLength": 1.5}, {"required": "a"}, {"enum": "a"}, {"title": 3}):
        with pytest.raises(BadRequest, match=f"cannot unmarshal .* into Go struct field .*{next(iter(wrong))}"):
            await client.create(CRD, definition({"type": "string", **wrong}))
    with pytest.raises(Invalid if place == "items" else BadRequest, match=place):
        await client.create(CRD, definition("x"))
    made = await client.create(CRD, definition({"type": "string", "unheard": 1}))
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["properties"]["spec"]["properties"]["x"][place] == {"type": "string"}


async def test_rules_compare_with_what_was_before(client: Client) -> None:
    spec = {
        "type": "object",
        "properties": {
            "size": {
                "type": "integer",
                "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may only grow"}],
            }
        },
    }
    await client.create(CRD, widget_definition(spec=spec))
    await client.create(WIDGET, widget("w", size=5), "default")
    await client.patch(WIDGET, "w", "default", {"spec": {"size": 6}})
    with pytest.raises(Invalid, match="may only grow"):
        await client.patch(WIDGET, "w", "default", {"spec": {"size": 4}})


async def test_status_and_spec_are_apart(client: Client) -> None:
    await client.create(CRD, widget_definition())
    made = await client.create(WIDGET, {**widget("w", size=1), "status": {"ready": True}}, "default")
    assert "status" not in made
    ready = await client.patch(
        WIDGET, "w", "default", {"status": {"ready": True}, "spec": {"size": 2}}, subresource="status"
    )
    assert ready["status"] == {"ready": True} and ready["spec"] == {"size": 1} and ready["metadata"]["generation"] == 1
    grown = await client.patch(WIDGET, "w", "default", {"spec": {"size": 2}, "status": {"ready": False}})
    assert grown["status"] == {"ready": True} and grown["metadata"]["generation"] == 2


async def test_updates_need_the_revision(client: Client) -> None:
    await client.create(CRD, widget_definition())
    await client.create(WIDGET, widget("w"), "default")
    with pytest.raises(Invalid, match=r"metadata.resourceVersion"):
        await client.update(WIDGET, widget("w", size=2), "w", "default")


async def test_scale_reads_and_writes_the_named_paths(client: Client) -> None:
    await client.create(CRD, widget_definition(scale=True))
    await client.create(WIDGET, widget("w", replicas=2), "default")
    assert (await client.get(WIDGET, "w", "default", subresource="scale"))["spec"]["replicas"] == 2
    await client.patch(WIDGET, "w", "default", {"spec": {"replicas": 5}}, subresource="scale")
    assert (await client.get(WIDGET, "w", "default"))["spec"]["replicas"] == 5


async def test_versions_show_the_same_objects(client: Client) -> None:
    definition = widget_definition()
    first = definition["spec"]["versions"][0]
    definition["spec"]["versions"] = [first, {**first, "name": "v2", "storage": False}]
    await client.create(CRD, definition)
    newer = Kind("example.com", "v2", "Widget", "widgets")
    await client.create(newer, {**widget("w", size=1), "apiVersion": "example.com/v2"}, "default")
    assert (await client.get(WIDGET, "w", "default"))["apiVersion"] == "example.com/v1"
    assert [one["apiVersion"] for one in await client.list(newer, "default")] == ["example.com/v2"]
    with pytest.raises(Conflict):
        old = await client.get(newer, "w", "default")
        await client.patch(WIDGET, "w", "default", {"spec": {"size": 2}})
        await client.update(newer, {**old, "spec": {"size": 3}}, "w", "default")


async def test_objects_of_an_older_storage_version_are_shown_in_the_newer(client: Client) -> None:
    definition = widget_definition()
    await client.create(CRD, definition)
    await client.create(WIDGET, widget("old", size=1), "default")
    first = definition["spec"]["versions"][0]
    versions = [{**first, "storage": False}, {**first, "name": "v2"}]
    await client.patch(CRD, "widgets.example.com", None, {"spec": {"versions": versions}})
    newer = Kind("example.com", "v2", "Widget", "widgets")
    await client.create(newer, {**widget("new", size=2), "apiVersion": "example.com/v2"}, "default")
    for kind in (WIDGET, newer):
        found = await client.list(kind, "default")
        assert [(one["metadata"]["name"], one["apiVersion"]) for one in found] == [
            ("new", kind.api_version),
            ("old", kind.api_version),
        ]
    changed = await client.patch(newer, "old", "default", {"spec": {"size": 3}})
    assert changed["apiVersion"] == "example.com/v2"
    assert (await client.get(WIDGET, "old", "default"))["spec"] == {"size": 3}
    assert (await client.get(CRD, "widgets.example.com"))["status"]["storedVersions"] == ["v1", "v2"]


async def test_defaults_that_come_later_are_seen_on_objects_that_were_there(client: Client) -> None:
    """As Kubernetes: what is stored is shown as the schema has it today."""
    plain = {"type": "object", "properties": {"size": {"type": "integer"}, "old": {"type": "string"}}}
    definition = await client.create(CRD, widget_definition(spec=plain))
    await client.create(WIDGET, widget("a", old="x"), "default")
    fresh = {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}}
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = fresh
    await client.update(CRD, definition, "widgets.example.com")
    assert (await client.get(WIDGET, "a", "default"))["spec"] == {"size": 3}
    assert [one["spec"] for one in await client.list(WIDGET, "default")] == [{"size": 3}]
    changed = await client.patch(WIDGET, "a", "default", {"metadata": {"labels": {"x": "y"}}})
    assert changed["spec"] == {"size": 3}


async def test_objects_go_before_their_definition(client: Client) -> None:
    await client.create(CRD, widget_definition())
    await client.create(WIDGET, {**widget("w"), "metadata": {"name": "w", "finalizers": ["example.com/x"]}}, "default")
    await client.create(WIDGET, widget("v"), "default")
    await client.delete(CRD, "widgets.example.com")
    await turns()
    left = await client.list(WIDGET, "default")
    assert [one["metadata"]["name"] for one in left] == ["w"] and left[0]["metadata"]["deletionTimestamp"]
    with pytest.raises(Forbidden, match=r'widgets\.example\.com "late" is forbidden: create not allowed while custom'):
        await client.create(WIDGET, widget("late"), "default")
    await client.patch(WIDGET, "w", "default", {"metadata": {"finalizers": None}})
    await turns()
    with pytest.raises(NotFound):
        await client.get(CRD, "widgets.example.com")
    with pytest.raises(NotFound):
        await client.list(WIDGET, "default")


async def test_names_of_another_kind_are_not_taken_over(client: Client) -> None:
    await client.create(CRD, widget_definition())
    rival = widget_definition()
    rival["metadata"]["name"] = "gadgets.example.com"
    rival["spec"]["names"] = {"plural": "gadgets", "singular": "widget", "kind": "Widget"}
    made = await client.create(CRD, rival)
    assert {one["type"]: one["status"] for one in made["status"]["conditions"]} == {
        "NamesAccepted": "False",
        "Established": "False",
    }
    with pytest.raises(NotFound):
        await client.list(Kind("example.com", "v1", "Widget", "gadgets"), "default")


async def test_custom_kinds_survive_a_restart(tmp_path: Path) -> None:
    first = Server(tmp_path)
    await first.start()
    client = Client(first.transport())
    await client.create(CRD, widget_definition(spec=SIZED))
    await client.create(WIDGET, widget("w"), "default")
    await first.stop()
    second = Server(tmp_path)
    await second.start()
    assert (await Client(second.transport()).get(WIDGET, "w", "default"))["spec"] == {"size": 3}
    await second.stop()


async def test_discovery_lists_them(client: Client) -> None:
    await client.create(CRD, widget_definition(scale=True))
    answer = await client.transport.send(Request(method="GET", path="/apis/example.com/v1"))
    for part in (b'"widgets"', b'"widgets/status"', b'"widgets/scale"', b'"shortNames":["wd"]'):
        assert part in answer.body
    aggregated = await client.transport.send(
        Request(
            method="GET",
            path="/apis",
            headers={"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
        )
    )
    assert b"example.com" in aggregated.body and aggregated.headers["content-type"].endswith("as=APIGroupDiscoveryList")


async def test_a_stored_definition_that_makes_no_sense_does_not_stop_the_start(tmp_path: Path) -> None:
    first = Server(tmp_path)
    await first.start()
    await Client(first.transport()).create(CRD, widget_definition())
    definitions = first.custom_kinds.definitions.collection
    broken = b'{"metadata":{"name":"odd.example.com"},"spec":{"names":{}}}'
    await first.storage.put(definitions, "", "odd.example.com", first.storage.next_revision(), broken)
    await first.stop()
    second = Server(tmp_path)
    await second.start()
    assert await Client(second.transport()).list(WIDGET, "default") == []
    await second.stop()
