"""Which gangs wait in a queue, and where each stands: the summaries of Kueue's visibility API.

Asked by whatever serves `visibility.kueue.x-k8s.io`; answered from the engine's own order, as of this moment. Reads
only, stores nothing: a position changes with every arrival and departure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.queues.caches import QueueCaches
from shoal.engine import Engine

GROUP = "visibility.kueue.x-k8s.io"
VERSIONS = ("v1beta1", "v1beta2")
SUBRESOURCE = "pendingworkloads"
RESOURCES = {"clusterqueues": "ClusterQueue", "localqueues": "LocalQueue"}
USUAL, MOST = 1000, 100_000
"""Gangs of an answer: where no `limit` is asked for, and whatever is asked for."""


class PendingWorkloads:
    def __init__(self, caches: QueueCaches, engine: Engine) -> None:
        self._caches = caches
        self._engine = engine

    def of_cluster_queue(self, name: str, query: Mapping[str, str]) -> list[Json] | None:
        """None where there is no such queue."""
        if self._caches.cluster_queue(name) is None:
            return None
        return _page(self._line(name), query)

    def of_local_queue(self, key: Key, query: Mapping[str, str]) -> list[Json] | None:
        local = self._caches.local_queues.get(key)
        if local is None:
            return None
        everyone = self._line(local.spec.cluster_queue)
        mine = [one for one in everyone if (one["metadata"]["namespace"], one["localQueueName"]) == (*_parts(key),)]
        return _page(mine, query)

    def _line(self, cluster_queue: str) -> list[Json]:
        """All that wait for its quota, in order."""
        passed: Counter[tuple[str, str]] = Counter()
        found = []
        for position, gang in enumerate(self._engine.line(cluster_queue)):
            own = (gang.namespace, gang.queue)
            workload = self._caches.workloads.get(Key(gang.namespace, gang.name))
            metadata = workload.raw["metadata"] if workload is not None else {}
            kept = {name: metadata[name] for name in ("creationTimestamp", "ownerReferences") if metadata.get(name)}
            found.append(
                {
                    "metadata": {"name": gang.name, "namespace": gang.namespace, **kept},
                    "priority": gang.priority,
                    "localQueueName": gang.queue,
                    "positionInClusterQueue": position,
                    "positionInLocalQueue": passed[own],
                }
            )
            passed[own] += 1
        return found


def summary(version: str, items: list[Json]) -> Json:
    """As the API answers."""
    return {"kind": "PendingWorkloadsSummary", "apiVersion": f"{GROUP}/{version}", "metadata": {}, "items": items}


def discovery(version: str) -> Json:
    """What a version of the group serves."""
    resources = [
        {
            "name": f"{plural}/{SUBRESOURCE}",
            "singularName": "",
            "namespaced": plural == "localqueues",
            "kind": "PendingWorkloadsSummary",
            "verbs": ["get"],
        }
        for plural in RESOURCES
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{version}", "resources": resources}


def _page(items: list[Json], query: Mapping[str, str]) -> list[Json]:
    limit = max(0, min(_number(query.get("limit"), USUAL), MOST))
    return items[max(0, _number(query.get("offset"), 0)) :][:limit]


def _number(text: str | None, absent: int) -> int:
    """As Kueue's server: what is no number counts as not given."""
    try:
        return int(text) if text else absent
    except ValueError:
        return absent


def _parts(key: Key) -> tuple[str, str]:
    return key.namespace, key.name
