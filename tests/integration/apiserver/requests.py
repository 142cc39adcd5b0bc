"""The same few hundred requests, good and bad, for the embedded server and the real one.

Each is a `Step`: what is sent. Names may repeat across steps: order matters, both servers get the same sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

NS = "/api/v1/namespaces/diff"
JSON_PATCH, MERGE, STRATEGIC, APPLY = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)


class Step(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: Any = None
    content: str = "application/json"
    raw: bytes | None = None
    accept: str = "application/json"
    headers: dict[str, str] = {}

    @property
    def data(self) -> bytes | None:
        if self.raw is not None:
            return self.raw
        return None if self.body is None else json.dumps(self.body).encode()

    def __str__(self) -> str:
        content = self.content if self.method == "PATCH" else ""
        body = str(self.body)[:160] if self.body is not None else (self.raw or b"")[:60]
        return f"{self.method} {self.path} {content} {body!s}"


def get(path: str, **more: Any) -> Step:
    return Step("GET", path, **more)


def post(path: str, body: Any, **more: Any) -> Step:
    return Step("POST", path, body, **more)


def put(path: str, body: Any, **more: Any) -> Step:
    return Step("PUT", path, body, **more)


def patch(path: str, body: Any, content: str = MERGE, **more: Any) -> Step:
    return Step("PATCH", path, body, content, **more)


def delete(path: str, body: Any = None, **more: Any) -> Step:
    return Step("DELETE", path, body, **more)


def steps() -> Iterator[Step]:
    yield post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff"}})
    for part in (
        basics,
        metadata_rules,
        selectors,
        lists,
        patches,
        apply,
        pods,
        workloads,
        services,
        custom,
        deletion,
        subresources,
        access,
        odd_paths,
        formats,
        odd_objects,
    ):
        yield from part()


def cm(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **more}


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


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def pods() -> Iterator[Step]:
    where = f"{NS}/pods"
    yield post(where, pod("p"))
    yield get(f"{where}/p")
    for index, spec in enumerate(
        (
            {"containers": []},
            {"containers": None},
            {"containers": [{"name": "c"}]},
            {"containers": [{"image": "i"}]},
            {"containers": [{"name": "Bad_Name", "image": "i"}]},
            {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]},
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "x"}}}]},
            {
                "containers": [
                    {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                ]
            },
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "-1"}}}]},
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "1"}}}]},
            {
                "containers": [
                    {"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1", "memory": "1Gi"}}}
                ]
            },
            {
                "containers": [
                    {"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}, {"name": "1x", "value": "b"}]}
                ]
            },
            {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 70000}]}]},
            {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "XYZ"}]}]},
            {"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}]},
            {
                "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            {"restartPolicy": "Sometimes"},
            {"restartPolicy": "Never"},
            {"nodeName": "n1"},
            {"priorityClassName": "none"},
            {"priority": 5},
            {"priorityClassName": "system-cluster-critical"},
            {"terminationGracePeriodSeconds": -1},
            {"activeDeadlineSeconds": 0},
            {"nodeSelector": {"a": "b"}},
            {"tolerations": [{"key": "a", "operator": "Bogus"}]},
            {"tolerations": [{"operator": "Exists"}]},
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
                            ]
                        }
                    }
                }
            },
            {"schedulingGates": [{"name": "example.com/gate"}]},
            {"initContainers": [{"name": "i", "image": "i"}]},
            {"hostNetwork": True},
            {"unknownField": 1},
            {"dnsPolicy": "Bogus"},
            {"overhead": {"cpu": "1"}},
        )
    ):
        yield post(where, pod(f"p{index}", **spec))
    one = f"{where}/p"
    yield patch(one, {"spec": {"containers": [{"name": "c", "image": "new"}]}}, STRATEGIC)
    yield patch(one, {"spec": {"nodeName": "x"}})
    yield patch(one, {"spec": {"restartPolicy": "Never"}})
    yield patch(one, {"spec": {"activeDeadlineSeconds": 100}})
    yield patch(one, {"status": {"phase": "Running"}})
    yield patch(f"{one}/status", {"status": {"phase": "Running", "podIP": "1.2.3.4", "podIPs": [{"ip": "1.2.3.4"}]}})
    yield patch(f"{one}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC)
    yield get(f"{one}/status")
    yield get(f"{one}/log")
    yield post(
        f"{one}/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n9"}},
    )
    yield post(
        f"{one}/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n8"}},
    )
    yield post(f"{one}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {}})
    yield delete(one)
    yield delete(f"{one}?gracePeriodSeconds=0")
    yield get(one)
    yield delete(f"{where}/p15")


def template(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels or {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def workloads() -> Iterator[Step]:
    apps, batch = "/apis/apps/v1/namespaces/diff", "/apis/batch/v1/namespaces/diff"
    selector = {"matchLabels": {"a": "b"}}
    for plural, kind in (
        ("deployments", "Deployment"),
        ("replicasets", "ReplicaSet"),
        ("statefulsets", "StatefulSet"),
        ("daemonsets", "DaemonSet"),
    ):
        base = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w"}}
        spec: dict[str, Any] = {"selector": selector, "template": template()}
        if kind == "StatefulSet":
            spec["serviceName"] = "s"
        yield post(f"{apps}/{plural}", {**base, "spec": spec})
        yield post(
            f"{apps}/{plural}",
            {**base, "metadata": {"name": "bad1"}, "spec": {**spec, "template": template({"x": "y"})}},
        )
        yield post(f"{apps}/{plural}", {**base, "metadata": {"name": "bad2"}, "spec": {"template": template()}})
        yield post(f"{apps}/{plural}", {**base, "metadata": {"name": "bad3"}, "spec": {**spec, "replicas": -1}})
        yield post(
            f"{apps}/{plural}",
            {**base, "metadata": {"name": "bad4"}, "spec": {**spec, "template": template(restartPolicy="Never")}},
        )
        yield patch(f"{apps}/{plural}/w", {"spec": {"selector": {"matchLabels": {"c": "d"}}}})
        yield patch(f"{apps}/{plural}/w", {"metadata": {"labels": {"l": "m"}}})
        if kind != "DaemonSet":
            yield get(f"{apps}/{plural}/w/scale")
            yield patch(f"{apps}/{plural}/w/scale", {"spec": {"replicas": 3}})
            yield patch(f"{apps}/{plural}/w/scale", {"spec": {"replicas": -3}})
            yield put(
                f"{apps}/{plural}/w/scale",
                {
                    "apiVersion": "autoscaling/v1",
                    "kind": "Scale",
                    "metadata": {"name": "w", "namespace": "diff"},
                    "spec": {"replicas": 2},
                },
            )
        yield patch(f"{apps}/{plural}/w/status", {"status": {"observedGeneration": 1}})
        yield delete(f"{apps}/{plural}/w")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
        },
    )
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "metadata": {"name": "j2"},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        },
    )
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "metadata": {"name": "j3"},
            "spec": {
                "suspend": True,
                "parallelism": 2,
                "completions": 3,
                "completionMode": "Indexed",
                "template": {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}},
            },
        },
    )
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "metadata": {"name": "j4"},
            "spec": {
                "parallelism": -1,
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}},
            },
        },
    )
    yield patch(f"{batch}/jobs/j", {"spec": {"parallelism": 3}})
    yield patch(f"{batch}/jobs/j", {"spec": {"completions": 3}})
    yield patch(f"{batch}/jobs/j3", {"spec": {"suspend": False}})
    yield patch(f"{batch}/jobs/j/status", {"status": {"active": 1}})
    yield delete(f"{batch}/jobs/j", {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"})
    yield delete(f"{batch}/jobs/j3")
    yield post(
        f"{batch}/cronjobs",
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "cj"},
            "spec": {
                "schedule": "* * * * *",
                "jobTemplate": {
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
                    }
                },
            },
        },
    )
    yield post(
        f"{batch}/cronjobs",
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "cj2"},
            "spec": {
                "schedule": "often",
                "jobTemplate": {
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
                    }
                },
            },
        },
    )


def services() -> Iterator[Step]:
    where = f"{NS}/services"

    def service(name: str, **spec: Any) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}

    yield post(where, service("s", ports=[{"port": 80}], selector={"a": "b"}))
    yield post(where, service("headless", clusterIP="None", ports=[{"port": 80}]))
    yield post(where, service("np", type="NodePort", ports=[{"port": 80}]))
    yield post(where, service("noports", selector={"a": "b"}))
    yield post(where, service("twoports", ports=[{"port": 80}, {"port": 81}]))
    yield post(where, service("badport", ports=[{"port": 0}]))
    yield post(where, service("BadName", ports=[{"port": 80}]))
    yield post(where, service("ext", type="ExternalName", externalName="example.com"))
    yield post(where, service("badtype", type="Bogus", ports=[{"port": 80}]))
    yield post(where, service("badip", clusterIP="1.2.3.4", ports=[{"port": 80}]))
    yield patch(f"{where}/s", {"spec": {"clusterIP": "10.0.0.99"}})
    yield patch(f"{where}/s", {"spec": {"ports": [{"port": 8080}]}}, STRATEGIC)
    yield patch(f"{where}/s", {"spec": {"selector": {"c": "d"}}})
    yield delete(f"{where}/s")
    yield post(
        f"{NS}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "stringData": {"a": "b"}}
    )
    yield post(
        f"{NS}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec2"}, "data": {"a": "not base64!"}},
    )
    yield patch(f"{NS}/secrets/sec", {"type": "other"})
    yield delete(f"{NS}/secrets/sec")
    yield post(f"{NS}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}})
    yield post(
        f"{NS}/serviceaccounts/sa/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    yield post(
        f"{NS}/serviceaccounts/sa/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 5}},
    )
    yield post(
        f"{NS}/serviceaccounts/none/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    lease = "/apis/coordination.k8s.io/v1/namespaces/diff/leases"
    yield post(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2023-01-01T00:00:00.000000Z"},
        },
    )
    yield put(
        f"{lease}/l", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    )
    yield put(
        f"{lease}/m", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "m"}, "spec": {}}
    )
    yield post(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "n"},
            "spec": {"leaseDurationSeconds": 0},
        },
    )
    yield post(
        lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "n"},
            "spec": {"renewTime": "soon"},
        },
    )
    yield post(
        "/api/v1/nodes",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}}},
    )
    yield patch(
        "/api/v1/nodes/n1/status",
        {"status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}},
        STRATEGIC,
    )
    yield patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    yield patch("/api/v1/nodes/n1", {"spec": {"taints": [{"key": "a", "effect": "Bogus"}]}})
    yield delete("/api/v1/nodes/n1")
    yield post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "pc"}, "value": 10},
    )
    yield patch("/apis/scheduling.k8s.io/v1/priorityclasses/pc", {"value": 11})
    yield post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "system-x"}, "value": 10},
    )
    yield post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "big"},
            "value": 2000000000,
        },
    )
    yield post(
        f"{NS}/events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "diff"},
            "reason": "R",
            "message": "m",
            "type": "Normal",
        },
    )
    yield get("/apis/events.k8s.io/v1/namespaces/diff/events/e")
    yield post(
        f"{NS}/events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e2"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"},
        },
    )
    yield post(
        f"{NS}/resourcequotas",
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "x"}}},
    )
    yield post(
        f"{NS}/limitranges",
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "lr"},
            "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]},
        },
    )
    yield delete(f"{NS}/limitranges/lr")
    yield post(
        "/apis/networking.k8s.io/v1/namespaces/diff/networkpolicies",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "np"},
            "spec": {"podSelector": {}},
        },
    )
    yield post(
        "/apis/policy/v1/namespaces/diff/poddisruptionbudgets",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
        },
    )


def definition(**version: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 100},
                    "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                    "names": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 5}},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "either": {"x-kubernetes-int-or-string": True},
                },
                "x-kubernetes-validations": [
                    {"rule": "self.size < 50 || self.color == 'blue'", "message": "large ones are blue"}
                ],
            },
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "ready": {"type": "boolean"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.diff.example"},
        "spec": {
            "group": "diff.example",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"},
                    },
                    **version,
                }
            ],
        },
    }


def custom() -> Iterator[Step]:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    where = "/apis/diff.example/v1/namespaces/diff/widgets"
    yield get(where)
    bad = definition()
    bad["metadata"]["name"] = "wrong.diff.example"
    yield post(crds, bad)
    bad = definition()
    bad["spec"]["versions"][0].pop("schema")
    yield post(crds, bad)
    bad = definition()
    bad["spec"]["versions"][0]["storage"] = False
    yield post(crds, bad)
    bad = definition()
    bad["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].pop("type")
    yield post(crds, bad)
    yield post(crds, definition())
    yield Step("WAIT", f"{crds}/widgets.diff.example")

    def widget(name: str, spec: Any, **more: Any) -> dict[str, Any]:
        return {"apiVersion": "diff.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec, **more}

    yield post(where, widget("w", {"size": 2}))
    for index, spec in enumerate(
        (
            {},
            {"size": "x"},
            {"size": 0},
            {"size": 1.5},
            {"size": 101},
            {"size": 2, "color": "green"},
            {"size": 60},
            {"size": 60, "color": "blue"},
            {"size": 2, "names": ["a", "b", "c", "d"]},
            {"size": 2, "names": ["too long a name"]},
            {"size": 2, "names": "x"},
            {"size": 2, "unknown": 1},
            {"size": 2, "free": {"anything": [1, 2]}},
            {"size": 2, "either": "5%"},
            {"size": 2, "either": 5},
            {"size": 2, "either": True},
            None,
            [],
            "x",
            {"size": None},
        )
    ):
        yield post(where, widget(f"w{index}", spec))
    yield post(f"{where}?fieldValidation=Strict", widget("strict", {"size": 2, "unknown": 1}))
    yield post(where, {"kind": "Widget", "metadata": {"name": "x"}, "spec": {"size": 1}})
    yield post(where, {"apiVersion": "diff.example/v1", "metadata": {"name": "x"}, "spec": {"size": 1}})
    yield post(where, widget("withstatus", {"size": 2}, status={"ready": True}))
    yield put(f"{where}/w", widget("w", {"size": 3}))
    yield patch(f"{where}/w", {"spec": {"size": 4}})
    yield patch(f"{where}/w", {"spec": {"size": 4}}, STRATEGIC)
    yield patch(f"{where}/w", {"spec": {"size": 400}})
    yield patch(f"{where}/w", [{"op": "replace", "path": "/spec/free", "value": {"x": 1}}], JSON_PATCH)
    yield patch(f"{where}/w/status", {"status": {"ready": True, "replicas": 1}, "spec": {"size": 9}})
    yield patch(f"{where}/w/status", {"status": {"ready": "x"}})
    yield get(f"{where}/w/scale")
    yield patch(f"{where}/w/scale", {"spec": {"replicas": 7}})
    yield patch(f"{where}/w/scale", {"spec": {"replicas": 700}})
    yield patch(f"{where}/w?fieldManager=m", widget("w", {"size": 8}), APPLY)
    yield patch(f"{where}/w?fieldManager=m&force=true", widget("w", {"size": 8}), APPLY)
    yield patch(f"{where}/new?fieldManager=m", widget("new", {"size": 8}), APPLY)
    yield get(f"{where}?labelSelector=a")
    yield get(f"{where}?fieldSelector=metadata.name%3Dw")
    yield get(f"{where}?fieldSelector=spec.size%3D1")
    yield get(f"{where}/w/log")
    yield get("/apis/diff.example/v2/namespaces/diff/widgets")
    yield get("/apis/diff.example/v1/widgets")
    yield post("/apis/diff.example/v1/widgets", widget("x", {"size": 1}))
    yield patch(f"{crds}/widgets.diff.example", {"spec": {"scope": "Cluster"}})
    yield patch(f"{crds}/widgets.diff.example", {"spec": {"names": {"kind": "Other"}}})
    yield delete(f"{where}/w")
    yield delete(where)


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
