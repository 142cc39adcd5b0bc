"""Patches in their corners: directives of strategic merge, order of lists, pointers of JSON patches, no-ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import (
    JSON_PATCH,
    MERGE,
    NS,
    STRATEGIC,
    Step,
    cm,
    delete,
    get,
    patch,
    post,
    template,
)

DEPLOYMENTS = "/apis/apps/v1/namespaces/diff/deployments"


def in_template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def patching() -> Iterator[Step]:
    one = f"{DEPLOYMENTS}/patched"
    yield post(
        DEPLOYMENTS,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "patched", "labels": {"a": "b"}, "finalizers": ["example.com/x"]},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": template(
                    volumes=[{"name": "v", "emptyDir": {}}],
                    tolerations=[{"key": "k", "operator": "Exists"}],
                    containers=[
                        {"name": "c", "image": "i", "ports": [{"containerPort": 1}, {"containerPort": 2}]},
                        {"name": "d", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                    ],
                ),
            },
        },
    )
    for body in (
        in_template(containers=[{"name": "c", "image": "new"}, {"name": "e", "image": "i"}]),
        in_template(containers=[{"name": "e", "$patch": "delete"}]),
        in_template(containers=[{"image": "x"}]),
        in_template(
            containers=[{"name": "d", "env": [{"name": "B", "$patch": "delete"}, {"name": "C", "value": "3"}]}]
        ),
        in_template(**{"$setElementOrder/containers": [{"name": "d"}, {"name": "c"}], "containers": [{"name": "c"}]}),
        in_template(**{"$setElementOrder/containers": [{"name": "d"}], "containers": [{"name": "c", "image": "q"}]}),
        in_template(containers=[{"name": "c", "ports": [{"containerPort": 2, "protocol": "UDP"}]}]),
        in_template(containers=[{"name": "c", "ports": [{"$patch": "replace"}, {"containerPort": 9}]}]),
        in_template(volumes=[{"name": "v", "emptyDir": None, "hostPath": {"path": "/x"}}]),
        in_template(volumes=[{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}]),
        in_template(tolerations=[{"key": "other", "operator": "Exists"}]),
        in_template(nodeSelector={"a": "b", "c": "d"}),
        in_template(nodeSelector={"$patch": "replace", "e": "f"}),
        in_template(nodeSelector={"$patch": "bogus"}),
        in_template(nodeSelector=None),
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/x"], "finalizers": ["example.com/y"]}},
        {"metadata": {"labels": {"a": None, "z": "1"}}},
        {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}},
        {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}}},
        {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0}}}},
        {"spec": {"strategy": {"type": "Recreate"}}},
        {"spec": {"replicas": None}},
        {"spec": {"replicas": "3"}},
        {"spec": {"template": None}},
        {"spec": "text"},
        {"unknown": {"a": 1}},
        {},
        None,
        5,
    ):
        yield patch(one, body, STRATEGIC)
    yield patch(f"{one}?fieldValidation=Strict", {"spec": {"unknown": 1}}, STRATEGIC)
    yield patch(f"{one}?fieldValidation=Strict", {"spec": {"unknown": 1}}, MERGE)
    yield patch(f"{one}?fieldManager=other", {"metadata": {"annotations": {"n": "1"}}}, STRATEGIC)
    yield get(one)
    yield from json_patches(one)
    yield from merge_patches(one)
    yield patch(one, {"metadata": {"finalizers": None}})
    yield delete(one)


def json_patches(one: str) -> Iterator[Step]:
    containers = "/spec/template/spec/containers"
    for operations in (
        [],
        [{"op": "add", "path": f"{containers}/-", "value": {"name": "z", "image": "i"}}],
        [{"op": "add", "path": f"{containers}/0", "value": {"name": "y", "image": "i"}}],
        [{"op": "remove", "path": f"{containers}/0"}],
        [{"op": "remove", "path": f"{containers}/-1"}],
        [{"op": "remove", "path": f"{containers}/9"}],
        [{"op": "replace", "path": f"{containers}/9", "value": {}}],
        [{"op": "add", "path": f"{containers}/9", "value": {"name": "q", "image": "i"}}],
        [{"op": "add", "path": f"{containers}/01", "value": {"name": "q", "image": "i"}}],
        [{"op": "add", "path": f"{containers}/x", "value": {"name": "q", "image": "i"}}],
        [{"op": "copy", "from": "/metadata/labels", "path": "/metadata/annotations"}],
        [{"op": "copy", "from": "/metadata/none", "path": "/metadata/annotations"}],
        [{"op": "move", "from": "/metadata/annotations", "path": "/spec/template/metadata/annotations"}],
        [{"op": "move", "from": "/metadata/none", "path": "/metadata/annotations"}],
        [{"op": "test", "path": "/spec/replicas", "value": 1}],
        [{"op": "test", "path": "/spec/replicas", "value": "1"}],
        [{"op": "test", "path": "/spec/none", "value": None}],
        [{"op": "test", "path": "/spec/replicas"}],
        [{"op": "add", "path": "/metadata/annotations/a~1b", "value": "1"}],
        [{"op": "add", "path": "/metadata/annotations", "value": {"k": "v"}}],
        [{"op": "add", "path": "/metadata/annotations/a~1b", "value": "1"}],
        [{"op": "remove", "path": "/metadata/annotations/a~1b"}],
        [{"op": "add", "path": "", "value": {}}],
        [{"op": "remove", "path": ""}],
        [{"op": "remove", "path": "spec"}],
        [{"op": "replace", "path": "/spec/replicas", "value": None}],
        [{"op": "replace", "path": "/spec/replicas"}],
        [{"op": "add", "value": 1}],
        [{"path": "/spec/replicas", "value": 1}],
        [{"op": "replace", "path": "/spec/paused", "value": "no"}],
        [{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}],
        [{"op": "test", "path": "/metadata/resourceVersion", "value": "{{rv_patched}}"}],
        [{"op": "replace", "path": "/metadata/resourceVersion", "value": "{{rv_patched}}"}],
        ["text"],
        None,
        "text",
    ):
        yield patch(one, operations, JSON_PATCH)
    yield Step("PATCH", one, None, JSON_PATCH, raw=b"[{")
    yield Step("PATCH", one, None, MERGE, raw=b"")
    yield Step("PATCH", one, None, MERGE, raw=b"a: b")


def merge_patches(one: str) -> Iterator[Step]:
    for body in (
        {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "only"}]}}}},
        {"spec": {"template": {"spec": {"containers": None}}}},
        {"spec": None},
        {"status": {"replicas": 5}},
        {"metadata": {"labels": None}},
        {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}},
        {"metadata": {"creationTimestamp": None}},
        {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}},
        {"metadata": {"generation": 99}},
        {"metadata": {"namespace": "elsewhere"}},
        {"metadata": {"selfLink": "/x"}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}]}},
        {"metadata": {"ownerReferences": [{"kind": "Pod", "name": "p"}]}},
        {},
        None,
    ):
        yield patch(one, body, MERGE)
    yield post(f"{NS}/configmaps", cm("plain", data={"a": "1"}))
    yield patch(f"{NS}/configmaps/plain", {"data": {"a": "1"}})
    yield patch(f"{NS}/configmaps/plain?fieldManager=two", {"data": {"a": "1"}})
    yield patch(f"{NS}/configmaps/plain?fieldManager=two", {"data": {"a": None}})
    yield patch(f"{NS}/configmaps/plain?fieldManager=two", {"binaryData": {"b": "AAE="}})
    yield patch(f"{NS}/configmaps/plain", {"binaryData": {"b": "not base64"}})
    yield patch(f"{NS}/configmaps/plain", {"data": {"b": "twice"}})
    yield delete(f"{NS}/configmaps/plain")
