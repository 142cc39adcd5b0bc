"""What a gang is told that was set aside without a look of its own.

Called by the planner at the end of a plan, for newcomers only. Works out the reason once for each shape in a queue; the
others of that shape are told, as Kueue tells them, that an equal one failed. Changes nothing.
"""

from __future__ import annotations

from shoal.engine.model import Shortfall

from .assign import Search
from .assignment import WAITING_FOR_QUOTA, Mode, shortfalls_of
from .decisions import Wait, bounded
from .demand import Member
from .record import QueueRecord
from .state import State

BYPASSED = "Bypassed scheduling evaluation because an equivalent workload recently failed"
BEHIND = "Workload is pending evaluation in the scheduling queue"


def why_waiting(member: Member, record: QueueRecord, state: State) -> Wait:
    reason, message = "PendingEvaluation", BYPASSED
    fault = "" if state.namespace_matches(record, member) else "workload namespace doesn't match ClusterQueue selector"
    fault = fault or member.problem
    if fault:
        reason, message = "Misconfigured", fault
    elif not record.waiting.is_parked(member):
        message = BEHIND
    elif member.shape not in record.told:
        record.told.add(member.shape)
        memory, member.memory = member.memory, None
        search = Search(
            member, record.fact, record.groups, record.node, state.flavors, state.settings,
            lambda at, amount: (Mode.NO_CANDIDATES, 0),
        )  # fmt: skip
        found = search.run()
        member.memory = memory
        reason, message = found.reason or WAITING_FOR_QUOTA, found.message or BEHIND
        return _wait(member, record, reason, message, shortfalls_of(found, record.name))
    return _wait(member, record, reason, message, ())


def _wait(member: Member, record: QueueRecord, reason: str, message: str, shortfalls: tuple[Shortfall, ...]) -> Wait:
    return Wait(
        gang=member.key, uid=member.uid, cluster_queue=record.name, reason=reason, message=bounded(message),
        shortfalls=shortfalls,
    )  # fmt: skip
