"""Paths that lead nowhere, other forms of answers, values of the wrong type all over."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.apiserver.requests.step import NS, Step, delete, get, post, template


def odd_paths() -> Iterator[Step]:
    for path in (
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/api/v2",
        "/apis/apps",
        "/apis/apps/v1",
        "/apis/apps/v9",
        "/apis/none",
        "/apis/none/v1",
        "/apis/none/v1/x",
        "/apis/apps/v1/nothings",
        "/api/v1/nothings",
        "/version",
        "/healthz",
        "/nonsense",
        "/api/v1/namespaces/diff/",
        "/apis/batch/v1/namespaces/diff/jobs/none",
        "/api/v1/namespaces/none",
        "/api/v1/namespaces//pods",
        "/api/v1/componentstatuses/x",
    ):
        if path != "/api/v1/componentstatuses/x":
            yield get(path)
    yield Step("OPTIONS", f"{NS}/pods")
    yield post("/api", {})
    yield post("/apis/apps/v1", {})
    yield delete("/version")
    yield post("/api/v1/bindings", {})


def formats() -> Iterator[Step]:
    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    yield get(f"{NS}/configmaps/a", accept=table)
    yield get(f"{NS}/configmaps/none", accept=table)
    yield get(f"{NS}/pods", accept=table)
    yield get("/api/v1/namespaces", accept=table)
    yield get(f"{NS}/configmaps", accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
    yield get(f"{NS}/configmaps/a", accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    yield get(f"{NS}/configmaps/a", accept="text/html")
    yield get(f"{NS}/configmaps/a", accept="application/vnd.kubernetes.protobuf;q=0.1,application/json")
    yield get(f"{NS}/configmaps/a", accept="application/json;as=Bogus;v=v1;g=meta.k8s.io")
    yield get("/apis/diff.example/v1/namespaces/diff/widgets", accept=table)


def odd_objects() -> Iterator[Step]:
    """Wrong types all over: both must refuse, neither may fall over."""
    for value in (None, 1, "x", True, [], {}, [1], [None], {"a": None}, {"a": {"b": []}}):
        yield post(
            f"{NS}/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd"}, "data": value}
        )
        yield delete(f"{NS}/configmaps/odd")
        yield post(f"{NS}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd"}, "spec": value})
        yield post(
            f"{NS}/pods",
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd"}, "spec": {"containers": value}},
        )
        yield post(
            "/apis/batch/v1/namespaces/diff/jobs",
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "odd"}, "spec": {"template": value}},
        )
        yield post(
            "/apis/apps/v1/namespaces/diff/deployments",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "odd"},
                "spec": {"selector": value, "template": template()},
            },
        )
        yield post(
            f"{NS}/services",
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "odd"}, "spec": {"ports": value}},
        )
        yield delete(f"{NS}/services/odd")
        yield post(f"{NS}/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": value})
