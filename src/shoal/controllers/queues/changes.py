"""Which changes of objects concern the queues: most only say how an object fares, and cost nothing further.

Asked by the queue controller at every event of a watch. Knows the objects alone.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.gang import DRAINABLE, SAVED_AT
from shoal.api.kueue import AdmissionCheck, ClusterQueue, LocalQueue
from shoal.api.labels import HOSTNAME
from shoal.api.meta import Json
from shoal.api.objects import annotation, label
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.stored import is_true
from shoal.kube.cache import Change


def changes_gang(kind: GangJob, old: Json | None, new: Json) -> bool:
    """Does the change of a job concern what the engine is told of its Workload?"""
    if old is None or old.get("spec") != new.get("spec") or kind.is_on_hold(old) != kind.is_on_hold(new):
        return True
    if kind.kind == kinds.POD and kind.end(old) != kind.end(new):
        return True  # its group may lack one now
    if any(annotation(old, name) != annotation(new, name) for name in (SAVED_AT, DRAINABLE)):
        return True
    return bool(old["metadata"].get("deletionTimestamp") != new["metadata"].get("deletionTimestamp"))


def health(node: Json) -> tuple[object, ...]:
    """What of a node says whether it has failed."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), None)
    taints = (node.get("spec") or {}).get("taints") or ()
    return label(node, HOSTNAME), ready, [dict(one) for one in taints]


def concerns_us(change: Change) -> bool:
    """False for changes that only say how an object fares; whether it is active does concern those that need it."""
    if asks_otherwise(change):
        return True
    old, new = change.old, change.new
    has_state = isinstance(old, ClusterQueue | LocalQueue | AdmissionCheck)
    return has_state and is_true(old, "Active") != is_true(new, "Active")


def asks_otherwise(change: Change) -> bool:
    old, new = change.old, change.new
    return old is None or new is None or bool(_asked(old) != _asked(new))


def _asked(obj: Any) -> list[Any]:
    """All of an object but what the server and controllers write into it."""
    if isinstance(obj, dict):  # a kind that the planning loop watches for all
        named = ("labels", "annotations", "deletionTimestamp")
        parts = [obj.get(name) for name in sorted(obj) if name not in ("metadata", "status")]
        return [*parts, *(obj["metadata"].get(name) for name in named)]
    parts = [getattr(obj, name) for name in obj.__struct_fields__ if name not in ("metadata", "status", "raw")]
    return [*parts, obj.metadata.labels, obj.metadata.annotations, obj.metadata.deletion_timestamp]
