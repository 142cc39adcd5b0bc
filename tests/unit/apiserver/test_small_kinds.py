"""Kinds that few write to, and corners of the verbs: what may change, what a selector may say, what old clients get."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists
from shoal.kube.transport import Request
from shoal.local.apiserver import Server
from tests.unit.apiserver.builders import config_map

CORE = "/api/v1/namespaces/default"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Caller:
    """Sends plain requests, and decodes the answers."""

    def __init__(self, server: Server) -> None:
        self._transport = server.transport()

    async def send(self, method: str, path: str, body: Any = None, media: str = "application/json") -> tuple[int, Any]:
        path, _, query = path.partition("?")
        asked = dict(word.partition("=")[::2] for word in query.split("&")) if query else {}
        headers = {"content-type": media, "accept": "application/json", "user-agent": "test/1"}
        encoded = b"" if body is None else msgspec.json.encode(body)
        request = Request(method=method, path=path, query=asked, headers=headers, body=encoded)
        answer = await self._transport.send(request, timeout=30)
        return answer.status, msgspec.json.decode(answer.body)

    async def fields(self, path: str, patch: Any, media: str = MERGE) -> list[str]:
        """Of a patch that must be refused: the fields at fault."""
        status, answer = await self.send("PATCH", path, patch, media)
        assert status == 422, answer
        return [cause["field"] for cause in answer["details"]["causes"]]


@pytest.fixture
def call(server: Server) -> Caller:
    return Caller(server)


async def test_a_claim_keeps_what_it_asked_for_until_it_is_bound(call: Caller) -> None:
    def asks(size: str) -> dict[str, Any]:
        return {"resources": {"requests": {"storage": size}}}

    one = f"{CORE}/persistentvolumeclaims/c"
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", **asks("2Gi")}
    body = {"metadata": {"name": "c"}, "spec": spec}
    assert (await call.send("POST", f"{CORE}/persistentvolumeclaims", body))[0] == 201
    assert await call.fields(one, {"spec": asks("3Gi")}) == ["spec"]
    assert (await call.send("PATCH", one, {"spec": {"volumeName": "v"}}, MERGE))[0] == 200
    assert await call.fields(one, {"spec": {"volumeName": "w"}}) == ["spec"]
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "2Gi"}}}
    assert (await call.send("PATCH", f"{one}/status", bound, MERGE))[0] == 200
    assert await call.fields(one, {"spec": {"accessModes": ["ReadWriteMany"]}}) == ["spec"]
    assert (await call.send("PATCH", one, {"spec": asks("4Gi")}, MERGE))[0] == 403  # no class says that it can grow
    grows = {"metadata": {"name": "s"}, "provisioner": "e.io/p", "allowVolumeExpansion": True}
    await call.send("POST", "/apis/storage.k8s.io/v1/storageclasses", grows)
    assert (await call.send("PATCH", one, {"spec": asks("4Gi")}, MERGE))[0] == 200
    assert (await call.send("PATCH", one, {"spec": asks("3Gi")}, MERGE))[0] == 200  # growing failed: less is still more
    assert await call.fields(one, {"spec": asks("1Gi")}) == ["spec.resources.requests.storage"]


async def test_a_storage_class_is_completed_and_fixed(call: Caller) -> None:
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    _, made = await call.send("POST", classes, {"metadata": {"name": "s"}, "provisioner": "e.io/p"})
    assert (made["reclaimPolicy"], made["volumeBindingMode"]) == ("Delete", "Immediate")
    assert await call.fields(f"{classes}/s", {"reclaimPolicy": "Retain"}) == ["reclaimPolicy"]
    assert await call.fields(f"{classes}/s", {"provisioner": "e.io/q", "parameters": {"a": "b"}}) == [
        "parameters",
        "provisioner",
    ]


async def test_only_a_load_balancer_has_addresses_outside(call: Caller) -> None:
    await call.send("POST", f"{CORE}/services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    outside = {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}
    assert await call.fields(f"{CORE}/services/s/status", outside) == ["status.loadBalancer.ingress"]
    await call.send("PATCH", f"{CORE}/services/s", {"spec": {"type": "LoadBalancer"}}, MERGE)
    assert (await call.send("PATCH", f"{CORE}/services/s/status", outside, MERGE))[0] == 200


async def test_a_namespace_keeps_its_label_when_its_status_is_put(call: Caller) -> None:
    status, found = await call.send(
        "PUT", "/api/v1/namespaces/default/status", {"metadata": {"name": "default"}, "status": {"phase": "Active"}}
    )
    assert status == 200 and found["metadata"]["labels"] == {"kubernetes.io/metadata.name": "default"}


async def test_a_pod_can_be_replaced_by_its_manifest(call: Caller) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    _, made = await call.send("POST", f"{CORE}/pods", body)
    body["spec"] |= {"serviceAccountName": made["spec"]["serviceAccountName"]}
    body["metadata"]["labels"] = {"a": "b"}
    status, found = await call.send("PUT", f"{CORE}/pods/p", body)
    assert status == 200, found
    assert found["spec"]["tolerations"] == made["spec"]["tolerations"] and found["metadata"]["labels"] == {"a": "b"}


async def test_a_foreground_deletion_adds_nothing_to_an_event(call: Caller) -> None:
    body = {"metadata": {"name": "e", "finalizers": ["e.io/f"]}, "involvedObject": {"namespace": "default"}}
    await call.send("POST", f"{CORE}/events", body)
    _, left = await call.send("DELETE", f"{CORE}/events/e?propagationPolicy=Foreground")
    assert left["metadata"]["finalizers"] == ["e.io/f"]


@pytest.mark.parametrize(
    "fields, words",
    [
        (r"metadata.name=a\1", r"invalid escape sequence: \1"),
        ("metadata.name=a=b", "unescaped character in value: 61"),
        ("metadata.name=a\\", "invalid escape sequence"),
    ],
)
async def test_a_field_selector_is_read_to_the_letter(server: Server, fields: str, words: str) -> None:
    request = Request(method="GET", path=f"{CORE}/configmaps", query={"fieldSelector": fields})
    answer = await server.transport().send(request)
    assert answer.status == 400 and words in msgspec.json.decode(answer.body)["message"]


async def test_a_page_of_an_old_revision_shows_that_revision(client: Client, call: Caller) -> None:
    first = await client.create(CONFIG_MAP, config_map("a"), "default")
    await client.create(CONFIG_MAP, config_map("b"), "default")
    revision = first["metadata"]["resourceVersion"]
    _, page = await call.send("GET", f"{CORE}/configmaps?limit=10&resourceVersion={revision}")
    assert [one["metadata"]["name"] for one in page["items"]] == ["a"]
    for name in "0123":
        await client.create(CONFIG_MAP, config_map(name), "default")
    exact = f"{CORE}/configmaps?limit=1&resourceVersionMatch=Exact&resourceVersion={int(revision) + 1}"
    _, page = await call.send("GET", exact)
    _, rest = await call.send("GET", f"{CORE}/configmaps?limit=9&continue={page['metadata']['continue']}")
    assert [one["metadata"]["name"] for one in page["items"] + rest["items"]] == ["a", "b"]
    _, newest = await call.send("GET", f"{CORE}/configmaps?resourceVersion={revision}")
    assert [one["metadata"]["name"] for one in newest["items"]] == [*"0123ab"]


async def test_a_strategic_patch_cannot_make_another_kind_of_it(client: Client, call: Caller) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default")
    for patch in ({"kind": "Secret", "data": {"x": "1"}}, {"apiVersion": None, "data": {"x": "2"}}):
        status, found = await call.send("PATCH", f"{CORE}/configmaps/a", patch, STRATEGIC)
        assert status == 200 and (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")
    assert await call.fields(f"{CORE}/configmaps/a", {"kind": "Secret"}) == ["patch"]


async def test_fields_given_twice_in_a_patch_are_named(client: Client, server: Server) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default")
    body, headers = b'{"data":{"x":"1","x":"2"}}', {"content-type": MERGE}
    for asked, status in (("Strict", 422), ("Warn", 200)):
        query = {"fieldValidation": asked}
        request = Request(method="PATCH", path=f"{CORE}/configmaps/a", query=query, headers=headers, body=body)
        answer = await server.transport().send(request)
        assert answer.status == status
        told = answer.body.decode() if status == 422 else answer.headers["warning"]
        assert 'duplicate field \\"data.x\\"' in told


async def test_names_that_cannot_be_made_are_refused_with_a_pause() -> None:
    class Stuck(random.Random):
        def choice(self, seq: Any) -> Any:
            return seq[0]

    server = Server(None, chance=Stuck(1))
    await server.start()
    try:
        client = Client(server.transport())
        await client.create(CONFIG_MAP, {"metadata": {"generateName": "run-"}}, "default")
        with pytest.raises(AlreadyExists, match="not able to generate a unique name") as caught:
            await client.create(CONFIG_MAP, {"metadata": {"generateName": "run-"}}, "default")
        assert caught.value.status["details"]["retryAfterSeconds"] == 1
    finally:
        await server.stop()
