"""Where the pod templates of a kind sit, and how many pods each will make at the start.

One table for every kind that Shoal understands; any other object is searched for `template.spec.containers`. Called
to infer a gang's demand and to mark the pods it will make. Works on plain dictionaries and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from shoal.api.meta import Json

Workers = Literal["maximum", "minimum", "replicas"]
Path = tuple[str | int, ...]

SEARCH_DEPTH = 6


class Template(msgspec.Struct, frozen=True):
    """One pod template: where it is in the object, how many pods it makes, and its content."""

    path: Path
    count: int
    content: Json

    @property
    def name(self) -> str:
        return ".".join(str(step) for step in self.path) or "pod"


def templates(obj: Json, workers: Workers = "replicas") -> tuple[Template, ...]:
    """The pod templates of any object, in the order they stand. `workers` says how autoscaled Ray groups count."""
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    reader = _READERS.get((group, str(obj.get("kind") or "")))
    found = reader(obj, workers) if reader else _searched(obj, (), SEARCH_DEPTH)
    return tuple(template for template in found if isinstance(template.content, dict))


def _pod(obj: Json, workers: Workers) -> Iterator[Template]:
    yield Template((), 1, obj)


def _replicated(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = _map(obj.get("spec"))
    if "template" in spec:
        yield Template(("spec", "template"), _count(spec.get("replicas"), 1), spec["template"])


def _job(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = _map(obj.get("spec"))
    yield Template(("spec", "template"), _job_pods(spec), spec.get("template") or {})


def _cron_job(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = _map(_map(_map(obj.get("spec")).get("jobTemplate")).get("spec"))
    yield Template(("spec", "jobTemplate", "spec", "template"), _job_pods(spec), spec.get("template") or {})


def _job_set(obj: Json, workers: Workers) -> Iterator[Template]:
    for index, job in enumerate(_list(_map(obj.get("spec")).get("replicatedJobs"))):
        spec = _map(_map(job.get("template")).get("spec"))
        path = ("spec", "replicatedJobs", index, "template", "spec", "template")
        yield Template(path, _count(job.get("replicas"), 1) * _job_pods(spec), spec.get("template") or {})


def _ray_cluster(obj: Json, workers: Workers) -> Iterator[Template]:
    yield from _ray_groups(_map(obj.get("spec")), ("spec",), workers)


def _ray_job(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = _map(obj.get("spec"))
    if spec.get("clusterSelector"):
        return
    yield from _ray_groups(_map(spec.get("rayClusterSpec")), ("spec", "rayClusterSpec"), workers)
    submitter = spec.get("submitterPodTemplate")
    if submitter and spec.get("submissionMode", "K8sJobMode") == "K8sJobMode":
        yield Template(("spec", "submitterPodTemplate"), 1, submitter)


def _ray_service(obj: Json, workers: Workers) -> Iterator[Template]:
    yield from _ray_groups(_map(_map(obj.get("spec")).get("rayClusterConfig")), ("spec", "rayClusterConfig"), workers)


def _ray_groups(spec: Json, path: Path, workers: Workers) -> Iterator[Template]:
    head = _map(spec.get("headGroupSpec"))
    yield Template((*path, "headGroupSpec", "template"), 1, head.get("template") or {})
    for index, group in enumerate(_list(spec.get("workerGroupSpecs"))):
        if group.get("suspend"):
            continue
        hosts = max(1, _count(group.get("numOfHosts"), 1))
        pods = _ray_workers(group, bool(spec.get("enableInTreeAutoscaling")), workers) * hosts
        yield Template((*path, "workerGroupSpecs", index, "template"), pods, group.get("template") or {})


def _ray_workers(group: Json, autoscaled: bool, workers: Workers) -> int:
    least = _count(group.get("minReplicas"), 0)
    asked = _count(group.get("replicas"), least)
    wanted = max(least, min(asked, _count(group.get("maxReplicas"), asked)))  # as many as the operator makes
    if not autoscaled or workers == "replicas":
        return wanted
    return least if workers == "minimum" else max(wanted, _count(group.get("maxReplicas"), wanted))


def _searched(value: Any, path: Path, depth: int) -> Iterator[Template]:
    """Any other kind: `spec.containers` below a key that ends in `template`, times its sibling `replicas`."""
    if depth == 0:
        return
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        named = isinstance(step, str) and step.lower().endswith("template")
        if named and isinstance(inner, dict) and _map(inner.get("spec")).get("containers"):
            yield Template((*path, step), _count(value.get("replicas"), 1), inner)
        else:
            yield from _searched(inner, (*path, step), depth - 1)


def _job_pods(spec: Json) -> int:
    parallel = _count(spec.get("parallelism"), 1)
    completions = spec.get("completions")
    return parallel if completions is None else min(parallel, _count(completions, parallel))


def _count(value: Any, default: int) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else default


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


_READERS: dict[tuple[str, str], Callable[[Json, Workers], Iterator[Template]]] = {
    ("", "Pod"): _pod,
    ("", "ReplicationController"): _replicated,
    ("apps", "Deployment"): _replicated,
    ("apps", "ReplicaSet"): _replicated,
    ("apps", "StatefulSet"): _replicated,
    ("apps", "DaemonSet"): _replicated,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("ray.io", "RayJob"): _ray_job,
    ("ray.io", "RayService"): _ray_service,
}
