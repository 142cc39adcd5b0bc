"""What a right reaches and what it does not: one namespace, one subresource, one verb; as users who hold little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import (
    APPLY,
    JSON_PATCH,
    MERGE,
    NS,
    Step,
    cm,
    delete,
    get,
    patch,
    pod,
    post,
    put,
    template,
)

RBAC = "rbac.authorization.k8s.io"
ROLES = f"/apis/{RBAC}/v1"


def role(name: str, *rules: tuple[list[str], str, list[str]]) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": [{"verbs": verbs, "apiGroups": [group], "resources": resources} for verbs, group, resources in rules],
    }


def binding(name: str, kind: str, to: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": to},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
    }


def granted(user: str, seen: str, *rules: tuple[list[str], str, list[str]]) -> Iterator[Step]:
    """Rights in namespace `diff`; `seen` is a path that shows when they hold."""
    yield post(f"{ROLES}/namespaces/diff/roles", role(user, *rules))
    yield post(f"{ROLES}/namespaces/diff/rolebindings", binding(user, "Role", user, user))
    yield Step("WAIT", seen, headers={"Impersonate-User": user})


def namespaces() -> Iterator[Step]:
    """A Role in one namespace says nothing of others."""
    mallory = {"Impersonate-User": "mallory"}
    every = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
    yield from granted("mallory", NS, (every, "", ["namespaces", "nodes", "namespaces/status", "namespaces/finalize"]))
    label = {"metadata": {"labels": {"by": "mallory"}}}
    blue = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "blue"}}
    yield post("/api/v1/namespaces", blue)
    for headers in (mallory, {}):
        yield from (
            get("/api/v1/namespaces", headers=headers),
            get(f"{NS}/namespaces", headers=headers),
            get(f"{NS}/namespaces?watch=1&timeoutSeconds=1", headers=headers),
            get(f"{NS}/namespaces/diff", headers=headers),
            get(f"{NS}/namespaces/blue", headers=headers),
            get(f"{NS}/namespaces/blue/status", headers=headers),
            post(f"{NS}/namespaces", {**blue, "metadata": {"name": "green"}}, headers=headers),
            patch(f"{NS}/namespaces/blue", label, headers=headers),
            put(f"{NS}/namespaces/blue", blue, headers=headers),
            patch(f"{NS}/namespaces/blue/status", label, headers=headers),
            put(f"{NS}/namespaces/blue/finalize", blue, headers=headers),
            delete(f"{NS}/namespaces/blue", headers=headers),
            delete(f"{NS}/namespaces", headers=headers),
            get(f"{NS}/nodes", headers=headers),
            delete(f"{NS}/nodes", headers=headers),
            get(f"{NS}/nodes/x", headers=headers),
            get("/api/v1/watch/namespaces/diff/namespaces/blue?timeoutSeconds=1", headers=headers),
            get(f"{ROLES}/namespaces/diff/clusterroles", headers=headers),
            get(f"{ROLES}/namespaces/diff/clusterroles/view", headers=headers),
            get(f"{NS}/status/x", headers=headers),
            get(f"{NS}/finalize/x", headers=headers),
        )
    yield from (
        get(NS, headers=mallory),
        patch(NS, label, headers=mallory),
        get("/api/v1/namespaces/blue", headers=mallory),
        patch("/api/v1/namespaces/blue", label, headers=mallory),
        delete("/api/v1/namespaces/blue", headers=mallory),
        delete("/api/v1/namespaces", headers=mallory),
        get("/api/v1/namespaces?fieldSelector=metadata.name=diff", headers=mallory),
        get("/api/v1/namespaces/blue"),
        get("/api/v1/namespaces/green"),
    )


def subresources() -> Iterator[Step]:
    """Each has its verbs and its part of the object; the right to one is no right to the whole."""
    eve = {"Impersonate-User": "eve"}
    every = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
    parts = ["status", "ephemeralcontainers", "resize", "binding", "eviction"]
    yield post(f"{NS}/pods", pod("victim", nodeName="somewhere"))
    yield from granted(
        "eve",
        f"{NS}/pods/victim/status",
        (every, "", [f"pods/{part}" for part in parts]),
        (every, "", ["services/status", "resourcequotas/status"]),
        (every, "apps", ["deployments/status", "deployments/scale"]),
        (every, "batch", ["jobs/status"]),
    )
    hostile = pod("hostile", hostNetwork=True)
    for part in ("status", "ephemeralcontainers", "resize"):
        yield from (
            get(f"{NS}/pods/victim/{part}", headers=eve),
            post(f"{NS}/pods/hostile/{part}", hostile, headers=eve),
            post(f"{NS}/pods/victim/{part}", pod("victim"), headers=eve),
            post(f"{NS}/pods//{part}", hostile, headers=eve),
            get(f"{NS}/pods//{part}", headers=eve),
            get(f"{NS}/pods//{part}?watch=1&timeoutSeconds=1", headers=eve),
            put(f"{NS}/pods//{part}", hostile, headers=eve),
            delete(f"{NS}/pods//{part}", headers=eve),
            delete(f"{NS}/pods/victim/{part}", headers=eve),
            delete(f"{NS}/pods/victim/{part}?gracePeriodSeconds=0", headers=eve),
            put(f"{NS}/pods/hostile/{part}", hostile, headers=eve),
            patch(f"{NS}/pods/hostile/{part}", hostile, APPLY, headers=eve),
            get(f"{NS}/pods/victim/{part}/more", headers=eve),
            get(f"{NS}/pods/victim/{part}/more"),
        )
    grown = {"spec": {"containers": [{"name": "c", "image": "other", "resources": {"limits": {"cpu": "1"}}}]}}
    label = {"metadata": {"labels": {"by": "eve"}, "annotations": {"by": "eve"}, "finalizers": ["by.example/eve"]}}
    for part in ("ephemeralcontainers", "resize"):
        yield from (
            patch(f"{NS}/pods/victim/{part}", label, headers=eve),
            patch(f"{NS}/pods/victim/{part}", {"status": {"phase": "Failed"}}, headers=eve),
            patch(f"{NS}/pods/victim/{part}", grown, "application/strategic-merge-patch+json", headers=eve),
            patch(f"{NS}/pods/victim/{part}", {"spec": {"activeDeadlineSeconds": 1}}, headers=eve),
            get(f"{NS}/pods/victim"),
        )
    ephemeral = {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}
    yield from (
        patch(f"{NS}/pods/victim/ephemeralcontainers", ephemeral, headers=eve),
        patch(f"{NS}/pods/victim/resize", {"spec": {"ephemeralContainers": None}}, headers=eve),
        get(f"{NS}/pods/victim/ephemeralcontainers", headers=eve),
        patch(f"{NS}/pods/victim/status", {"spec": {"activeDeadlineSeconds": 1}}, headers=eve),
        patch(f"{NS}/pods/victim/status", {"status": {"message": "hello"}}, headers=eve),
        get(f"{NS}/pods/victim"),
        get(f"{NS}/pods/hostile"),
    )
    for part, kind in (("binding", "Binding"), ("eviction", "Eviction")):
        said = {"apiVersion": "policy/v1" if part == "eviction" else "v1", "kind": kind, "metadata": {"name": "victim"}}
        yield from (
            get(f"{NS}/pods/victim/{part}", headers=eve),
            put(f"{NS}/pods/victim/{part}", said, headers=eve),
            patch(f"{NS}/pods/victim/{part}", said, headers=eve),
            delete(f"{NS}/pods/victim/{part}", headers=eve),
            get(f"{NS}/pods//{part}", headers=eve),
            delete(f"{NS}/pods//{part}", headers=eve),
        )
    for path in ("log", "exec", "attach", "portforward"):
        yield from (put(f"{NS}/pods/victim/{path}", {}), patch(f"{NS}/pods/victim/{path}", {}))
        yield delete(f"{NS}/pods/victim/{path}")
    yield post(f"{NS}/pods/victim/log", {})
    yield get(f"{NS}/pods/victim")
    yield from _workloads(eve)


def _workloads(eve: dict[str, str]) -> Iterator[Step]:
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template()}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    where = "/apis/apps/v1/namespaces/diff/deployments"
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 2}}
    yield post(where, deployment)
    for part in ("status", "scale"):
        yield from (
            get(f"{where}/web/{part}", headers=eve),
            post(f"{where}/web/{part}", scale if part == "scale" else deployment, headers=eve),
            delete(f"{where}/web/{part}", headers=eve),
            delete(f"{where}//{part}", headers=eve),
            get(f"{where}//{part}", headers=eve),
            put(f"{where}/none/{part}", {**scale, "metadata": {"name": "none"}}, headers=eve),
            patch(f"{where}/none/{part}", {"spec": {"replicas": 3}}, headers=eve),
        )
    yield from (
        put(f"{where}/web/scale", scale, headers=eve),
        patch(f"{where}/web/scale", {"metadata": {"labels": {"by": "eve"}}}, headers=eve),
        patch(f"{where}/web/status", {"spec": {"replicas": 7}}, headers=eve),
        get(f"{where}/web"),
        put("/api/v1/namespaces/diff/finalize", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "no"}}),
        get("/api/v1/namespaces/diff/finalize"),
        patch("/api/v1/namespaces/diff/finalize", {}),
        delete("/api/v1/namespaces/diff/finalize"),
        delete("/api/v1/namespaces/diff/status"),
        post("/api/v1/namespaces/diff/status", {}),
        get(f"{NS}/serviceaccounts/default/token"),
        delete(f"{NS}/serviceaccounts/default/token"),
        get(f"{NS}/serviceaccounts//token"),
        post("/api/v1/watch/namespaces/diff/pods", pod("w")),
        delete("/api/v1/watch/namespaces/diff/pods/victim"),
        delete(f"{where}/web"),
        delete(f"{NS}/pods/victim?gracePeriodSeconds=0"),
    )


def creating() -> Iterator[Step]:
    """Apply and PUT make what is not there, for users who may create it."""
    pat = {"Impersonate-User": "pat"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "by-pat"}, "spec": {}}
    leases = "/apis/coordination.k8s.io/v1/namespaces/diff/leases"
    yield from granted(
        "pat",
        f"{NS}/configmaps",
        (["get", "list", "patch", "update"], "", ["configmaps", "limitranges", "endpoints", "events"]),
        (["get", "list", "patch", "update"], "coordination.k8s.io", ["leases"]),
        (["get", "list", "patch", "update"], RBAC, ["roles", "rolebindings"]),
    )
    applied = f"{NS}/configmaps/by-pat?fieldManager=pat"
    yield from (
        patch(applied, cm("by-pat"), APPLY, headers=pat),
        patch(f"{applied}&dryRun=All", cm("by-pat"), APPLY, headers=pat),
        patch(f"{NS}/configmaps/by-pat", cm("by-pat"), MERGE, headers=pat),
        patch(f"{NS}/configmaps/by-pat", [], JSON_PATCH, headers=pat),
        put(f"{NS}/configmaps/by-pat", cm("by-pat"), headers=pat),
        put(f"{leases}/by-pat", lease, headers=pat),
        put(f"{NS}/limitranges/by-pat", {"metadata": {"name": "by-pat"}}, headers=pat),
        put(f"{NS}/endpoints/by-pat", {"metadata": {"name": "by-pat"}}, headers=pat),
        put(f"{ROLES}/namespaces/diff/roles/by-pat", role("by-pat"), headers=pat),
        get(f"{NS}/configmaps/by-pat"),
        get(f"{leases}/by-pat"),
    )
    yield post(f"{ROLES}/namespaces/diff/roles", role("pat-more", (["create"], "", ["configmaps"])))
    yield post(f"{ROLES}/namespaces/diff/rolebindings", binding("pat-more", "Role", "pat-more", "pat"))
    yield post(
        f"{ROLES}/namespaces/diff/roles", role("pat-seen", (["get"], "", ["services"]), (["list"], "", ["services"]))
    )
    yield post(f"{ROLES}/namespaces/diff/rolebindings", binding("pat-seen", "Role", "pat-seen", "pat"))
    yield Step("WAIT", f"{NS}/services", headers=pat)
    yield patch(applied, cm("by-pat"), APPLY, headers=pat)
    yield patch(f"{applied}&force=true", cm("by-pat", data={"a": "b"}), APPLY, headers=pat)


def granting() -> Iterator[Step]:
    """Who may write bindings may bind what is there and held; a name that means nothing yet grants nothing later."""
    bob = {"Impersonate-User": "bob"}
    writes = ["get", "list", "create", "update", "patch"]
    yield from granted("bob", f"{ROLES}/namespaces/diff/roles", (writes, RBAC, ["roles", "rolebindings"]))
    where = f"{ROLES}/namespaces/diff/rolebindings"
    aggregated = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "bobs"}}
    yield from (
        post(where, binding("later", "Role", "no-such-role", "bob"), headers=bob),
        post(where, binding("later", "ClusterRole", "no-such-role", "bob"), headers=bob),
        put(f"{where}/later", binding("later", "Role", "no-such-role", "bob"), headers=bob),
        patch(f"{where}/later?fieldManager=b", binding("later", "Role", "no-such-role", "bob"), APPLY, headers=bob),
        post(where, binding("star", "Role", "bob", "*"), headers=bob),
        get(f"{ROLES}/namespaces/diff/roles", headers={"Impersonate-User": "someone"}),
        post(f"{ROLES}/namespaces/diff/roles", role("nothing", (["list"], RBAC, ["roles"])), headers=bob),
        post(where, binding("nothing", "Role", "nothing", "bob"), headers=bob),
        post(f"{ROLES}/clusterroles", aggregated, headers=bob),
        post(where, binding("by-admin", "Role", "no-such-role", "bob")),
        patch(f"{where}/by-admin", {"subjects": [{"kind": "User", "name": "x", "apiGroup": RBAC}]}, headers=bob),
        patch(f"{where}/by-admin", {"metadata": {"labels": {"a": "b"}}}, headers=bob),
    )
    yield post(
        f"{ROLES}/namespaces/diff/roles",
        {
            **role("binder"),
            "rules": [
                {"verbs": ["bind"], "apiGroups": [RBAC], "resources": ["roles"], "resourceNames": ["no-such-role"]},
                {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets"]},
            ],
        },
    )
    yield post(where, binding("binder", "Role", "binder", "bob"))
    yield Step("WAIT", f"{NS}/secrets", headers=bob)
    yield post(where, binding("later", "Role", "no-such-role", "bob"), headers=bob)
    yield post(where, binding("other", "Role", "no-other-role", "bob"), headers=bob)


def tokens() -> Iterator[Step]:
    """What a TokenRequest may ask for."""
    where = f"{NS}/serviceaccounts/asked/token"
    yield post(f"{NS}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "asked"}})
    for spec in (
        {"audiences": [1]},
        {"audiences": [{"a": 1}]},
        {"audiences": [["x"]]},
        {"audiences": "x"},
        {"audiences": {}},
        {"audiences": ["x"], "expirationSeconds": "600"},
        {"expirationSeconds": 1.5},
        {"expirationSeconds": 1},
        {"boundObjectRef": []},
        {"boundObjectRef": {"kind": 1}},
        {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": ["x"]}},
        {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}},
        [],
        "x",
    ):
        yield post(where, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})


def rights() -> Iterator[Step]:
    for part in (namespaces, subresources, creating, granting, tokens):
        yield from part()
