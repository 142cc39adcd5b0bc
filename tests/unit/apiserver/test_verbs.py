"""Create, get, list, update, patch: what a client sees."""

from __future__ import annotations

import re

import pytest

from shoal.api.kinds import CONFIG_MAP, DEPLOYMENT, LEASE, NAMESPACE, POD, SECRET, SERVICE
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Gone, Invalid, NotFound
from shoal.kube.transport import Request
from shoal.local.apiserver import Server
from tests.unit.apiserver.builders import config_map, pod
from tests.unit.apiserver.conftest import ManualClock


async def test_created_object_gets_what_the_server_keeps(client: Client) -> None:
    made = await client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    metadata = made["metadata"]
    assert made["apiVersion"] == "v1" and made["kind"] == "ConfigMap"
    assert metadata["namespace"] == "default" and metadata["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"]) and int(metadata["resourceVersion"]) > 0
    assert metadata["managedFields"][0]["manager"] == "shoal"
    assert await client.get(CONFIG_MAP, "a", "default") == made


async def test_generated_names_differ_and_keep_their_base(client: Client) -> None:
    made = [await client.create(CONFIG_MAP, {"metadata": {"generateName": "run-"}}, "default") for _ in range(20)]
    names = {one["metadata"]["name"] for one in made}
    assert len(names) == 20 and all(re.fullmatch(r"run-[a-z0-9]{5}", name) for name in names)


@pytest.mark.parametrize(
    "body, error, words",
    [
        ({"metadata": {}}, Invalid, "name or generateName is required"),
        ({"metadata": {"name": "a", "namespace": "other"}}, BadRequest, "does not match the namespace"),
        ({"metadata": {"name": "a", "resourceVersion": "1"}}, BadRequest, "resourceVersion should not be set"),
        ({"kind": "Secret", "metadata": {"name": "a"}}, BadRequest, "cannot be handled as a ConfigMap"),
        ({"apiVersion": "v2", "metadata": {"name": "a"}}, BadRequest, "does not match the expected API version (v1)"),
        ({"metadata": {"name": "a", "labels": ["x"]}}, BadRequest, "metadata"),
        ({"metadata": "x"}, BadRequest, "metadata is not an object"),
    ],
)
async def test_create_refuses(plain_client: Client, body: dict, error: type[ApiError], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        await plain_client.create(CONFIG_MAP, body, "default")


async def test_second_create_says_already_exists(client: Client) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default")
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists') as caught:
        await client.create(CONFIG_MAP, config_map("a"), "default")
    assert caught.value.status["details"] == {"name": "a", "kind": "configmaps"}


async def test_missing_objects_are_named_as_kubernetes_names_them(client: Client) -> None:
    with pytest.raises(NotFound, match=r'deployments.apps "x" not found'):
        await client.get(DEPLOYMENT, "x", "default")
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await client.create(CONFIG_MAP, config_map("a"), "nowhere")


async def test_unknown_paths_and_methods(client: Client) -> None:
    for path, code in (
        ("/apis/nothing/v1/things", 404),
        ("/api/v1/nothings", 404),
        ("/nonsense", 404),
        ("/api/v1/pods/x", 404),
    ):
        answer = await client.transport.send(Request(method="GET", path=path))
        assert answer.status == code, path
    answer = await client.transport.send(Request(method="POST", path="/api/v1/namespaces/default/pods/x", body=b"{}"))
    assert answer.status == 405


async def test_old_revision_is_a_conflict(client: Client) -> None:
    """An update with an old resourceVersion never succeeds (I30)."""
    first = await client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    await client.update(CONFIG_MAP, {**first, "data": {"x": "2"}}, "a", "default")
    with pytest.raises(Conflict, match="the object has been modified"):
        await client.update(CONFIG_MAP, {**first, "data": {"x": "3"}}, "a", "default")
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"x": "2"}


async def test_some_kinds_need_the_revision(client: Client) -> None:
    await client.create(LEASE, {"metadata": {"name": "l"}, "spec": {}}, "default")
    with pytest.raises(Invalid, match="must be specified for an update"):
        await client.update(LEASE, {"metadata": {"name": "l"}, "spec": {}}, "l", "default")


async def test_update_that_changes_nothing_writes_nothing(plain_client: Client) -> None:
    first = await plain_client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    again = await plain_client.update(CONFIG_MAP, first, "a", "default")
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_identity_survives_an_update_that_leaves_it_out(client: Client) -> None:
    first = await client.create(CONFIG_MAP, config_map("a"), "default")
    second = await client.update(CONFIG_MAP, config_map("a", x="1"), "a", "default")
    for field in ("uid", "creationTimestamp"):
        assert second["metadata"][field] == first["metadata"][field]


async def test_wrong_uid_is_a_conflict(client: Client) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default")
    with pytest.raises(Conflict, match="Precondition failed: UID"):
        await client.update(CONFIG_MAP, {"metadata": {"name": "a", "uid": "other"}}, "a", "default")


async def test_patches_of_three_types(client: Client) -> None:
    await client.create(POD, pod("p", labels={"a": "1"}), "default")
    merged = await client.patch(POD, "p", "default", {"metadata": {"labels": {"b": "2"}}})
    assert merged["metadata"]["labels"] == {"a": "1", "b": "2"}
    json = await client.patch(
        POD, "p", "default", [{"op": "replace", "path": "/metadata/labels/a", "value": "3"}], patch_type="json"
    )
    assert json["metadata"]["labels"]["a"] == "3"
    strategic = await client.patch(
        POD, "p", "default", {"spec": {"containers": [{"name": "main", "image": "other"}]}}, patch_type="strategic"
    )
    assert [one["image"] for one in strategic["spec"]["containers"]] == ["other"]


async def test_patch_with_an_old_revision_is_a_conflict(client: Client) -> None:
    first = await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "1"}})
    old = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"x": "2"}}
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAP, "a", "default", old)


async def test_failed_test_operation_is_422(client: Client) -> None:
    await client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    with pytest.raises(Invalid):
        await client.patch(
            CONFIG_MAP, "a", "default", [{"op": "test", "path": "/data/x", "value": "2"}], patch_type="json"
        )


async def test_server_side_apply_creates_owns_and_conflicts(server: Server, client: Client) -> None:
    other = Client(server.transport(), manager="other")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    await client.patch(CONFIG_MAP, "a", "default", body, patch_type="apply")
    with pytest.raises(Conflict, match='conflict with "shoal"'):
        await other.patch(CONFIG_MAP, "a", "default", {**body, "data": {"x": "2"}}, patch_type="apply")
    forced = await other.patch(CONFIG_MAP, "a", "default", {**body, "data": {"x": "2"}}, patch_type="apply", force=True)
    assert forced["data"] == {"x": "2"}
    rest = await client.patch(CONFIG_MAP, "a", "default", {**body, "data": {}}, patch_type="apply")
    assert rest["data"] == {"x": "2"}


async def test_dry_run_changes_nothing(client: Client) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default", dry_run=True)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "a", "default")
    await client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    shown = await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "2"}}, dry_run=True)
    assert shown["data"] == {"x": "2"}
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"x": "1"}
    await client.delete(CONFIG_MAP, "a", "default", dry_run=True)
    await client.get(CONFIG_MAP, "a", "default")


async def test_labels_and_fields_select(client: Client) -> None:
    for name, color, node in (("a", "red", "n1"), ("b", "blue", "n1"), ("c", "red", "n2")):
        await client.create(POD, pod(name, labels={"color": color}, nodeName=node), "default")

    async def names(labels: str = "", fields: str = "") -> list[str]:
        found = await client.list(POD, "default", label_selector=labels, field_selector=fields)
        return [one["metadata"]["name"] for one in found]

    assert await names("color=red") == ["a", "c"]
    assert await names("color!=red") == ["b"]
    assert await names("color in (red, blue),color notin (blue)") == ["a", "c"]
    assert await names("!color") == [] and await names("color") == ["a", "b", "c"]
    assert await names(fields="spec.nodeName=n1") == ["a", "b"]
    assert await names("color=red", "spec.nodeName!=n1,metadata.name=c") == ["c"]
    with pytest.raises(BadRequest, match=r"field label not supported: spec.foo"):
        await names(fields="spec.foo=1")
    with pytest.raises(BadRequest, match="unable to parse requirement"):
        await names("a in red")


async def test_pages_show_one_state(client: Client) -> None:
    """Later pages of a list agree with the first, whatever is written meanwhile."""
    for index in range(5):
        await client.create(CONFIG_MAP, config_map(f"c{index}"), "default")
    first = await client.list_raw(CONFIG_MAP, "default", limit=2)
    assert first.metadata.remaining_item_count == 3
    await client.delete(CONFIG_MAP, "c3", "default")
    await client.create(CONFIG_MAP, config_map("c9"), "default")
    rest = await client.list_raw(CONFIG_MAP, "default", limit=10, continue_=first.metadata.continue_)
    assert [bytes(item).split(b'"name":"')[1][:2] for item in rest.items or ()] == [b"c2", b"c3", b"c4"]
    assert rest.metadata.resource_version == first.metadata.resource_version and not rest.metadata.continue_


async def test_pages_expire_after_minutes(client: Client, clock: ManualClock) -> None:
    for index in range(3):
        await client.create(CONFIG_MAP, config_map(f"c{index}"), "default")
    first = await client.list_raw(CONFIG_MAP, "default", limit=1)
    for _ in range(5):
        await clock.advance(60)
    assert await client.list_raw(CONFIG_MAP, "default", continue_=first.metadata.continue_)
    await client.delete(CONFIG_MAP, "c0", "default")
    for _ in range(10):
        await clock.advance(60)
    with pytest.raises(Gone, match="continue parameter is too old") as caught:
        await client.list_raw(CONFIG_MAP, "default", continue_=first.metadata.continue_)
    assert caught.value.reason == "Expired"


async def test_list_at_an_exact_revision(client: Client) -> None:
    made = await client.create(CONFIG_MAP, config_map("a", x="1"), "default")
    revision = made["metadata"]["resourceVersion"]
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "2"}})
    await client.create(CONFIG_MAP, config_map("b"), "default")
    then = await client.list_raw(CONFIG_MAP, "default", resource_version=revision, resource_version_match="Exact")
    assert len(then.items or ()) == 1 and b'"x":"1"' in bytes((then.items or [])[0])
    with pytest.raises(ApiError) as caught:
        await client.list_raw(CONFIG_MAP, "default", resource_version="999999", resource_version_match="NotOlderThan")
    assert caught.value.code == 504 and caught.value.causes[0]["reason"] == "ResourceVersionTooLarge"


async def test_exact_list_of_a_forgotten_revision_is_gone(server: Server, client: Client) -> None:
    made = await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.patch(CONFIG_MAP, "a", "default", {"data": {"x": "2"}})
    server.storage.collection("configmaps").compact(2)
    with pytest.raises(Gone):
        await client.list_raw(
            CONFIG_MAP, "default", resource_version=made["metadata"]["resourceVersion"], resource_version_match="Exact"
        )


async def test_status_is_written_by_its_own_way_only(client: Client) -> None:
    made = await client.create(POD, {**pod("p"), "status": {"phase": "Running"}}, "default")
    assert made["status"]["phase"] == "Pending"
    await client.patch(POD, "p", "default", {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}})
    assert (await client.get(POD, "p", "default"))["status"]["phase"] == "Pending"
    done = await client.patch(
        POD, "p", "default", {"status": {"phase": "Running"}, "spec": {"nodeName": "x"}}, subresource="status"
    )
    assert done["status"]["phase"] == "Running" and "nodeName" not in done["spec"]


async def test_generation_counts_changes_of_the_spec(client: Client) -> None:
    body = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }
    made = await client.create(DEPLOYMENT, body, "default")
    assert made["metadata"]["generation"] == 1
    labelled = await client.patch(DEPLOYMENT, "d", "default", {"metadata": {"labels": {"x": "y"}}})
    assert labelled["metadata"]["generation"] == 1
    scaled = await client.patch(DEPLOYMENT, "d", "default", {"spec": {"replicas": 2}}, subresource="scale")
    assert scaled["kind"] == "Scale" and scaled["spec"]["replicas"] == 2 and scaled["status"]["selector"] == "a=b"
    assert (await client.get(DEPLOYMENT, "d", "default"))["metadata"]["generation"] == 2


async def test_services_get_addresses_of_their_own(client: Client) -> None:
    made = [
        await client.create(SERVICE, {"metadata": {"name": f"s{i}"}, "spec": {"ports": [{"port": 80}]}}, "default")
        for i in range(3)
    ]
    assert len({one["spec"]["clusterIP"] for one in made}) == 3
    headless = await client.create(SERVICE, {"metadata": {"name": "h"}, "spec": {"clusterIP": "None"}}, "default")
    assert headless["spec"]["clusterIP"] == "None"
    kept = await client.update(
        SERVICE, {"metadata": {"name": "s0"}, "spec": {"ports": [{"port": 81}]}}, "s0", "default"
    )
    assert kept["spec"]["clusterIP"] == made[0]["spec"]["clusterIP"]


async def test_string_data_of_secrets_is_stored_as_data(client: Client) -> None:
    made = await client.create(SECRET, {"metadata": {"name": "s"}, "stringData": {"a": "b"}}, "default")
    assert made["data"] == {"a": "Yg=="} and "stringData" not in made


async def test_binding_sets_the_node_once(client: Client) -> None:
    await client.create(POD, pod("p"), "default")
    target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    await client.create(POD, target, "default", name="p", subresource="binding")
    bound = await client.get(POD, "p", "default")
    assert bound["spec"]["nodeName"] == "n1"
    assert [one["type"] for one in bound["status"]["conditions"]] == ["PodScheduled"]
    with pytest.raises(Conflict, match="already assigned to node"):
        await client.create(POD, target, "default", name="p", subresource="binding")


async def test_namespaces_come_with_the_cluster_and_stay(client: Client) -> None:
    names = [one["metadata"]["name"] for one in await client.list(NAMESPACE)]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    with pytest.raises(Forbidden, match="this namespace may not be deleted"):
        await client.delete(NAMESPACE, "default")


async def test_yaml_bodies_are_read(client: Client) -> None:
    answer = await client.request(
        "POST",
        "/api/v1/namespaces/default/configmaps",
        content_type="application/yaml",
        body=b"metadata: {name: y}\ndata:\n  when: 2001-12-14\n  'on': 'x'\n",
    )
    assert b'"when":"2001-12-14"' in answer.body


async def test_fields_given_twice_are_refused_when_strict_and_told_when_asked(client: Client) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"},"datta":{}}'
    maps = CONFIG_MAP.path("default")
    words = 'unknown field "datta", duplicate field "data.x"'
    with pytest.raises(BadRequest, match=f"strict decoding error: {words}"):
        await client.request("POST", maps, query={"fieldValidation": "Strict"}, body=body)
    warned = await client.request("POST", maps, query={"fieldValidation": "Warn", "dryRun": "All"}, body=body)
    assert warned.headers["warning"].count("299") == 2
    await client.request("POST", maps, body=body)
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"x": "2"}
    applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: '1'\n  x: '2'\n"
    with pytest.raises(BadRequest, match='line 6: key "x" already set in map'):
        await client.request(
            "PATCH",
            f"{maps}/a",
            query={"fieldValidation": "Strict", "fieldManager": "m"},
            content_type="application/apply-patch+yaml",
            body=applied,
        )


async def test_a_create_that_is_only_tried_can_be_shown_as_a_table(client: Client) -> None:
    shown = await client.request(
        "POST",
        CONFIG_MAP.path("default"),
        query={"dryRun": "All"},
        accept="application/json;as=Table;v=v1;g=meta.k8s.io",
        body=b'{"metadata":{"name":"tried"}}',
    )
    assert b'"kind":"Table"' in shown.body and b'"tried"' in shown.body


async def test_an_answer_without_an_object_has_one_form_only(client: Client) -> None:
    asked = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    head = await client.request("HEAD", CONFIG_MAP.path("default"), accept=asked)
    assert head.status == 200
    health = await client.request("GET", "/readyz", accept=asked)
    assert health.body == b"ok"
