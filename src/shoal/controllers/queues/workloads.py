"""A job's Workload: how it is made, whether it still says what the job says, what it adds to the job's pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.core import Toleration
from shoal.api.kind import Key
from shoal.api.kueue import ResourceFlavor
from shoal.api.kueue_workload import PodSetUpdate, TopologyRequest, Workload
from shoal.api.labels import KUEUE_SLICE_NAME, KUEUE_TOPOLOGY_GATE, KUEUE_UNCONSTRAINED_TOPOLOGY
from shoal.api.meta import Json
from shoal.api.names import check_label_value
from shoal.api.objects import annotation, label
from shoal.api.scheduling import PriorityClass
from shoal.api.topology_annotations import asks_for_topology, topology_request
from shoal.controllers.queues.caches import QueueCaches, workload_key
from shoal.controllers.queues.inject import InjectedInfo, StartError
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.jobs.pod_group import is_composed
from shoal.controllers.queues.stored import StoredWorkload
from shoal.errors import BadInput

SUBMITTER = "submitter"
"""The pod set of a RayJob that never grows."""


class NoSuchClass(BadInput):
    """The job names a WorkloadPriorityClass that does not exist."""


class WorkloadPriority(msgspec.Struct, frozen=True):
    value: int = 0
    reference: Json | None = None


def new_workload(kind: GangJob, job: Json, caches: QueueCaches, copied_labels: tuple[str, ...] = ()) -> Json:
    """The Workload of a job. Raises BadInput where the job cannot be read, NoSuchClass for an unknown class."""
    key, metadata = workload_key(kind, job), job["metadata"]
    carriers = kind.members(job) if is_composed(kind) else (job,)
    labels = {name: value for name in copied_labels for one in carriers if (value := label(one, name))}
    if not is_composed(kind):
        labels[kueue_names.JOB_UID] = metadata["uid"]
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name.startswith(kueue_names.PROVISIONING_PREFIX) or name == kueue_names.GATED_BY
    }
    if is_elastic(kind, job):
        annotations[kueue_names.ELASTIC] = "true"
    made: Json = {
        "apiVersion": kinds.WORKLOAD.api_version,
        "kind": kinds.WORKLOAD.kind,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": labels,
            "finalizers": [kueue_names.IN_USE],
            "ownerReferences": owners_of(kind, job),
        },
        "spec": {**spec_of(kind, job, caches), "active": True},
    }
    if is_composed(kind):
        annotations[kueue_names.IS_GROUP] = "true"
    if annotations:
        made["metadata"]["annotations"] = annotations
    return made


def owners_of(kind: GangJob, job: Json) -> list[Json]:
    """Its job, or every pod of its group: it goes with the last of them."""
    return [member_reference(one) for one in kind.members(job)] if is_composed(kind) else [owner_reference(kind, job)]


def member_reference(pod: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def is_elastic(kind: GangJob, job: Json) -> bool:
    """May it have more pods than it was admitted with? Kinds that know how say `grows = True`."""
    return getattr(kind, "grows", False) and annotation(job, kueue_names.ELASTIC) == "true"


def owner_reference(kind: GangJob, job: Json) -> Json:
    return {
        "apiVersion": kind.kind.api_version,
        "kind": kind.kind.kind,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def spec_of(kind: GangJob, job: Json, caches: QueueCaches) -> Json:
    """What the job asks for, as its Workload says it; `active` is not the job's to say."""
    pod_sets = with_topology(without_duplicates(kind.pod_sets(job)))
    priority = priority_of(job, pod_sets, caches)
    spec: Json = {"podSets": pod_sets, "priority": priority.value}
    if queue := label(job, kueue_names.QUEUE):
        spec["queueName"] = queue
    if priority.reference is not None:
        spec["priorityClassRef"] = priority.reference
    seconds = label(job, kueue_names.MAX_EXECUTION)
    if seconds.isascii() and seconds.isdigit() and int(seconds) > 0:
        spec["maximumExecutionTimeSeconds"] = int(seconds)
    return spec


def with_topology(pod_sets: list[Json]) -> list[Json]:
    """What the annotations of templates ask of a topology, where the kind of job has not said it."""
    for one in pod_sets:
        request = topology_request(one.get("template") or {})
        if request is not None and "topologyRequest" not in one:
            one["topologyRequest"] = request
    return pod_sets


def without_duplicates(pod_sets: list[Json]) -> list[Json]:
    """Lists that a pod may repeat an entry in, and a Workload may not: the last one counts, as it does in a pod."""
    for one in pod_sets:
        spec = (one.get("template") or {}).get("spec") or {}
        for name in ("imagePullSecrets", "hostAliases"):
            _keep_last(spec, name)
        for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
            for name in ("env", "ports"):
                _keep_last(container, name)
    return pod_sets


_KEYS: dict[str, Callable[[Json], object]] = {
    "env": lambda entry: entry.get("name"),
    "ports": lambda entry: (entry.get("containerPort"), entry.get("protocol") or "TCP"),
    "imagePullSecrets": lambda entry: entry.get("name") or "",
    "hostAliases": lambda entry: entry.get("ip"),
}


def _keep_last(holder: Json, name: str) -> None:
    """In the place of the first."""
    listed = holder.get(name)
    if isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed):
        holder[name] = list({_KEYS[name](entry): entry for entry in listed}.values())


def priority_of(job: Json, pod_sets: list[Json], caches: QueueCaches) -> WorkloadPriority:
    """As Kueue: the class the job names, else that of its first pods that name one, else the cluster's default."""
    named = label(job, kueue_names.PRIORITY_CLASS)
    if named:
        found = caches.workload_priorities.get(Key("", named))
        if found is None:
            raise NoSuchClass(f"WorkloadPriorityClass {named} does not exist; create it, or correct the job's label")
        reference = {"group": kueue_names.GROUP, "kind": "WorkloadPriorityClass", "name": named}
        return WorkloadPriority(found.value, reference)
    for one in pod_sets:
        name = ((one.get("template") or {}).get("spec") or {}).get("priorityClassName")
        of_pods = caches.pod_priorities.get(Key("", str(name or "")))
        if of_pods is not None:
            return _of_pods(of_pods)
    for each in caches.pod_priorities.list():
        if each.global_default:
            return _of_pods(each)
    return WorkloadPriority()


def _of_pods(found: PriorityClass) -> WorkloadPriority:
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": found.metadata.name}
    return WorkloadPriority(found.value, reference)


# --- does it still match?


def is_same_shape(job_sets: list[Json], workload: Workload, *, admitted: bool) -> bool:
    """Do the pods that the job would start look like those that the Workload was judged by?"""
    recorded = workload.spec.pod_sets
    if len(recorded) != len(job_sets):
        return False
    admission = workload.status.admission
    granted = {one.name: one.count for one in (admission.pod_set_assignments if admission is not None else ())}
    for now, then in zip(job_sets, recorded, strict=True):
        counts = {then.count, granted[then.name]} if admitted and then.name in granted else {then.count}
        if admitted and annotation(workload, kueue_names.ELASTIC) == "true":
            counts.add(now["count"])  # as Kueue: more or fewer pods are no other gang
        if now["name"] != then.name or now["count"] not in counts:
            return False
        if not admitted and now.get("minCount") != then.min_count:
            return False
        if not admitted and _wish(now) != then.topology_request:
            return False
        fields = ("containers", "initContainers") if admitted else ("containers", "initContainers", "tolerations")
        if any(_part(now.get("template") or {}, name) != _part(then.template, name) for name in fields):
            return False
    return True


def _wish(pod_set: Json) -> TopologyRequest | None:
    told = pod_set.get("topologyRequest")
    return None if told is None else msgspec.convert(told, TopologyRequest)


def spec_change(workload: StoredWorkload, wanted: Json, *, reserved: bool, admitted: bool) -> Json:
    """What of the Workload's spec follows the job, beside its pod sets. As Kueue: with quota the queue stays, and
    without a class of its own kind to leave the priority does; once admitted, so does the time limit."""
    spec = workload.raw.get("spec") or {}
    names = ["priority", "priorityClassRef"] if not reserved or may_follow(spec, wanted) else []
    names += [] if reserved else ["queueName"]
    names += [] if admitted else ["maximumExecutionTimeSeconds"]
    return {name: wanted.get(name) for name in names if wanted.get(name) != spec.get(name)}


def may_follow(spec: Json, wanted: Json) -> bool:
    """May a Workload that holds quota take over this priority? Only from one WorkloadPriorityClass to another."""
    kinds_named = {(one.get("priorityClassRef") or {}).get("kind") for one in (spec, wanted)}
    return kinds_named == {kinds.WORKLOAD_PRIORITY_CLASS.kind}


def _part(template: Json, name: str) -> list[Any]:
    return list(_plain((template.get("spec") or {}).get(name) or ()))


def class_of(workload: Workload) -> str:
    """The WorkloadPriorityClass that it names; empty where it names none, or a class of pods."""
    named = workload.spec.priority_class_ref
    return named.name if named is not None and named.kind == kinds.WORKLOAD_PRIORITY_CLASS.kind else ""


def _plain(value: Any) -> Any:
    """Without what says nothing: a stored Workload has defaults that the template in an AppWrapper leaves out."""
    if isinstance(value, Mapping):
        kept = {name: _plain(one) for name, one in value.items() if (name, one) not in _DEFAULTS}
        return {name: one for name, one in kept.items() if one is not None and one != "" and one != {} and one != []}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


_DEFAULTS = (("protocol", "TCP"), ("optional", False))


# --- the start


def infos_of(workload: Workload, flavor: Callable[[str], ResourceFlavor | None]) -> list[InjectedInfo]:
    """What the admission adds, pod set by pod set. Raises StartError where two checks contradict each other."""
    admission = workload.status.admission
    given = {one.name: one for one in (admission.pod_set_assignments if admission is not None else ())}
    infos = []
    elastic = annotation(workload, kueue_names.ELASTIC) == "true"
    for pod_set in workload.spec.pod_sets:
        name = pod_set.name or "main"
        entry = given.get(name)
        parts: Parts = {"labels": {}, "annotations": {}, "nodeSelector": {}}
        tolerations: list[Toleration] = []
        for flavor_name in sorted(set(((entry.flavors if entry is not None else None) or {}).values())):
            found = flavor(flavor_name)
            if found is not None:
                parts["nodeSelector"].update(found.spec.node_labels or {})
                tolerations += [one for one in found.spec.tolerations or () if one not in tolerations]
        placed = entry is not None and entry.topology_assignment is not None
        gates = (KUEUE_TOPOLOGY_GATE,) if placed else ()
        if elastic and name != SUBMITTER:
            parts["annotations"][KUEUE_SLICE_NAME] = workload.metadata.name
            gates = (*gates, kueue_names.ELASTIC)
        if placed and not asks_for_topology(pod_set.template):
            parts["annotations"][KUEUE_UNCONSTRAINED_TOPOLOGY] = "true"
        _mark(parts, workload, name)
        for check in workload.status.admission_checks or ():
            for update in check.pod_set_updates or ():
                if update.name == name:
                    _update(parts, update, name, check.name)
                    tolerations += [one for one in update.tolerations or () if one not in tolerations]
        infos.append(
            InjectedInfo(
                name=name,
                count=entry.count if entry is not None and entry.count is not None else pod_set.count,
                labels=parts["labels"],
                annotations=parts["annotations"],
                node_selector=parts["nodeSelector"],
                tolerations=tuple(msgspec.to_builtins(one) for one in tolerations),
                scheduling_gates=gates,
            )
        )
    return infos


Parts = dict[str, dict[str, str]]
"""What is added to the templates of one pod set, by the name of the field."""


def _mark(parts: Parts, workload: Workload, pod_set: str) -> None:
    admission = workload.status.admission
    marks = {
        kueue_names.POD_SET: pod_set,
        kueue_names.LOCAL_QUEUE: workload.spec.queue_name,
        kueue_names.CLUSTER_QUEUE: admission.cluster_queue if admission is not None else "",
    }
    parts["labels"].update({name: value for name, value in marks.items() if value and not check_label_value(value)})
    parts["annotations"][kueue_names.WORKLOAD] = workload.metadata.name


def _update(parts: Parts, update: PodSetUpdate, pod_set: str, check: str) -> None:
    adds = {"labels": update.labels, "annotations": update.annotations, "nodeSelector": update.node_selector}
    for field, added in adds.items():
        for name, value in (added or {}).items():
            if parts[field].get(name, value) != value:
                raise StartError(
                    f"pod set {pod_set}: admission check {check} sets {field} {name} to {value!r}, which is"
                    f" {parts[field][name]!r} already"
                )
            parts[field][name] = value
