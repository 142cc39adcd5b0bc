"""Every operation of the client against a real API server."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import aclosing
from pathlib import Path

import pytest

from shoal.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP, EVENT, NAMESPACE, POD, SERVICE_ACCOUNT
from shoal.api.meta import Object
from shoal.kube.certificates import make_authority
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unsent
from shoal.kube.events import Recorder
from shoal.kube.http import HttpTransport
from shoal.kube.kubeconfig import load, resolve, tls_context
from tests.controlplane.plane import ControlPlane

from .conftest import WIDGET, config_map, install

pytestmark = pytest.mark.controlplane


async def test_create_get_list_update_delete(client: Client) -> None:
    made = await client.create(CONFIG_MAP, config_map("verbs", n="1"), "default")
    assert (await client.get(CONFIG_MAP, "verbs", "default"))["data"] == {"n": "1"}
    typed = await client.get(CONFIG_MAP, "verbs", "default", type=Object)
    assert typed.metadata.uid == made["metadata"]["uid"]
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAP, config_map("verbs"), "default")
    made["data"] = {"n": "2"}
    changed = await client.update(CONFIG_MAP, made, "verbs", "default")
    with pytest.raises(Conflict):
        await client.update(CONFIG_MAP, made, "verbs", "default")
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAP, "verbs", "default", uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        old = made["metadata"]["resourceVersion"]
        await client.delete(CONFIG_MAP, "verbs", "default", resource_version=old)
    await client.delete(CONFIG_MAP, "verbs", "default", uid=changed["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "verbs", "default")


async def test_the_four_patches_and_dry_run(client: Client) -> None:
    await client.create(CONFIG_MAP, config_map("patched", a="1"), "default")
    merged = await client.patch(CONFIG_MAP, "patched", "default", {"data": {"b": "2"}})
    assert merged["data"] == {"a": "1", "b": "2"}
    steps = [{"op": "remove", "path": "/data/a"}]
    assert (await client.patch(CONFIG_MAP, "patched", "default", steps, patch_type="json"))["data"] == {"b": "2"}
    strategic = {"metadata": {"labels": {"x": "y"}}}
    found = await client.patch(CONFIG_MAP, "patched", "default", strategic, patch_type="strategic")
    assert found["metadata"]["labels"] == {"x": "y"}
    applied = await client.patch(
        CONFIG_MAP, "patched", "default", config_map("patched", b="3"), patch_type="apply", force=True
    )
    assert applied["data"] == {"b": "3"}
    tried = await client.patch(CONFIG_MAP, "patched", "default", {"data": {"b": "4"}}, dry_run=True)
    assert tried["data"] == {"b": "4"}
    assert (await client.get(CONFIG_MAP, "patched", "default"))["data"] == {"b": "3"}


async def test_status_is_written_apart(client: Client) -> None:
    await install(client)
    body = {"apiVersion": "example.test/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"n": 1}}
    await client.create(WIDGET, body, "default")
    patched = await client.patch(WIDGET, "w", "default", {"status": {"ready": True}}, subresource="status")
    assert patched["status"] == {"ready": True} and patched["metadata"]["generation"] == 1
    kinds = Discovery(client)
    assert await kinds.kind_of("example.test/v1", "Widget") == WIDGET
    assert await kinds.kind_of("example.test/v2", "Widget") is None


async def test_lists_page_and_select(client: Client) -> None:
    for number in range(7):
        body = config_map(f"page{number}")
        body["metadata"]["labels"] = {"page": "yes", "odd": str(number % 2)}
        await client.create(CONFIG_MAP, body, "default")
    page = await client.list_raw(CONFIG_MAP, "default", label_selector="page=yes", limit=3)
    assert len(page.items or []) == 3 and page.metadata.continue_
    assert len(await client.list(CONFIG_MAP, "default", label_selector="page=yes,odd in (1)")) == 3
    assert len(await client.list(CONFIG_MAP, field_selector="metadata.name=page1")) == 1
    slim = await client.list_raw(CONFIG_MAP, "default", label_selector="page=yes", metadata_only=True)
    assert b'"data"' not in bytes((slim.items or [])[0])


async def test_watching_from_a_revision_and_with_initial_events(client: Client) -> None:
    before = (await client.list_raw(CONFIG_MAP, "default")).metadata.resource_version
    await client.create(CONFIG_MAP, config_map("watched"), "default")
    await client.delete(CONFIG_MAP, "watched", "default")
    seen = []
    async with aclosing(client.watch(CONFIG_MAP, "default", resource_version=before)) as events:
        async for event in events:
            seen += [event.type] if event.type != "BOOKMARK" else []
            if event.type == "DELETED":
                break
    assert seen == ["ADDED", "DELETED"]
    async with aclosing(client.watch(CONFIG_MAP, "default", send_initial_events=True)) as events:
        async for event in events:
            if event.type == "BOOKMARK":
                assert b"initial-events-end" in bytes(event.object)
                break


async def test_typed_refusals(client: Client) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(POD, {"metadata": {"name": "empty"}, "spec": {"containers": []}}, "default")
    assert refused.value.causes[0]["field"] == "spec.containers"
    with pytest.raises(NotFound):
        await client.get(WIDGET, "none", "default")


async def test_acting_as_someone_else(client: Client) -> None:
    await client.create(
        CLUSTER_ROLE,
        {
            "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
        },
    )
    await client.create(
        CLUSTER_ROLE_BINDING,
        {
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "readers"}],
        },
    )
    ann = client.impersonating("ann", ("readers", "others"))
    async with asyncio.timeout(60):
        while True:
            try:
                await ann.list(CONFIG_MAP)
                break
            except Forbidden:  # the authorizer learns of the role by its own watch
                await asyncio.sleep(0.05)
    with pytest.raises(Forbidden, match='User "ann" cannot list resource "pods"'):
        await ann.list(POD)


async def test_a_token_of_a_service_account(client: Client, control_plane: ControlPlane) -> None:
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}}, "default")
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    made = await client.create(SERVICE_ACCOUNT, asked, "default", name="robot", subresource="token")

    async def token() -> str:
        return str(made["status"]["token"])

    target = resolve(control_plane.kubeconfig)
    tls = ssl.create_default_context(cafile=str(target.cluster_directory / target.cluster.certificate_authority))
    robot = HttpTransport(control_plane.server, tls=tls, token=token)
    with pytest.raises(Forbidden, match="system:serviceaccount:default:robot"):
        await Client(robot).list(POD)
    await robot.close()
    assert tls_context(target) is not None


async def test_events_arrive_and_are_counted(client: Client) -> None:
    about = await client.create(CONFIG_MAP, config_map("eventful"), "default")
    recorder = Recorder(client, "shoal")
    for _ in range(3):
        recorder.event(about, "Warning", "Held", "no room")
    await recorder.flush()
    found = await client.list(EVENT, "default", field_selector="involvedObject.name=eventful")
    assert [(event["reason"], event["count"]) for event in found] == [("Held", 3)]
    await recorder.close()
    again = Recorder(client, "shoal")  # as after a restart
    again.event(about, "Warning", "Held", "no room")
    await again.flush()
    found = await client.list(EVENT, "default", field_selector="involvedObject.name=eventful")
    assert [(event["reason"], event["count"]) for event in found] == [("Held", 4)]
    await again.close()


async def test_a_certificate_of_a_stranger_is_named(control_plane: ControlPlane, tmp_path: Path) -> None:
    text = control_plane.kubeconfig.read_text()
    other = tmp_path / "other.crt"
    other.write_bytes(make_authority().certificate)
    trusting = tmp_path / "kubeconfig"
    target = resolve(control_plane.kubeconfig)
    trusting.write_text(text.replace(target.cluster.certificate_authority, str(other)))
    transport = load(trusting)
    with pytest.raises(Unsent, match=r"certificate of https://127.0.0.1:\d+ is not accepted"):
        await Client(transport).list(CONFIG_MAP)
    await transport.close()


async def test_an_exec_plugin_that_gives_a_certificate_gets_in(control_plane: ControlPlane, tmp_path: Path) -> None:
    target = resolve(control_plane.kubeconfig)
    status = {
        "clientCertificateData": (target.user_directory / target.user.client_certificate).read_text(),
        "clientKeyData": (target.user_directory / target.user.client_key).read_text(),
    }
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    (tmp_path / "credential").write_text(json.dumps(credential))
    whole = json.loads(control_plane.kubeconfig.read_text())
    whole["users"][0]["user"] = {"exec": {"command": "cat", "args": [str(tmp_path / "credential")]}}
    (tmp_path / "kubeconfig").write_text(json.dumps(whole))
    transport = load(tmp_path / "kubeconfig")
    found = await Client(transport).get(NAMESPACE, "default")
    assert found["status"]["phase"] == "Active"
    await transport.close()
