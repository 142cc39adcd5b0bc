"""From stored objects to the rows of the page: gangs, nodes, queues, cohorts. Pure.

The words and amounts are those of `shoal get`; here they only get a stable `id`, numbers for bars, and moments for the
timeline.
"""

from __future__ import annotations

from typing import Any

from shoal.api.kind import Kind
from shoal.api.kueue_told import brief
from shoal.api.labels import NODE_POOL, RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.api.objects import controller_of
from shoal.api.quantity import amount
from shoal.sdk import gangs, places, rows, standing
from shoal.sdk.outcomes import outcome_of
from shoal.web.lending import Place, parent_of, quotas_of

Row = dict[str, Any]
MOST_NAMED = 12
"""Gangs that a node's row names."""
LIMITS = ("borrowingLimit", "lendingLimit")


def gang_row(kind: Kind, obj: Json, workload: Json | None, pods: list[Json]) -> Row:
    row = rows.row(kind, obj, workload, pods)
    row["id"] = row.pop("uid")
    row["stage"] = outcome_of(kind, obj, workload).stage
    if (short := brief(row["reason"])) != row["reason"]:
        row["brief"] = short  # for tables, as `shoal get` has it
    if started := standing.started_at(kind, obj, workload):
        row["started"] = started
    if gangs.is_wrapper(kind):
        row |= _stored_position(obj)
    return row


def _stored_position(obj: Json) -> Row:
    """An AppWrapper carries its place in the line; a queued job's is the controller's to tell."""
    from shoal.controllers.appwrapper.status import explain

    found = explain.read(str((obj.get("status") or {}).get("explanation") or ""))
    if found is None or not found.position:
        return {}
    return {"position": found.position, "length": found.queue_length}


def node_row(node: Json, pods: list[Json]) -> Row:
    row = places.node_row(node, pods)
    row["id"] = row["name"]
    for resource, one in row["amounts"].items():
        one["n"] = [amount(resource, one["used"]), amount(resource, one["allocatable"])]
    labels = node["metadata"].get("labels") or {}
    row["pool"] = labels.get(NODE_POOL) or labels.get("cloud.google.com/gke-nodepool") or ""
    named = sorted({f"{pod['metadata']['namespace']}/{_gang_of(pod)}" for pod in pods})
    row["gangs"], row["moreGangs"] = named[:MOST_NAMED], max(0, len(named) - MOST_NAMED)
    return row


def _gang_of(pod: Json) -> str:
    """What a person would call it: its owner's name, or its own."""
    owner = controller_of(pod)
    return str(owner["name"] if owner is not None else pod["metadata"]["name"])


def local_queue_row(queue: Json) -> Row:
    row = places.queue_row(queue)
    return {**row, "id": f"{row['namespace']}/{row['name']}"}


def cluster_queue_row(queue: Json, lent: dict[Place, tuple[int, int]]) -> Row:
    declared, status, name = quotas_of(queue), queue.get("status") or {}, queue["metadata"]["name"]
    quotas = []
    for one in places.quota_rows(queue):
        place = (one["flavor"], one["resource"])
        limits: Row = {key: str(quota) for key in LIMITS if (quota := declared[place].get(key)) is not None}
        numbers = [amount(one["resource"], one[key]) for key in ("guaranteed", "used", "borrowed")]
        shown = {key: one[key] for key in ("flavor", "resource", "guaranteed", "used", "borrowed")}
        quotas.append({**shown, **limits, "n": [*numbers, *lent.get(place, (0, 0))]})
    spec = queue.get("spec") or {}
    return {
        "id": name,
        "name": name,
        "cohort": spec.get("cohortName") or spec.get("cohort") or "",
        "state": places.queue_state(queue),
        "pending": status.get("pendingWorkloads", 0),
        "admitted": status.get("admittedWorkloads", 0),
        "weight": str((spec.get("fairSharing") or {}).get("weight") or ""),
        "quotas": quotas,
    }


def cohort_row(cohort: Json) -> Row:
    name = cohort["metadata"]["name"]
    quotas = [
        {"flavor": flavor, "resource": resource, "guaranteed": str(quota.get("nominalQuota", "0"))}
        for (flavor, resource), quota in quotas_of(cohort).items()
    ]
    return {"id": name, "name": name, "parent": parent_of(cohort), "quotas": quotas}


def pod_row(pod: Json) -> Row:
    """One pod of a gang's own page."""
    status, labels = pod.get("status") or {}, pod["metadata"].get("labels") or {}
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    reasons = [str(part.get("reason") or "") for state in states for part in state.values() if isinstance(part, dict)]
    ready = sum(bool(one.get("ready")) for one in status.get("containerStatuses") or ())
    restarts = sum(int(one.get("restartCount") or 0) for one in status.get("containerStatuses") or ())
    return {
        "id": pod["metadata"]["uid"],
        "name": pod["metadata"]["name"],
        "role": labels.get(RAY_NODE_TYPE) or "",
        "phase": "Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase") or "Pending",
        "reason": next((reason for reason in reasons if reason), "") or str(status.get("reason") or ""),
        "ready": f"{ready}/{len((pod.get('spec') or {}).get('containers') or ())}",
        "restarts": restarts,
        "node": (pod.get("spec") or {}).get("nodeName") or "",
        "containers": [one["name"] for one in (pod.get("spec") or {}).get("containers") or ()],
        "created": pod["metadata"]["creationTimestamp"],
    }


def condition_rows(obj: Json) -> list[Row]:
    """Newest first."""
    found = [
        {
            "of": obj.get("kind", ""),
            "type": one.get("type", ""),
            "status": str(one.get("status", "")),
            "reason": one.get("reason", ""),
            "message": one.get("message", ""),
            "at": one.get("lastTransitionMicroTime") or one.get("lastTransitionTime") or "",
        }
        for one in (obj.get("status") or {}).get("conditions") or ()
        if isinstance(one, dict)
    ]
    return sorted(found, key=lambda one: str(one["at"]), reverse=True)
