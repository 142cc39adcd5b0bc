"""Where the pod templates of a kind sit, and how many pods each will make at the start.

One table for every kind that Shoal understands; any other object is searched for `template.spec.containers`. Called
to infer a gang's demand and to mark the pods it will make. Works on plain dictionaries and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from shoal.api.meta import Json
from shoal.controllers.demand import ray, reading
from shoal.controllers.demand.ray import RayPods, Workers
from shoal.controllers.demand.reading import listing, mapping
from shoal.controllers.ray.settings import RaySidecars

Path = tuple[str | int, ...]

SEARCH_DEPTH = 6
SUBMITTER = "submitterPodTemplate"
LAUNCHER = "launcher"


class Template(msgspec.Struct, frozen=True):
    """One pod template: where it is in the object, how many pods it makes, and its content."""

    path: Path
    count: int
    content: Json
    is_inside: bool = True
    """False where an operator will make the template from other fields: there is nothing to mark or to pin."""
    role: Literal["", "head", "worker"] = ""
    """In a Ray cluster that is our operator's to make."""

    @property
    def name(self) -> str:
        return ".".join(str(step) for step in self.path) or "pod"


def templates(obj: Json, workers: Workers = "replicas") -> tuple[Template, ...]:
    """The pod templates of any object, in the order they stand. `workers` says how autoscaled Ray groups count."""
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    reader = _READERS.get((group, str(obj.get("kind") or "")))
    found = reader(obj, workers) if reader else _searched(obj, (), SEARCH_DEPTH)
    return tuple(template for template in found if isinstance(template.content, dict))


def as_made(template: Template, sidecars: RaySidecars) -> Json:
    """A template's content with what its pods will have besides."""
    return ray.as_made(template.role, template.content, sidecars)


def is_known(obj: Json) -> bool:
    """Is this a kind of the table, so that its templates and counts are certain?"""
    return (str(obj.get("apiVersion") or "").rpartition("/")[0], str(obj.get("kind") or "")) in _READERS


def pods_at_start(obj: Json) -> int:
    """How many pods an object makes before any of them has to be ready: what the binding of a gang may wait for.

    An ordered StatefulSet makes one, a JobSet those jobs that wait for no other, a RayJob not yet its submitter, a
    `Ray` not yet its launcher, and what is suspended none at all.
    """
    spec = mapping(obj.get("spec"))
    if spec.get("suspend") is True or spec.get("paused") is True:
        return 0
    found = templates(obj)
    match obj.get("kind"):
        case "StatefulSet" if spec.get("podManagementPolicy") != "Parallel":
            return min(1, sum(template.count for template in found))
        case "JobSet":
            return sum(one.count for one in found if _waits_for_none(spec, int(one.path[2])))
        case "RayJob" | "Ray":
            return sum(one.count for one in found if one.path[-1:] not in ((SUBMITTER,), (LAUNCHER,)))
    return sum(template.count for template in found)


def _waits_for_none(spec: Json, index: int) -> bool:
    """Does this job of a JobSet start at once?"""
    in_order = mapping(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    return not (in_order and index > 0) and not listing(spec.get("replicatedJobs"))[index].get("dependsOn")


def _pod(obj: Json, workers: Workers) -> Iterator[Template]:
    yield Template((), 1, obj)


def _replicated(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = mapping(obj.get("spec"))
    if "template" in spec:
        yield Template(("spec", "template"), reading.count(spec.get("replicas"), 1), spec["template"])


def _job(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = mapping(obj.get("spec"))
    yield Template(("spec", "template"), _job_pods(spec), spec.get("template") or {})


def _cron_job(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = mapping(mapping(mapping(obj.get("spec")).get("jobTemplate")).get("spec"))
    yield Template(("spec", "jobTemplate", "spec", "template"), _job_pods(spec), spec.get("template") or {})


def _job_set(obj: Json, workers: Workers) -> Iterator[Template]:
    for index, job in enumerate(listing(mapping(obj.get("spec")).get("replicatedJobs"))):
        spec = mapping(mapping(job.get("template")).get("spec"))
        path = ("spec", "replicatedJobs", index, "template", "spec", "template")
        yield Template(path, reading.count(job.get("replicas"), 1) * _job_pods(spec), spec.get("template") or {})


def _ray_cluster(obj: Json, workers: Workers) -> Iterator[Template]:
    return _of_ray(ray.cluster_pods(mapping(obj.get("spec")), workers), ("spec",))


def _ray_job(obj: Json, workers: Workers) -> Iterator[Template]:
    spec = mapping(obj.get("spec"))
    if not spec.get("clusterSelector"):
        yield from _of_ray(ray.job_pods(spec, workers), ("spec",))


def _ray_service(obj: Json, workers: Workers) -> Iterator[Template]:
    config = mapping(mapping(obj.get("spec")).get("rayClusterConfig"))
    yield from _of_ray(ray.cluster_pods(config, workers), ("spec", "rayClusterConfig"))


def _ray(obj: Json, workers: Workers) -> Iterator[Template]:
    for pods in ray.ray_pods(obj, workers):
        yield from _of_ray([pods], () if pods.role == "launcher" else ("rayCluster",))


def _of_ray(found: Iterable[RayPods], below: Path) -> Iterator[Template]:
    for pods in found:
        role: Literal["", "head", "worker"] = pods.role if pods.role in ("head", "worker") else ""
        yield Template((*below, *pods.field), pods.count, pods.content, is_inside=pods.is_written, role=role)


def _leader_worker_set(obj: Json, workers: Workers) -> Iterator[Template]:
    """Groups of one leader and the workers that make up its size; without a template of its own it is a worker too."""
    spec = mapping(obj.get("spec"))
    inner = mapping(spec.get("leaderWorkerTemplate"))
    groups, size = reading.count(spec.get("replicas"), 1), max(1, reading.count(inner.get("size"), 1))
    path: Path = ("spec", "leaderWorkerTemplate")
    leaders = 1 if inner.get("leaderTemplate") else 0
    if leaders:
        yield Template((*path, "leaderTemplate"), groups, inner["leaderTemplate"])
    yield Template((*path, "workerTemplate"), groups * (size - leaders), inner.get("workerTemplate") or {})


def _searched(value: Any, path: Path, depth: int) -> Iterator[Template]:
    """Any other kind: `spec.containers` below a key that ends in `template`, times its sibling `replicas`."""
    if depth == 0:
        return
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        named = isinstance(step, str) and step.lower().endswith("template")
        if named and isinstance(inner, dict) and mapping(inner.get("spec")).get("containers"):
            yield Template((*path, step), reading.count(value.get("replicas"), 1), inner)
        else:
            yield from _searched(inner, (*path, step), depth - 1)


def _job_pods(spec: Json) -> int:
    parallel = reading.count(spec.get("parallelism"), 1)
    completions = spec.get("completions")
    return parallel if completions is None else min(parallel, reading.count(completions, parallel))


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
    ("ray.k8s.io", "Ray"): _ray,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
}
