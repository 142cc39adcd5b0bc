"""Preemption without fair sharing: priorities inside a queue, reclaiming lent quota across the cohort tree.

Called through `preempt.find_victims`. Works on the live quota tree and leaves it as it was. As Kueue: candidates
reached through a subtree whose quota covers the request have to give way whatever the borrowing (hierarchy
candidates); others only if the preemptor ends up not borrowing, or is allowed to borrow from lower priorities.
"""

from __future__ import annotations

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.preemption.candidates import (
    IN_CLUSTER_QUEUE,
    IN_COHORT_RECLAIM_WHILE_BORROWING,
    IN_COHORT_RECLAMATION,
    PreemptionRequest,
    Victim,
    order_key,
    put_back_spare,
    restore,
    users,
)
from shoal.engine.kueue.quota.tree import QuotaTreeNode

_OWN, _HIERARCHY, _WITHOUT_BORROWING, _WHILE_BORROWING = range(4)


class _Candidate:
    __slots__ = ("ancestor", "kind", "member", "record")

    def __init__(self, member: QueueMember, record: QueueRecord, kind: int, ancestor: QuotaTreeNode | None) -> None:
        self.member = member
        self.record = record
        self.kind = kind
        self.ancestor = ancestor
        """The lowest cohort that holds both it and the preemptor; None for the preemptor's own queue."""

    @property
    def reason(self) -> str:
        if self.kind == _OWN:
            return IN_CLUSTER_QUEUE
        return IN_COHORT_RECLAIM_WHILE_BORROWING if self.kind == _WHILE_BORROWING else IN_COHORT_RECLAMATION


def classical_victims(request: PreemptionRequest) -> list[Victim]:
    """The victims that make the request fit, or none."""
    own = [
        _Candidate(member, request.record, _OWN, None)
        for member in users(request, request.record, request.record.fact.preemption.within_cluster_queue)
    ]
    hierarchy, priority = _others(request)
    ordered: list[_Candidate] = []
    for evicted in (True, False):
        for group in (hierarchy, priority, own):
            chosen = [candidate for candidate in group if candidate.member.evicted is evicted]
            ordered += sorted(chosen, key=lambda candidate: order_key(request, candidate.member))
    for borrow in _attempts(request, bool(hierarchy), bool(priority)):
        victims = _attempt(request, ordered, borrow)
        if victims:
            return victims
    return []


def _attempts(request: PreemptionRequest, hierarchy: bool, priority: bool) -> tuple[bool, ...]:
    """Whether to try while borrowing, without, or both, and which first."""
    forbidden = not request.record.fact.preemption.may_borrow
    node = request.node
    below_nominal = all(node.usage.get(at, 0) < node.nominal(at) for at in request.places)
    if not (hierarchy or priority) or (forbidden and not below_nominal):
        return (True,)
    if forbidden and not hierarchy:
        return (False, True)
    return (True, False)


def _attempt(request: PreemptionRequest, ordered: list[_Candidate], borrow: bool) -> list[Victim]:
    victims: list[Victim] = []
    for candidate in ordered:
        if not _still_valid(request, candidate, borrow):
            continue
        victim = Victim(candidate.member, candidate.record, candidate.reason)
        victim.leave()
        victims.append(victim)
        if request.fits(borrow):
            victims = put_back_spare(request, victims, borrow)
            restore(victims)
            return victims
    restore(victims)
    return []


def _still_valid(request: PreemptionRequest, candidate: _Candidate, borrow: bool) -> bool:
    """A foreign candidate must still borrow, and so must every cohort between it and the common ancestor."""
    if candidate.kind == _OWN:
        return True
    if borrow and candidate.kind == _WITHOUT_BORROWING:
        return False
    node: QuotaTreeNode | None = candidate.record.node
    while node is not None and node is not candidate.ancestor:
        if node.within_nominal(request.places):
            return False
        node = node.parent
    return True


def _others(request: PreemptionRequest) -> tuple[list[_Candidate], list[_Candidate]]:
    """Candidates of other queues: those with hierarchical advantage on our side, and the rest."""
    hierarchy: list[_Candidate] = []
    priority: list[_Candidate] = []
    if request.record.fact.preemption.reclaim_within_cohort == "Never":
        return hierarchy, priority
    previous = request.node
    advantage, rest = _covered(request.node, request.wanted)
    for ancestor in request.node.ancestors():
        _collect(request, ancestor, ancestor, previous, advantage, hierarchy if advantage else priority)
        covered, rest = _covered(ancestor, rest)
        advantage = advantage or covered
        previous = ancestor
    return hierarchy, priority


def _covered(node: QuotaTreeNode, wanted: Usage) -> tuple[bool, Usage]:
    """Does this subtree's quota cover usage plus request, and what of the request is left to ask above?"""
    covered = not any(node.borrows_with(at, amount) for at, amount in wanted.items())
    return covered, {at: max(0, amount - node.local_available(at)) for at, amount in wanted.items()}


def _collect(
    request: PreemptionRequest,
    node: QuotaTreeNode,
    ancestor: QuotaTreeNode,
    skip: QuotaTreeNode,
    advantage: bool,
    found: list[_Candidate],
) -> None:
    for child in node.children:
        if child is skip or child.within_nominal(request.places):
            continue
        if not child.is_queue:
            _collect(request, child, ancestor, skip, advantage, found)
            continue
        record = request.records.get(child.name)
        if record is None or record.inactive:
            continue
        for member in users(request, record, request.record.fact.preemption.reclaim_within_cohort):
            found.append(_Candidate(member, record, _kind(request, member, advantage), ancestor))


def _kind(request: PreemptionRequest, member: QueueMember, advantage: bool) -> int:
    if advantage:
        return _HIERARCHY
    preemption = request.record.fact.preemption
    if not preemption.may_borrow or member.priority >= request.member.priority:
        return _WITHOUT_BORROWING
    threshold = preemption.borrow_threshold
    if threshold is not None and member.priority > threshold:
        return _WITHOUT_BORROWING
    return _WHILE_BORROWING
