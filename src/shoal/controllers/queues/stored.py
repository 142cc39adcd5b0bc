"""Queue objects as their controllers hold them: the types of `api` to read, and the whole object to write from.

A cache makes one of these per revision; nothing decodes again. `raw` is the object with all its fields, those that no
type knows too: patches are worked out from it, so that what we never read is never altered. Never change either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from shoal.api.codec import without_nulls
from shoal.api.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ProvisioningRequestConfig,
    ResourceFlavor,
    WorkloadPriorityClass,
)
from shoal.api.kueue_convert import upgrade
from shoal.api.kueue_other import Topology
from shoal.api.kueue_workload import Workload, WorkloadSpec, WorkloadStatus
from shoal.api.meta import Condition, Json, Object
from shoal.api.times import parse_time

T = TypeVar("T", bound=Object)
K = TypeVar("K")
MOST_ALIKE = 1_000
"""Different specs, and different labels, that are remembered; then it starts over."""


class StoredWorkload(Workload):
    raw: Json = msgspec.field(default_factory=dict)


class StoredClusterQueue(ClusterQueue):
    raw: Json = msgspec.field(default_factory=dict)


class StoredLocalQueue(LocalQueue):
    raw: Json = msgspec.field(default_factory=dict)


class StoredCohort(Cohort):
    raw: Json = msgspec.field(default_factory=dict)


class StoredFlavor(ResourceFlavor):
    raw: Json = msgspec.field(default_factory=dict)


class StoredTopology(Topology):
    raw: Json = msgspec.field(default_factory=dict)


class StoredCheck(AdmissionCheck):
    raw: Json = msgspec.field(default_factory=dict)


class StoredProvisioningConfig(ProvisioningRequestConfig):
    raw: Json = msgspec.field(default_factory=dict)


class StoredPriorityClass(WorkloadPriorityClass):
    raw: Json = msgspec.field(default_factory=dict)


_OLD_SPELLINGS = (StoredClusterQueue, StoredCohort)
"""Of these v1beta1 has other names for what we read; a server without conversion stores them as they were written."""


def view(type: type[T]) -> Callable[[Json], T]:
    """What a cache of this type calls with every new revision. Raises ValidationError with the path at fault."""
    is_old = issubclass(type, _OLD_SPELLINGS)

    def made(raw: Json) -> T:
        source = upgrade(raw) if is_old else raw
        try:
            stored = msgspec.convert(source, type)
        except msgspec.ValidationError:
            stored = msgspec.convert(without_nulls(source), type)  # null counts as absent, as everywhere in Kubernetes
        msgspec.structs.force_setattr(stored, "raw", raw)
        return stored

    return made


class WorkloadViews:
    """What the cache of Workloads calls with every new revision. Most of many Workloads ask for the same, and none
    changes it in its life: equal specs and labels are stored once, and read once."""

    def __init__(self) -> None:
        self._whole = view(StoredWorkload)
        self._specs: dict[bytes, tuple[Json, WorkloadSpec]] = {}
        self._labels: dict[bytes, dict[str, str]] = {}

    def __call__(self, raw: Json) -> StoredWorkload:
        """Raises ValidationError with the path at fault."""
        asked = msgspec.json.encode(raw.get("spec"))
        known = self._specs.get(asked)
        if known is None:
            found = self._whole(raw)
            self._kept(self._specs, asked, (raw.get("spec") or {}, found.spec))
        else:
            found = self._around(raw, known[1])
            raw["spec"] = known[0]
        labels = found.metadata.labels
        if labels:
            raw["metadata"]["labels"] = labels = self._kept(self._labels, msgspec.json.encode(labels), labels)
            msgspec.structs.force_setattr(found.metadata, "labels", labels)
        return lean(found)

    def _around(self, raw: Json, spec: WorkloadSpec) -> StoredWorkload:
        try:
            read = msgspec.convert(raw, AroundSpec)
        except msgspec.ValidationError:
            return self._whole(raw)  # null counts as absent
        return StoredWorkload(
            api_version=read.api_version, kind=read.kind, metadata=read.metadata, spec=spec, status=read.status, raw=raw
        )

    @staticmethod
    def _kept(table: dict[bytes, K], key: bytes, value: K) -> K:
        if len(table) >= MOST_ALIKE:
            table.clear()
        return table.setdefault(key, value)


class AroundSpec(Object):
    """A Workload whose spec is known already."""

    status: WorkloadStatus = WorkloadStatus()


def lean(workload: StoredWorkload) -> StoredWorkload:
    """A Workload that is over and that nothing of ours keeps: no more than its identity, its owner and how it ended."""
    end = condition(workload, "Finished")
    metadata = workload.metadata
    if end is None or end.status != "True" or metadata.finalizers or metadata.deletion_timestamp:
        return workload
    raw, queue = workload.raw, workload.spec.queue_name
    ends = [one for one in raw["status"]["conditions"] if one["type"] == "Finished"]
    kept = {name: value for name, value in raw["metadata"].items() if name not in ("labels", "annotations")}
    small = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": kept, "spec": {"queueName": queue},
             "status": {"conditions": ends}}  # fmt: skip
    return StoredWorkload(
        api_version=workload.api_version,
        kind=workload.kind,
        metadata=msgspec.structs.replace(metadata, labels=None, annotations=None),
        spec=WorkloadSpec(queue_name=queue),
        status=WorkloadStatus(conditions=(end,)),
        raw=small,
    )


WithConditions = Workload | ClusterQueue | LocalQueue | AdmissionCheck


def created_at(obj: Object) -> int:
    """Microseconds since the epoch."""
    return parse_time(obj.metadata.creation_timestamp) if obj.metadata.creation_timestamp else 0


def condition(obj: WithConditions, kind: str) -> Condition | None:
    for one in obj.status.conditions or ():
        if one.type == kind:
            return one
    return None


def is_true(obj: WithConditions, kind: str) -> bool:
    """Does this condition of it hold?"""
    found = condition(obj, kind)
    return found is not None and found.status == "True"


def since(obj: WithConditions, kind: str) -> int:
    """When the condition took its present status; 0 without it."""
    found = condition(obj, kind)
    return parse_time(found.last_transition_time) if found is not None and found.last_transition_time else 0
