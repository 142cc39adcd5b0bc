"""Which pods must be bound together: gangs by our annotations, PodGroups by their label, all others alone.

Pure: pods in, groups out. The scheduler decides when; this decides which pods belong together and whether all are
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from shoal.api import gang as marks
from shoal.api.labels import HOSTNAME, POD_GROUP
from shoal.api.meta import Json
from shoal.api.objects import controller_of
from shoal.engine.facts import pod_set
from shoal.engine.model import PodSet

POD_GROUP_LABELS = (POD_GROUP, "pod-group.scheduling.sigs.k8s.io")
BOUND_WHOLE = marks.PREFIX + "gang-bound"
"""Annotation of the pod that was bound last of its gang: with it the gang was whole. Pods that join later go alone."""


GANG, MARKED = "gang/", "marked/"
"""How the key of a gang begins that a controller made, and of pods that only carry the same mark."""


class Group(msgspec.Struct, frozen=True):
    """Pods that are bound together. `minimum` of them (bound ones included) must exist first."""

    key: str
    pods: tuple[Json, ...]
    minimum: int
    bound: int = 0
    was_whole: bool = False

    @property
    def together(self) -> bool:
        """All or none: a group that was never whole."""
        return self.minimum > 1 and self.bound < self.minimum and not self.was_whole

    @property
    def missing(self) -> int:
        return max(0, self.minimum - self.bound - len(self.pods))


def group_key(pod: Json) -> str:
    """Namespace and UID of the gang, or namespace and name of the PodGroup; empty for a pod on its own.

    Pods of one namespace alone stand together. Those with a gang's mark and no owner are of another sort: they never
    join the gang of that UID, whose pods have one.
    """
    metadata = pod["metadata"]
    uid = (metadata.get("annotations") or {}).get(marks.GANG_UID)
    if uid:
        sort = GANG if controller_of(pod) is not None else MARKED
        return f"{sort}{metadata.get('namespace', '')}/{uid}"
    labels = metadata.get("labels") or {}
    for label in POD_GROUP_LABELS:
        if labels.get(label):
            return f"podgroup/{metadata.get('namespace', '')}/{labels[label]}"
    return ""


def is_of_gang(pod: Json) -> bool:
    """Of a gang that a controller made, and takes back whole if it must."""
    return group_key(pod).startswith(GANG)


def minimum_of(pod: Json, pod_group: Callable[[str], Json | None]) -> int | None:
    """How many pods the group of this pod needs at its start; 1 when it says nothing readable, None for a PodGroup
    that does not exist (yet)."""
    key = group_key(pod)
    if key.startswith((GANG, MARKED)):
        text = (pod["metadata"].get("annotations") or {}).get(marks.GANG_SIZE, "")
        return int(text) if text.isdecimal() and len(text) < 7 else 1
    if key.startswith("podgroup/"):
        found = pod_group(key.removeprefix("podgroup/"))
        if found is None:
            return None
        least = (found.get("spec") or {}).get("minMember")
        return least if isinstance(least, int) and least > 0 else 1
    return 1


def order(pod: Json) -> tuple[int, str, str, str]:
    """Higher priority first, then older, then by name."""
    metadata = pod["metadata"]
    priority = (pod.get("spec") or {}).get("priority") or 0
    return (-int(priority), metadata.get("creationTimestamp") or "", metadata.get("namespace", ""), metadata["name"])


def as_pod_set(pods: list[Json], name: str, pinned: bool = True) -> PodSet:
    """Equal pods as one pod set. A pinned pod may go to its planned node only."""
    first = pods[0]
    found = pod_set(name, len(pods), first)
    annotations = first["metadata"].get("annotations") or {}
    if pinned and annotations.get(marks.NODE_PIN):
        selector = {**found.node_selector, HOSTNAME: annotations[marks.NODE_PIN]}
        found = msgspec.structs.replace(found, node_selector=selector)
    return found


def alike(pods: Iterable[Json], pinned: bool = True) -> list[tuple[PodSet, list[Json]]]:
    """Pods sorted into pod sets of equal pods, in order."""
    found: dict[bytes, list[Json]] = {}
    for pod in pods:
        found.setdefault(shape_key(as_pod_set([pod], "", pinned)), []).append(pod)
    return [(as_pod_set(members, f"set-{index}", pinned), members) for index, members in enumerate(found.values())]


def shape_key(shape: PodSet) -> bytes:
    """Equal for pods that the fit code cannot tell apart."""
    values: dict[str, Any] = msgspec.structs.asdict(shape)
    values.pop("name")
    values.pop("count")
    return msgspec.json.encode(values, order="deterministic")
