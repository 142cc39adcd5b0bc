"""Ray is asked before its workers are taken: how long for, and of which clusters it has been asked.

Used where a grown cluster shrinks and where a gang is preempted. The time is the ClusterQueue's to say (annotation
`shoal.dev/drain-seconds`), else the setting; 0: nothing is asked. What is stored decides when the time is over: the
mark on a pod, or the eviction of a Workload. That Ray was asked is memory only: after a restart it is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api import kinds
from shoal.api.gang import DRAIN_SECONDS, LEAVES_FOR
from shoal.api.kind import Key
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_workload import Workload
from shoal.api.labels import RAY_CLUSTER_NAME, RAY_NODE_TYPE
from shoal.api.meta import Json, controller_of
from shoal.api.objects import annotation
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.planning.ray_nodes import NoRay, RayNodes
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.stored import condition
from shoal.errors import BadInput

LONGEST = 3600.0
ASKED_FOR = ("Preempted", "ClusterQueueStopped", "LocalQueueStopped")
"""Reasons of an eviction that leave a gang time: it did nothing wrong, and no user told it to go."""
_RAY = (kinds.RAY_CLUSTER.kind, kinds.RAY_JOB.kind)


def drain_seconds(workload: Workload, queue: ClusterQueue | None, settings: QueueSettings) -> float:
    """How long workers of this gang have in this queue; 0 for what is not Ray's."""
    owner = controller_of(workload.metadata)
    if owner is None or owner.kind not in _RAY:
        return 0.0
    told = annotation(queue, DRAIN_SECONDS) if queue is not None else ""
    if told.isascii() and told.isdigit():
        return min(float(told), LONGEST)
    return settings.drain_seconds


class Draining:
    def __init__(self, caches: QueueCaches, settings: QueueSettings, ray: RayNodes | None) -> None:
        self._caches = caches
        self._settings = settings
        self.ray: RayNodes = ray or NoRay()
        self._asked: dict[str, set[str]] = {}
        """By UID of a Workload: UIDs of the pods of which Ray was told."""

    def seconds(self, workload: Workload | None) -> float:
        """How long workers of this gang have; 0 for what is not Ray's."""
        if workload is None:
            return 0.0
        return drain_seconds(workload, self._caches.cluster_queue_of(workload), self._settings)

    def until(self, workload: Workload) -> int:
        """Until when an evicted gang keeps its workers; 0: they go at once."""
        evicted, seconds = condition(workload, "Evicted"), self.seconds(workload)
        if evicted is None or evicted.status != "True" or evicted.reason not in ASKED_FOR or not seconds:
            return 0
        return parse_time(evicted.last_transition_time) + int(seconds * SECOND)

    async def ask(self, uid: str, pods: Iterable[SeenPod], until: int) -> bool:
        """Tell Ray of workers of which it was not told yet that they go at this moment. False: it has to be told again,
        as of workers that it does not know yet."""
        asked = self._asked.setdefault(uid, set())
        by_cluster: dict[Key, list[SeenPod]] = {}
        for pod in pods:
            labels = pod.metadata.labels or {}
            if pod.metadata.uid not in asked and labels.get(RAY_NODE_TYPE) == "worker" and labels.get(RAY_CLUSTER_NAME):
                key = Key(pod.metadata.namespace, labels[RAY_CLUSTER_NAME])
                by_cluster.setdefault(key, []).append(pod)
        heard = True
        for key, leaving in by_cluster.items():
            if await self.ray.drain(key, [pod.metadata.name for pod in leaving], until):
                asked.update(pod.metadata.uid for pod in leaving)
            else:
                heard = False
        return heard

    def forget(self, uid: str) -> None:
        self._asked.pop(uid, None)


def is_at_work(pod: SeenPod) -> bool:
    """A worker that runs and is not on its way out."""
    worker = (pod.metadata.labels or {}).get(RAY_NODE_TYPE) == "worker"
    return worker and pod.status.phase == "Running" and not pod.metadata.deletion_timestamp


def mark_of(preemptor: str, until: int) -> Json:
    """The annotation of a pod that has to leave."""
    return {LEAVES_FOR: f"{preemptor}@{seconds_text(until)}"}


def leaves_at(pod: SeenPod) -> int:
    """The moment at which a marked pod is deleted at the latest; 0: it has no mark, or one that cannot be read."""
    text = (pod.metadata.annotations or {}).get(LEAVES_FOR, "")
    try:
        return parse_time(text.rpartition("@")[2]) if text else 0
    except BadInput:
        return 0
