"""Admitted gangs of which pods have no node: that is stored, with the moment since which, and one that keeps another
from being whole for too long goes back to the queue.

The clock is the condition's own, so that a restart changes nothing. Which gang goes, if any, is for the engine to say.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kueue_told import PODS_MISSING
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of
from shoal.api.times import seconds_text
from shoal.controllers.planning.lacking import Lacking
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND, Draft
from shoal.engine.line import Deadline, Recovery

GRACE = 5.0
"""Seconds for which a pod may be without a node before anything is said: most are bound within one."""
COMES_BACK = 10.0
"""Seconds after which a gang that was taken back is looked at again: room and quota are for the other first."""
TAKE_BACK_HEADS = "shoal.dev/take-back-living-heads"
"""Annotation of a ClusterQueue: `true` where Ray clusters go back, too, although their head has a node."""
REASON = "NodeFailures"


def note(draft: Draft, lacking: Lacking | None) -> None:
    """Say that pods are missing, once that lasts; and that they are not any more."""
    said = draft.condition(PODS_MISSING)
    if not draft.is_true("Admitted") or draft.is_true("Evicted"):
        if said is not None:
            draft.drop(PODS_MISSING)
    elif lacking is None:
        if draft.is_true(PODS_MISSING):
            draft.put(PODS_MISSING, False, "AllPlaced", "Every pod has a node")
    elif draft.is_true(PODS_MISSING) or draft.now >= lacking.since + GRACE * SECOND:
        if not draft.is_true(PODS_MISSING):
            draft.tell("Warning", "PodsMissing", lacking.message)
        draft.put(PODS_MISSING, True, "NoNode", lacking.message)


def next_look(draft: Draft, lacking: Lacking | None, limit: float) -> list[int]:
    """Microseconds until something is to be said or done about pods that are missing."""
    if lacking is None or not draft.is_true("Admitted") or draft.is_true("Evicted"):
        return []
    if not draft.is_true(PODS_MISSING):
        return [lacking.since + int(GRACE * SECOND) - draft.now]
    due = [draft.since(PODS_MISSING) + times * int(limit * SECOND) - draft.now for times in (1, 2)]
    return [left for left in due if limit and left > 0]


def pause(draft: Draft) -> None:
    """It was taken back, and has stopped: it waits a moment, so that the other goes first."""
    if draft.reason("Evicted") == REASON:
        at = draft.now + int(COMES_BACK * SECOND)
        draft.set("requeueState", {**(draft.get("requeueState") or {}), "requeueAt": seconds_text(at)})


class Incomplete:
    """Gangs whose stored status says that pods are missing, and which of them goes back."""

    def __init__(self, caches: QueueCaches, limit: float, planning: PlanningLoop) -> None:
        self._caches, self._limit, self._planning = caches, limit, planning
        self._since: dict[str, tuple[int, Json]] = {}

    def update(self, workload: Json) -> None:
        draft = Draft(workload, 0)
        uid = workload["metadata"]["uid"]
        self._since.pop(uid, None)
        if draft.is_true(PODS_MISSING) and draft.is_true("Admitted") and not draft.is_true("Evicted"):
            self._since[uid] = (draft.since(PODS_MISSING), workload)

    def forget(self, uid: str) -> None:
        self._since.pop(uid, None)

    def lacking(self, workload: Json) -> Lacking | None:
        return self._planning.lacking(workload["metadata"]["uid"], wanted(workload))

    def late(self, now: int) -> list[str]:
        """UIDs of those that may have to go."""
        return [uid for uid, due in self._deadlines().items() if due.first <= now]

    def verdict(self, now: int) -> Recovery:
        return self._planning.engine.recovery(self._deadlines(), now)

    def _deadlines(self) -> dict[str, Deadline]:
        """Where a node could take its pods, it has twice the time: the scheduler may be slow, or know better."""
        limit = int(self._limit * SECOND)
        if not limit:
            return {}
        return {
            uid: Deadline(since + limit, since + 2 * limit)
            for uid, (since, workload) in self._since.items()
            if self._may_go(workload)
        }

    def _may_go(self, workload: Json) -> bool:
        """A Ray cluster whose head lives may still be of use: it goes only where its queue says so."""
        owner = controller_of(workload)
        if owner is None or owner.get("kind") not in (kinds.RAY_CLUSTER.kind, kinds.RAY_JOB.kind):
            return True
        queue = self._caches.get(kinds.CLUSTER_QUEUE, self._caches.cluster_queue_name(workload))
        if queue is not None and annotation(queue, TAKE_BACK_HEADS) == "true":
            return True
        found = self.lacking(workload)
        return found is not None and not found.head_lives


def wanted(workload: Json) -> int:
    """How many pods an admitted gang should have on nodes."""
    status = workload.get("status") or {}
    given = ((status.get("admission") or {}).get("podSetAssignments")) or ()
    done = sum(int(one.get("count") or 0) for one in status.get("reclaimablePods") or ())
    return sum(int(one.get("count", 1)) for one in given) - done
