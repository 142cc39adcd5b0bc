"""Subresources and small kinds in their corners: eviction, binding, tokens, scale, quotas, limits, reviews, budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import NS, STRATEGIC, Step, delete, get, patch, pod, post, put

POLICY = "/apis/policy/v1/namespaces/diff"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"


def eviction(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **more}


def parts() -> Iterator[Step]:
    yield from evictions()
    yield from bindings()
    yield from tokens()
    yield from quotas()
    yield from reviews()
    yield from pods_that_change()
    yield from small_kinds()


def evictions() -> Iterator[Step]:
    where = f"{NS}/pods"
    yield post(where, {**pod("evicted", nodeName="n1"), "metadata": {"name": "evicted", "labels": {"budget": "yes"}}})
    yield post(f"{where}/evicted/eviction", eviction("evicted", deleteOptions={"dryRun": ["All"]}))
    yield post(f"{where}/evicted/eviction", eviction("wrong"))
    yield post(f"{where}/evicted/eviction", {**eviction("evicted"), "apiVersion": "policy/v9"})
    yield post(f"{where}/evicted/eviction", eviction("evicted", deleteOptions={"preconditions": {"uid": "other"}}))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"budget": "yes"}}},
    }
    yield post(f"{POLICY}/poddisruptionbudgets", budget)
    yield patch(
        f"{where}/evicted/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    )
    yield post(f"{where}/evicted/eviction", eviction("evicted"))
    yield patch(f"{POLICY}/poddisruptionbudgets/budget", {"spec": {"minAvailable": None, "maxUnavailable": "50%"}})
    yield patch(f"{POLICY}/poddisruptionbudgets/budget", {"spec": {"minAvailable": 1}})
    yield patch(f"{POLICY}/poddisruptionbudgets/budget", {"spec": {"maxUnavailable": "abc"}})
    yield delete(f"{POLICY}/poddisruptionbudgets/budget")
    yield post(f"{where}/evicted/eviction", eviction("evicted"))
    yield delete(f"{where}/evicted?gracePeriodSeconds=0")
    yield post(where, pod("pending"))
    yield post(f"{where}/pending/eviction", eviction("pending"))
    yield get(f"{where}/pending")


def bindings() -> Iterator[Step]:
    where = f"{NS}/pods"
    yield post(where, pod("bound"))
    target = {"kind": "Node", "name": "n1"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"}, "target": target}
    yield post(f"{where}/bound/binding?dryRun=All", body)
    yield post(f"{where}/bound/binding", {**body, "metadata": {"name": "bound", "uid": "other"}})
    yield post(f"{where}/bound/binding", {**body, "metadata": {"name": "other"}})
    yield post(f"{where}/bound/binding", {**body, "target": {"kind": "Pod", "name": "n1"}})
    yield post(f"{where}/bound/binding", {**body, "metadata": {"name": "bound", "annotations": {"a": "b"}}})
    yield get(f"{where}/bound")
    yield post(f"{where}/bound/binding", body)
    yield post(f"{NS}/bindings", body)
    yield post(f"{NS}/bindings", {**body, "metadata": {"name": "none"}})
    yield post(where, pod("gated", schedulingGates=[{"name": "example.com/g"}]))
    yield post(f"{where}/gated/binding", {**body, "metadata": {"name": "gated"}})
    yield patch(f"{where}/gated", {"spec": {"schedulingGates": [{"name": "example.com/h"}]}})
    yield patch(f"{where}/gated", {"spec": {"nodeSelector": {"a": "b"}}})
    yield patch(f"{where}/gated", {"spec": {"schedulingGates": None}})
    yield patch(f"{where}/gated", {"spec": {"nodeSelector": {"a": "c"}}})
    for name in ("bound", "gated"):
        yield delete(f"{where}/{name}?gracePeriodSeconds=0")


def tokens() -> Iterator[Step]:
    where = f"{NS}/serviceaccounts/sa/token"

    def asked(**spec: Any) -> dict[str, Any]:
        return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}

    yield post(where, asked(audiences=["a", "b"], expirationSeconds=3600))
    yield post(where, asked(expirationSeconds=1 << 33))
    yield post(where, asked(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "none"}))
    yield post(where, asked(boundObjectRef={"kind": "Bogus", "apiVersion": "v1", "name": "none"}))
    yield post(where, {"kind": "TokenRequest", "apiVersion": "v1"})
    yield get(where)
    yield put(where, asked())


def quotas() -> Iterator[Step]:
    small = "/api/v1/namespaces/small"
    yield post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "small"}})
    yield post(
        f"{small}/limitranges",
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "lr"},
            "spec": {
                "limits": [
                    {
                        "type": "Container",
                        "default": {"cpu": "200m", "memory": "1Gi"},
                        "defaultRequest": {"cpu": "100m"},
                        "max": {"cpu": "1"},
                        "min": {"cpu": "50m"},
                        "maxLimitRequestRatio": {"cpu": "4"},
                    },
                    {"type": "Pod", "max": {"memory": "2Gi"}},
                ]
            },
        },
    )
    for number, spec in enumerate(
        (
            {"limits": [{"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}}]},
            {"limits": [{"type": "Bogus/Type!", "max": {"cpu": "1"}}]},
            {"limits": [{"type": "Pod", "default": {"cpu": "1"}}]},
            {"limits": [{"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "3"}}]},
            {"limits": [{"type": "Container"}, {"type": "Container"}]},
        )
    ):
        yield post(
            f"{small}/limitranges",
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": f"bad{number}"}, "spec": spec},
        )
    for number, resources in enumerate(
        (
            {},
            {"requests": {"cpu": "10m"}},
            {"limits": {"cpu": "2"}},
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
            {"limits": {"memory": "3Gi"}},
            {"limits": {"cpu": "300m"}},
            {"requests": {"cpu": "500m"}},
        )
    ):
        yield post(
            f"{small}/pods", pod(f"limited{number}", containers=[{"name": "c", "image": "i", "resources": resources}])
        )
    yield delete(f"{small}/limitranges/lr")
    for number, hard in enumerate(
        (
            {"pods": "-1"},
            {"pods": "1.5"},
            {"bogus": "1"},
            {"example.com/x": "1"},
            {"requests.example.com/gpu": "1"},
            {"count/configmaps": "100"},
        )
    ):
        yield post(
            f"{small}/resourcequotas?dryRun=All",
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": f"q{number}"}, "spec": {"hard": hard}},
        )


def reviews() -> Iterator[Step]:
    for spec in (
        {"user": "ann", "nonResourceAttributes": {"path": "/version", "verb": "get"}},
        {"user": "ann", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
        {"groups": ["system:masters"], "resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}},
        {"user": "ann", "groups": ["system:authenticated"], "nonResourceAttributes": {"path": "/api", "verb": "get"}},
        {
            "user": "ann",
            "resourceAttributes": {"verb": "get", "resource": "pods", "subresource": "log"},
            "nonResourceAttributes": {"path": "/", "verb": "get"},
        },
    ):
        yield post(
            f"{AUTHORIZATION}/subjectaccessreviews",
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec},
        )
    yield post(
        f"{AUTHORIZATION}/namespaces/diff/localsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "other"}},
        },
    )
    yield post(
        f"{AUTHORIZATION}/namespaces/diff/localsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": "diff"},
            "spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "diff"}},
        },
    )
    yield post(
        f"{AUTHORIZATION}/selfsubjectrulesreviews",
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {}},
    )
    yield post(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        headers={"Impersonate-User": "ann", "Impersonate-Group": "team", "Impersonate-Extra-Scope": "x"},
    )
    yield post(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}},
    )


def pods_that_change() -> Iterator[Step]:
    where = f"{NS}/pods"
    one = f"{where}/mutable"
    yield post(where, pod("mutable", tolerations=[{"key": "a", "operator": "Exists"}], activeDeadlineSeconds=100))
    for body in (
        {"spec": {"activeDeadlineSeconds": 50}},
        {"spec": {"activeDeadlineSeconds": 500}},
        {"spec": {"activeDeadlineSeconds": None}},
        {"spec": {"tolerations": []}},
        {"spec": {"containers": [{"name": "c", "image": ""}]}},
        {"spec": {"containers": [{"name": "d", "image": "i"}]}},
        {"spec": {"terminationGracePeriodSeconds": 5}},
        {"spec": {"priority": 5}},
        {"metadata": {"labels": {"ok": "yes"}}},
    ):
        yield patch(one, body)
    yield patch(one, {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}, STRATEGIC)
    yield patch(one, {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}, STRATEGIC)
    yield patch(f"{one}/status", {"spec": {"nodeName": "x"}, "metadata": {"labels": {"from": "status"}}})
    yield patch(f"{one}/status", {"status": {"phase": "Bogus"}})
    yield patch(f"{one}/status", {"status": {"podIP": "not an ip"}})
    yield patch(f"{one}/status", {"status": {"podIPs": [{"ip": "1.2.3.4"}, {"ip": "1.2.3.5"}]}})
    yield patch(
        f"{one}/status",
        {
            "status": {
                "containerStatuses": [
                    {
                        "name": "c",
                        "ready": True,
                        "restartCount": 0,
                        "image": "i",
                        "imageID": "",
                        "state": {"running": {}},
                    }
                ]
            }
        },
    )
    yield patch(f"{one}/status", {"status": {"conditions": [{"type": "Ready", "status": "Perhaps"}]}})
    yield get(f"{one}/ephemeralcontainers")
    yield get(one)
    yield delete(f"{one}?gracePeriodSeconds=0")


def small_kinds() -> Iterator[Step]:
    yield post(
        "/apis/networking.k8s.io/v1/namespaces/diff/ingresses",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": "i"},
            "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}},
        },
    )
    yield post(
        "/apis/discovery.k8s.io/v1/namespaces/diff/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "es"},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": [{"name": "", "port": 80}],
        },
    )
    yield post(
        f"{NS}/endpoints",
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "ep"},
            "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}],
        },
    )
    yield post(
        f"{NS}/persistentvolumeclaims",
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "pvc"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    )
    yield post(
        f"{NS}/podtemplates",
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pt"}, "template": pod("x")},
    )
    yield post(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "v"},
            "webhooks": [
                {
                    "name": "a.example.com",
                    "clientConfig": {"url": "https://127.0.0.1:1/"},
                    "rules": [
                        {
                            "apiGroups": ["x.example"],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["xs"],
                        }
                    ],
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        },
    )
    yield post(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "bad"},
            "webhooks": [{"name": "short", "clientConfig": {}, "sideEffects": "Some"}],
        },
    )
    yield get(f"{NS}/replicationcontrollers")
    yield get("/api/v1/componentstatuses")
    yield get("/apis/storage.k8s.io/v1/storageclasses")
    yield get("/apis/node.k8s.io/v1/runtimeclasses")
