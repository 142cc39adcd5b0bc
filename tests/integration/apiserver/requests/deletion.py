"""Deletion with its options, finalizers, namespaces that go; subresources of what is not there."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.apiserver.requests.step import NS, Step, cm, delete, get, patch, post


def deletion() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    yield post(maps, cm("d1"))
    yield delete(f"{maps}/d1", {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "x"}})
    yield delete(f"{maps}/d1", {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": "1"}})
    yield delete(f"{maps}/d1", {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Bogus"})
    yield delete(f"{maps}/d1", {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": "x"})
    yield delete(f"{maps}/d1?dryRun=All")
    yield delete(f"{maps}/d1")
    yield delete(f"{maps}/d1")
    yield post(maps, {**cm("d2"), "metadata": {"name": "d2", "finalizers": ["example.com/f"]}})
    yield delete(f"{maps}/d2")
    yield delete(f"{maps}/d2")
    yield patch(f"{maps}/d2", {"metadata": {"finalizers": ["example.com/f", "example.com/g"]}})
    yield patch(f"{maps}/d2", {"metadata": {"finalizers": []}})
    yield get(f"{maps}/d2")
    for policy in ("Foreground", "Orphan", "Background"):
        yield post(maps, cm(f"d-{policy.lower()}"))
        yield delete(f"{maps}/d-{policy.lower()}?propagationPolicy={policy}")
    yield post(maps, cm("d5"))
    yield delete(f"{maps}/d5", {"apiVersion": "v1", "kind": "DeleteOptions", "orphanDependents": False})
    yield delete(f"{maps}?labelSelector=nothing%3Dthere")
    yield delete("/api/v1/namespaces/default")
    yield delete("/api/v1/namespaces/kube-system")
    yield delete("/api/v1/configmaps")
    yield post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "Bad_Name"}})
    yield post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}})
    yield get("/api/v1/namespaces/going")
    yield delete("/api/v1/namespaces/going")
    yield post("/api/v1/namespaces/going/configmaps", cm("late"))


def subresources() -> Iterator[Step]:
    yield get(f"{NS}/configmaps/a/status")
    yield get(f"{NS}/pods/none/log")
    yield get(f"{NS}/pods/none/nonsense")
    yield post(
        f"{NS}/pods/none/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "none"}, "target": {"name": "n"}},
    )
    yield post(
        f"{NS}/pods/none/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}}
    )
    yield get(f"{NS}/status")
