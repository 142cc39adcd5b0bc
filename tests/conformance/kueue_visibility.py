"""Judge one `visibility` case: who waits in a queue and in which place, by what `shoal why` tells of places."""

from __future__ import annotations

from typing import Any

from shoal.engine.kueue import KueueSettings
from tests.conformance.kueue_given import Case, compared, gang_of, told

MOST = 100_000


def visibility_differences(given: Case, expect: Case) -> list[str]:
    query = given["query"]
    namespaces = sorted({entry["metadata"]["namespace"] for entry in given["localQueues"]} | {"default"})
    kueue = told({**given, "namespaces": [{"name": name} for name in namespaces]}, KueueSettings())
    of_cluster = query["scope"] == "ClusterQueue"
    listed = given["clusterQueues"] if of_cluster else given["localQueues"]
    known = {(entry["metadata"].get("namespace", ""), entry["metadata"]["name"]) for entry in listed}
    if (query["namespace"], query["name"]) not in known:
        return compared("not found", True, bool(expect["error"]))
    gangs = [gang_of(entry) for entry in given["workloads"]]
    for gang in gangs:
        kueue.update(gang)
    found: list[dict[str, Any]] = []
    for gang in gangs:
        places = kueue.places(gang.key)
        asked = places is not None and (
            places.cluster_queue == query["name"]
            if of_cluster
            else (gang.namespace, gang.queue) == (query["namespace"], query["name"])
        )
        if places is not None and asked:
            found.append(
                {
                    "localQueueName": gang.queue,
                    "positionInClusterQueue": places.position - 1,
                    "positionInLocalQueue": places.local_position - 1,
                    "priority": gang.priority,
                    "workload": f"{gang.namespace}/{gang.name}",
                }
            )
    found.sort(key=lambda item: int(item["positionInClusterQueue"]))
    limit = max(0, min(query["limit"], MOST))
    return compared("items", found[query["offset"] :][:limit], expect["items"])
