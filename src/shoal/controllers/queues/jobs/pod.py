"""A plain pod as a gang of one: held by a scheduling gate from its first moment, started by taking the gate away.

As Kueue: admission gates a pod with a queue label and marks it as held; a pod that got in without is left alone. A pod
cannot be gated again: to stop it is to delete it, and what made it makes another one, which waits. Deployments,
StatefulSets and LeaderWorkerSets are held through their pods: admission copies their queue label into the pod template.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.api import kinds, kueue_names
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_TOPOLOGY_GATE
from shoal.api.meta import Json
from shoal.api.objects import label
from shoal.api.topology_annotations import asks_for_topology, topology_request
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged, restored
from shoal.controllers.queues.jobs import leader_worker_set, pod_group
from shoal.controllers.queues.jobs.base import End, Suspendable
from shoal.controllers.queues.jobs.pod_group import FINISHED, GATE
from shoal.controllers.queues.jobs.templated import Steps, found_at, put_at

MAIN = "main"


class Pods(Suspendable):
    kind: Kind = kinds.POD
    deleted_to_stop = True

    def is_skipped(self, job: Json) -> bool:
        """Stored without having been held: it runs, or will, whatever its label says."""
        return bool(_phase(job)) and label(job, kueue_names.MANAGED) != "true"

    def is_suspended(self, job: Json) -> bool:
        return GATE in _gates(job)

    def suspended(self, job: Json) -> Json:
        made: Json = copy.deepcopy(job)
        wanted = [GATE, *([KUEUE_TOPOLOGY_GATE] if asks_for_topology(job) else ())]
        gates = _gates(job)
        spec = made.setdefault("spec", {})
        spec["schedulingGates"] = [{"name": name} for name in (*gates, *(one for one in wanted if one not in gates))]
        metadata = made.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), kueue_names.MANAGED: "true"}
        made = leader_worker_set.grouped(made)
        return pod_group.prepared(made) if pod_group.group_name(made) else made

    def pod_sets(self, job: Json) -> list[Json]:
        metadata = job.get("metadata") or {}
        kept = {name: copy.deepcopy(metadata[name]) for name in ("labels", "annotations") if metadata.get(name)}
        spec = {name: copy.deepcopy(part) for name, part in (job.get("spec") or {}).items() if name != "nodeName"}
        spec["schedulingGates"] = [one for one in spec.get("schedulingGates") or () if one.get("name") != GATE]
        if not spec["schedulingGates"]:
            del spec["schedulingGates"]
        template: Json = {"spec": spec, **({"metadata": kept} if kept else {})}
        made: Json = {"name": MAIN, "count": 1, "template": template}
        if (request := topology_request(job, podIndexLabel=kueue_names.POD_INDEX)) is not None:
            made["topologyRequest"] = request
        return [made]

    def template_paths(self, job: Json) -> list[str]:
        return [""]

    def is_active(self, job: Json) -> bool:
        return not self.is_suspended(job) and _phase(job) not in FINISHED

    def end(self, job: Json) -> End | None:
        phase = _phase(job)
        if phase not in FINISHED:
            return None
        said = str((job.get("status") or {}).get("message") or "")
        return End(phase == "Succeeded", said or f"Pod {phase.lower()}")

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        conditions = (job.get("status") or {}).get("conditions") or ()
        ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
        return ready or _phase(job) == "Succeeded"

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        if len(infos) != 1:
            raise StartError(f"the admission has {len(infos)} pod sets and a pod one; recreate it")
        made = merged(job, infos[0])
        held = [{"name": name} for name in _gates(job) if name != GATE]  # a gate can only be taken away
        made["spec"]["schedulingGates"] = held
        if not held:
            del made["spec"]["schedulingGates"]
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        """As it would have to be made again; the pod itself is deleted."""
        return self.suspended(restored(job, pod_sets[0].get("template") or {}) if len(pod_sets) == 1 else job)

    def problems(self, job: Json) -> list[str]:
        return pod_group.problems(job)


JOBS = (Pods(),)

CARRIERS = (kinds.DEPLOYMENT, kinds.STATEFUL_SET, kinds.LEADER_WORKER_SET)
"""Kinds that are held through the pods of their template."""


def carrying(obj: Json) -> Json:
    """The object with its queue and priority class in the labels of its pod templates."""
    named = {name: label(obj, name) for name in (kueue_names.QUEUE, kueue_names.PRIORITY_CLASS) if label(obj, name)}
    if not named:
        return obj
    if obj.get("kind") != kinds.LEADER_WORKER_SET.kind:
        return _with_labels(obj, ("spec", "template"), named)
    marks = {kueue_names.SUSPENDED_BY: leader_worker_set.PARENT} if leader_worker_set.starts_together(obj) else {}
    for steps in leader_worker_set.TEMPLATES:
        obj = _with_labels(obj, steps, named, marks) if found_at(obj, steps) else obj
    return obj


def _with_labels(obj: Json, steps: Steps, labels: Json, annotations: Json | None = None) -> Json:
    known = (found_at(obj, steps) or {}).get("metadata") or {}
    wanted = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    if all(part.items() <= (known.get(name) or {}).items() for name, part in wanted.items()):
        return obj
    made: Json = copy.deepcopy(obj)
    metadata = {**known, **{name: {**(known.get(name) or {}), **part} for name, part in wanted.items()}}
    put_at(made, (*steps, "metadata"), metadata)
    return made


def _gates(pod: Json) -> list[str]:
    listed: Any = (pod.get("spec") or {}).get("schedulingGates") or ()
    return [str(one.get("name")) for one in listed]


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "")
