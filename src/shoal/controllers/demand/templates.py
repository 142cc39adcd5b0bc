"""Where the pod templates of a kind sit, and how many pods each will make at the start.

One table for every kind that Shoal understands; any other object is searched for `template.spec.containers`. Called
to infer a gang's demand and to mark the pods it will make. Works on plain dictionaries and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray.ray_kind import translate
from shoal.controllers.ray.ray_kind.launcher import RESOURCES
from shoal.controllers.ray.settings import RaySidecars, Settings

Workers = Literal["maximum", "minimum", "replicas"]
Path = tuple[str | int, ...]

SEARCH_DEPTH = 6
SUBMITTER = "submitterPodTemplate"
LAUNCHER = "launcher"
_SUBMITTER: Json = {"resources": {"requests": {"cpu": "500m", "memory": "200Mi"}}}
_DEFAULT_SUBMITTER: Json = {"spec": {"containers": [_SUBMITTER]}}
"""What the pod that submits a RayJob asks for where nothing else is said."""
_AUTOSCALER: Json = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}
"""What Ray's autoscaler beside the head asks for where nothing else is said."""


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
    """A template's content with the containers that its pods will have besides."""
    added = {"head": sidecars.head, "worker": sidecars.worker, "": ()}[template.role]
    return with_containers(template.content, [*added])


def is_known(obj: Json) -> bool:
    """Is this a kind of the table, so that its templates and counts are certain?"""
    return (str(obj.get("apiVersion") or "").rpartition("/")[0], str(obj.get("kind") or "")) in _READERS


def pods_at_start(obj: Json) -> int:
    """How many pods an object makes before any of them has to be ready: what the binding of a gang may wait for.

    An ordered StatefulSet makes one, a JobSet those jobs that wait for no other, a RayJob not yet its submitter, a
    `Ray` not yet its launcher, and what is suspended none at all.
    """
    spec = _map(obj.get("spec"))
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
    in_order = _map(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    return not (in_order and index > 0) and not _list(spec.get("replicatedJobs"))[index].get("dependsOn")


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
    mode = spec.get("submissionMode") or "K8sJobMode"
    beside = [_SUBMITTER] if mode == "SidecarMode" and not _brings_submitter(spec) else []
    yield from _ray_groups(_map(spec.get("rayClusterSpec")), ("spec", "rayClusterSpec"), workers, beside)
    if mode == "K8sJobMode":
        given = spec.get("submitterPodTemplate")
        yield Template(("spec", SUBMITTER), 1, given or _DEFAULT_SUBMITTER, is_inside=bool(given))


def _brings_submitter(spec: Json) -> bool:
    """Does the head already have a submitter of the user's, with amounts of its own?"""
    head = _map(_map(_map(spec.get("rayClusterSpec")).get("headGroupSpec")).get("template"))
    containers = _list(_map(head.get("spec")).get("containers"))[1:]
    return any(one.get("name") == "ray-job-submitter" and one.get("resources") for one in containers)


def _ray_service(obj: Json, workers: Workers) -> Iterator[Template]:
    config = _map(_map(obj.get("spec")).get("rayClusterConfig"))
    for template in _ray_groups(config, ("spec", "rayClusterConfig"), workers):
        yield msgspec.structs.replace(template, role="")  # made by somebody else's operator


def _ray(obj: Json, workers: Workers) -> Iterator[Template]:
    """The templates of the RayCluster that a `Ray` stands for, and the pod that reports when it is up."""
    translated = translate(obj, Settings())
    if not translated.spec:
        return
    for template in _ray_groups(translated.spec, ("rayCluster",), workers):
        yield msgspec.structs.replace(template, is_inside=False)
    yield Template((LAUNCHER,), 1, {"spec": {"containers": [{"resources": RESOURCES}]}}, is_inside=False)


def _leader_worker_set(obj: Json, workers: Workers) -> Iterator[Template]:
    """Groups of one leader and the workers that make up its size; without a template of its own it is a worker too."""
    spec = _map(obj.get("spec"))
    inner = _map(spec.get("leaderWorkerTemplate"))
    groups, size = _count(spec.get("replicas"), 1), max(1, _count(inner.get("size"), 1))
    path: Path = ("spec", "leaderWorkerTemplate")
    leaders = 1 if inner.get("leaderTemplate") else 0
    if leaders:
        yield Template((*path, "leaderTemplate"), groups, inner["leaderTemplate"])
    yield Template((*path, "workerTemplate"), groups * (size - leaders), inner.get("workerTemplate") or {})


def _ray_groups(spec: Json, path: Path, workers: Workers, beside: Iterable[Json] = ()) -> Iterator[Template]:
    """`beside` are containers that the operator adds to the head, as it adds Ray's autoscaler."""
    head = _map(spec.get("headGroupSpec"))
    added = [*beside]
    if spec.get("enableInTreeAutoscaling") is True:
        asked = _map(spec.get("autoscalerOptions")).get("resources")
        added.append({"name": "autoscaler", "resources": _AUTOSCALER if asked is None else asked})
    content = with_containers(_map(head.get("template")), added)
    yield Template((*path, "headGroupSpec", "template"), 1, content, role="head")
    for index, group in enumerate(_list(spec.get("workerGroupSpecs"))):
        if group.get("suspend"):
            continue
        hosts = max(1, _count(group.get("numOfHosts"), 1))
        pods = _ray_workers(group, bool(spec.get("enableInTreeAutoscaling")), workers) * hosts
        content = group.get("template") or {}
        yield Template((*path, "workerGroupSpecs", index, "template"), pods, content, role="worker")


def with_containers(template: Json, added: list[Json]) -> Json:
    """The template as its pod will be."""
    spec = _map(template.get("spec"))
    if not added or not spec:
        return template
    return {**template, "spec": {**spec, "containers": [*_list(spec.get("containers")), *added]}}


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
    ("ray.k8s.io", "Ray"): _ray,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
}
