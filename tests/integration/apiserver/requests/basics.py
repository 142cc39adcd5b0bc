"""The verbs on a config map: good and bad bodies, metadata, selectors, lists, patches, apply."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.apiserver.requests.step import (
    APPLY,
    JSON_PATCH,
    NS,
    STRATEGIC,
    Step,
    cm,
    get,
    patch,
    post,
    put,
)


def basics() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    yield post(maps, cm("a", data={"x": "1"}))
    yield post(maps, cm("a"))
    yield get(f"{maps}/a")
    yield get(f"{maps}/none")
    yield put(f"{maps}/a", cm("a", data={"x": "2"}))
    yield put(f"{maps}/a", cm("b", data={"x": "2"}))
    yield put(f"{maps}/none", cm("none"))
    yield put(f"{maps}/a", {**cm("a"), "metadata": {"name": "a", "resourceVersion": "1"}})
    yield put(f"{maps}/a", {**cm("a"), "metadata": {"name": "a", "uid": "x"}})
    yield post(maps, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"generateName": "gen-"}})
    yield post(maps, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}})
    yield post(maps, {"metadata": {"name": "nokind"}})
    yield post(maps, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}})
    yield post(maps, {"kind": "ConfigMap", "apiVersion": "v2", "metadata": {"name": "x"}})
    yield post(maps, {**cm("a"), "metadata": {"name": "x", "namespace": "other"}})
    yield post("/api/v1/namespaces/none/configmaps", cm("x"))
    yield post(f"{maps}?dryRun=All", cm("dry"))
    yield post(f"{maps}?dryRun=Some", cm("dry"))
    yield get(f"{maps}/dry")
    yield post(f"{maps}?fieldValidation=Strict", cm("strict", datta={}))
    yield post(f"{maps}?fieldValidation=Warn", cm("warned", datta={}))
    yield post(f"{maps}?fieldValidation=Maybe", cm("strict2", datta={}))
    yield post(maps, cm("typed", data={"x": 1}))
    yield post(maps, cm("typed", data=[]))
    yield post(maps, cm("UPPER"))
    yield post(maps, cm("under_score"))
    yield post(maps, cm("a" * 300))
    yield post(maps, cm("bad-key", data={"a/b": "x"}))
    yield post(maps, None, raw=b"{")
    yield post(maps, None, raw=b"[]")
    yield post(maps, None, raw=b"")
    yield post(maps, None, raw=b"x: [", content="application/yaml")
    yield post(
        maps,
        None,
        raw=b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yam}\ndata: {a: b}\n",
        content="application/yaml",
    )
    yield post(maps, cm("text"), content="text/plain")
    yield put(maps, cm("a"))
    yield post(f"{maps}/a", cm("a"))
    yield patch(maps, {})
    yield post(maps, cm("immutable", immutable=True, data={"a": "b"}))
    yield patch(f"{maps}/immutable", {"data": {"a": "c"}})


def metadata_rules() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    for index, metadata in enumerate(
        (
            {"labels": {"a": "b c"}},
            {"labels": {"a/b/c": "d"}},
            {"labels": {"": "d"}},
            {"labels": {"a": "x" * 64}},
            {"labels": {"a": 1}},
            {"annotations": {"Not A Key": "x"}},
            {"annotations": {"ok": "any thing at all"}},
            {"finalizers": ["plain"]},
            {"finalizers": ["example.com/ok"]},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}]},
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True},
                    {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "2", "controller": True},
                ]
            },
            {"resourceVersion": "5"},
            {"uid": "given"},
            {"generation": 7},
            {"creationTimestamp": "nonsense"},
            {"creationTimestamp": "2020-01-01T00:00:00Z", "deletionTimestamp": "2020-01-01T00:00:00Z"},
            {"unknown": 1},
            {"managedFields": [{"manager": "x"}]},
        )
    ):
        yield post(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"meta{index}", **metadata}})


def selectors() -> Iterator[Step]:
    for query in (
        "labelSelector=a%3Db",
        "labelSelector=a+in+(b,c)",
        "labelSelector=a+in+b",
        "labelSelector=!a",
        "labelSelector=a,!b,c!=d",
        "labelSelector==",
        "labelSelector=a%3Db%20c",
        "labelSelector=a>1",
        "labelSelector=a<x",
        "fieldSelector=metadata.name%3Da",
        "fieldSelector=metadata.namespace!=diff",
        "fieldSelector=data.x%3D1",
        "fieldSelector=nonsense",
    ):
        yield get(f"{NS}/configmaps?{query}")
    for query in (
        "fieldSelector=spec.nodeName%3D",
        "fieldSelector=status.phase%3DRunning",
        "fieldSelector=spec.foo%3Dx",
        "fieldSelector=spec.restartPolicy%3DAlways,status.podIP!=1",
    ):
        yield get(f"{NS}/pods?{query}")
    yield get(f"{NS}/secrets?fieldSelector=type%3DOpaque")
    yield get(f"{NS}/events?fieldSelector=involvedObject.kind%3DPod,reason%3DX")


def lists() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    for query in (
        "limit=1",
        "limit=-1",
        "limit=abc",
        "continue=garbage",
        "resourceVersion=0",
        "resourceVersion=abc",
        "resourceVersion=1&resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan",
        "resourceVersion=1&resourceVersionMatch=Bad",
        "resourceVersion=999999999&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
        "watch=1&timeoutSeconds=1&sendInitialEvents=true",
        "watch=1&timeoutSeconds=1&resourceVersionMatch=NotOlderThan",
        "watch=1&timeoutSeconds=1&resourceVersion=abc",
        "watch=1&timeoutSeconds=1&labelSelector=a+in",
    ):
        yield get(f"{maps}?{query}")
    yield get("/api/v1/configmaps")
    yield get("/api/v1/nodes")
    yield get(f"{NS}/nodes")
    yield get("/api/v1/pods/x")


def patches() -> Iterator[Step]:
    one = f"{NS}/configmaps/a"
    yield patch(one, {"data": {"y": "2"}})
    yield patch(one, {"data": None})
    yield patch(one, [{"op": "add", "path": "/data", "value": {"z": "1"}}], JSON_PATCH)
    yield patch(one, [{"op": "replace", "path": "/data/absent", "value": "1"}], JSON_PATCH)
    yield patch(one, [{"op": "remove", "path": "/data/nothing"}], JSON_PATCH)
    yield patch(one, [{"op": "test", "path": "/data/z", "value": "2"}], JSON_PATCH)
    yield patch(one, [{"op": "bogus", "path": "/data/z"}], JSON_PATCH)
    yield patch(one, {"not": "a list"}, JSON_PATCH)
    yield patch(one, ["not", "an", "object"])
    yield patch(one, {"metadata": {"name": "other"}})
    yield patch(one, {"metadata": {"resourceVersion": "1"}})
    yield patch(one, {"metadata": {"uid": "1"}})
    yield patch(one, {"kind": "Secret"})
    yield patch(one, {"apiVersion": "v7"})
    yield patch(one, {"data": {"n": 5}})
    yield patch(one, {"metadata": None})
    yield patch(one, {"x": 1}, "application/json")
    yield patch(f"{NS}/configmaps/none", {"data": {}})
    yield patch(f"{one}?force=true", {"data": {}})
    yield patch(one, {"metadata": {"labels": {"a": "b"}}}, STRATEGIC)
    yield patch(one, {"metadata": {"$patch": "replace", "labels": {"c": "d"}}}, STRATEGIC)
    yield patch(f"{one}?dryRun=All", {"data": {"dry": "1"}})
    yield get(one)


def apply() -> Iterator[Step]:
    one = f"{NS}/configmaps/applied"
    yield patch(f"{one}?fieldManager=first", cm("applied", data={"x": "1", "y": "1"}), APPLY)
    yield patch(f"{one}?fieldManager=second", cm("applied", data={"x": "2"}), APPLY)
    yield patch(f"{one}?fieldManager=second&force=true", cm("applied", data={"x": "2"}), APPLY)
    yield patch(f"{one}?fieldManager=first", cm("applied", data={"y": "1"}), APPLY)
    yield patch(f"{one}?fieldManager=first", cm("applied"), APPLY)
    yield patch(one, cm("applied"), APPLY)
    yield patch(f"{one}?fieldManager=first", cm("other"), APPLY)
    yield patch(f"{one}?fieldManager=first", {"data": {}}, APPLY)
    yield patch(
        f"{one}?fieldManager=first",
        {
            **cm("applied"),
            "metadata": {
                "name": "applied",
                "managedFields": [{"manager": "x", "operation": "Apply", "apiVersion": "v1"}],
            },
        },
        APPLY,
    )
    yield get(one)
