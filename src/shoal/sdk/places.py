"""Where gangs go: queues, quotas and nodes as rows, read with the caller's rights from what is stored.

Used by `shoal get` and `shoal free`. What could be borrowed, is lent, or would start is the engine's to say.
"""

from __future__ import annotations

import json
from typing import Any

from shoal.api import kinds
from shoal.api.gang import USER_USAGE
from shoal.api.kind import Kind
from shoal.api.kueue_told import condition
from shoal.api.meta import Json
from shoal.api.quantity import amount, show
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound

GPU_MEMORY = "nvidia.com/gpu.memory"
"""Label of a node: MiB of each of its GPUs."""


async def queues(client: Client, namespace: str | None) -> list[dict[str, Any]]:
    """LocalQueues: what waits and what was admitted, as their controller counts."""
    rows = [queue_row(queue) for queue in await _listed(client, kinds.LOCAL_QUEUE, namespace)]
    return sorted(rows, key=lambda row: (row["namespace"], row["name"]))


def queue_row(queue: Json) -> dict[str, Any]:
    """One LocalQueue."""
    status = queue.get("status") or {}
    return {
        "namespace": queue["metadata"]["namespace"],
        "name": queue["metadata"]["name"],
        "clusterQueue": (queue.get("spec") or {}).get("clusterQueue", ""),
        "pending": status.get("pendingWorkloads", 0),
        "admitted": status.get("admittedWorkloads", 0),
        "state": queue_state(queue),
    }


def queue_state(queue: Json) -> str:
    """Of a LocalQueue or ClusterQueue, as its controller judged it."""
    active = condition(queue, "Active")
    if active.get("status") == "False":
        return f"Inactive: {active.get('message', '')}"
    return "Active" if active else "New"


async def usages(client: Client) -> list[dict[str, Any]]:
    """LocalQueues, and users in them, of ClusterQueues that are shared by usage: what each had lately."""
    found = sorted(
        await _listed(client, kinds.LOCAL_QUEUE, None),
        key=lambda one: (str(one["metadata"]["namespace"]), str(one["metadata"]["name"])),
    )
    return [row for queue in found for row in usage_rows(queue)]


def usage_rows(queue: Json) -> list[dict[str, Any]]:
    """One LocalQueue, then its users; nothing for one that is not shared by usage."""
    shared = (queue.get("status") or {}).get("fairSharing") or {}
    known = shared.get("admissionFairSharingStatus")
    if not known:
        return []
    row = {
        "namespace": queue["metadata"]["namespace"],
        "queue": queue["metadata"]["name"],
        "clusterQueue": (queue.get("spec") or {}).get("clusterQueue", ""),
        "user": "",
        "consumed": known.get("consumedResources") or {},
        "weightedShare": shared.get("weightedShare", 0),
        "lastUpdate": known.get("lastUpdate", ""),
    }
    rows = [row]
    try:
        users = json.loads((queue["metadata"].get("annotations") or {}).get(USER_USAGE) or "{}")
        rows += [{**row, "user": user, "consumed": dict(users[user]), "weightedShare": None} for user in sorted(users)]
    except (ValueError, TypeError):
        pass  # another hand wrote it
    return rows


async def quotas(client: Client) -> list[dict[str, Any]]:
    """Every quota of every ClusterQueue, with what is reserved of it."""
    found = sorted(await _listed(client, kinds.CLUSTER_QUEUE, None), key=lambda one: str(one["metadata"]["name"]))
    return with_lent([row for queue in found for row in quota_rows(queue)])


def with_lent(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With `unused`, what is left of its guarantee, and `lent`: what other queues of its cohort borrow, as far as this
    one has so much unused. Where several could have lent it, each shows all of it."""
    borrowed: dict[tuple[str, str, str], int] = {}
    for row in rows:
        place = (row["cohort"], row["flavor"], row["resource"])
        borrowed[place] = borrowed.get(place, 0) + amount(row["resource"], row["borrowed"])
    return [{**row, "lent": _lent(row, borrowed), "unused": _unused(row)} for row in rows]


def _unused(row: dict[str, Any]) -> str:
    resource = row["resource"]
    return show(resource, max(0, amount(resource, row["guaranteed"]) - amount(resource, row["used"])))


def _lent(row: dict[str, Any], borrowed: dict[tuple[str, str, str], int]) -> str:
    resource = row["resource"]
    if not row["cohort"]:
        return "0"
    others = borrowed[row["cohort"], row["flavor"], resource] - amount(resource, row["borrowed"])
    unused = amount(resource, row["guaranteed"]) - amount(resource, row["used"])
    return show(resource, max(0, min(others, unused)))


def quota_rows(queue: Json) -> list[dict[str, Any]]:
    """Every quota of one ClusterQueue."""
    spec, used, rows = queue.get("spec") or {}, _used(queue), []
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                total, borrowed = used.get((flavor["name"], resource["name"]), ("0", "0"))
                rows.append(
                    {
                        "clusterQueue": queue["metadata"]["name"],
                        "cohort": spec.get("cohortName") or spec.get("cohort") or "",
                        "flavor": flavor["name"],
                        "resource": resource["name"],
                        "guaranteed": str(resource.get("nominalQuota", "0")),
                        "used": total,
                        "borrowed": borrowed,
                    }
                )
    return rows


def _used(queue: Json) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (flavor["name"], one["name"]): (str(one.get("total", "0")), str(one.get("borrowed") or "0"))
        for flavor in (queue.get("status") or {}).get("flavorsReservation") or ()
        for one in flavor.get("resources") or ()
    }


async def nodes(client: Client) -> list[dict[str, Any]]:
    """Every node with what its pods request of it."""
    found = await _listed(client, kinds.NODE, None)
    pods = await _listed(client, kinds.POD, None)
    on: dict[str, list[Json]] = {}
    for pod in pods:
        on.setdefault(str((pod.get("spec") or {}).get("nodeName") or ""), []).append(pod)
    by_name = sorted(found, key=lambda one: str(one["metadata"]["name"]))
    return [node_row(node, on.get(node["metadata"]["name"], [])) for node in by_name]


def node_row(node: Json, pods: list[Json]) -> dict[str, Any]:
    """One node, and the pods that were bound to it; those that have ended use nothing."""
    here = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    offered = (node.get("status") or {}).get("allocatable") or {}
    amounts = {
        resource: {"used": show(resource, _requested(here, resource)), "allocatable": str(offered[resource])}
        for resource in sorted(offered)
        if resource != "pods" and (resource in ("cpu", "memory") or "/" in resource)
    }
    row = {"name": node["metadata"]["name"], "state": _state(node), "amounts": amounts, "pods": len(here)}
    memory = (node["metadata"].get("labels") or {}).get(GPU_MEMORY)
    return {**row, "gpuMemory": f"{memory}Mi"} if memory else row


def _requested(pods: list[Json], resource: str) -> int:
    """As kubelet counts: all containers together, or the largest init container."""
    total = 0
    for pod in pods:
        spec = pod.get("spec") or {}
        first = max((_of(one, resource) for one in spec.get("initContainers") or ()), default=0)
        total += max(first, sum(_of(one, resource) for one in spec.get("containers") or ()))
    return total


def _of(container: Json, resource: str) -> int:
    return amount(resource, ((container.get("resources") or {}).get("requests") or {}).get(resource, "0"))


def _state(node: Json) -> str:
    ready = condition(node, "Ready").get("status") == "True"
    words = ["Ready" if ready else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


async def _listed(client: Client, kind: Kind, namespace: str | None) -> list[Json]:
    try:
        return await client.list(kind, namespace)
    except NotFound:
        return []
    except Forbidden as error:
        raise ShoalError(f"{error}; ask for that right") from error
