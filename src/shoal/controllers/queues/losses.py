"""What a preemption costs: the accelerator-seconds that a gang has done and not saved.

Told on the Workload that is preempted, and counted. When a job last saved its work only the job knows: it says so by an
annotation (`shoal.dev/checkpointed-at`); where it does not, all since its start is lost.
"""

from __future__ import annotations

from shoal.api.gang import SAVED_AT
from shoal.api.kueue_told import WORK_LOST
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.stored import is_true, since
from shoal.engine.kueue import FlavorResource, Loss, loss_of
from shoal.errors import BadInput


def saved_at(job: Json | None) -> int:
    """When the job last saved its work, as it says; 0: not known."""
    text = annotation(job, SAVED_AT) if job is not None else ""
    try:
        return parse_time(text) if text else 0
    except (BadInput, ValueError):
        return 0


def lost(workload: Workload, job: Json | None, now: int) -> Loss | None:
    """What this gang loses that leaves now; None where it was not started."""
    if not is_true(workload, "Admitted") or workload.status.admission is None:
        return None
    usage: dict[FlavorResource, int] = {}
    for part in workload.status.admission.pod_set_assignments:
        for resource, amount in amounts(part.resource_usage).items():
            at = FlavorResource((part.flavors or {}).get(resource, ""), resource)
            usage[at] = usage.get(at, 0) + amount
    return loss_of(usage, max(since(workload, "Admitted"), min(saved_at(job), now)), now)


def note(draft: Draft, found: Loss, saved: bool) -> None:
    """Say it on the Workload."""
    what = f"{found.accelerator_seconds} accelerator-seconds and {found.core_seconds} core-seconds"
    draft.put(WORK_LOST, True, "Preempted", f"Lost {what} since its {'last checkpoint' if saved else 'start'}")
