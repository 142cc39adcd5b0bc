"""Admitted gangs of which pods have no node: that is stored, with the moment since which, and one that keeps another
from being whole for too long goes back to the queue.

The clock is the condition's own, so that a restart changes nothing. Which gang goes, if any, is for the engine to say.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kueue_told import PODS_MISSING
from shoal.api.kueue_workload import Workload
from shoal.api.meta import controller_of
from shoal.api.objects import annotation
from shoal.api.times import seconds_text
from shoal.controllers.planning.lacking import Lacking
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks.draft import SECOND, Draft
from shoal.controllers.queues.stored import is_true, since
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
        self._since: dict[str, tuple[int, Workload]] = {}

    def update(self, workload: Workload) -> None:
        uid = workload.metadata.uid
        self._since.pop(uid, None)
        if is_true(workload, PODS_MISSING) and is_true(workload, "Admitted") and not is_true(workload, "Evicted"):
            self._since[uid] = (since(workload, PODS_MISSING), workload)

    def forget(self, uid: str) -> None:
        self._since.pop(uid, None)

    def lacking(self, workload: Workload) -> Lacking | None:
        return self._planning.lacking(workload.metadata.uid, wanted(workload))

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
            uid: Deadline(start + limit, start + 2 * limit)
            for uid, (start, workload) in self._since.items()
            if self._may_go(workload)
        }

    def _may_go(self, workload: Workload) -> bool:
        """A Ray cluster whose head lives may still be of use: it goes only where its queue says so."""
        owner = controller_of(workload.metadata)
        if owner is None or owner.kind not in (kinds.RAY_CLUSTER.kind, kinds.RAY_JOB.kind):
            return True
        queue = self._caches.cluster_queue_of(workload)
        if queue is not None and annotation(queue, TAKE_BACK_HEADS) == "true":
            return True
        found = self.lacking(workload)
        return found is not None and not found.head_lives


def wanted(workload: Workload) -> int:
    """How many pods an admitted gang should have on nodes."""
    admission = workload.status.admission
    given = admission.pod_set_assignments if admission is not None else ()
    done = sum(one.count for one in workload.status.reclaimable_pods or ())
    return sum(1 if one.count is None else one.count for one in given) - done
