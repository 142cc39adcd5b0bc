"""Server-side apply in its corners: keyed lists, sets, nested owners, taking over, giving up, status, dry runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import (
    APPLY,
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
    put,
    template,
)

DEPLOYMENTS = "/apis/apps/v1/namespaces/diff/deployments"


def deployment(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def containers(*items: dict[str, Any]) -> dict[str, Any]:
    return {"template": {"spec": {"containers": list(items)}}}


def applying() -> Iterator[Step]:
    one = f"{DEPLOYMENTS}/applied"
    full = deployment("applied", replicas=2, selector={"matchLabels": {"a": "b"}}, template=template())
    yield patch(f"{one}?fieldManager=ann", full, APPLY)
    yield patch(f"{one}?fieldManager=bob", deployment("applied", **containers({"name": "d", "image": "j"})), APPLY)
    yield patch(f"{one}?fieldManager=bob", deployment("applied", **containers({"name": "c", "image": "j"})), APPLY)
    env = {"name": "d", "image": "j", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    yield patch(f"{one}?fieldManager=bob", deployment("applied", **containers(env)), APPLY)
    less = {"name": "d", "image": "j", "env": [{"name": "B", "value": "2"}]}
    yield patch(f"{one}?fieldManager=bob", deployment("applied", **containers(less)), APPLY)
    ports = {"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]}
    yield patch(f"{one}?fieldManager=cat", deployment("applied", **containers(ports)), APPLY)
    yield patch(f"{one}?fieldManager=cat", deployment("applied", **containers({"name": "c", "ports": []})), APPLY)
    yield patch(f"{one}?fieldManager=cat", deployment("applied", **containers({"image": "x"})), APPLY)
    twice = ({"name": "e", "image": "x"}, {"name": "e", "image": "y"})
    yield patch(f"{one}?fieldManager=cat", deployment("applied", **containers(*twice)), APPLY)
    yield patch(f"{one}?fieldManager=ann", deployment("applied", unknown=1), APPLY)
    yield patch(f"{one}?fieldManager=ann", deployment("applied", replicas="two"), APPLY)
    yield patch(f"{one}?fieldManager=cat", deployment("applied", replicas=3), APPLY)
    yield patch(f"{one}?fieldManager=cat&force=true", deployment("applied", replicas=3), APPLY)
    yield patch(f"{one}?fieldManager=cat&force=maybe", deployment("applied", replicas=4), APPLY)
    yield patch(f"{one}/scale?fieldManager=hpa", {"spec": {"replicas": 5}}, MERGE)
    yield patch(f"{one}?fieldManager=cat", deployment("applied", replicas=3), APPLY)
    yield patch(f"{one}?fieldManager=cat", deployment("applied"), APPLY)
    yield patch(f"{one}?fieldManager=ann&dryRun=All", full, APPLY)
    yield patch(f"{one}?fieldManager=ann&dryRun=All&force=true", full, APPLY)
    yield patch(f"{one}?fieldManager={'x' * 129}", full, APPLY)
    yield patch(f"{one}?fieldManager=b%07d", full, APPLY)
    status = deployment("applied")
    status["status"] = {"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]}
    yield patch(f"{one}/status?fieldManager=con", status, APPLY)
    yield patch(f"{one}?fieldManager=con2", {**deployment("applied"), "status": {"replicas": 7}}, APPLY)
    yield get(one)
    yield put(f"{one}?fieldManager=putter", {**full, "spec": {**full["spec"], "replicas": 9}})
    yield patch(f"{one}?fieldManager=ann", full, APPLY)
    yield patch(one, {"metadata": {"managedFields": []}})
    yield patch(one, {"metadata": {"managedFields": [{}]}})
    yield patch(f"{one}?fieldManager=late", {"metadata": {"labels": {"late": "yes"}}})
    yield patch(f"{one}?fieldManager=ann", full, APPLY)
    yield patch(f"{one}?fieldManager=ann&force=true", full, APPLY)
    yield get(one)
    yield from finalizers_and_owners()
    yield from atomic_and_sets()


def finalizers_and_owners() -> Iterator[Step]:
    one = f"{NS}/configmaps/owned"
    metadata: dict[str, Any] = {"name": "owned", "finalizers": ["example.com/a"], "labels": {"x": "1"}}
    yield patch(f"{one}?fieldManager=ann", {**cm("owned"), "metadata": metadata}, APPLY)
    yield patch(
        f"{one}?fieldManager=bob",
        {**cm("owned"), "metadata": {"name": "owned", "finalizers": ["example.com/b"]}},
        APPLY,
    )
    yield patch(f"{one}?fieldManager=ann", {**cm("owned"), "metadata": {"name": "owned", "labels": {"x": "1"}}}, APPLY)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}
    yield patch(
        f"{one}?fieldManager=own",
        {**cm("owned"), "metadata": {"name": "owned", "ownerReferences": [reference]}},
        APPLY,
    )
    yield patch(f"{one}?fieldManager=ann", {**cm("owned"), "metadata": {"name": "owned", "uid": "wrong"}}, APPLY)
    yield patch(
        f"{one}?fieldManager=ann", {**cm("owned"), "metadata": {"name": "owned", "resourceVersion": "1"}}, APPLY
    )
    yield patch(
        f"{one}?fieldManager=ann",
        {**cm("owned"), "metadata": {"name": "owned", "resourceVersion": "{{rv_owned}}"}},
        APPLY,
    )
    yield patch(
        f"{NS}/configmaps/absent?fieldManager=ann",
        {**cm("absent"), "metadata": {"name": "absent", "resourceVersion": "{{rv_owned}}"}},
        APPLY,
    )
    yield patch(
        f"{NS}/configmaps/absent?fieldManager=ann",
        {**cm("absent"), "metadata": {"name": "absent", "uid": "{{uid_owned}}"}},
        APPLY,
    )
    yield get(one)
    yield patch(one, [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH)
    yield delete(one)


def atomic_and_sets() -> Iterator[Step]:
    where = f"{NS}/services"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "sets"},
        "spec": {"selector": {"a": "b"}, "ports": [{"name": "one", "port": 80}]},
    }
    yield patch(f"{where}/sets?fieldManager=ann", service, APPLY)
    more = {**service, "spec": {"ports": [{"name": "two", "port": 81}]}}
    yield patch(f"{where}/sets?fieldManager=bob", more, APPLY)
    yield patch(f"{where}/sets?fieldManager=bob", {**service, "spec": {"selector": {"c": "d"}}}, APPLY)
    yield patch(f"{where}/sets", {"spec": {"ports": [{"port": 80, "name": "uno"}]}}, STRATEGIC)
    yield get(f"{where}/sets")
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "sets"},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    }
    yield patch("/api/v1/nodes/sets?fieldManager=ann", node, APPLY)
    yield patch("/api/v1/nodes/sets?fieldManager=bob", {**node, "spec": {"podCIDRs": ["10.0.0.0/24"]}}, APPLY)
    yield delete("/api/v1/nodes/sets")
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "sets"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    yield patch(f"{roles}/sets?fieldManager=ann", role, APPLY)
    yield patch(f"{roles}/sets?fieldManager=bob", {**role, "rules": []}, APPLY)
    yield post(roles, {**role, "metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": []}})
    yield delete(f"{roles}/sets")
    yield delete(f"{roles}/sum")
