"""Queue objects as their controllers hold them: the types of `api` to read, and the whole object to write from.

A cache makes one of these per revision; nothing decodes again. `raw` is the object with all its fields, those that no
type knows too: patches are worked out from it, so that what we never read is never altered. Never change either.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
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
from shoal.api.kueue_workload import Admission, Workload, WorkloadSpec, WorkloadStatus
from shoal.api.meta import Condition, Json, Object
from shoal.api.times import parse_time
from shoal.remembered import Remembered

T = TypeVar("T", bound=Object)
NO_STATUS = WorkloadStatus()
_COMMON = ("type", "status", "reason", "lastTransitionTime")
MOST_ALIKE = 1_000
"""Different specs, labels and admissions that are remembered; then it starts over."""


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
        self._specs: Remembered[bytes, tuple[Json, WorkloadSpec]] = Remembered(MOST_ALIKE)
        self._labels: Remembered[bytes, dict[str, str]] = Remembered(MOST_ALIKE)
        self._admissions: Remembered[bytes, tuple[Json, Admission]] = Remembered(MOST_ALIKE)
        self._ended: Remembered[str, tuple[Json, WorkloadSpec]] = Remembered(MOST_ALIKE)
        """By queue: what is left of the spec of a Workload that is over."""

    def __call__(self, raw: Json) -> StoredWorkload:
        """Raises ValidationError with the path at fault."""
        if raw.get("status"):
            raw["status"] = _with_common_words(raw["status"])
        asked = msgspec.json.encode(raw.get("spec"))
        known = self._specs.get(asked)
        if known is None:
            found = self._whole(raw)
            self._specs.remember(asked, (raw.get("spec") or {}, found.spec))
        else:
            found = self._around(raw, known[1])
            raw["spec"] = known[0]
        metadata, labels = found.metadata, found.metadata.labels
        if labels:
            raw["metadata"]["labels"] = labels = self._labels.shared(msgspec.json.encode(labels), labels)
            msgspec.structs.force_setattr(metadata, "labels", labels)
        if metadata.namespace and metadata.creation_timestamp:  # many are made in one namespace, in one second
            namespace, moment = intern(metadata.namespace), intern(metadata.creation_timestamp)
            raw["metadata"] |= {"namespace": namespace, "creationTimestamp": moment}
            msgspec.structs.force_setattr(metadata, "namespace", namespace)
            msgspec.structs.force_setattr(metadata, "creation_timestamp", moment)
        admission = found.status.admission
        if admission is not None:
            body = raw["status"]["admission"]
            body, admission = self._admissions.shared(msgspec.json.encode(body), (body, admission))
            raw["status"]["admission"] = body
            msgspec.structs.force_setattr(found.status, "admission", admission)
        return self._lean(found)

    def _lean(self, workload: StoredWorkload) -> StoredWorkload:
        """A Workload that is over and that nothing of ours keeps: no more than its identity, its owner and how it
        ended. There may be very many: what is the same for all is there once."""
        end = condition(workload, "Finished")
        metadata = workload.metadata
        if end is None or end.status != "True" or metadata.finalizers or metadata.deletion_timestamp:
            return workload
        raw, queue = workload.raw, intern(workload.spec.queue_name)
        body, spec = self._ended.shared(queue, ({"queueName": queue}, WorkloadSpec(queue_name=queue)))
        end_in_raw = _end_in(raw)
        ended = {**end_in_raw, "message": intern(end_in_raw.get("message", ""))}
        kept = {name: value for name, value in raw["metadata"].items() if name not in ("labels", "annotations")}
        return StoredWorkload(
            api_version=workload.api_version,
            kind=workload.kind,
            metadata=msgspec.structs.replace(metadata, labels=None, annotations=None),
            spec=spec,
            status=WorkloadStatus(conditions=(msgspec.convert(ended, Condition),)),
            raw={"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": kept, "spec": body,
                 "status": {"conditions": [ended]}},
        )  # fmt: skip

    def _around(self, raw: Json, spec: WorkloadSpec) -> StoredWorkload:
        try:
            read = msgspec.convert(raw, AroundSpec)
        except msgspec.ValidationError:
            return self._whole(raw)  # null counts as absent
        status = read.status if raw.get("status") else NO_STATUS
        return StoredWorkload(
            api_version=read.api_version, kind=read.kind, metadata=read.metadata, spec=spec, status=status, raw=raw
        )


class AroundSpec(Object):
    """A Workload whose spec is known already."""

    status: WorkloadStatus = WorkloadStatus()


def _end_in(raw: Json) -> Json:
    """The condition that says how it ended."""
    return next(one for one in raw["status"]["conditions"] if one["type"] == "Finished")


def _with_common_words(status: Json) -> Json:
    """The status with words that many conditions have in common, times by the second among them."""
    conditions = status.get("conditions")
    if not isinstance(conditions, list):
        return {**status}
    return {**status, "conditions": [_with_common(one) if isinstance(one, dict) else one for one in conditions]}


def _with_common(condition: Json) -> Json:
    return {name: intern(value) if name in _COMMON and isinstance(value, str) else value
            for name, value in condition.items()}  # fmt: skip


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
