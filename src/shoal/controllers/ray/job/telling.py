"""What of a RayJob's state is worth a write now, and what may wait a while: pure helpers of its reconciler.

Each status is a write that the API server carries out instead of making pods. What is over before a person could have
read it is not told; what ends a stage is told at once, always.
"""

from __future__ import annotations

from shoal.api.kueue_names import QUEUE
from shoal.api.meta import Json
from shoal.api.objects import label
from shoal.api.times import parse_time
from shoal.controllers.ray import view
from shoal.controllers.ray.cluster import status
from shoal.controllers.ray.job.progress import Memory
from shoal.controllers.ray.pods import submission

QUEUED = 5.0
"""Seconds for which a job that a queue holds is not told to be suspended."""
RUSH = 2.5
"""How much longer than elsewhere progress waits to be told while other jobs come at the same time."""


def unsaid(job: Json, now: int) -> float:
    """Seconds for which a job that comes suspended is not told so. With quota at hand a queue starts it before a person
    could have read that, and the start would meet the write."""
    created = view.metadata(job).get("creationTimestamp")
    if not label(job, QUEUE) or not created:
        return 0.0
    return min(QUEUED, QUEUED - (now - parse_time(str(created))) / 1_000_000)


def pause(memory: Memory, now: float, delay: float, in_a_rush: bool) -> float:
    """Seconds for which the progress of its cluster waits to be told, while others come at the same time."""
    if memory.progress_since is None:
        if not in_a_rush:
            return 0.0
        memory.progress_since = now
    return memory.progress_since + RUSH * delay - now


def changed(job: Json, changes: Json) -> Json | None:
    """Its status with these changes, for its spec as it is now; None where nothing differs."""
    held = submission.status(job)
    new = {key: value for key, value in {**held, **changes}.items() if value is not None}
    new["observedGeneration"] = view.generation(job)
    return None if status.same(held, new) else new


def differs(old: Json, new: Json) -> bool:
    """Do two statuses of a cluster say something different?"""
    return {**old, "lastUpdateTime": None} != {**new, "lastUpdateTime": None}
