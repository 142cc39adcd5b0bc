"""A job's Workload: how it is made, whether it still says what the job says, what it adds to the job's pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.meta import Json
from shoal.api.names import check_label_value
from shoal.api.objects import label
from shoal.controllers.queues.caches import QueueCaches, workload_key
from shoal.controllers.queues.inject import InjectedInfo, StartError
from shoal.controllers.queues.jobs import GangJob
from shoal.errors import BadInput


class NoSuchClass(BadInput):
    """The job names a WorkloadPriorityClass that does not exist."""


class WorkloadPriority(msgspec.Struct, frozen=True):
    value: int = 0
    reference: Json | None = None


def new_workload(kind: GangJob, job: Json, caches: QueueCaches, copied_labels: tuple[str, ...] = ()) -> Json:
    """The Workload of a job. Raises BadInput where the job cannot be read, NoSuchClass for an unknown class."""
    key, metadata = workload_key(kind, job), job["metadata"]
    labels = {name: value for name in copied_labels if (value := label(job, name))}
    labels[kueue_names.JOB_UID] = metadata["uid"]
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name.startswith(kueue_names.PROVISIONING_PREFIX) or name == kueue_names.GATED_BY
    }
    made: Json = {
        "apiVersion": kinds.WORKLOAD.api_version,
        "kind": kinds.WORKLOAD.kind,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": labels,
            "finalizers": [kueue_names.IN_USE],
            "ownerReferences": [owner_reference(kind, job)],
        },
        "spec": {**spec_of(kind, job, caches), "active": True},
    }
    if annotations:
        made["metadata"]["annotations"] = annotations
    return made


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
    pod_sets = without_duplicates(kind.pod_sets(job))
    priority = priority_of(job, pod_sets, caches)
    spec: Json = {"queueName": label(job, kueue_names.QUEUE), "podSets": pod_sets, "priority": priority.value}
    if priority.reference is not None:
        spec["priorityClassRef"] = priority.reference
    seconds = label(job, kueue_names.MAX_EXECUTION)
    if seconds.isascii() and seconds.isdigit() and int(seconds) > 0:
        spec["maximumExecutionTimeSeconds"] = int(seconds)
    return spec


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
        found = caches.get(kinds.WORKLOAD_PRIORITY_CLASS, named)
        if found is None:
            raise NoSuchClass(f"WorkloadPriorityClass {named} does not exist; create it, or correct the job's label")
        reference = {"group": kueue_names.GROUP, "kind": "WorkloadPriorityClass", "name": named}
        return WorkloadPriority(int(found.get("value") or 0), reference)
    for one in pod_sets:
        name = ((one.get("template") or {}).get("spec") or {}).get("priorityClassName")
        found = caches.get(kinds.PRIORITY_CLASS, str(name or ""))
        if found is not None:
            return _of_pods(found)
    for one in caches.others[kinds.PRIORITY_CLASS].list():
        if one.get("globalDefault") is True:
            return _of_pods(one)
    return WorkloadPriority()


def _of_pods(found: Json) -> WorkloadPriority:
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": found["metadata"]["name"]}
    return WorkloadPriority(int(found.get("value") or 0), reference)


# --- does it still match?


def is_same_shape(job_sets: list[Json], workload: Json, *, admitted: bool) -> bool:
    """Do the pods that the job would start look like those that the Workload was judged by?"""
    recorded = (workload.get("spec") or {}).get("podSets") or []
    if len(recorded) != len(job_sets):
        return False
    granted = {
        one.get("name"): one.get("count")
        for one in ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    }
    for now, then in zip(job_sets, recorded, strict=True):
        counts = {then.get("count", 1)} | (
            {granted[then["name"]]} if admitted and then.get("name") in granted else set()
        )
        if now["name"] != then.get("name") or now["count"] not in counts:
            return False
        if not admitted and now.get("minCount") != then.get("minCount"):
            return False
        fields = ("containers", "initContainers") if admitted else ("containers", "initContainers", "tolerations")
        if any(_part(now, name) != _part(then, name) for name in fields):
            return False
    return True


def spec_change(workload: Json, wanted: Json, *, reserved: bool, admitted: bool) -> Json:
    """What of the Workload's spec follows the job, beside its pod sets. As Kueue: with quota the queue stays, and
    without a class of its own kind to leave the priority does; once admitted, so does the time limit."""
    spec = workload.get("spec") or {}
    names = ["priority", "priorityClassRef"] if not reserved or may_follow(spec, wanted) else []
    names += [] if reserved else ["queueName"]
    names += [] if admitted else ["maximumExecutionTimeSeconds"]
    return {name: wanted.get(name) for name in names if wanted.get(name) != spec.get(name)}


def may_follow(spec: Json, wanted: Json) -> bool:
    """May a Workload that holds quota take over this priority? Only from one WorkloadPriorityClass to another."""
    kinds_named = {(one.get("priorityClassRef") or {}).get("kind") for one in (spec, wanted)}
    return kinds_named == {kinds.WORKLOAD_PRIORITY_CLASS.kind}


def _part(pod_set: Json, name: str) -> list[Any]:
    return list(_plain(((pod_set.get("template") or {}).get("spec") or {}).get(name) or ()))


def class_of(workload: Json) -> str:
    """The WorkloadPriorityClass that it names; empty where it names none, or a class of pods."""
    reference = (workload.get("spec") or {}).get("priorityClassRef") or {}
    return str(reference.get("name") or "") if reference.get("kind") == kinds.WORKLOAD_PRIORITY_CLASS.kind else ""


def _plain(value: Any) -> Any:
    """Without what says nothing: a stored Workload has defaults that the template in an AppWrapper leaves out."""
    if isinstance(value, Mapping):
        kept = {name: _plain(one) for name, one in value.items() if (name, one) not in _DEFAULTS}
        return {name: one for name, one in kept.items() if one is not None and one != "" and one != {} and one != []}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


_DEFAULTS = (("protocol", "TCP"), ("optional", False))


# --- the start


def infos_of(workload: Json, flavor: Callable[[str], Json | None]) -> list[InjectedInfo]:
    """What the admission adds, pod set by pod set. Raises StartError where two checks contradict each other."""
    status, spec = workload.get("status") or {}, workload.get("spec") or {}
    given = {one.get("name"): one for one in (status.get("admission") or {}).get("podSetAssignments") or ()}
    infos = []
    for pod_set in spec.get("podSets") or ():
        name = pod_set.get("name") or "main"
        entry = given.get(name) or {}
        parts: Json = {"labels": {}, "annotations": {}, "nodeSelector": {}}
        tolerations: list[Json] = []
        for flavor_name in sorted(set((entry.get("flavors") or {}).values())):
            found = ((flavor(flavor_name) or {}).get("spec")) or {}
            parts["nodeSelector"].update(found.get("nodeLabels") or {})
            tolerations += [one for one in found.get("tolerations") or () if one not in tolerations]
        _mark(parts, workload, name)
        for check in status.get("admissionChecks") or ():
            for update in check.get("podSetUpdates") or ():
                if update.get("name") == name:
                    _update(parts, update, name, check["name"])
                    tolerations += [one for one in update.get("tolerations") or () if one not in tolerations]
        infos.append(
            InjectedInfo(
                name=name,
                count=int(entry.get("count", pod_set.get("count", 1))),
                labels=parts["labels"],
                annotations=parts["annotations"],
                node_selector=parts["nodeSelector"],
                tolerations=tuple(tolerations),
            )
        )
    return infos


def _mark(parts: Json, workload: Json, pod_set: str) -> None:
    queue = str((workload.get("spec") or {}).get("queueName") or "")
    cluster_queue = str(((workload.get("status") or {}).get("admission") or {}).get("clusterQueue") or "")
    marks = {kueue_names.POD_SET: pod_set, kueue_names.LOCAL_QUEUE: queue, kueue_names.CLUSTER_QUEUE: cluster_queue}
    parts["labels"].update({name: value for name, value in marks.items() if value and not check_label_value(value)})
    parts["annotations"][kueue_names.WORKLOAD] = workload["metadata"]["name"]


def _update(parts: Json, update: Json, pod_set: str, check: str) -> None:
    for field in ("labels", "annotations", "nodeSelector"):
        for name, value in (update.get(field) or {}).items():
            if parts[field].get(name, value) != value:
                raise StartError(
                    f"pod set {pod_set}: admission check {check} sets {field} {name} to {value!r}, which is"
                    f" {parts[field][name]!r} already"
                )
            parts[field][name] = value
