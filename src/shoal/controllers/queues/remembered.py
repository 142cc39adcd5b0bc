"""What history is told of a queued job: its own name, its user, how it ended. Reads caches."""

from __future__ import annotations

from shoal.api.gang import NOTIFY
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Condition, controller_of
from shoal.api.objects import annotation, key_of
from shoal.api.times import parse_time
from shoal.controllers.planning.creators import submitter_of
from shoal.controllers.planning.history.records import FAILED, SUCCEEDED, GangFacts
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.stored import condition

_FAILED = ("Failed", "JobFailed", "OwnerNotFound", "FailedToStart")


def remembered(workload: Workload, caches: QueueCaches) -> GangFacts:
    owner, found = controller_of(workload.metadata), caches.job_of(key_of(workload))
    job = found[1] if found is not None else {}
    deadline = (job.get("spec") or {}).get("activeDeadlineSeconds")
    limits = [one for one in (workload.spec.maximum_execution_time_seconds, deadline) if isinstance(one, int) and one]
    queue = caches.local_queue(workload)
    end = condition(workload, "Finished")
    ended = end is not None and end.status == "True"
    return GangFacts(
        kind=owner.kind if owner is not None else "Workload",
        name=owner.name if owner is not None else workload.metadata.name,
        user=submitter_of(job),
        cluster_queue=caches.cluster_queue_name(workload),
        limit=min(limits, default=0),
        notify=next((text for one in (job, queue) if one and (text := annotation(one, NOTIFY))), ""),
        started_at=_since(condition(workload, "Admitted")),
        outcome=(FAILED if end.reason in _FAILED else SUCCEEDED) if ended and end is not None else "",
        ended_at=_since(end),
    )


def _since(found: Condition | None) -> int:
    """Since when a condition holds; 0 where it does not."""
    if found is None or found.status != "True" or not found.last_transition_time:
        return 0
    return parse_time(found.last_transition_time)
