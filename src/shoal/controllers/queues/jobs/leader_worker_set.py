"""A LeaderWorkerSet in a queue: each of its groups, a leader with its workers, is one gang.

Held through its pods: admission copies the queue into both templates, and a pod of such a set joins the group of pods
that its leader and workers are (`pod_group`). Where workers are made only after their leader is ready
(`startupPolicy: LeaderReady`) a group would wait for ever: there each pod waits by itself. Pure.
"""

from __future__ import annotations

from shoal.api import kueue_names
from shoal.api.meta import Json
from shoal.api.objects import annotation, label
from shoal.controllers.queues.names import workload_name

PARENT = "leaderworkerset"
GROUP = "leaderworkerset.x-k8s.io"
TEMPLATES = (("spec", "leaderWorkerTemplate", "leaderTemplate"), ("spec", "leaderWorkerTemplate", "workerTemplate"))
SET_NAME = "leaderworkerset.sigs.k8s.io/name"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
SIZE = "leaderworkerset.sigs.k8s.io/size"


def starts_together(obj: Json) -> bool:
    """Are workers made before their leader is ready?"""
    return (obj.get("spec") or {}).get("startupPolicy") != "LeaderReady"


def grouped(pod: Json) -> Json:
    """A new pod of such a set, as one of its group; any other pod as it is."""
    if annotation(pod, kueue_names.SUSPENDED_BY) != PARENT:
        return pod
    metadata = pod.get("metadata") or {}
    of, size = label(pod, SET_NAME), annotation(pod, SIZE)
    index, worker = _indexes(pod, of)
    if not of or not index or not size:
        return pod
    annotations = {
        **(metadata.get("annotations") or {}),
        kueue_names.POD_GROUP_TOTAL: size,
        kueue_names.POD_GROUP_SERVING: "true",
        kueue_names.ROLE_HASH: "leader" if worker == "0" else "worker",
    }
    labels = {
        **(metadata.get("labels") or {}),
        kueue_names.POD_GROUP: workload_name("LeaderWorkerSet", GROUP, f"{of}-{index}", ""),
    }
    return {**pod, "metadata": {**metadata, "annotations": annotations, "labels": labels}}


def _indexes(pod: Json, of: str) -> tuple[str, str]:
    """Number of its group, and its own in it: as its labels say, else as its name does (`set-0`, `set-0-2`)."""
    rest = str((pod.get("metadata") or {}).get("name") or "").removeprefix(f"{of}-").split("-")
    named = rest if all(part.isdigit() for part in rest) else []
    index = label(pod, GROUP_INDEX) or (named[0] if named else "")
    return index, label(pod, WORKER_INDEX) or (named[1] if len(named) > 1 else "0")
