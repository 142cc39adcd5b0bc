"""What a hub puts into another cluster: a copy of the Workload, and of its job once that cluster was chosen.

Copies carry the hub's mark, the UID of the hub's Workload and the round of dispatch; only by these are they ever
recognised, changed or removed. Pure.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

from shoal.api import kinds
from shoal.api.kueue_names import IN_USE, JOB_UID, PREBUILT
from shoal.api.labels import CLUSTER_LOSS, KUEUE_MULTIKUEUE_ORIGIN, LAST_APPLIED
from shoal.api.meta import Json
from shoal.api.quantity import amount
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.record import Record, record_of
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.jobs import GangJob
from shoal.errors import BadInput

LONGEST_LABEL = 63
_OWN_PREFIX = "shoal.dev/"

Want = Literal["nothing", "place", "keep", "run"]
"""`place`: a copy of the Workload, made if it is missing. `keep`: the same, never made again. `run`: its job, too."""


def stays(workload: Json) -> bool:
    """Does it hold quota at the hub, with nothing that makes it leave?"""
    draft = Draft(workload, 0)
    return (
        draft.is_true("QuotaReserved")
        and not draft.is_true("Evicted")
        and not draft.is_true("Finished")
        and not workload["metadata"].get("deletionTimestamp")
        and (workload.get("spec") or {}).get("active") is not False
    )


def wanted_on(workload: Json | None, cluster: str) -> Want:
    """What of a hub's Workload belongs into this cluster, as stored."""
    if workload is None or not stays(workload):
        return "nothing"
    record = record_of(workload)
    if record.ends or cluster not in record.on or cluster in record.leaving:
        return "nothing"
    chosen = chosen_cluster(workload)
    if not chosen:
        return "place"
    if chosen != cluster:
        return "nothing"
    return "run" if Draft(workload, 0).is_true("Admitted") else "keep"


def chosen_cluster(workload: Json) -> str:
    return str((workload.get("status") or {}).get("clusterName") or "")


# --- recognising


Verdict = Literal["current", "stale", "unknown"]


def marks(obj: Json) -> tuple[str, int]:
    """UID of the hub's Workload and round; an unreadable round is older than all."""
    annotations = obj["metadata"].get("annotations") or {}
    text = str(annotations.get(words.EPOCH) or "")
    return str(annotations.get(words.HUB_WORKLOAD) or ""), int(text) if text.isascii() and text.isdigit() else 0


def is_ours(obj: Json, origin: str) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get(KUEUE_MULTIKUEUE_ORIGIN) == origin)


def judge(obj: Json, workload: Json | None, removed_up_to: int | None) -> Verdict:
    """`unknown` is what this hub does not remember making: it is shown, and never removed unasked."""
    uid, epoch = marks(obj)
    if removed_up_to is not None and epoch <= removed_up_to:
        return "stale"
    if workload is None or workload["metadata"]["uid"] != uid:
        return "unknown"
    record = record_of(workload)
    return "current" if epoch == record.epoch else "stale" if record.is_past(epoch) else "unknown"


# --- making


def workload_copy(workload: Json, record: Record, origin: str) -> Json:
    metadata, spec = workload["metadata"], copy.deepcopy(workload.get("spec") or {})
    kept = ("podSets", "queueName", "priority", "priorityClassRef", "maximumExecutionTimeSeconds")
    return {
        "apiVersion": kinds.WORKLOAD.api_version,
        "kind": kinds.WORKLOAD.kind,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {
                **{name: value for name, value in (metadata.get("labels") or {}).items() if name != JOB_UID},
                KUEUE_MULTIKUEUE_ORIGIN: origin,
            },
            "annotations": _annotations(metadata, metadata["uid"], record),
            "finalizers": [IN_USE],
        },
        "spec": {**{name: spec[name] for name in kept if name in spec}, "active": True},
    }


def job_copy(kind: GangJob, job: Json, workload: Json, record: Record, origin: str) -> Json:
    metadata, name = job["metadata"], workload["metadata"]["name"]
    made = kind.suspended({"metadata": {}, "spec": copy.deepcopy(job.get("spec") or {})})
    spec = kind.copied(made["spec"])
    spec.pop("managedBy", None)
    labels = {**(metadata.get("labels") or {}), KUEUE_MULTIKUEUE_ORIGIN: origin}
    if len(name) <= LONGEST_LABEL:
        labels[PREBUILT] = name  # where older Kueues look for it
    annotations = {**_annotations(metadata, workload["metadata"]["uid"], record), PREBUILT: name}
    return {
        "apiVersion": kind.kind.api_version,
        "kind": kind.kind.kind,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }


def _annotations(metadata: Json, uid: str, record: Record) -> Json:
    """Users' annotations travel along; ours are about this cluster only."""
    kept = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if not name.startswith(_OWN_PREFIX) and name != LAST_APPLIED
    }
    fenced = {CLUSTER_LOSS: "move"} if record.fence else {}
    return {**kept, **fenced, words.HUB_WORKLOAD: uid, words.EPOCH: str(record.epoch)}


# --- comparing


def altered(sent: Any, found: Any, where: str = "spec") -> str:
    """The first field that the other cluster would store differently, or not at all; empty when there is none."""
    if isinstance(sent, dict):
        if not isinstance(found, dict):
            return where if any(value is not None for value in sent.values()) else ""
        for name, value in sent.items():
            if value is None or value in ({}, [], ""):
                continue
            if problem := altered(value, found.get(name), f"{where}.{name}"):
                return problem
        return ""
    if isinstance(sent, list):
        if not isinstance(found, list) or len(found) < len(sent):
            return where
        pairs = enumerate(zip(sent, found, strict=False))
        return next((problem for at, pair in pairs if (problem := altered(*pair, f"{where}[{at}]"))), "")
    return "" if sent == found or _is_same_amount(sent, found) else where


def _is_same_amount(sent: Any, found: Any) -> bool:
    """Servers write quantities in their own way: `1000m` comes back as `1`."""
    try:
        return isinstance(sent, str | int) and found is not None and amount("cpu", sent) == amount("cpu", found)
    except (BadInput, ValueError, TypeError):
        return False
