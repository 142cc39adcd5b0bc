"""Small kinds and selectors in their corners: what may not change, what a status may say, what stays of old clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.integration.apiserver.requests.step import (
    NS,
    STRATEGIC,
    Step,
    cm,
    delete,
    get,
    patch,
    pod,
    post,
    put,
    template,
)

STORAGE = "/apis/storage.k8s.io/v1/storageclasses"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def corners() -> Iterator[Step]:
    yield from storage()
    yield from statuses()
    yield from replaced()
    yield from narrowed()
    yield from ended()


def storage() -> Iterator[Step]:
    claim = _object("v1", "PersistentVolumeClaim", "corner", spec={**_claim("1Gi"), "storageClassName": "corner"})
    where = f"{NS}/persistentvolumeclaims"
    yield post(where, claim)
    yield patch(f"{where}/corner", {"spec": _claim("2Gi")})
    yield patch(f"{where}/corner", {"spec": {"accessModes": ["ReadWriteMany"]}})
    yield patch(f"{where}/corner", {"spec": {"volumeName": "v"}})
    yield patch(f"{where}/corner", {"spec": {"volumeName": "w"}})
    bound = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    yield patch(f"{where}/corner/status", {"status": bound})
    yield post(STORAGE, _object("storage.k8s.io/v1", "StorageClass", "corner", provisioner="e.io/p"))
    for expands in (False, True):
        yield patch(f"{STORAGE}/corner", {"allowVolumeExpansion": expands})
        for size in ("3Gi", "2Gi", "1Gi", "512Mi"):
            yield patch(f"{where}/corner?dryRun=All", {"spec": _claim(size)}, STRATEGIC)
    for change in ({"reclaimPolicy": "Retain"}, {"provisioner": "e.io/q"}, {"parameters": {"a": "b"}}):
        yield patch(f"{STORAGE}/corner", change)
    yield post(STORAGE, _object("storage.k8s.io/v1", "StorageClass", "nobody"))
    yield get(f"{STORAGE}/corner", accept=TABLE)
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    yield post("/api/v1/persistentvolumes", _object("v1", "PersistentVolume", "corner", spec=volume))
    yield get("/api/v1/persistentvolumes/corner", accept=TABLE)


def statuses() -> Iterator[Step]:
    """What the way to a status lets through."""
    yield post(f"{NS}/services", _object("v1", "Service", "corner", spec={"ports": [{"port": 80}]}))
    balanced = {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}
    yield patch(f"{NS}/services/corner/status", balanced)
    yield patch(f"{NS}/services/corner", {"spec": {"type": "LoadBalancer"}})
    yield patch(f"{NS}/services/corner/status", balanced)
    apps = "/apis/apps/v1/namespaces/diff"
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template()}
    body = _object("apps/v1", "Deployment", "corner", spec=spec)
    yield post(f"{apps}/deployments", body)
    labelled = {**body, "metadata": {"name": "corner", "labels": {"by": "status"}}, "status": {"replicas": 1}}
    yield put(f"{apps}/deployments/corner/status", labelled)
    yield post("/api/v1/namespaces", _object("v1", "Namespace", "corner"))
    yield put("/api/v1/namespaces/corner/status", _object("v1", "Namespace", "corner", status={"phase": "Active"}))


def replaced() -> Iterator[Step]:
    rule = {"apiGroups": ["none.example"], "apiVersions": ["v1"], "resources": ["xs"], "operations": ["CREATE"]}
    hook = {"name": "a.b.example", "clientConfig": {"url": "https://127.0.0.1:1/x"}, "rules": [rule],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore"}  # fmt: skip
    made = _object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "corner", webhooks=[hook])
    yield post(HOOKS, made)
    yield put(f"{HOOKS}/corner", made)
    yield put(f"{HOOKS}/corner", {**made, "metadata": {"name": "corner", "resourceVersion": "{{rv_corner}}"}})
    for effects in (None, "Some"):
        yield patch(f"{HOOKS}/corner", {"webhooks": [{**hook, "sideEffects": effects}]})
    yield delete(f"{HOOKS}/corner")
    about = {"kind": "Pod", "namespace": "diff", "name": "x"}
    event = _object("v1", "Event", "corner", involvedObject=about, reason="R", message="m", type="Normal")
    yield post(f"{NS}/events", event)
    yield put(f"{NS}/events/corner", {**event, "message": "n"})
    tolerant = pod("corner", serviceAccountName="default")
    yield post(f"{NS}/pods", tolerant)
    yield put(f"{NS}/pods/corner", {**tolerant, "metadata": {"name": "corner", "labels": {"a": "b"}}})


def narrowed() -> Iterator[Step]:
    for number in range(3):
        yield post(f"{NS}/configmaps", {**cm(f"narrow{number}"), "metadata": _labelled(f"narrow{number}", str(number))})
    for labels in ("narrow>-1", "narrow>0", "narrow<x", "narrow=1=2", "narrow in (1,,2)", "!narrow=1"):
        yield get(f"{NS}/configmaps?labelSelector={quote(labels)}")
    for fields in ("metadata.name=a\\1", "metadata.name=a=b", "metadata.name!==a", "metadata.name=narrow1\\,"):
        yield get(f"{NS}/configmaps?fieldSelector={quote(fields)}")
    yield get(f"{NS}/configmaps?labelSelector=narrow&limit=1&resourceVersion={{{{rv_narrow1}}}}")
    yield get(f"{NS}/configmaps?labelSelector=narrow&limit=5&continue={{{{continue}}}}")
    yield get(f"{NS}/pods?fieldSelector=status.podIPs%3D10.9.9.9")
    yield get("/apis/apps/v1/namespaces/diff/replicasets?fieldSelector=status.replicas%3D0")
    where = f"{NS}/configmaps?labelSelector=narrow"
    for query in ("limit=1&resourceVersion={{rv_narrow0}}", "limit=1&resourceVersion={{rv_narrow1}}",
                  "limit=9&resourceVersion={{rv_narrow1}}", "limit=1&resourceVersion=0"):  # fmt: skip
        yield get(f"{where}&{query}")


def ended() -> Iterator[Step]:
    for finalizers in (["not a name"], ["plain"], ["e.io/"], ["e.io/f"]):
        yield patch(f"{NS}/configmaps/narrow0", {"metadata": {"finalizers": finalizers}})
    yield patch(f"{NS}/events/corner", {"metadata": {"finalizers": ["e.io/f"]}})
    for where in (f"{NS}/configmaps/narrow0", f"{NS}/events/corner"):
        yield delete(f"{where}?propagationPolicy=Foreground")
        yield get(where)
        yield patch(where, {"metadata": {"finalizers": None}})


def _object(api: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **more}


def _claim(size: str) -> dict[str, Any]:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}


def _labelled(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "labels": {"narrow": value}}
