"""Queued gangs as the commands see them: what a job's Workload says, in one word and one line.

Shared by `shoal get` and `shoal why`. Reads what the controllers wrote, with the asker's rights, and decides nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.kueue_names import IS_GROUP
from shoal.api.kueue_told import ended_at, ran, standing_since, status_of, told
from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Forbidden, NotFound
from shoal.sdk import gangs
from shoal.sdk.standing import words

QUEUE = KUEUE_QUEUE

__all__ = [
    "by_owner",
    "cluster_of",
    "describe",
    "ended_at",
    "other_kinds",
    "queue_of",
    "ran",
    "stored_at",
    "told",
    "workloads",
]


def queue_of(obj: Json) -> str:
    return str((obj["metadata"].get("labels") or {}).get(QUEUE) or "")


async def workloads(client: Client, namespace: str | None) -> list[Json]:
    """Those that the asker may read; none where queues are not installed."""
    try:
        return await client.list(kinds.WORKLOAD, namespace)
    except (NotFound, Forbidden):
        return []


def by_owner(found: list[Json]) -> dict[str, Json]:
    """UID of the job to its Workload; the pods of a group share one."""
    return {str(one.get("uid")): workload for workload in found for one in _jobs(workload)}


def _jobs(workload: Json) -> list[Json]:
    """References to its job, or to each pod of its group."""
    group = (workload["metadata"].get("annotations") or {}).get(IS_GROUP) == "true"
    references = workload["metadata"].get("ownerReferences") or ()
    return [one for one in references if one.get("controller") or (group and one.get("kind") == kinds.POD.kind)]


async def other_kinds(client: Client, found: list[Json]) -> tuple[Kind, ...]:
    """Kinds of the jobs behind these Workloads that the commands do not know by heart, as the server names them."""
    owners = [(str(one.get("apiVersion")), str(one.get("kind"))) for workload in found for one in _jobs(workload)]
    known = {(one.api_version.partition("/")[0], one.kind) for one in (*gangs.KINDS, *gangs.QUEUED)}
    wanted = sorted({one for one in owners if (one[0].partition("/")[0], one[1]) not in known})
    discovery = Discovery(client)
    kinds_found = [await discovery.kind_of(*one) for one in wanted]
    return tuple(one for one in kinds_found if one is not None)


def cluster_of(workload: Json | None) -> str:
    """The other cluster that this gang was given to; empty for those that run here."""
    return str(status_of(workload or {}).get("clusterName") or "")


def given_cluster(wrapper: Json) -> str:
    """The other cluster that is stored with the admission of an AppWrapper of v1beta1; a Workload's admission is
    another thing, and names none."""
    admission = status_of(wrapper).get("admission")
    try:
        return str(msgspec.json.decode(admission, type=dict).get("cluster") or "") if isinstance(admission, str) else ""
    except msgspec.DecodeError:
        return ""


async def describe(client: Client, job: Json) -> dict[str, Any] | None:
    """What is stored of a job that names a queue; None when it has no Workload, or runs here. Of one that runs in
    another cluster, in which. Its position is the controller's to tell."""
    workload = by_owner(await workloads(client, job["metadata"]["namespace"])).get(job["metadata"]["uid"])
    said = told(workload) if workload is not None else None
    if workload is None or (said is None and not cluster_of(workload)):
        return None
    if said is None:
        messages = [str(one.get("message") or "") for one in status_of(workload).get("admissionChecks") or ()]
        silent = [one for one in messages if "cannot be reached" in one]
        return {"cluster": cluster_of(workload), **({"message": silent[0]} if silent else {})}
    state, message = said
    queue = str((workload.get("spec") or {}).get("queueName") or "")
    made = {"state": words(state), "message": message, "queue": queue, "storedAt": stored_at(workload)}
    since = standing_since(workload)
    return {**made, "since": since} if since else made


def stored_at(obj: Json) -> str:
    """When its status was written last, as the server noted; empty where it did not."""
    times = [
        str(one.get("time") or "")
        for one in obj["metadata"].get("managedFields") or ()
        if one.get("subresource") == "status"
    ]
    return max(times, default="")
