"""Reviews, impersonation, roles and what they may not grant."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.apiserver.requests.step import NS, Step, cm, delete, get, patch, post


def access() -> Iterator[Step]:
    authz, authn = "/apis/authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1"
    yield post(
        f"{authz}/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
        },
    )
    yield post(
        f"{authz}/selfsubjectaccessreviews",
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}},
    )
    yield post(
        f"{authz}/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "diff"}},
        },
    )
    yield post(
        f"{authz}/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
        },
    )
    yield post(
        f"{authn}/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "nonsense"}},
    )
    yield get(f"{authn}/tokenreviews")
    ann = {"Impersonate-User": "ann"}
    yield from (
        get(f"{NS}/pods", headers=ann),
        get(f"{NS}/pods/x", headers=ann),
        post(f"{NS}/configmaps", cm("ann"), headers=ann),
        get("/api/v1/nodes", headers=ann),
        get("/apis/apps/v1/deployments", headers=ann),
        get(f"{NS}/pods/x/log", headers=ann),
        get("/api", headers=ann),
        get("/metrics", headers=ann),
        delete(f"{NS}/configmaps", headers=ann),
        get(f"{NS}/pods", headers={"Impersonate-Group": "g"}),
    )
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/diff"
    yield post(
        f"{rbac}/roles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "r"},
            "rules": [
                {"verbs": ["get", "list", "create"], "apiGroups": [""], "resources": ["configmaps"]},
                {
                    "verbs": ["create", "get"],
                    "apiGroups": ["rbac.authorization.k8s.io"],
                    "resources": ["roles", "rolebindings"],
                },
            ],
        },
    )
    yield post(
        f"{rbac}/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )
    yield Step("WAIT", f"{NS}/configmaps", headers=ann)
    yield get(f"{NS}/configmaps", headers=ann)
    yield post(f"{NS}/configmaps", cm("anns"), headers=ann)
    yield patch(f"{NS}/configmaps/anns", {}, headers=ann)
    yield post(
        f"{rbac}/roles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "more"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}],
        },
        headers=ann,
    )
    yield post(
        f"{rbac}/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
        },
        headers=ann,
    )
    yield patch(f"{rbac}/rolebindings/r", {"roleRef": {"name": "other"}})
    yield post(
        f"{rbac}/roles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "bad"},
            "rules": [{"apiGroups": [""]}],
        },
    )
