"""The events of a gang: its own, and those of all that it made, found by what owns what.

Reads with the caller's rights, in one request per kind; a kind that may not be read is left out.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound
from shoal.sdk import elsewhere

_MADE = (
    kinds.WORKLOAD, kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.JOB_SET, kinds.REPLICA_SET, kinds.JOB, kinds.POD,
)  # fmt: skip
"""Owners before what they own."""


async def events_of(client: Client, kind: Kind, obj: Json) -> list[dict[str, Any]]:
    """Oldest first: when it was seen last, type, reason, object, message, count; of a gang that runs in another cluster
    also what was told there."""
    rows = await _events_in(client, kind, obj)
    at = await elsewhere.reading(client, kind, obj)
    if at.cluster:
        rows += [{**row, "cluster": at.cluster} for row in await _events_in(at.client, at.kind, at.obj)]
    return sorted(rows, key=lambda row: str(row["at"]))


async def _events_in(client: Client, kind: Kind, obj: Json) -> list[dict[str, Any]]:
    below = await made_by(client, obj)
    return await events_about(client, kind, obj, {one["metadata"]["uid"] for found in below.values() for one in found})


async def made_by(client: Client, obj: Json) -> dict[Kind, list[Json]]:
    """All that a gang made, and what that made, by kind: known by what owns what, never by labels."""
    namespace, uids = obj["metadata"]["namespace"], {obj["metadata"]["uid"]}
    below: dict[Kind, list[Json]] = {}
    for one in _MADE:
        try:
            found = await client.list(one, namespace)
        except (NotFound, Forbidden):
            continue
        below[one] = [
            item for item in found
            if any(ref.get("uid") in uids for ref in item["metadata"].get("ownerReferences") or ())
        ]  # fmt: skip
        uids |= {item["metadata"]["uid"] for item in below[one]}
    return below


async def events_about(client: Client, kind: Kind, obj: Json, made: set[str]) -> list[dict[str, Any]]:
    """Of the gang, and of what it made, given by UIDs."""
    uids, rows = {obj["metadata"]["uid"], *made}, []
    for event in await client.list(kinds.EVENT, obj["metadata"]["namespace"]):
        about = event.get("involvedObject") or {}
        same = (about.get("kind"), about.get("name")) == (kind.kind, obj["metadata"]["name"])
        if about.get("uid") in uids or (same and not about.get("uid")):
            rows.append(_row(event, about))
    return sorted(rows, key=lambda row: str(row["at"]))


def _row(event: Json, about: Json) -> dict[str, Any]:
    series = event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return {
        "at": at or event["metadata"]["creationTimestamp"],
        "type": event.get("type", ""),
        "reason": event.get("reason", ""),
        "object": f"{about.get('kind', '')}/{about.get('name', '')}",
        "message": event.get("message", ""),
        "count": series.get("count") or event.get("count") or 1,
    }
