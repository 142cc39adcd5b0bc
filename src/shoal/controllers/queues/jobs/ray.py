"""RayJob and RayCluster as gangs: head, worker groups, submitter.

As Kueue: pod sets are `head`, then the worker groups by lower-cased name, then `submitter` where a pod submits. A
RayCluster never ends by itself; it gives its quota back when it is deleted or suspended and its pods are gone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.api import kinds, kueue_names
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_MULTIKUEUE, RAY_FAULT_TOLERANT
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.controllers.demand import ray as demand
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged, restored
from shoal.controllers.queues.jobs.base import End, Suspendable
from shoal.errors import BadInput

MOST_POD_SETS = 18
HEAD, SUBMITTER = "head", "submitter"


class RayClusters(Suspendable):
    kind: Kind = kinds.RAY_CLUSTER
    grows = True

    def resting(self) -> Json:
        return {"state": "suspended"}

    def pod_sets(self, job: Json) -> list[Json]:
        return _pod_sets(demand.cluster_pods(_charged(job, _spec(job)), _floor(job)))

    def template_paths(self, job: Json) -> list[str]:
        return [_path(pods.field) for pods in demand.cluster_pods(_spec(job))]

    def is_active(self, job: Json) -> bool:
        """Kueue counts only `ready` and so gives quota away while pods still end; we keep it until it is suspended."""
        return _status(job).get("state") not in (None, "", "suspended")

    def end(self, job: Json) -> End | None:
        return None

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return _is_ready(job, _status(job), counts)

    def elastic(self, job: Json) -> Json:
        """As it is to be stored where Ray's own autoscaler changes its size: marked, as Kueue asks for."""
        return _marked(job, _spec(job))

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        made = copy.deepcopy(job)
        _merge_cluster(made["spec"], infos, len(self.pod_sets(job)))
        made["spec"]["suspend"] = False
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        made = self.suspended(job)
        if len(pod_sets) == len(self.pod_sets(job)):
            _restore_cluster(made["spec"], pod_sets)
        return made

    def problems(self, job: Json) -> list[str]:
        return cluster_problems(job, _spec(job), "spec", extra=0)


class RayJobs(Suspendable):
    kind: Kind = kinds.RAY_JOB
    grows = True

    def resting(self) -> Json:
        return {"jobDeploymentStatus": "Suspended"}

    def is_skipped(self, job: Json) -> bool:
        return bool(_spec(job).get("clusterSelector"))

    def pod_sets(self, job: Json) -> list[Json]:
        return _pod_sets(demand.job_pods(_charged_job(job), _floor(job)))

    def template_paths(self, job: Json) -> list[str]:
        return [_path(pods.field) for pods in demand.job_pods(_charged_job(job))]

    def is_active(self, job: Json) -> bool:
        return _status(job).get("jobDeploymentStatus") not in (None, "", "Suspended")

    def end(self, job: Json) -> End | None:
        status = _status(job)
        if status.get("jobDeploymentStatus") not in ("Complete", "Failed"):
            return None
        return End(status.get("jobStatus") == "SUCCEEDED", str(status.get("message") or ""))

    def is_on_hold(self, job: Json) -> bool:
        return bool(_status(job).get("jobDeploymentStatus") == "ValidationFailed")

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return _is_ready(job, _status(job).get("rayClusterStatus") or {}, counts)

    def elastic(self, job: Json) -> Json:
        return _marked(job, _spec(job).get("rayClusterSpec") or {})

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        made = copy.deepcopy(job)
        spec = made["spec"]
        sets = self.pod_sets(job)
        cluster = spec.setdefault("rayClusterSpec", {})
        submits = sets[-1]["name"] == SUBMITTER
        if len(infos) != len(sets):
            raise StartError(f"the admission has {len(infos)} pod sets and the RayJob {len(sets)}; recreate it")
        _merge_cluster(cluster, infos[: len(infos) - submits], len(sets) - submits)
        if submits:
            spec["submitterPodTemplate"] = merged(_submitter_template(spec), infos[-1])
        spec["suspend"] = False
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        made = self.suspended(job)
        spec, count = made["spec"], len(self.pod_sets(job))
        if len(pod_sets) != count:
            return made
        submits = pod_sets[-1].get("name") == SUBMITTER
        _restore_cluster(spec.setdefault("rayClusterSpec", {}), pod_sets[: count - submits])
        if submits and spec.get("submitterPodTemplate"):
            spec["submitterPodTemplate"] = restored(spec["submitterPodTemplate"], pod_sets[-1].get("template") or {})
        return made

    def problems(self, job: Json) -> list[str]:
        spec = _spec(job)
        if spec.get("clusterSelector"):
            return (
                ["spec.clusterSelector: does not go together with rayClusterSpec"] if spec.get("rayClusterSpec") else []
            )
        if not spec.get("rayClusterSpec"):
            return ["spec.rayClusterSpec: is required where a queue starts the job"]
        found = []
        if spec.get("shutdownAfterJobFinishes") is not True:
            found.append("spec.shutdownAfterJobFinishes: must be true: a queue gets its quota back when the job ends")
        submits = (spec.get("submissionMode") or "K8sJobMode") == "K8sJobMode"
        where = "spec.rayClusterSpec"
        return found + cluster_problems(job, spec["rayClusterSpec"], where, extra=int(submits))


JOBS = (RayJobs(), RayClusters())


def _pod_sets(found: Iterable[demand.RayPods]) -> list[Json]:
    return [
        {"name": pods.group.lower() or pods.role, "count": pods.count, "template": _kept(pods.content)}
        for pods in found
    ]


def _charged_job(job: Json) -> Json:
    """The spec of a RayJob as Kueue charges it: the API server has filled in how it is submitted, or no pod is."""
    spec = _spec(job)
    return {
        **spec,
        "submissionMode": spec.get("submissionMode") or "HTTPMode",
        "rayClusterSpec": _charged(job, spec.get("rayClusterSpec") or {}),
    }


def _charged(job: Json, cluster: Json) -> Json:
    """The spec of a cluster as Kueue charges it: a group that does not say how many workers it has, has one; state in
    Redis is cleaned up on the head's quota, whichever way it was asked for."""
    groups = [{**one, "replicas": 1} if one.get("replicas") is None else one for one in _groups(cluster)]
    made: Json = {**cluster, "workerGroupSpecs": groups} if groups else dict(cluster)
    options = cluster.get("gcsFaultToleranceOptions") or {}
    if annotation(job, RAY_FAULT_TOLERANT) == "true" and not options.get("redisAddress"):
        made["gcsFaultToleranceOptions"] = {**options, "redisAddress": "redis"}
    if (made.get("gcsFaultToleranceOptions") or {}).get("redisAddress") and not _has_containers(cluster):
        raise BadInput("cannot account for Redis cleanup resources: head pod template must include the Ray container")
    return made


def _groups(cluster: Json) -> list[Json]:
    listed = cluster.get("workerGroupSpecs")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _has_containers(cluster: Json) -> bool:
    template = (cluster.get("headGroupSpec") or {}).get("template") or {}
    return bool((template.get("spec") or {}).get("containers"))


def _path(field: tuple[str | int, ...]) -> str:
    """Where a template stands in the job: `spec.workerGroupSpecs[0].template`."""
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in field)


def _is_elastic(job: Json) -> bool:
    return ((job.get("metadata") or {}).get("annotations") or {}).get(kueue_names.ELASTIC) == "true"


def _floor(job: Json) -> demand.Workers:
    """An elastic cluster is admitted with its least workers; `replicas`, as Ray's autoscaler writes it, is its bid."""
    return "minimum" if _is_elastic(job) else "replicas"


def _marked(job: Json, cluster: Json) -> Json:
    metadata = job.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if cluster.get("enableInTreeAutoscaling") is not True or kueue_names.ELASTIC in annotations:
        return job
    return {**job, "metadata": {**metadata, "annotations": {**annotations, kueue_names.ELASTIC: "true"}}}


def _is_ready(job: Json, status: Json, counts: Mapping[str, int]) -> bool:
    """All of it; of an elastic cluster what it was admitted with: workers that are not granted are never ready."""
    if status.get("state") == "ready" or not _is_elastic(job):
        return bool(status.get("state") == "ready")
    head = any(
        one.get("type") == "HeadPodReady" and one.get("status") == "True" for one in status.get("conditions") or ()
    )
    workers = sum(count for name, count in counts.items() if name not in (HEAD, SUBMITTER))
    return head and int(status.get("readyWorkerReplicas") or 0) >= workers


def cluster_problems(job: Json, spec: Json, where: str, *, extra: int) -> list[str]:
    groups = spec.get("workerGroupSpecs") or []
    found = []
    autoscaled = spec.get("enableInTreeAutoscaling") is True
    if autoscaled and not _is_elastic(job):
        found.append(
            f"{where}.enableInTreeAutoscaling: a queued cluster changes its size only as an elastic job; set the"
            f" annotation {kueue_names.ELASTIC} to 'true'"
        )
    if autoscaled and _is_elastic(job) and _spec(job).get("managedBy") == KUEUE_MULTIKUEUE:
        found.append(
            f"{where}.enableInTreeAutoscaling: a cluster that another one runs keeps its size; set it to false"
        )
    if 1 + extra + len(groups) > MOST_POD_SETS:
        found.append(
            f"{where}.workerGroupSpecs: too many: {len(groups)}; at most {MOST_POD_SETS - 1 - extra} can be queued"
        )
    for index, group in enumerate(groups):
        if str(group.get("groupName") or "").lower() in (HEAD, SUBMITTER):
            found.append(
                f"{where}.workerGroupSpecs[{index}].groupName: {group['groupName']!r} is the name of another pod set"
            )
    return found


def _merge_cluster(spec: Json, infos: Sequence[InjectedInfo], wanted: int) -> None:
    groups = spec.get("workerGroupSpecs") or []
    if len(infos) != wanted or wanted != 1 + len(groups):
        raise StartError(f"the admission has {len(infos)} pod sets and the cluster {1 + len(groups)}; recreate it")
    for holder, info in zip([spec["headGroupSpec"], *groups], infos, strict=True):
        holder["template"] = merged(holder.get("template") or {}, info)


def _restore_cluster(spec: Json, pod_sets: Sequence[Json]) -> None:
    holders = [spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or [])]
    if len(holders) != len(pod_sets):
        return
    for holder, recorded in zip(holders, pod_sets, strict=True):
        holder["template"] = restored(holder.get("template") or {}, recorded.get("template") or {})


def _submitter_template(spec: Json) -> Json:
    template: Json = copy.deepcopy(spec.get("submitterPodTemplate") or demand.default_submitter(spec))
    return template


def _kept(template: Any) -> Json:
    """A template as a Workload records it: of its metadata, labels and annotations only."""
    made: Json = copy.deepcopy(template)
    metadata = {
        name: value
        for name, value in (made.get("metadata") or {}).items()
        if name in ("labels", "annotations") and value
    }
    made.pop("metadata", None)
    if metadata:
        made["metadata"] = metadata
    made["spec"] = made.get("spec") or {}
    return made


def _spec(job: Json) -> Json:
    return job.get("spec") or {}


def _status(job: Json) -> Json:
    return job.get("status") or {}
