"""A group of plain pods as one gang: pods that name the same group wait together and start together.

As Kueue: one Workload for the group, under its name, with a pod set for each role (pods that ask the scheduler for the
same). A group is no object of its own: `composed` makes one of its pods, in which `members` are the pods as they are
stored; the reconciler patches and deletes those. Finalizers keep ended pods, so that each is counted once. Pure.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.kind import Kind
from shoal.api.kueue_workload import PodSet, Workload
from shoal.api.labels import KUEUE_TOPOLOGY_GATE
from shoal.api.meta import Json
from shoal.api.names import check_subdomain
from shoal.api.objects import annotation, finalizers, label
from shoal.api.topology_annotations import topology_request
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged
from shoal.controllers.queues.jobs.base import End, Suspendable

GATE = "kueue.x-k8s.io/admission"
FINISHED = ("Succeeded", "Failed")
MOST_ROLES = 18


def group_name(pod: Json) -> str:
    """The group that this pod names; empty for a pod that is a gang of its own."""
    return annotation(pod, kueue_names.POD_GROUP) or label(pod, kueue_names.POD_GROUP)


def is_group(workload: Workload | Json) -> bool:
    """Was this Workload made for a group of pods?"""
    return annotation(workload, kueue_names.IS_GROUP) == "true"


def composed(pods: Iterable[Json]) -> Json:
    """The group that these pods are. Its metadata is that of its first pod that can still run: events and priority go
    by it. It counts as deleted once all its pods are."""
    members = sorted(pods, key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))
    first = next((one for one in members if can_run(one)), members[0])
    metadata = dict(first["metadata"])
    deleted = [one["metadata"].get("deletionTimestamp") for one in members]
    metadata.pop("deletionTimestamp", None)
    if all(deleted):
        metadata["deletionTimestamp"] = max(deleted)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "members": members}


class SortedPods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of a group beside the pod sets of its Workload."""

    excess: list[Json]
    """More than their role was given: to be deleted, the newest first to go."""
    replaced: list[Json]
    """They ended or were deleted, and another has come in their place: their finalizer goes."""
    absent: int
    """How many the group lacks. A service is made pod by pod, and lacks none."""
    fits: bool
    """False where the Workload was made for other pods."""


class PodGroups(Suspendable):
    """`job` is what `composed` returns."""

    kind: Kind = kinds.POD
    deleted_to_stop = True

    def members(self, job: Json) -> list[Json]:
        found: list[Json] = job["members"]
        return found

    def is_suspended(self, job: Json) -> bool:
        """None of its pods may run."""
        return not self.running(job)

    def running(self, job: Json) -> list[Json]:
        """Pods that a scheduler or a node may have."""
        return [one for one in self.members(job) if _may_run(one)]

    def waiting(self, job: Json) -> list[Json]:
        """Pods that a start would set free."""
        return [one for one in self.members(job) if is_gated(one) and not one["metadata"].get("deletionTimestamp")]

    def is_active(self, job: Json) -> bool:
        return bool(self.running(job))

    def total(self, job: Json) -> int:
        """How many pods the group is to have; 0 where that cannot be read."""
        return _positive(annotation(job, kueue_names.POD_GROUP_TOTAL))

    def is_serving(self, job: Json) -> bool:
        return annotation(job, kueue_names.POD_GROUP_SERVING) == "true"

    def is_fast(self, job: Json) -> bool:
        """May it be admitted by its first pod, before the others are there?"""
        return annotation(job, kueue_names.POD_GROUP_FAST) == "true"

    def pod_sets(self, job: Json) -> list[Json]:
        active = [one for one in self.members(job) if can_run(one)]
        if self.is_fast(job):
            return [_pod_set(active[0], self.total(job))] if active else []
        counts = Counter(role_of(one) for one in active)
        firsts = {role_of(one): one for one in reversed(active)}
        return [_pod_set(firsts[role], counts[role]) for role in sorted(counts)]

    def lacks(self, job: Json, copied_labels: Sequence[str] = ()) -> str:
        """Why no Workload can be made of it; empty where one can. It has one value of each of `copied_labels`."""
        name, total = group_name(job), self.total(job)
        active = [one for one in self.members(job) if can_run(one)]
        if not total:
            return f"group '{name}': annotation {kueue_names.POD_GROUP_TOTAL} must be a number greater than zero"
        for one in active:
            for what, ours, theirs in (
                ("queue names", label(job, kueue_names.QUEUE), label(one, kueue_names.QUEUE)),
                (f"'{kueue_names.POD_GROUP_TOTAL}' values", str(total), annotation(one, kueue_names.POD_GROUP_TOTAL)),
            ):
                if ours != theirs:
                    pods = f"'{job['metadata']['name']}' and '{one['metadata']['name']}'"
                    return f"pods {pods} have different {what}: {ours}!={theirs}"
        for name in copied_labels:
            named = [one for one in active if label(one, name)]
            other = next((one for one in named if label(one, name) != label(named[0], name)), None)
            if other is not None:
                pods = f"'{named[0]['metadata']['name']}' and '{other['metadata']['name']}'"
                return f"pods {pods} have different '{name}' labels: {label(named[0], name)}!={label(other, name)}"
        if len(active) < (1 if self.is_fast(job) else total):
            return f"'{name}' group has fewer runnable pods than expected: {len(active)} of {total}"
        roles = {role_of(one) for one in oldest(active, total)}
        if len(roles) > MOST_ROLES:
            return f"'{name}' group has {len(roles)} roles; at most {MOST_ROLES} are possible"
        return ""

    def excess(self, job: Json) -> list[Json]:
        """Pods beyond the group's number, before it has a Workload."""
        active = [one for one in self.members(job) if can_run(one)]
        return too_many(active, self.total(job))

    def inactive(self, job: Json) -> list[Json]:
        return [one for one in self.members(job) if not can_run(one)]

    def sorted_out(self, job: Json, pod_sets: Sequence[PodSet], *, reserved: bool) -> SortedPods:
        """Which pods are too many, which were replaced, how many are missing."""
        excess, replaced, absent, kept = list[Json](), list[Json](), 0, 0
        by_role: dict[str, list[Json]] = {}
        for one in self.members(job):
            by_role.setdefault(role_of(one), []).append(one)
        for pod_set in pod_sets:
            pods = by_role.pop(pod_set.name or "main", [])
            active = [one for one in pods if can_run(one)]
            ended = [one for one in pods if not can_run(one)]
            excess += too_many(active, pod_set.count)
            gone = max(0, len(ended) + len(active) - pod_set.count)
            replaced += _longest_ended(ended)[:gone]
            if not (self.is_fast(job) and active) and not self.is_serving(job):
                absent += max(0, pod_set.count - len(active))
            kept += len(pods)
        strangers = [one for pods in by_role.values() for one in pods]
        if strangers and not absent:
            excess += [one for one in strangers if can_run(one)]
        fits = kept > 0 and (reserved or not absent or not any(can_run(one) for one in strangers))
        return SortedPods(excess=excess, replaced=replaced, absent=absent, fits=fits)

    def end(self, job: Json) -> End | None:
        if self.is_serving(job):
            return None
        members, total = self.members(job), self.total(job)
        succeeded = sum(_phase(one) == "Succeeded" for one in members)
        ended = all(_phase(one) in FINISHED for one in members)
        last = any(annotation(one, kueue_names.RETRIABLE) == "false" for one in members)
        if not total or not (succeeded >= total or (ended and last)):
            return None
        return End(True, f"Pods succeeded: {succeeded}/{total}.")

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        members = [one for one in self.members(job) if can_run(one)]
        return len(members) >= (self.total(job) or 1) and all(is_ready(one) for one in members)

    def reclaimable(self, job: Json) -> dict[str, int]:
        if self.is_serving(job):
            return {}
        return dict(Counter(role_of(one) for one in self.members(job) if _phase(one) == "Succeeded"))

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        """The group with every pod of it free to be scheduled, each with what the admission adds to its role."""
        given = {info.name: info for info in infos}
        waiting = {one["metadata"]["uid"] for one in self.waiting(job)}
        made = []
        for one in self.members(job):
            info = given.get(role_of(one))
            if one["metadata"]["uid"] not in waiting:
                made.append(one)
            elif info is None:
                raise StartError(f"the admission has no pod set {role_of(one)!r} for pod {one['metadata']['name']}")
            else:
                made.append(freed(one, info))
        return {**job, "members": made}

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        return job  # its pods are deleted


GROUPS = PodGroups()


def is_composed(kind: object) -> TypeGuard[PodGroups]:
    return isinstance(kind, PodGroups)


def freed(pod: Json, info: InjectedInfo) -> Json:
    """The pod with what the admission adds, and without our gate; gates can only be taken away."""
    made = merged(pod, msgspec.structs.replace(info, scheduling_gates=()))
    placed = KUEUE_TOPOLOGY_GATE in info.scheduling_gates
    gone = (GATE,) if placed else (GATE, KUEUE_TOPOLOGY_GATE)
    held = [one for one in pod["spec"].get("schedulingGates") or () if one.get("name") not in gone]
    made["spec"]["schedulingGates"] = held
    if not held:
        del made["spec"]["schedulingGates"]
    return made


def prepared(pod: Json) -> Json:
    """A new pod of a group with what keeps it countable: its role and, where no other object makes it, a finalizer."""
    metadata = dict(pod.get("metadata") or {})
    annotations = dict(metadata.get("annotations") or {})
    annotations.setdefault(kueue_names.ROLE_HASH, role_hash(pod.get("spec") or {}))
    metadata["annotations"] = annotations
    held = metadata.get("finalizers") or []
    if kueue_names.SUSPENDED_BY not in annotations and kueue_names.MANAGED not in held:
        metadata["finalizers"] = [*held, kueue_names.MANAGED]
    if named := annotations.get(kueue_names.POD_INDEX_LABEL):
        labels = dict(metadata.get("labels") or {})
        metadata["labels"] = {**labels, kueue_names.POD_INDEX: labels.get(named, "")}
    return {**pod, "metadata": metadata}


def problems(pod: Json) -> list[str]:
    """What is wrong with the marks of a new pod's group."""
    name, total = group_name(pod), annotation(pod, kueue_names.POD_GROUP_TOTAL)
    where = "annotations" if annotation(pod, kueue_names.POD_GROUP) else "labels"
    named, counted = (
        f"metadata.{where}[{kueue_names.POD_GROUP}]",
        f"metadata.annotations[{kueue_names.POD_GROUP_TOTAL}]",
    )
    if not name:
        return [f"{named}: required together with {kueue_names.POD_GROUP_TOTAL}"] if total else []
    wrong = check_subdomain(name)
    found = [f"{named}: {wrong}"] if wrong else []
    built = annotation(pod, kueue_names.PREBUILT) or label(pod, kueue_names.PREBUILT)
    if built and built != name:
        found.append(f"metadata.annotations[{kueue_names.PREBUILT}]: must be the name of the pod group")
    if kueue_names.SUSPENDED_BY in (pod["metadata"].get("annotations") or {}):
        return found
    if not total:
        found.append(f"{counted}: required together with {kueue_names.POD_GROUP}")
    elif not _positive(total):
        found.append(f"{counted}: {total!r} must be a number greater than zero")
    return found


def role_of(pod: Json) -> str:
    return annotation(pod, kueue_names.ROLE_HASH) or role_hash(pod.get("spec") or {})


def role_hash(spec: Json) -> str:
    """Eight digits for all that the scheduler goes by, the same as Kueue's."""
    shape: dict[str, Any] = {
        "initContainers": _containers(spec.get("initContainers")),
        "containers": _containers(spec.get("containers")),
        "nodeSelector": _ordered(spec.get("nodeSelector")),
        "affinity": spec.get("affinity"),
        "tolerations": spec.get("tolerations"),
        "runtimeClassName": spec.get("runtimeClassName"),
        "priority": spec.get("priority"),
        "topologySpreadConstraints": spec.get("topologySpreadConstraints"),
        "overhead": _ordered(spec.get("overhead")),
        "resourceClaims": spec.get("resourceClaims"),
    }
    if spec.get("resources") is not None:
        shape["resources"] = _ordered(spec["resources"].get("requests"))
    text = json.dumps({"spec": _ordered(shape)}, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def can_run(pod: Json) -> bool:
    """Does it count as one of the group's pods: it waits, runs, or did well?"""
    if pod["metadata"].get("deletionTimestamp") and not (pod.get("spec") or {}).get("nodeName"):
        return False
    return _phase(pod) != "Failed"


def oldest(pods: Sequence[Json], count: int) -> list[Json]:
    """So many of them stay: those that run before those that wait, then the oldest."""
    order = sorted(
        pods, key=lambda one: (is_gated(one), one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"])
    )
    return order[:count]


def too_many(pods: Sequence[Json], count: int) -> list[Json]:
    """Those beyond the number. A pod on its way out is none: what waits in its place is not one too many."""
    staying = [one for one in pods if not one["metadata"].get("deletionTimestamp")]
    kept = {one["metadata"]["uid"] for one in oldest(staying, count)}
    return [one for one in staying if one["metadata"]["uid"] not in kept]


def is_gated(pod: Json) -> bool:
    return any(one.get("name") == GATE for one in (pod.get("spec") or {}).get("schedulingGates") or ())


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return ready or _phase(pod) == "Succeeded"


def is_kept(pod: Json) -> bool:
    """Does our finalizer keep it?"""
    return kueue_names.MANAGED in finalizers(pod)


def _may_run(pod: Json) -> bool:
    if is_gated(pod) or _phase(pod) in FINISHED:
        return False
    return bool((pod.get("spec") or {}).get("nodeName")) or not pod["metadata"].get("deletionTimestamp")


def _pod_set(pod: Json, count: int) -> Json:
    metadata = pod.get("metadata") or {}
    kept = {name: copy.deepcopy(metadata[name]) for name in ("labels", "annotations") if metadata.get(name)}
    gone = (GATE, KUEUE_TOPOLOGY_GATE)
    spec = {name: copy.deepcopy(part) for name, part in (pod.get("spec") or {}).items() if name != "nodeName"}
    gates = [one for one in spec.pop("schedulingGates", None) or () if one.get("name") not in gone]
    if gates:
        spec["schedulingGates"] = gates
    made: Json = {
        "name": role_of(pod),
        "count": count,
        "template": {"spec": spec, **({"metadata": kept} if kept else {})},
    }
    request = topology_request(pod, podIndexLabel=kueue_names.POD_INDEX)
    return {**made, "topologyRequest": request} if request is not None else made


def _longest_ended(pods: Sequence[Json]) -> list[Json]:
    """Those whose finalizer is gone already, then those that ended or were deleted first."""

    def ended_at(pod: Json) -> str:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        told = [str(one.get("lastTransitionTime") or "") for one in conditions if one.get("type") == "ContainersReady"]
        known = [text for text in (*told, pod["metadata"].get("deletionTimestamp")) if text]
        return min(known, default="9")

    return sorted(pods, key=lambda one: (is_kept(one), ended_at(one), one["metadata"]["name"]))


def _containers(listed: Any) -> Any:
    shapes = [
        {"ports": one.get("ports"), "resources": {"requests": _ordered((one.get("resources") or {}).get("requests"))}}
        for one in listed or ()
    ]
    return shapes or None


def _ordered(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _positive(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "")
