"""How long a job is kept that its queue has switched off for good, as Kueue's `objectRetentionPolicies`.

Called by the reconciler after everything else is stored. A job that a user switched off is never deleted.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.queues.checks.draft import SECOND
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.jobs.pod_group import is_composed
from shoal.controllers.queues.stored import StoredWorkload, condition, is_true, since

BY_ITS_QUEUE = "DeactivatedDueTo"


async def drop_deactivated(context: QueueContext, workload: StoredWorkload, kind: GangJob, job: Json) -> float | None:
    """Delete the job when its time is over; seconds until then, None where it is kept."""
    keep = context.settings.keep_deactivated_seconds
    evicted = condition(workload, "Evicted")
    if keep is None or workload.spec.active or evicted is None or evicted.status != "True":
        return None
    if not evicted.reason.startswith(BY_ITS_QUEUE) or job["metadata"].get("deletionTimestamp"):
        return None
    left = keep - (context.clock.now() - since(workload, "Evicted")) / SECOND
    if left > 0:
        return left
    if not is_true(workload, "QuotaReserved"):  # else it is still being stopped, and a look follows
        for one in kind.members(job) if is_composed(kind) else [job]:
            await context.writer.delete(kind.kind, one)
        context.tell(job, "Normal", "Deleted", "Deleted job: deactivation retention period expired")
    return None
