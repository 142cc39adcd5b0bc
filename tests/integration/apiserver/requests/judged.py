"""What random changes to good objects brought to light: faults that Kubernetes names and that are easily overlooked.

Nothing is kept: every request is a dry run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import Step, post

DRY = "?dryRun=All"
CORE = "/api/v1/namespaces/diff"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def judged() -> Iterator[Step]:
    for affinity in (
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}},
        {"nodeAffinity": {REQUIRED: _terms({"key": "k", "operator": "In"})}},
        {"nodeAffinity": {REQUIRED: _terms({"key": "", "operator": "In", "values": ["a"]})}},
        {"podAffinity": {REQUIRED: [{"labelSelector": {"matchLabels": {"a": "b"}}}]}},
    ):
        yield post(f"{CORE}/pods{DRY}", _object("v1", "Pod", {"spec": {**_containers(), "affinity": affinity}}))
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for missing in claim:
        spec = {name: value for name, value in claim.items() if name != missing}
        yield post(f"{CORE}/persistentvolumeclaims{DRY}", _object("v1", "PersistentVolumeClaim", {"spec": spec}))
        templates = [{"metadata": {"name": "v"}, "spec": spec}]
        wanted = {"serviceName": "s", **_templated(), "volumeClaimTemplates": templates}
        path = f"/apis/apps/v1/namespaces/diff/statefulsets{DRY}"
        yield post(path, _object("apps/v1", "StatefulSet", {"spec": wanted}))
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "Role", "name": "r"}
    for subject in ({"kind": "User", "name": "u", "apiGroup": "x"}, {"kind": "Robot", "name": "u", "apiGroup": group}):
        body = _object(f"{group}/v1", "RoleBinding", {"roleRef": role, "subjects": [subject]})
        yield post(f"/apis/{group}/v1/namespaces/diff/rolebindings{DRY}", body)
    controller = {"selector": {"a": "c"}, "template": _templated()["template"]}
    path = f"{CORE}/replicationcontrollers{DRY}"
    yield post(path, _object("v1", "ReplicationController", {"spec": controller}))
    yield post(f"{CORE}/events{DRY}", _object("v1", "Event", {"involvedObject": {"kind": "Pod", "name": "p"}}))
    budgets = "/apis/policy/v1/namespaces/diff/poddisruptionbudgets"
    budget = _object("policy/v1", "PodDisruptionBudget", {"spec": {"minAvailable": 1}})
    yield post(budgets, budget)
    yield Step("PUT", f"{budgets}/judged{DRY}", budget)  # not without its revision
    yield Step("DELETE", f"{budgets}/judged")


def _object(api_version: str, kind: str, rest: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "judged"}, **rest}


def _containers() -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "x"}]}


def _templated() -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": _containers()}
    return {"selector": {"matchLabels": {"a": "b"}}, "template": template}


def _terms(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
