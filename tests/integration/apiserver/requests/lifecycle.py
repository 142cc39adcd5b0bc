"""From creation to the end: names, preconditions, finalizers, dry runs, collections, pages, watches, namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import JSON_PATCH, NS, Step, cm, delete, get, patch, pod, post, put

OPTIONS: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
NAMESPACES = "/api/v1/namespaces"


def namespace(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **more}}


def lifecycle() -> Iterator[Step]:
    yield from names()
    yield from preconditions()
    yield from finalizers()
    yield from collections()
    yield from pages()
    yield from watches()
    yield from namespaces()


def names() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    for metadata in (
        {"generateName": "Bad_"},
        {"generateName": "a" * 300},
        {"generateName": "ok-", "name": "given"},
        {"name": ""},
        {"name": "."},
        {"name": "a..b"},
        {"name": "a.b"},
        {"name": "-a"},
        {"name": "a/b"},
        {"name": "a%b"},
        {"name": "named", "namespace": ""},
        {"name": "uid", "uid": "given", "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x"},
        {"name": "gone", "deletionTimestamp": "2001-01-01T00:00:00Z", "finalizers": ["example.com/x"]},
        {"name": "grace", "deletionGracePeriodSeconds": 5},
        {"name": "dups", "finalizers": ["example.com/x", "example.com/x"]},
        {"name": "owners", "ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"}]},
        {
            "name": "same",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "e", "uid": "1"},
                {"apiVersion": "v1", "kind": "Pod", "name": "e", "uid": "1"},
            ],
        },
        {"name": "annotated", "annotations": {"a": "x" * (257 << 10)}},
    ):
        yield post(maps, {**cm("x"), "metadata": metadata})
    yield post(f"{maps}?fieldManager=", cm("unmanaged"))
    yield post(f"{maps}?fieldManager={'m' * 200}", cm("managed"))
    yield post(f"{maps}?dryRun=All&dryRun=All", cm("dry2"))
    yield post(f"{maps}?pretty=true", cm("pretty"))
    yield post(maps, cm("data", data={"a": "b"}, binaryData={"a": "AA=="}))
    yield post(maps, cm("big", data={"a": "x" * (1 << 20) + "x"}))
    yield post(maps, {**cm("x"), "items": []})
    yield post(maps, {"apiVersion": "v1", "kind": "ConfigMapList", "items": []})
    yield post(
        f"{NS}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "type": "kubernetes.io/tls"},
    )
    yield post(
        f"{NS}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "basic"}, "type": "kubernetes.io/basic-auth"},
    )
    yield post(
        f"{NS}/secrets",
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "both"},
            "data": {"a": "AA=="},
            "stringData": {"a": "b", "c": "d"},
        },
    )


def preconditions() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    yield post(maps, cm("pre"))
    yield put(f"{maps}/pre", {**cm("pre", data={"a": "1"}), "metadata": {"name": "pre", "uid": "{{uid_pre}}"}})
    yield put(
        f"{maps}/pre", {**cm("pre", data={"a": "2"}), "metadata": {"name": "pre", "resourceVersion": "{{rv_pre}}"}}
    )
    yield put(f"{maps}/pre", {**cm("pre"), "metadata": {"name": "pre", "resourceVersion": "abc"}})
    yield put(f"{maps}/pre", {**cm("pre"), "metadata": {"name": "pre", "resourceVersion": "0"}})
    yield put(f"{maps}/pre", {**cm("pre"), "metadata": {"name": "pre", "creationTimestamp": "2001-01-01T00:00:00Z"}})
    yield put(f"{maps}/pre?dryRun=All", cm("pre", data={"dry": "1"}))
    yield delete(f"{maps}/pre", {**OPTIONS, "preconditions": {"uid": "{{uid_pre}}", "resourceVersion": "1"}})
    yield delete(f"{maps}/pre", {**OPTIONS, "preconditions": {"uid": "{{uid_pre}}"}, "dryRun": ["All"]})
    yield delete(f"{maps}/pre", {**OPTIONS, "dryRun": ["Some"]})
    yield delete(f"{maps}/pre", {"kind": "Bogus", "apiVersion": "v1"})
    yield delete(f"{maps}/pre", {"kind": "DeleteOptions", "apiVersion": "apps/v1"})
    yield delete(f"{maps}/pre", {"kind": "DeleteOptions"})
    yield post(maps, cm("pre2"))
    yield delete(f"{maps}/pre2", {"propagationPolicy": "Background"})
    yield delete(f"{maps}/pre2?gracePeriodSeconds=x")
    yield delete(f"{maps}/none", {**OPTIONS, "propagationPolicy": "Bogus"})
    yield post(maps, cm("pre3"))
    yield delete(f"{maps}/pre3?propagationPolicy=Background", {**OPTIONS, "orphanDependents": True})
    yield delete(f"{maps}/pre3", {**OPTIONS, "orphanDependents": True, "propagationPolicy": "Orphan"})
    yield delete(f"{maps}/pre3", {**OPTIONS, "gracePeriodSeconds": -5})
    yield delete(f"{maps}/pre3?dryRun=All&gracePeriodSeconds=3")


def finalizers() -> Iterator[Step]:
    where = f"{NS}/pods"
    yield post(where, {**pod("fin"), "metadata": {"name": "fin", "finalizers": ["example.com/x"]}})
    yield delete(f"{where}/fin")
    yield patch(f"{where}/fin", {"metadata": {"labels": {"still": "here"}}})
    yield patch(f"{where}/fin/status", {"status": {"phase": "Failed"}})
    yield delete(f"{where}/fin?gracePeriodSeconds=0")
    yield patch(f"{where}/fin", [{"op": "remove", "path": "/metadata/finalizers/0"}], JSON_PATCH)
    yield get(f"{where}/fin")
    yield post(where, pod("graceful", nodeName="n1", terminationGracePeriodSeconds=20))
    yield delete(f"{where}/graceful", {**OPTIONS, "gracePeriodSeconds": 10})
    yield delete(f"{where}/graceful")
    yield delete(f"{where}/graceful", {**OPTIONS, "gracePeriodSeconds": 15})
    yield delete(f"{where}/graceful", {**OPTIONS, "gracePeriodSeconds": 5})
    yield get(f"{where}/graceful")
    yield delete(f"{where}/graceful", {**OPTIONS, "gracePeriodSeconds": 0, "preconditions": {"uid": "other"}})
    yield delete(f"{where}/graceful", {**OPTIONS, "gracePeriodSeconds": 0})
    yield get(f"{where}/graceful")
    yield post(where, pod("done", nodeName="n1"))
    yield patch(f"{where}/done/status", {"status": {"phase": "Succeeded"}})
    yield delete(f"{where}/done")
    yield get(f"{where}/done")
    maps = f"{NS}/configmaps"
    yield post(maps, cm("parent"))
    yield delete(f"{maps}/parent?propagationPolicy=Foreground")
    yield delete(f"{maps}/parent?propagationPolicy=Orphan")
    yield get(f"{maps}/parent")
    yield patch(f"{maps}/parent", {"metadata": {"finalizers": None}})


def collections() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    for number in range(4):
        found = cm(f"many{number}")
        found["metadata"]["labels"] = {"many": "yes", "odd": "yes" if number % 2 else "no"}
        yield post(maps, found)
    yield get(f"{maps}?labelSelector=many%3Dyes,odd+notin+(no)")
    yield get(f"{maps}?labelSelector=many,odd!%3Dno")
    yield delete(f"{maps}?labelSelector=odd%3Dyes&dryRun=All")
    yield delete(f"{maps}?labelSelector=odd%3Dyes")
    yield get(f"{maps}?labelSelector=many")
    yield delete(f"{maps}?fieldSelector=metadata.name%3Dmany0")
    yield delete(f"{maps}?labelSelector=many", {**OPTIONS, "preconditions": {"uid": "x"}})
    yield delete(f"{maps}?labelSelector=many&limit=1")
    yield get(f"{maps}?labelSelector=many")
    yield delete(f"{maps}?labelSelector=a+in")
    yield delete(f"{NS}/services?labelSelector=none%3Dthere")


def pages() -> Iterator[Step]:
    maps = f"{NS}/configmaps"
    for number in range(5):
        found = cm(f"page{number}")
        found["metadata"]["labels"] = {"page": "yes"}
        yield post(maps, found)
    chosen = f"{maps}?labelSelector=page%3Dyes&limit=2"
    yield get(chosen)
    yield post(maps, {**cm("page00"), "metadata": {"name": "page00", "labels": {"page": "yes"}}})
    yield delete(f"{maps}/page3")
    yield get(f"{chosen}&continue={{{{continue}}}}")
    yield get(f"{chosen}&continue={{{{continue}}}}")
    yield get(f"{chosen}&continue={{{{continue}}}}&resourceVersion=5")
    yield get(f"{chosen}&continue={{{{continue}}}}&resourceVersionMatch=Exact")
    yield get(f"{maps}?limit=2&resourceVersion=0&labelSelector=page%3Dyes")
    yield get(f"{maps}?limit=0&labelSelector=page%3Dyes")
    yield get(f"{maps}?labelSelector=page%3Dyes&resourceVersion={{{{rv_page4}}}}&resourceVersionMatch=Exact")
    yield get(f"{maps}?labelSelector=page%3Dyes&resourceVersion={{{{rv_page4}}}}&resourceVersionMatch=NotOlderThan")
    yield get(f"{maps}?labelSelector=page%3Dyes&resourceVersion={{{{rv_page4}}}}")
    yield get(f"{maps}/page0?resourceVersion=0")
    yield get(f"{maps}/page0?resourceVersion=99999999")
    yield get(f"{maps}/page0?resourceVersion=abc")
    yield get(f"{maps}?timeoutSeconds=abc")
    yield get(f"{maps}?watch=maybe&timeoutSeconds=1&labelSelector=page")
    yield get(f"{maps}?allowWatchBookmarks=x&labelSelector=page%3Dnone")
    yield get(f"{maps}?sendInitialEvents=true&labelSelector=page%3Dnone")


def watches() -> Iterator[Step]:
    maps = f"{NS}/configmaps?labelSelector=page%3Dyes&watch=1&timeoutSeconds=1"
    yield get(f"{maps}&resourceVersion={{{{rv_page0}}}}")
    yield get(f"{maps}&resourceVersion={{{{rv_page4}}}}")
    yield get(maps)
    yield get(f"{maps}&resourceVersion=0")
    yield get(f"{maps}&resourceVersion=1")
    yield get(f"{maps}&resourceVersion=99999999")
    yield get(f"{maps}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
    yield get(f"{maps}&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={{{{rv_page4}}}}")
    yield get(f"{maps}&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1")
    yield get(
        f"{maps}&resourceVersion={{{{rv_page4}}}}",
        accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
    )
    yield get(f"{maps}&resourceVersion={{{{rv_page4}}}}", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    yield get("/api/v1/watch/namespaces/diff/configmaps?timeoutSeconds=1&labelSelector=page%3Dnone")
    yield get(f"{NS}/configmaps/page0?watch=1&timeoutSeconds=1")
    yield get(f"{NS}/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dpage0")


def namespaces() -> Iterator[Step]:
    yield post(NAMESPACES, namespace("short"))
    yield post(f"{NAMESPACES}/short/configmaps", cm("inside"))
    yield patch(f"{NAMESPACES}/short", {"spec": {"finalizers": []}})
    yield patch(f"{NAMESPACES}/short", {"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}})
    yield put(f"{NAMESPACES}/short", namespace("short"))
    yield delete(f"{NAMESPACES}/short?dryRun=All")
    yield delete(f"{NAMESPACES}/short")
    yield get(f"{NAMESPACES}/short")
    yield delete(f"{NAMESPACES}/short")
    yield post(f"{NAMESPACES}/short/configmaps", cm("late"))
    yield patch(f"{NAMESPACES}/short/configmaps/late?fieldManager=a", cm("late"), "application/apply-patch+yaml")
    yield patch(f"{NAMESPACES}/short/configmaps/inside", {"data": {"still": "works"}})
    yield delete(f"{NAMESPACES}/short/configmaps/inside")
    yield put(f"{NAMESPACES}/short/finalize", {**namespace("short"), "spec": {"finalizers": []}})
    yield get(f"{NAMESPACES}/short")
    yield post(NAMESPACES, namespace("kept", finalizers=["example.com/x"]))
    yield delete(f"{NAMESPACES}/kept")
    yield put(f"{NAMESPACES}/kept/finalize", {**namespace("kept"), "spec": {"finalizers": []}})
    yield get(f"{NAMESPACES}/kept")
    yield patch(f"{NAMESPACES}/kept", {"metadata": {"finalizers": None}})
    yield get(f"{NAMESPACES}/kept")
    yield patch(f"{NAMESPACES}/diff/status", {"status": {"phase": "Terminating"}})
    yield patch(f"{NAMESPACES}/diff/status", {"status": {"phase": "Active"}})
    yield delete(NAMESPACES)
