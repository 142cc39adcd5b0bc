"""What a right reaches: one namespace, one subresource, one verb, and never more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api.kinds import (
    CLUSTER_ROLE,
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    MUTATING_WEBHOOK,
    NAMESPACE,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    VALIDATING_WEBHOOK,
)
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from shoal.local.apiserver.admission.plugins import AdmissionPlugins
from shoal.local.apiserver.auth import gate
from shoal.local.apiserver.auth.authorization import Authorizer
from shoal.local.apiserver.crd.serving import CustomKinds
from shoal.local.apiserver.kinds import strategy
from tests.faults import proven
from tests.unit.apiserver.builders import config_map, pod
from tests.unit.apiserver.test_access import RBAC, grant
from tests.unit.apiserver.test_webhooks import Hook, hook, patching

__all__ = ["hook"]
EVERY = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


async def ask(
    server: Server, user: str, method: str, path: str, body: Any = None, content: str = "application/json", **query: str
) -> tuple[int, Json]:
    """A request as a user who is in no group."""
    encoded = b"" if body is None else msgspec.json.encode(body)
    request = Request(method=method, path=path, query=query, headers={"content-type": content}, body=encoded)
    answer = await server.transport(user=user, groups=()).send(request)
    assert isinstance(answer, Response)
    return answer.status, msgspec.json.decode(answer.body) if answer.body.startswith(b"{") else {}


# --- one namespace


@proven(without=lambda patch: patch.setattr(gate, "_check_scope", lambda call: None))
async def test_f180_a_right_in_one_namespace_reaches_no_namespace_object(server: Server, client: Client) -> None:
    """F180: a Role in one namespace allows `namespaces`; the user asks for them below that namespace's path. Holds: not
    found, whatever the verb; nothing is listed, made, changed or deleted."""
    for name in ("red", "blue"):
        await client.create(NAMESPACE, {"metadata": {"name": name}})
    await grant(client, "mallory", EVERY, ["namespaces", "namespaces/status", "namespaces/finalize", "nodes"], "red")
    label = {"metadata": {"labels": {"by": "mallory"}}}
    blue = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "blue"}}
    below = "/api/v1/namespaces/red/namespaces"
    for method, path, body, content in (
        ("GET", below, None, ""),
        ("GET", f"{below}/blue", None, ""),
        ("GET", f"{below}/red", None, ""),
        ("GET", f"{below}/blue/status", None, ""),
        ("POST", below, {**blue, "metadata": {"name": "green"}}, "application/json"),
        ("PUT", f"{below}/blue", blue, "application/json"),
        ("PATCH", f"{below}/blue", label, MERGE),
        ("PATCH", f"{below}/blue/status", label, MERGE),
        ("PUT", f"{below}/blue/finalize", blue, "application/json"),
        ("DELETE", f"{below}/blue", None, ""),
        ("DELETE", below, None, ""),
        ("GET", "/api/v1/watch/namespaces/red/namespaces/blue", None, ""),
        ("GET", "/api/v1/namespaces/red/nodes", None, ""),
        ("DELETE", "/api/v1/namespaces/red/nodes", None, ""),
    ):
        status, _ = await ask(server, "mallory", method, path, body, content)
        assert status == 404, (method, path)
    assert (await ask(server, "mallory", "GET", "/api/v1/namespaces/red"))[0] == 200
    for method, path in (("GET", "blue"), ("DELETE", "blue"), ("GET", "")):
        assert (await ask(server, "mallory", method, f"/api/v1/namespaces/{path}"))[0] == 403
    found = await client.get(NAMESPACE, "blue")
    assert "by" not in found["metadata"]["labels"] and "deletionTimestamp" not in found["metadata"]
    with pytest.raises(NotFound):
        await client.get(NAMESPACE, "green")


async def test_a_custom_kind_called_namespaces_is_reached_no_other_way(server: Server, client: Client) -> None:
    names = {"plural": "namespaces", "singular": "namespace", "kind": "Namespace"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    await client.create(
        CRD,
        {
            "metadata": {"name": "namespaces.example.com"},
            "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]},
        },
    )
    await grant(client, "mallory", EVERY, ["namespaces"], "default", "example.com")
    base = "/apis/example.com/v1/namespaces"
    body = {"apiVersion": "example.com/v1", "kind": "Namespace", "metadata": {"name": "blue"}}
    assert (await ask(server, "mallory", "POST", f"{base}/default/namespaces", body))[0] == 404
    assert (await ask(server, "mallory", "GET", f"{base}/default/namespaces"))[0] == 404
    assert (await ask(server, "mallory", "POST", base, body))[0] == 403


# --- one subresource


def _any_verb(patch: pytest.MonkeyPatch) -> None:
    every = ("list", "watch", "deletecollection", *EVERY)
    patch.setattr(gate, "SUBRESOURCE_VERBS", dict.fromkeys(gate.SUBRESOURCE_VERBS, every))
    patch.setattr("shoal.local.apiserver.auth.gate.bad_request", lambda words: gate.page_not_found())


@proven(without=_any_verb)
async def test_f181_a_subresource_is_no_way_to_the_whole_object(server: Server, client: Client) -> None:
    """F181: a user may do everything with `pods/status` and its kin, and nothing with pods. Holds: each subresource has
    its verbs and all others are refused: no pod is created, listed or deleted through one."""
    await client.create(POD, pod("victim"), "default")
    parts = ["status", "ephemeralcontainers", "resize", "binding", "eviction", "log", "exec", "attach", "portforward"]
    await grant(client, "eve", EVERY, [f"pods/{part}" for part in parts])
    hostile = {"apiVersion": "v1", "kind": "Pod", **pod("hostile", hostNetwork=True)}
    pods = "/api/v1/namespaces/default/pods"
    for part in parts:
        tries = [("POST", "hostile", hostile), ("DELETE", "victim", None), ("DELETE", "", None), ("GET", "", None),
                 ("PUT", "", hostile), ("PUT", "hostile", hostile)]  # fmt: skip
        for method, name, body in tries:
            status, answer = await ask(server, "eve", method, f"{pods}/{name}/{part}", body)
            assert 400 <= status < 500, (method, name, part, status)
            assert "items" not in answer
        status, _ = await ask(server, "eve", "PATCH", f"{pods}/hostile/{part}", hostile, APPLY, fieldManager="eve")
        assert status in (404, 405), part
        assert (await ask(server, "eve", "GET", f"{pods}/victim/{part}/more"))[0] == 404
        assert (await ask(server, "eve", "GET", f"/api/v1/watch/namespaces/default/pods/victim/{part}"))[0] == 404
    assert [one["metadata"]["name"] for one in await client.list(POD, "default")] == ["victim"]
    assert "deletionTimestamp" not in (await client.get(POD, "victim", "default"))["metadata"]
    for part in ("status", "ephemeralcontainers", "resize"):
        assert (await ask(server, "eve", "GET", f"{pods}/victim/{part}"))[0] == 200


def _whole_object(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(strategy, "_containers_only", lambda new, old, subresource: new)


@proven(without=_whole_object)
async def test_f182_a_write_to_a_subresource_changes_its_part_alone(server: Server, client: Client) -> None:
    """F182: through `pods/ephemeralcontainers` or `pods/resize` comes a change of the whole pod. Holds: the debugger or
    the resources are changed, everything else stays."""
    before = await client.create(POD, pod("p", requests={"cpu": "1", "memory": "1Gi"}), "default")
    hostile = {
        "metadata": {"labels": {"by": "eve"}, "annotations": {"by": "eve"}, "finalizers": ["example.com/eve"]},
        "status": {"phase": "Failed"},
        "spec": {
            "activeDeadlineSeconds": 1,
            "nodeName": "elsewhere",
            "containers": [
                {
                    "name": "main",
                    "image": "evil",
                    "command": ["sh"],
                    "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
                }
            ],
            "ephemeralContainers": [{"name": "debugger", "image": "sh"}],
        },
    }
    path = "/api/v1/namespaces/default/pods/p"
    await grant(client, "eve", ["patch"], ["pods/ephemeralcontainers", "pods/resize"])
    assert (await ask(server, "eve", "PATCH", f"{path}/resize", hostile, MERGE))[0] == 200
    after = await client.get(POD, "p", "default")
    container = after["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "2"
    assert (await ask(server, "eve", "PATCH", f"{path}/ephemeralcontainers", hostile, MERGE))[0] == 200
    after = await client.get(POD, "p", "default")
    assert [one["name"] for one in after["spec"]["ephemeralContainers"]] == ["debugger"]
    del after["spec"]["ephemeralContainers"]
    after["spec"]["containers"][0]["resources"] = before["spec"]["containers"][0]["resources"]
    assert after["spec"] == before["spec"] and after["status"] == before["status"]
    assert not {"labels", "annotations", "finalizers"} & set(after["metadata"])
    smaller = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    assert (await ask(server, "eve", "PATCH", f"{path}/resize", smaller, MERGE))[0] == 422  # another class of service
    gone: Json = {"spec": {"ephemeralContainers": None}}
    assert (await ask(server, "eve", "PATCH", f"{path}/ephemeralcontainers", gone, MERGE))[0] == 422


async def test_a_pod_is_not_created_with_debuggers(server: Server, client: Client) -> None:
    body = pod("p", ephemeralContainers=[{"name": "e", "image": "i"}])
    request = Request(method="POST", path="/api/v1/namespaces/default/pods", body=msgspec.json.encode(body))
    refused = await server.transport().send(request)
    assert refused.status == 422 and b"spec.ephemeralContainers" in refused.body


def _unasked(patch: pytest.MonkeyPatch) -> None:
    async def unseen(self: AdmissionPlugins, call: Any, part: Json) -> Json:
        call.asked = True
        return part

    patch.setattr(AdmissionPlugins, "admit_part", unseen)
    patch.setattr(AdmissionPlugins, "_changed", unseen)


@proven(without=_unasked)
async def test_f183_admission_sees_every_write_to_a_subresource_in_its_own_kind(
    server: Server, client: Client, hook: Hook
) -> None:
    """F183: a pod is bound or evicted, a token asked for, a Deployment scaled. Holds: webhooks for that subresource see
    what was sent, and a refusal is one."""
    await client.create(POD, pod("p"), "default")
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "bot"}}, "default")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await client.create(DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec}, "default")
    parts = ("pods/*", "serviceaccounts/*", "deployments/*")
    await client.create(VALIDATING_WEBHOOK, hook.configuration(group="*", resources=parts))
    hook.answer = lambda request: {"allowed": False, "status": {"message": "not this one"}}
    core, apps = "/api/v1/namespaces/default", "/apis/apps/v1/namespaces/default"
    scale = {"spec": {"replicas": 5}}
    for method, path, body, content, kind in (
        ("POST", f"{core}/pods/p/binding", {"target": {"name": "node"}}, "application/json", "Binding"),
        ("POST", f"{core}/bindings", {"metadata": {"name": "p"}, "target": {"name": "node"}}, "", "Binding"),
        ("POST", f"{core}/pods/p/eviction", {"metadata": {"name": "p"}}, "application/json", "Eviction"),
        ("POST", f"{core}/serviceaccounts/bot/token", {}, "application/json", "TokenRequest"),
        ("PATCH", f"{apps}/deployments/web/scale", scale, MERGE, "Scale"),
        ("PATCH", f"{core}/pods/p/status", {"status": {"message": "x"}}, MERGE, "Pod"),
        ("PATCH", f"{core}/pods/p/ephemeralcontainers", {"spec": {}, "metadata": {}}, MERGE, "Pod"),
    ):
        request = Request(method=method, path=path, headers={"content-type": content}, body=msgspec.json.encode(body))
        answer = await server.transport().send(request)
        assert answer.status == 403 and b"not this one" in answer.body, (path, answer.body)
        asked = hook.asked.pop()
        assert asked["kind"]["kind"] == kind
        assert asked["subResource"] == ("binding" if path.endswith("/bindings") else path.rpartition("/")[2])
        assert asked["operation"] == ("CREATE" if method == "POST" else "UPDATE")
        hook.asked.clear()
    assert "nodeName" not in (await client.get(POD, "p", "default"))["spec"]
    assert (await client.get(DEPLOYMENT, "web", "default"))["spec"]["replicas"] == 1


async def test_a_webhook_may_change_a_scale(server: Server, client: Client, hook: Hook) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await client.create(DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec}, "default")
    await client.create(MUTATING_WEBHOOK, hook.configuration(group="apps", resources=("deployments/scale",)))
    hook.answer = patching({"op": "replace", "path": "/spec/replicas", "value": 2})
    path = "/apis/apps/v1/namespaces/default/deployments/web/scale"
    body = msgspec.json.encode({"spec": {"replicas": 9}})
    answer = await server.transport().send(
        Request(method="PATCH", path=path, headers={"content-type": MERGE}, body=body)
    )
    assert answer.status == 200 and msgspec.json.decode(answer.body)["spec"]["replicas"] == 2
    asked = hook.asked[0]
    assert asked["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert (asked["object"]["spec"]["replicas"], asked["oldObject"]["spec"]["replicas"]) == (9, 1)


# --- one verb


@proven(without=lambda patch: patch.setattr(gate, "require_create", lambda authorizer, call: None))
async def test_f184_what_creates_needs_the_right_to_create(server: Server, client: Client) -> None:
    """F184: a user who may patch and update applies an object that is not there, or puts one. Holds: refused without
    `create`, by apply and PUT alike; nothing is stored."""
    await grant(client, "pat", ["get", "patch", "update"], ["configmaps", "limitranges", "endpoints"])
    await grant(client, "pat", ["patch", "update"], ["leases"], group="coordination.k8s.io")
    await grant(client, "pat", ["update", "patch"], ["roles", "rolebindings"], group=RBAC)
    base = "/api/v1/namespaces/default"
    body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("new")}
    for more in ({}, {"dryRun": "All"}):
        status, answer = await ask(
            server, "pat", "PATCH", f"{base}/configmaps/new", body, APPLY, fieldManager="pat", **more
        )
        assert status == 403 and "cannot create resource" in answer["message"]
    for path, kind, version in (
        (f"{base}/limitranges/new", "LimitRange", "v1"),
        (f"{base}/endpoints/new", "Endpoints", "v1"),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases/new", "Lease", "coordination.k8s.io/v1"),
        (f"/apis/{RBAC}/v1/namespaces/default/roles/new", "Role", f"{RBAC}/v1"),
    ):
        put = {"apiVersion": version, "kind": kind, "metadata": {"name": "new"}}
        assert (await ask(server, "pat", "PUT", path, put))[0] == 403, path
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "new", "default")
    await client.create(CONFIG_MAP, config_map("new"), "default")
    assert (await ask(server, "pat", "PATCH", f"{base}/configmaps/new", body, APPLY, fieldManager="pat"))[0] == 200


def _binding(role: str, user: str = "bob", kind: str = "Role") -> Json:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "later"},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
    }


def _absent_grants_nothing(patch: pytest.MonkeyPatch) -> None:
    found = Authorizer.rules_of
    patch.setattr(Authorizer, "rules_of", lambda self, *where: found(self, *where) or ())


@proven(without=_absent_grants_nothing)
async def test_f185_a_role_that_does_not_exist_is_bound_only_by_those_who_may_bind(
    server: Server, client: Client
) -> None:
    """F185: a user who may write bindings binds a role that is not there, and waits for someone to create it. Holds:
    not found, unless the user holds `bind` for that role."""
    await grant(client, "bob", ["create", "update", "patch", "get"], ["rolebindings"], group=RBAC)
    bindings = f"/apis/{RBAC}/v1/namespaces/default/rolebindings"
    for kind in ("Role", "ClusterRole"):
        assert (await ask(server, "bob", "POST", bindings, _binding("soon", kind=kind)))[0] == 404
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]
    await client.create(ROLE, {"metadata": {"name": "soon"}, "rules": rules}, "default")
    assert (await ask(server, "bob", "GET", "/api/v1/namespaces/default/secrets/x"))[0] == 403
    rule = {"verbs": ["bind"], "apiGroups": [RBAC], "resources": ["roles"], "resourceNames": ["allowed"]}
    await client.create(ROLE, {"metadata": {"name": "binder"}, "rules": [rule]}, "default")
    await client.create(ROLE_BINDING, {**_binding("binder"), "metadata": {"name": "binder"}}, "default")
    assert (await ask(server, "bob", "POST", bindings, _binding("other")))[0] == 404
    assert (await ask(server, "bob", "POST", bindings, _binding("allowed")))[0] == 201


async def test_a_star_is_a_user_of_that_name_and_no_other(server: Server, client: Client) -> None:
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]
    await client.create(ROLE, {"metadata": {"name": "r"}, "rules": rules}, "default")
    await client.create(ROLE_BINDING, _binding("r", user="*"), "default")
    assert (await ask(server, "anyone", "GET", "/api/v1/namespaces/default/configmaps/x"))[0] == 403


async def test_a_rule_for_named_objects_covers_no_rule_for_all(server: Server, client: Client) -> None:
    held = {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": [""]}
    await client.create(ROLE, {"metadata": {"name": "named"}, "rules": [held]}, "default")
    await client.create(ROLE_BINDING, {**_binding("named"), "metadata": {"name": "named"}}, "default")
    await grant(client, "bob", ["create"], ["roles"], group=RBAC)
    wanted = {"metadata": {"name": "all"}, "rules": [{key: held[key] for key in ("verbs", "apiGroups", "resources")}]}
    status, answer = await ask(server, "bob", "POST", f"/apis/{RBAC}/v1/namespaces/default/roles", wanted)
    assert status == 403 and "not currently held" in answer["message"]


# --- names of kinds


def _takes_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CustomKinds, "_built_in", lambda self, spec: None)


def _definition(group: str, plural: str, kind: str, **more: Any) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version], **more},
    }


@proven(without=_takes_over)
async def test_f186_a_definition_cannot_take_the_place_of_a_built_in_kind(server: Server, client: Client) -> None:
    """F186: a CRD has the name of a built-in resource, such as roles. Holds: its names are not accepted, the built-in
    kind stays with its rules, and the definition goes without taking its objects along."""
    await grant(client, "bob", ["create"], ["roles"], group=RBAC)
    for plural, kind in (("roles", "Role"), ("roles", "Innocent"), ("clusterroles", "ClusterRole")):
        made = await client.create(CRD, _definition(RBAC, plural, kind))
        conditions = {one["type"]: one["status"] for one in made["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "False", "Established": "False"}
        more = {"metadata": {"name": "more"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}
        assert (await ask(server, "bob", "POST", f"/apis/{RBAC}/v1/namespaces/default/roles", more))[0] == 403
        await client.delete(CRD, f"{plural}.{RBAC}")
        await server.custom_kinds.settled()
        with pytest.raises(NotFound):
            await client.get(CRD, f"{plural}.{RBAC}")
        assert await client.get(ROLE, f"bob-create.{RBAC}", "default")
        assert await client.get(CLUSTER_ROLE, "view")


async def test_a_custom_kind_in_that_group_is_no_role(server: Server, client: Client) -> None:
    """Escalation is judged by the resource: a kind that is only called so grants nothing and is asked nothing."""
    made = await client.create(CRD, _definition(RBAC, "rolez", "Rolez"))
    assert made["status"]["conditions"][1]["status"] == "True"
    await grant(client, "bob", ["create"], ["rolez"], group=RBAC)
    body = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Rolez",
        "metadata": {"name": "x"},
        "roleRef": {"kind": "Role", "name": "n"},
    }
    assert (await ask(server, "bob", "POST", f"/apis/{RBAC}/v1/namespaces/default/rolez", body))[0] == 201
    assert (await client.create(CRD, _definition(RBAC, "troles", "Role")))["status"]["conditions"][1][
        "status"
    ] == "False"


# --- tokens


def _any_type(patch: pytest.MonkeyPatch) -> None:
    for module in ("auth.tokens", "verbs.subresources"):
        patch.setattr(f"shoal.local.apiserver.{module}.request_spec", lambda wanted: wanted.get("spec") or {})


@proven(without=_any_type)
async def test_f195_a_token_request_of_the_wrong_types_is_refused(server: Server, client: Client) -> None:
    """F195: a TokenRequest has audiences that are no strings. Holds: 400; no token is signed that the server cannot
    read again."""
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "bot"}}, "default")
    path = "/api/v1/namespaces/default/serviceaccounts/bot/token"
    for spec in (
        {"audiences": [1]}, {"audiences": [None]}, {"audiences": [{"a": 1}]}, {"audiences": [["x"]]},
        {"audiences": "x"}, {"audiences": {}}, {"expirationSeconds": "600"}, {"expirationSeconds": 900.5},
        {"boundObjectRef": []}, {"boundObjectRef": {"kind": "Pod", "name": ["x"]}}, {"boundObjectRef": {"kind": 1}},
    ):  # fmt: skip
        body = msgspec.json.encode({"spec": spec})
        request = Request(method="POST", path=path, headers={"content-type": "application/json"}, body=body)
        answer = await server.transport().send(request)
        assert answer.status == 400, (spec, answer.body)
    body = msgspec.json.encode({"spec": {"audiences": ["x"]}})
    answer = await server.transport().send(Request(method="POST", path=path, body=body))
    token = msgspec.json.decode(answer.body)["status"]["token"]
    assert server.tokens.authenticate(token) is None and server.tokens.authenticate(token, ["x"]) is not None
