"""Defaults, patches, apply, schemas, rules, validation and tables give the answers of kube-apiserver.

Where our words differ on purpose (they say more) only code and reason are compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from shoal.kube.kubeconfig import load
from shoal.kube.transport import Transport
from shoal.local.apiserver import Server
from tests.controlplane.plane import ControlPlane
from tests.integration.builtin.exchange import (
    APPLY,
    APPS,
    BATCH,
    CORE,
    JSON,
    MERGE,
    NAMESPACE,
    STRATEGIC,
    TABLE,
    THINGS,
    Step,
    differences,
    patch,
    post,
    send,
    until_served,
)

pytestmark = pytest.mark.controlplane

C = {"name": "c", "image": "busybox"}
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"


def template(**spec):
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [dict(C)], **spec}}


def workload(kind, name, **spec):
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template(), **spec},
    }


def job(name, **spec):
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [C]}}, **spec},
    }


def core(kind, name, **more):
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more}


def pod(name, *containers, **spec):
    return core("Pod", name, spec={"containers": list(containers) or [C], **spec})


BIG_POD = pod(
    "p1",
    {
        **C,
        "image": "busybox:1",
        "ports": [{"containerPort": 80}],
        "livenessProbe": {"httpGet": {"port": 80}},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}, "requests": {"cpu": 0.1}},
    },
    serviceAccountName="default",
    volumes=[{"name": "v"}, {"name": "s", "secret": {"secretName": "q"}}, {"name": "h", "hostPath": {"path": "/x"}}],
)
LATER = {"owners": False}  # fields that the server adds itself have no manager there, the writer here

DEFAULTS = [
    post(f"{CORE}/pods", BIG_POD, **LATER),
    post(f"{APPS}/deployments", workload("Deployment", "d1")),
    post(f"{APPS}/deployments", workload("Deployment", "d2", strategy={"type": "Recreate"}, replicas=0)),
    post(f"{APPS}/statefulsets", workload("StatefulSet", "s1", serviceName="s")),
    post(f"{APPS}/replicasets", workload("ReplicaSet", "rs1")),
    post(f"{BATCH}/jobs", job("j1"), **LATER),
    post(f"{BATCH}/jobs", job("j2", parallelism=3), **LATER),
    post(f"{BATCH}/jobs", job("j3", completions=3, completionMode="Indexed", backoffLimitPerIndex=1), **LATER),
    post(
        f"{CORE}/services",
        core("Service", "svc", spec={"clusterIP": "None", "ports": [{"port": 80}], "selector": {"a": "b"}}),
        **LATER,
    ),
    post(f"{CORE}/services", core("Service", "ext", spec={"type": "ExternalName", "externalName": "x.example"})),
    post(f"{CORE}/secrets", core("Secret", "sec", stringData={"a": "b"})),
    post(f"{CORE}/configmaps", core("ConfigMap", "cm", data={"a": "b"})),
    post(
        f"{CORE}/endpoints",
        core("Endpoints", "ep", subsets=[{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 80}]}]),
    ),
    post(
        f"{RBAC}/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "rb"},
            "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "u"}],
        },
    ),
    post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "pc"}, "value": 5},
    ),
]

D1 = f"{APPS}/deployments/d1"
PATCHES = [
    patch(D1, STRATEGIC, {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s"}]}}}}),
    patch(
        D1,
        STRATEGIC,
        {"spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "X", "value": "1"}]}]}}}},
    ),
    patch(
        D1,
        STRATEGIC,
        {
            "spec": {
                "template": {
                    "spec": {
                        "$setElementOrder/containers": [{"name": "c"}, {"name": "side"}],
                        "containers": [{"name": "c", "image": "busybox:2"}],
                    }
                }
            }
        },
    ),
    patch(D1, STRATEGIC, {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}}),
    patch(D1, STRATEGIC, {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
    patch(D1, STRATEGIC, {"spec": {"strategy": {"$patch": "replace", "type": "RollingUpdate"}}}),
    patch(D1, STRATEGIC, {"spec": {"template": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}}}),
    patch(D1, STRATEGIC, {"metadata": {"finalizers": ["a.b/c"]}}),
    patch(D1, STRATEGIC, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/c"]}}),
    patch(D1, STRATEGIC, [1], words=False),
    patch(
        f"{CORE}/services/svc",
        STRATEGIC,
        {"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]}},
        **LATER,
    ),
    patch(D1, JSON, [{"op": "replace", "path": "/spec/minReadySeconds", "value": 3}]),
    patch(D1, JSON, [{"op": "test", "path": "/spec/replicas", "value": 99}], words=False),
    patch(D1, JSON, [{"op": "remove", "path": "/spec/nope"}], words=False),
    patch(D1, JSON, {"op": "x"}, words=False),
    patch(D1, MERGE, {"spec": {"minReadySeconds": None, "paused": True}}),
    patch(D1, MERGE, {"spec": {"bogus": 1}}),
    patch(D1, MERGE, [1], words=False),
]

SSA = f"{APPS}/deployments/ssa"
HEAD = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ssa"}}
WHOLE = {
    **HEAD,
    "metadata": {"name": "ssa", "labels": {"l": "1"}},
    "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template()},
}
APPLIES = [
    patch(SSA, APPLY, WHOLE, "one"),
    patch(SSA, APPLY, WHOLE, "one"),
    patch(SSA, APPLY, {**WHOLE, "spec": {**WHOLE["spec"], "replicas": 3}}, "two"),
    patch(SSA, APPLY, {**HEAD, "spec": {"replicas": 3}}, "two", query={"force": "true"}),
    patch(
        SSA,
        APPLY,
        {
            **HEAD,
            "spec": {
                "template": {
                    "spec": {
                        "containers": [{"name": "c", "env": [{"name": "E", "value": "1"}]}, {"name": "n", "image": "n"}]
                    }
                }
            },
        },
        "two",
        query={"force": "true"},
    ),
    patch(SSA, APPLY, HEAD, "two"),
    patch(SSA, MERGE, {"spec": {"replicas": 7}, "metadata": {"labels": {"m": "2"}}}, "upd"),
    patch(SSA, APPLY, WHOLE, "one"),
    patch(SSA, APPLY, WHOLE),
    # Not compared: an unknown field in an apply. Kubernetes calls that its own fault (500), we the client's (400).
    patch(f"{SSA}/status", APPLY, {**HEAD, "status": {"readyReplicas": 1, "replicas": 1}}, "stat"),
]

REFUSALS = [
    post(f"{CORE}/pods", pod("Bad_Name")),
    post(f"{CORE}/pods", pod("b", containers=[])),
    post(f"{CORE}/pods", pod("b", {"name": "c"})),
    post(f"{CORE}/pods", pod("b", C, C)),
    post(f"{CORE}/pods", pod("b", restartPolicy="X")),
    post(f"{CORE}/pods", pod("b", {**C, "volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
    post(f"{CORE}/pods", pod("b", {**C, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
    post(f"{CORE}/pods", pod("b", {**C, "resources": {"requests": {"nvidia.com/gpu": "1"}}})),
    post(f"{CORE}/pods", pod("b", {**C, "resources": {"requests": {"cpu": "zz"}}}), words=False),
    post(f"{CORE}/pods", {**pod("b"), "metadata": {"name": "b", "labels": {"a b": "c"}}}),
    post(f"{CORE}/pods", {**pod("b"), "metadata": {"name": "b", "labels": {"a": "c d"}}}),
    post(f"{CORE}/pods", core("Pod", "b", spec={"containers": "x"}), words=False),
    post(f"{APPS}/deployments", workload("Deployment", "b", selector=None)),
    post(f"{APPS}/deployments", workload("Deployment", "b", selector={"matchLabels": {"a": "z"}})),
    post(f"{APPS}/deployments", workload("Deployment", "b", replicas=-1)),
    post(f"{APPS}/deployments", workload("Deployment", "b", template=template(restartPolicy="Never"))),
    post(f"{BATCH}/jobs", {**job("b"), "spec": {"template": template()}}),
    post(f"{BATCH}/jobs", job("b", completionMode="Indexed", parallelism=2)),
    post(f"{BATCH}/jobs", job("b", backoffLimit=-1)),
    post(f"{CORE}/services", core("Service", "b", spec={})),
    post(f"{CORE}/services", core("Service", "b", spec={"ports": [{"port": 1}, {"port": 2}]})),
    post(f"{CORE}/configmaps", core("ConfigMap", "b", data={"a b": "x"})),
    post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "b"},
            "value": 2_000_000_000,
        },
    ),
    patch(f"{BATCH}/jobs/j1", MERGE, {"spec": {"completions": 5}}),
    patch(f"{BATCH}/jobs/j1", MERGE, {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}, words=False),
    patch(f"{APPS}/deployments/d2", MERGE, {"spec": {"selector": {"matchLabels": {"a": "b", "c": "d"}}}}),
    patch(f"{APPS}/statefulsets/s1", MERGE, {"spec": {"serviceName": "zz"}}),
    patch(f"{CORE}/pods/p1", MERGE, {"spec": {"nodeSelector": {"a": "b"}}}, words=False),
    patch(f"{CORE}/secrets/sec", MERGE, {"type": "x/y"}),
]

SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["need"],
            "properties": {
                "need": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
                "n": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
                "e": {"type": "string", "enum": ["A", "B"]},
                "l": {
                    "type": "array",
                    "maxItems": 2,
                    "minItems": 1,
                    "items": {"type": "string"},
                    "x-kubernetes-list-type": "set",
                },
                "m": {
                    "type": "array",
                    "maxItems": 9,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                    "items": {
                        "type": "object",
                        "required": ["k"],
                        "properties": {"k": {"type": "string", "maxLength": 9}, "v": {"type": "integer", "default": 1}},
                    },
                },
                "either": {"x-kubernetes-int-or-string": True},
                "nul": {"type": "string", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "ip": {"type": "string", "format": "ipv4"},
                "i32": {"type": "integer", "format": "int32"},
                "one": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "counts": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}},
                "fixed": {
                    "type": "string",
                    "maxLength": 9,
                    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is immutable"}],
                },
                "lo": {"type": "integer"},
                "hi": {"type": "integer"},
            },
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.lo) || !has(self.hi) || self.lo <= self.hi",
                    "fieldPath": ".lo",
                    "messageExpression": "'lo %d over hi %d'.format([self.lo, self.hi])",
                },
                {"rule": "self.need != 'bad'", "reason": "FieldValueForbidden"},
            ],
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.exchange.example"},
    "spec": {
        "group": "exchange.example",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "N", "type": "integer", "jsonPath": ".spec.n"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}


def thing(name, **spec):
    return {
        "apiVersion": "exchange.example/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": {"need": "ok", **spec},
    }


BAD_THINGS = [
    {"need": "A"},
    {"need": "toolong"},
    {"need": 1},
    {"need": "bad"},
    {"n": 0},
    {"n": 11},
    {"n": "x"},
    {"e": "C"},
    {"l": ["a", "a"]},
    {"l": ["a", "b", "c"]},
    {"l": []},
    {"l": "x"},
    {"m": [{"k": "a"}, {"k": "a"}]},
    {"m": [{"v": 1}]},
    {"either": True},
    {"ip": "1.2.3"},
    {"i32": 2**31},
    {"one": {}},
    {"one": {"a": "1", "b": "2"}},
    {"free": 1},
    {"counts": {"a": 1, "b": 2, "c": 3}},
    {"counts": {"a": "x"}},
    {"lo": 5, "hi": 1},
]
G1 = f"{THINGS}/g1"
CUSTOM = [
    post(THINGS, thing("g1", free={"z": {"y": 1}}, zzz=1, m=[{"k": "a"}, {"k": "b", "v": 2}], nul=None, fixed="x")),
    *(post(THINGS, thing(f"b{number}", **spec)) for number, spec in enumerate(BAD_THINGS)),
    post(THINGS, thing("strict", bogus=1), query={"fieldValidation": "Strict"}),
    patch(G1, MERGE, {"spec": {"fixed": "y"}}),
    patch(G1, MERGE, {"spec": {"n": 4, "extra": True}}),
    patch(f"{G1}/status", MERGE, {"status": {"phase": "P", "bogus": 1}}, "ctl"),
    patch(f"{G1}/status", MERGE, {"status": {"phase": 5}}, "ctl"),
    patch(G1, APPLY, {**thing("g1"), "spec": {"m": [{"k": "c"}], "l": ["q"]}}, "one"),
    patch(G1, APPLY, {**thing("g1"), "spec": {"m": [{"k": "a", "v": 9}], "l": ["r"]}}, "one"),
    patch(G1, APPLY, {**thing("g1"), "spec": {}}, "one"),
]

TABLES = [
    Step("GET", path, accept=TABLE, owners=False)
    for path in (
        f"{CORE}/pods",
        f"{CORE}/secrets",
        f"{CORE}/endpoints",
        f"{APPS}/deployments/d1",
        f"{APPS}/statefulsets",
        f"{APPS}/replicasets",
        f"{BATCH}/jobs",
        f"{RBAC}/rolebindings",
        THINGS,
        "/apis/scheduling.k8s.io/v1/priorityclasses/pc",
    )
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(control_plane: ControlPlane) -> AsyncIterator[tuple[Transport, Transport]]:
    real = load(control_plane.kubeconfig)
    embedded = Server(None)
    await embedded.start()
    ours = embedded.transport()
    for step in (
        post("/api/v1/namespaces", core("Namespace", NAMESPACE)),
        post(f"{CORE}/serviceaccounts", core("ServiceAccount", "default")),
        post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD),
    ):
        for server in (real, ours):
            assert (await send(server, step))[0] == 201
    await until_served(real, THINGS)
    yield real, ours
    await real.close()
    await embedded.stop()


@pytest.mark.parametrize("steps", [DEFAULTS, PATCHES, APPLIES, REFUSALS, CUSTOM, TABLES],
                         ids=["defaults", "patches", "applies", "refusals", "custom", "tables"])  # fmt: skip
@pytest.mark.asyncio(loop_scope="module")
async def test_the_answers_are_those_of_kubernetes(servers, steps):
    real, ours = servers
    found = {}
    for number, step in enumerate(steps):
        lines = differences(step, await send(real, step), await send(ours, step))
        if lines:
            found[f"{number} {step.method} {step.path} {str(step.body)[:100]}"] = lines
    assert found == {}
