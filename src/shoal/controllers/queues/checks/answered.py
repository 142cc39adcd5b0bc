"""Asks the checks that are answered here, and writes what they say into the Workload's entries of theirs.

Called by the reconciler with a Workload as stored. Writes only entries of checks that are ours.
"""

from __future__ import annotations

import logging

from shoal.api import kueue_names
from shoal.api.meta import Json
from shoal.controllers.queues.checks import BY_CONTROLLER
from shoal.controllers.queues.checks.base import STATES, AnsweredCheck, CheckAnswer
from shoal.controllers.queues.checks.draft import Draft, WorkloadDraft
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.stored import StoredCheck, StoredWorkload, is_true

log = logging.getLogger(__name__)
ASK_AGAIN = 60.0
"""Seconds after which a check that failed is asked again."""


class AnsweredChecks:
    def __init__(self, context: QueueContext) -> None:
        self._context = context

    async def look(self, workload: StoredWorkload) -> tuple[StoredWorkload, float | None]:
        """The Workload with what its checks say, and the seconds until one of them wants to be asked again."""
        if not BY_CONTROLLER:
            return workload, None
        if is_true(workload, "Finished") or is_true(workload, "Evicted") or not is_true(workload, "QuotaReserved"):
            return workload, None
        draft = WorkloadDraft(workload, self._context.clock.now())
        later: list[float] = []
        for entry in draft.get("admissionChecks") or ():
            found = self._context.caches.check(str(entry["name"]))
            check = BY_CONTROLLER.get(found.spec.controller_name) if found is not None else None
            if found is None or check is None or entry.get("state") not in ("Pending", "Ready", ""):
                continue
            given = _asked(check, workload, found, draft.now)
            if given.look_again is not None:
                later.append(given.look_again)
            write(draft, entry, given)
        stored = await self._context.store(draft) if draft.change else workload
        return stored, min(later, default=None)


def _asked(check: AnsweredCheck, workload: StoredWorkload, found: StoredCheck, now: int) -> CheckAnswer:
    """A check that fails holds up its own gangs, and says so; nothing else."""
    try:
        if problem := check.problem(found.raw):
            return CheckAnswer(state="Pending", message=problem)
        given = check.answer(workload.raw, found.raw, now)
        if given.state in STATES:
            return given
        error: object = f"{given.state!r} is none of {', '.join(STATES)}"
    except Exception as raised:  # code of another package: whatever it raises is its answer
        log.exception("admission check %s failed", check.controller_name)
        error = raised
    return CheckAnswer(state="Pending", message=f"the admission check failed: {error}", look_again=ASK_AGAIN)


def write(draft: Draft, entry: Json, given: CheckAnswer) -> None:
    """The time changes only with the state."""
    before, message = str(entry.get("state") or ""), kueue_names.bounded(given.message)
    if before == given.state and str(entry.get("message") or "") == message:
        return
    made = {**entry, "message": message, "state": given.state}
    if before != given.state:
        made["lastTransitionTime"] = draft.moment(entry)
        said = f"Admission check {entry['name']} updated state from {before} to {given.state}"
        draft.tell("Normal", "AdmissionCheckUpdated", f"{said} with message: {message}" if message else said)
    draft.set(
        "admissionChecks", [made if one["name"] == entry["name"] else one for one in draft.get("admissionChecks")]
    )
