"""How an object is created so that it makes no pods yet, and what lets it make them.

For clusters in which nothing of ours runs: the objects that a gang wraps are created there stopped, looked at, and then
released with one change each. A kind that has no such field goes only where Shoal runs. Pure.
"""

from __future__ import annotations

import copy

import msgspec

from shoal.api.labels import GATED
from shoal.api.meta import Json
from shoal.controllers.demand.reading import mapping

_SUSPENDED = {
    ("batch", "Job"): ("spec", "suspend"),
    ("batch", "CronJob"): ("spec", "suspend"),
    ("ray.io", "RayJob"): ("spec", "suspend"),
    ("ray.io", "RayCluster"): ("spec", "suspend"),
    ("jobset.x-k8s.io", "JobSet"): ("spec", "suspend"),
    ("kubeflow.org", "MPIJob"): ("spec", "runPolicy", "suspend"),
    ("kubeflow.org", "PyTorchJob"): ("spec", "runPolicy", "suspend"),
    ("kubeflow.org", "TFJob"): ("spec", "runPolicy", "suspend"),
}
_REPLICATED = frozenset((("apps", "Deployment"), ("apps", "StatefulSet"), ("apps", "ReplicaSet")))
_WITHOUT_PODS = frozenset(
    (
        ("", "ConfigMap"),
        ("", "PersistentVolumeClaim"),
        ("", "Secret"),
        ("", "Service"),
        ("", "ServiceAccount"),
        ("networking.k8s.io", "Ingress"),
        ("networking.k8s.io", "NetworkPolicy"),
        ("policy", "PodDisruptionBudget"),
        ("route.openshift.io", "Route"),
    )
)


class Stopped(msgspec.Struct, frozen=True):
    body: Json
    release: Json = {}
    """The change that lets it make its pods; empty: it makes none."""


def stopped(obj: Json) -> Stopped | None:
    """As it is created; None: a kind that cannot be created without starting."""
    kind = _kind(obj)
    spec = mapping(obj.get("spec"))
    if kind == ("", "Pod"):
        gates = list(spec.get("schedulingGates") or ())
        made = {**obj, "spec": {**spec, "schedulingGates": [*gates, {"name": GATED}]}}
        return Stopped(made, {"spec": {"schedulingGates": gates or None}})
    if kind in _REPLICATED:
        wanted = spec.get("replicas")
        made = {**obj, "spec": {**spec, "replicas": 0}}
        return Stopped(made, {"spec": {"replicas": 1 if wanted is None else wanted}})
    if (path := _SUSPENDED.get(kind)) is not None:
        return _suspended(obj, path)
    return Stopped(obj) if kind in _WITHOUT_PODS else None


def why_not_stopped(objects: list[Json]) -> str:
    """Which of these cannot be created stopped, in the words that a user gets; empty where all can."""
    for obj in objects:
        if stopped(obj) is None:
            return f"it has no Shoal, and a {obj.get('kind')} cannot be created there without starting at once"
    return ""


def _suspended(obj: Json, path: tuple[str, ...]) -> Stopped | None:
    made = copy.deepcopy(obj)
    inner = made
    for step in path[:-1]:
        inner = inner.setdefault(step, {})
        if not isinstance(inner, dict):
            return None
    release: Json = {path[-1]: bool(inner.get(path[-1]))}
    inner[path[-1]] = True
    for step in reversed(path[:-1]):
        release = {step: release}
    return Stopped(made, release)


def _kind(obj: Json) -> tuple[str, str]:
    return str(obj.get("apiVersion") or "").rpartition("/")[0], str(obj.get("kind") or "")
