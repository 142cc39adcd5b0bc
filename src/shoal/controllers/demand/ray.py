"""The pods that a RayCluster, a RayJob or a Ray will make: counts and contents, for AppWrappers and for queues alike.

Counts and amounts are the Ray operator's own functions and constants, applied to a manifest that may never have been
validated; a test holds the result equal to the pods that the operator makes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from shoal.api.meta import Json
from shoal.api.quantity import amount
from shoal.controllers.demand import reading
from shoal.controllers.ray import view
from shoal.controllers.ray.cluster import counts, redis_cleanup
from shoal.controllers.ray.pods import autoscaler, history, submission, tls
from shoal.controllers.ray.pods.builder import WAIT_AMOUNTS, WAIT_CONTAINER
from shoal.controllers.ray.pods.containers import same_limits
from shoal.controllers.ray.ray_kind import launcher, translate
from shoal.controllers.ray.settings import RaySettings, RaySidecars

Workers = Literal["maximum", "minimum", "replicas"]
"""How autoscaled groups count."""
Role = Literal["head", "worker", "submitter", "launcher"]

_BOUNDS = ("replicas", "minReplicas", "maxReplicas", "numOfHosts")


class RayPods(msgspec.Struct, frozen=True):
    """The pods of one template."""

    role: Role
    count: int
    content: Json
    """The template with the containers that the operator adds to every such pod."""
    field: tuple[str | int, ...]
    """Where the template stands, below the spec that was read."""
    group: str = ""
    """The worker group's name, as it is written."""
    is_written: bool = True
    """False where the operator makes the template itself."""


def cluster_pods(spec: Json, workers: Workers = "replicas") -> Iterator[RayPods]:
    """Head and worker groups of a RayClusterSpec, in the order they stand; a suspended group has no pods."""
    head = reading.mapping(reading.mapping(spec.get("headGroupSpec")).get("template"))
    autoscaled = spec.get("enableInTreeAutoscaling") is True
    options = history.collector_options(spec)
    beside = () if options is None else ({"name": history.CONTAINER, "resources": history.resources(options)},)
    if autoscaled:
        scaling = reading.mapping(spec.get("autoscalerOptions"))
        head = with_containers(head, {"name": autoscaler.CONTAINER, "resources": autoscaler.resources(scaling)})
    head = with_containers(head, *beside)
    step = ({"name": tls.WAIT_CONTAINER, "resources": same_limits(tls.WAIT_AMOUNTS)},) if tls.asked_for(spec) else ()
    head = with_steps(head, *step)
    if reading.mapping(spec.get("gcsFaultToleranceOptions")).get("redisAddress"):
        head = _with_room_for_cleanup(head)
    yield RayPods("head", 1, head, ("headGroupSpec", "template"))
    for index, group in enumerate(reading.listing(spec.get("workerGroupSpecs"))):
        yield RayPods(
            "worker",
            _workers(group, workers if autoscaled else "replicas"),
            with_steps(with_containers(reading.mapping(group.get("template")), *beside), *step),
            ("workerGroupSpecs", index, "template"),
            str(group.get("groupName") or ""),
        )


def job_pods(spec: Json, workers: Workers = "replicas") -> Iterator[RayPods]:
    """The pods of a RayJobSpec that makes its own cluster, and the submitter, a pod or a container of the head."""
    mode = spec.get("submissionMode") or submission.K8S_JOB
    cluster = reading.mapping(spec.get("rayClusterSpec"))
    for pods in cluster_pods(cluster, workers):
        content = _with_submitter(pods.content) if pods.role == "head" and mode == submission.SIDECAR else pods.content
        yield msgspec.structs.replace(pods, content=content, field=("rayClusterSpec", *pods.field))
    if mode == submission.K8S_JOB:
        given = reading.mapping(spec.get("submitterPodTemplate"))
        yield RayPods(
            "submitter", 1, given or default_submitter(spec), ("submitterPodTemplate",), is_written=bool(given)
        )


def ray_pods(ray: Json, workers: Workers = "replicas") -> Iterator[RayPods]:
    """The pods of the RayCluster that a `Ray` stands for, and the one that reports when it is up."""
    translated = translate(ray, RaySettings())
    if not translated.spec:
        return
    for pods in cluster_pods(translated.spec, workers):
        yield msgspec.structs.replace(pods, is_written=False)
    content = {"spec": {"containers": [{"resources": launcher.RESOURCES}]}}
    yield RayPods("launcher", 1, content, ("launcher",), is_written=False)


def as_made(role: str, template: Json, sidecars: RaySidecars, *, only_named: bool = False) -> Json:
    """A template of a head or a worker with what this operator adds besides: containers that it was told to add, and
    the step in which a worker waits for its head.

    `only_named`: that step asks only for resources that the template asks for. A queue charges a Workload for no other,
    as Kueue does; one without quota for memory would never admit a worker that asks for processors alone.
    """
    if role == "head":
        return with_containers(template, *sidecars.head)
    if role != "worker":
        return template
    made = with_containers(template, *sidecars.worker)
    spec = reading.mapping(made.get("spec"))
    if not sidecars.waits_for_head or not spec:
        return made
    amounts = {name: text for name, text in WAIT_AMOUNTS.items() if not only_named or name in _asked(spec)}
    waiting = {"name": WAIT_CONTAINER, "resources": same_limits(amounts)}
    return {**made, "spec": {**spec, "initContainers": [*reading.listing(spec.get("initContainers")), waiting]}}


def _asked(spec: Json) -> set[str]:
    """The resources that the containers of a pod ask for."""
    parts = [reading.mapping(one.get("resources")) for one in reading.listing(spec.get("containers"))]
    return {name for part in parts for side in ("requests", "limits") for name in reading.mapping(part.get(side))}


def with_containers(template: Json, *added: Json) -> Json:
    """The template with more containers; the same object where there is nothing to add or to add to."""
    spec = reading.mapping(template.get("spec"))
    if not added or not spec:
        return template
    return {**template, "spec": {**spec, "containers": [*reading.listing(spec.get("containers")), *added]}}


def with_steps(template: Json, *added: Json) -> Json:
    """The same with init containers."""
    spec = reading.mapping(template.get("spec"))
    if not added or not spec:
        return template
    return {**template, "spec": {**spec, "initContainers": [*added, *reading.listing(spec.get("initContainers"))]}}


def default_submitter(spec: Json) -> Json:
    """The template of the pod that submits where a RayJobSpec has none."""
    return submission.default_template({"spec": _readable(reading.mapping(spec.get("rayClusterSpec")))})


def _readable(cluster: Json) -> Json:
    """Only what the default submitter takes from a cluster: the image of Ray's container."""
    template = reading.mapping(reading.mapping(cluster.get("headGroupSpec")).get("template"))
    containers = reading.listing(reading.mapping(template.get("spec")).get("containers"))
    return {"headGroupSpec": {"template": {"spec": {"containers": containers[:1]}}}}


def _workers(group: Json, workers: Workers) -> int:
    sound = {name: reading.count(group.get(name), 0) for name in _BOUNDS if reading.count(group.get(name), -1) >= 0}
    if group.get("suspend"):
        return 0
    hosts, wanted = view.hosts(sound), counts.wanted_replicas(sound)
    match workers:
        case "replicas":
            return wanted * hosts
        case "minimum":
            return view.min_replicas(sound) * hosts
        case "maximum":
            return max(wanted, sound.get("maxReplicas", wanted)) * hosts


def _with_submitter(head: Json) -> Json:
    """The head with its submitter: ours, or the user's with our amounts where it names none."""
    containers = reading.listing(reading.mapping(head.get("spec")).get("containers"))
    own = submission.own_sidecar(containers)
    if own is None:
        return with_containers(head, {"name": submission.CONTAINER, "resources": submission.RESOURCES})
    made = {**own, "resources": own.get("resources") or submission.RESOURCES}
    return _with_containers_instead(head, [made if one is own else one for one in containers])


def _with_room_for_cleanup(head: Json) -> Json:
    """Once the head is gone a Job empties the cluster's part of Redis in its place: what is asked for fits either."""
    containers = reading.listing(reading.mapping(head.get("spec")).get("containers"))
    if not containers:
        return head
    ray, *others = containers
    resources = reading.mapping(ray.get("resources"))
    requests = reading.mapping(resources.get("requests") or resources.get("limits"))
    raised = {
        name: text
        for name, text in redis_cleanup.AMOUNTS.items()
        if name not in requests or amount(name, requests[name]) < amount(name, text)
    }
    ray = {**ray, "resources": {**resources, "requests": {**requests, **raised}}}
    return _with_containers_instead(head, [ray, *others])


def _with_containers_instead(template: Json, containers: list[Json]) -> Json:
    return {**template, "spec": {**template["spec"], "containers": containers}}
