"""The pods that an object will have, read from its manifest by the plain rules of its kind.

Known are Kubernetes' own kinds, Ray's, JobSet and LeaderWorkerSet. An object of any other kind has no pods where it
holds no containers; else this program cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

SUBMITTER = {"requests": {"cpu": "500m", "memory": "200Mi"}}
AUTOSCALER = {"requests": {"cpu": "500m", "memory": "512Mi"}}
REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController")


class Unknown(Exception):
    """A kind of which this program does not know what pods it will have."""


@dataclass(frozen=True)
class Counting:
    """What administrators chose about Ray's pods."""

    workers: str = "replicas"
    """Of groups that scale by themselves: `replicas`, `minimum` or `maximum`."""
    head_sidecars: tuple[Json, ...] = ()
    worker_sidecars: tuple[Json, ...] = ()


Pods = tuple[Json, int]
"""The spec of a pod, and how many there will be."""


def pods_of(obj: Json, counting: Counting) -> list[Pods]:
    """Raises Unknown."""
    return [(spec, count) for spec, count in _pods(obj, counting) if count]


def _pods(obj: Json, counting: Counting) -> Iterator[Pods]:
    spec, kind = _map(obj.get("spec")), obj.get("kind")
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    if kind == "Pod" and not group:
        yield spec, 1
    elif kind in REPLICATED and group in ("", "apps"):
        yield _spec_of(spec.get("template")), _count(spec.get("replicas"), 1)
    elif (group, kind) == ("batch", "Job"):
        yield _spec_of(spec.get("template")), _parallel(spec)
    elif (group, kind) == ("batch", "CronJob"):
        job = _map(_map(spec.get("jobTemplate")).get("spec"))
        yield _spec_of(job.get("template")), _parallel(job)
    elif kind == "JobSet":
        for one in spec.get("replicatedJobs") or ():
            job = _spec_of(one.get("template"))
            yield _spec_of(job.get("template")), _count(one.get("replicas"), 1) * _parallel(job)
    elif kind == "LeaderWorkerSet":
        yield from _led(spec)
    elif (group, kind) == ("ray.io", "RayCluster"):
        yield from _ray(spec, counting)
    elif (group, kind) == ("ray.io", "RayJob"):
        yield from _ray_job(spec, counting)
    elif (group, kind) == ("ray.io", "RayService"):
        yield from _ray(_map(spec.get("rayClusterConfig")), Counting(counting.workers))
    elif _has_containers(obj):
        raise Unknown(str(kind))


def _led(spec: Json) -> Iterator[Pods]:
    inner = _map(spec.get("leaderWorkerTemplate"))
    groups, size = _count(spec.get("replicas"), 1), max(1, _count(inner.get("size"), 1))
    if inner.get("leaderTemplate"):
        yield _spec_of(inner["leaderTemplate"]), groups
        size -= 1
    yield _spec_of(inner.get("workerTemplate")), groups * size


def _ray_job(spec: Json, counting: Counting) -> Iterator[Pods]:
    if spec.get("clusterSelector"):
        return
    mode = spec.get("submissionMode") or "K8sJobMode"
    cluster = _map(spec.get("rayClusterSpec"))
    if mode == "SidecarMode":
        head = _spec_of(_map(cluster.get("headGroupSpec")).get("template"))
        own = [one for one in (head.get("containers") or ())[1:] if one.get("name") == "ray-job-submitter"]
        beside = [] if any(one.get("resources") for one in own) else [{"resources": SUBMITTER}]
        yield from _ray(cluster, counting, beside)
        return
    yield from _ray(cluster, counting)
    if mode == "K8sJobMode":
        given = _spec_of(spec.get("submitterPodTemplate"))
        yield given or {"containers": [{"resources": SUBMITTER}]}, 1


def _ray(spec: Json, counting: Counting, beside: list[Json] | None = None) -> Iterator[Pods]:
    scales = spec.get("enableInTreeAutoscaling") is True
    added = [*(beside or ()), *counting.head_sidecars]
    if scales:
        asked = _map(spec.get("autoscalerOptions")).get("resources")
        added.append({"resources": AUTOSCALER if asked is None else asked})
    yield _with(_spec_of(_map(spec.get("headGroupSpec")).get("template")), added), 1
    for group in spec.get("workerGroupSpecs") or ():
        if group.get("suspend"):
            continue
        least = _count(group.get("minReplicas"), 0)
        wanted = _count(group.get("replicas"), least)
        most = _count(group.get("maxReplicas"), wanted)
        wanted = max(least, min(wanted, most))
        if scales and counting.workers != "replicas":
            wanted = least if counting.workers == "minimum" else max(wanted, most)
        hosts = max(1, _count(group.get("numOfHosts"), 1))
        yield _with(_spec_of(group.get("template")), [*counting.worker_sidecars]), wanted * hosts


def submitter_of(obj: Json) -> list[Pods]:
    """The pod that an operator adds to submit a RayJob, where no template of its own says what it is."""
    spec = _map(obj.get("spec"))
    adds = obj.get("kind") == "RayJob" and (spec.get("submissionMode") or "K8sJobMode") == "K8sJobMode"
    if not adds or spec.get("clusterSelector") or spec.get("submitterPodTemplate"):
        return []
    return [({"containers": [{"resources": SUBMITTER}]}, 1)]


def declared_at(obj: Json, path: str) -> Json | None:
    """The spec of the pod template that a path such as `template.spec.groups[0].template` leads to."""
    value: Any = {"template": obj}
    for step in path.replace("]", "").replace("[", ".").split("."):
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return None
    return _spec_of(value)


def _has_containers(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value.get("containers")) or any(map(_has_containers, value.values()))
    return isinstance(value, list) and any(map(_has_containers, value))


def _with(spec: Json, added: list[Json]) -> Json:
    return {**spec, "containers": [*(spec.get("containers") or ()), *added]} if added and spec else spec


def _parallel(spec: Json) -> int:
    parallel = _count(spec.get("parallelism"), 1)
    return min(parallel, _count(spec.get("completions"), parallel))


def _spec_of(template: Any) -> Json:
    return _map(_map(template).get("spec"))


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: Any, default: int) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else default
