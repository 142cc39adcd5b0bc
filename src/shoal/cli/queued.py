"""Queued gangs as the commands see them: what a job's Workload says, in one word and one line.

Shared by `shoal get` and `shoal why`. Reads what the controllers wrote, with the asker's rights, and decides nothing.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound

QUEUE = "kueue.x-k8s.io/queue-name"
JOB_UID = "kueue.x-k8s.io/job-uid"


def queue_of(obj: Json) -> str:
    return str((obj["metadata"].get("labels") or {}).get(QUEUE) or "")


async def workloads(client: Client, namespace: str | None) -> list[Json]:
    """Those that the asker may read; none where queues are not installed."""
    try:
        return await client.list(kinds.WORKLOAD, namespace)
    except (NotFound, Forbidden):
        return []


def by_owner(found: list[Json]) -> dict[str, Json]:
    """UID of the job to its Workload."""
    return {
        str(one.get("uid")): workload
        for workload in found
        for one in workload["metadata"].get("ownerReferences") or ()
        if one.get("controller")
    }


def told(workload: Json) -> tuple[str, str] | None:
    """State and reason while a queue holds the job; None once it runs or has ended: then the job tells more."""
    if _holds(workload, "Finished") or (_holds(workload, "Admitted") and not _holds(workload, "Evicted")):
        return None
    if (workload.get("spec") or {}).get("active") is False:
        return "Inactive", _message(workload, "Evicted")
    if _holds(workload, "QuotaReserved"):
        if _holds(workload, "Evicted"):
            return "Stopping", _message(workload, "Evicted")
        open_checks = [one for one in _status(workload).get("admissionChecks") or () if one.get("state") != "Ready"]
        if open_checks:
            return "QuotaReserved", "waits for " + "; ".join(_check(one) for one in open_checks)
        return "QuotaReserved", _message(workload, "Admitted") or "waits for room"
    requeue_at = (_status(workload).get("requeueState") or {}).get("requeueAt")
    reason = _message(workload, "QuotaReserved") or "no controller has looked at it yet"
    return "Queued", f"{reason}; not before {requeue_at}" if requeue_at else reason


def cluster_of(workload: Json | None) -> str:
    """The other cluster that this gang was given to; empty for those that run here."""
    return str(_status(workload or {}).get("clusterName") or "")


async def describe(client: Client, job: Json) -> dict[str, Any] | None:
    """What `shoal why` says of a job that names a queue; None when it has no Workload, or runs here. Of one that runs
    in another cluster, in which."""
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    found = await workloads(client, namespace)
    workload = by_owner(found).get(uid)
    said = told(workload) if workload is not None else None
    if workload is None or (said is None and not cluster_of(workload)):
        return None
    if said is None:
        messages = [str(one.get("message") or "") for one in _status(workload).get("admissionChecks") or ()]
        silent = [one for one in messages if "cannot be reached" in one]
        return {"cluster": cluster_of(workload), **({"message": silent[0]} if silent else {})}
    state, message = said
    queue = str((workload.get("spec") or {}).get("queueName") or "")
    made: dict[str, Any] = {"state": state.lower(), "message": message, "queue": queue}
    if state == "Queued":
        waiting = [one for one in found if _waits_in(one, queue)]
        order = sorted(waiting, key=_rank)
        made["position"] = 1 + next(index for index, one in enumerate(order) if one is workload)
        made["queueLength"] = len(order)
    return made


def _waits_in(workload: Json, queue: str) -> bool:
    spec = workload.get("spec") or {}
    return spec.get("queueName") == queue and (told(workload) or ("",))[0] == "Queued"


def _rank(workload: Json) -> tuple[int, str, str]:
    """As the queue orders: priority, age, UID."""
    metadata = workload["metadata"]
    return (-int((workload.get("spec") or {}).get("priority") or 0), metadata["creationTimestamp"], metadata["uid"])


def _check(check: Json) -> str:
    return f"{check['name']}: {check['message']}" if check.get("message") else str(check["name"])


def _status(workload: Json) -> Json:
    return workload.get("status") or {}


def _condition(workload: Json, kind: str) -> Json:
    return next((one for one in _status(workload).get("conditions") or () if one.get("type") == kind), {})


def _holds(workload: Json, kind: str) -> bool:
    return bool(_condition(workload, kind).get("status") == "True")


def _message(workload: Json, kind: str) -> str:
    return str(_condition(workload, kind).get("message") or "")
