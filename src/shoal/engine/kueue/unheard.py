"""What a waiting gang is told beside the cycles: newcomers that became inadmissible without a look, and everyone whose
reason may have changed since the last look.

Called by the planner at the end of a plan, and by `Kueue.reason` when reasons are brought up to date. The reason of
equal gangs is worked out once (`known`, by queue and shape); every one of them is told it. Changes nothing.
"""

from __future__ import annotations

from shoal.engine.kueue.cycle.placing import placing_step
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.decisions import WAITING_FOR_CLUSTERS, Wait, bounded
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.flavors.assign import Search
from shoal.engine.kueue.flavors.assignment import WAITING_FOR_QUOTA, Assignment, Outcome, shortfalls_of
from shoal.engine.kueue.index.reach import Reach
from shoal.engine.kueue.preemption.preempt import Preemptor
from shoal.engine.kueue.quota.tree import QuotaTreeNode

BEHIND = "Workload is pending evaluation in the scheduling queue"


class Known:
    """What was found out so far, for as long as nothing changes."""

    def __init__(self) -> None:
        self.waits: dict[tuple[str, str], Wait] = {}
        """By queue and shape."""
        self._heads: dict[str, str] = {}
        self._reaches: dict[QuotaTreeNode, tuple[int, Reach]] = {}

    def is_head(self, member: QueueMember, record: QueueRecord) -> bool:
        if record.name not in self._heads:
            self._heads[record.name] = min(record.waiting.everyone(), key=lambda one: one.order).uid
        return self._heads[record.name] == member.uid

    def reach(self, record: QueueRecord, state: QueueState) -> Reach:
        """What gangs of its tree could get, worked out once for all of them."""
        root = record.node.root()
        found = self._reaches.get(root)
        if found is None or found[0] != root.generation:
            found = self._reaches[root] = (root.generation, Reach(state.records, state.settings))
        return found[1]


def why_waiting(member: QueueMember, record: QueueRecord, state: QueueState, now: int, known: Known) -> Wait | None:
    """None: gangs that leave for it are on their way, and it was told so."""
    if member.uid in state.rooms or member.uid in state.awaited:
        return None
    fault = "" if state.namespace_matches(record, member) else "workload namespace doesn't match ClusterQueue selector"
    fault = fault or member.problem
    if fault:
        return _wait(member, record, "Misconfigured", fault)
    if member.gang.nowhere:
        return _wait(member, record, WAITING_FOR_CLUSTERS, member.gang.nowhere)
    if record.waiting.strict and not known.is_head(member, record):
        return _wait(member, record, "PendingEvaluation", f"{BEHIND}: others in ClusterQueue {record.name} go first")
    key = (record.name, member.shape)
    if key not in known.waits:
        known.waits[key] = _judged(member, record, state, now, known)
    found = known.waits[key]
    return Wait(
        gang=member.key, uid=member.uid, cluster_queue=record.name, reason=found.reason, message=found.message,
        shortfalls=found.shortfalls,
    )  # fmt: skip


def _judged(member: QueueMember, record: QueueRecord, state: QueueState, now: int, known: Known) -> Wait:
    with state.rooms_kept(record.node.root()):
        found, evicts = _searched(member, record, state, now, known.reach(record, state))
    if evicts or found.outcome is Outcome.FIT:
        return _wait(member, record, "PendingEvaluation", BEHIND)
    made = _wait(member, record, found.reason or WAITING_FOR_QUOTA, found.message or BEHIND)
    return Wait(
        gang=made.gang, uid=made.uid, cluster_queue=made.cluster_queue, reason=made.reason, message=made.message,
        shortfalls=shortfalls_of(found, record.name),
    )  # fmt: skip


def _searched(
    member: QueueMember, record: QueueRecord, state: QueueState, now: int, reach: Reach
) -> tuple[Assignment, bool]:
    """As a cycle would look at it, from the first flavor; and whether others would have to leave for it."""
    preemptor = Preemptor(state.records, state.settings, spared=state.spared_by, claimed=state.claimed)
    memory, member.memory = member.memory, None
    oracle = preemptor.oracle(member, now, reach)
    search = Search(member, record.fact, record.groups, record.node, state.flavors, state.settings, oracle)
    placing = search.placing = placing_step(member, record, state.settings)
    found = search.run()
    member.memory = memory
    if found.outcome is not Outcome.PREEMPT:
        return found, False
    placeable = placing.placeable(found) if placing is not None else None
    return found, bool(preemptor.find_victims(member, found.usage, found.needing_room, now, reach, placeable))


def _wait(member: QueueMember, record: QueueRecord, reason: str, message: str) -> Wait:
    return Wait(gang=member.key, uid=member.uid, cluster_queue=record.name, reason=reason, message=bounded(message))
