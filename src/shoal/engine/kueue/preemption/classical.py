"""Preemption without fair sharing: priorities inside a queue, reclaiming lent quota across the cohort tree.

Called through `preempt.find_victims`. Works on the live quota tree and leaves it as it was. As Kueue: candidates
reached through a subtree whose quota covers the request have to give way whatever the borrowing (hierarchy
candidates); others only if the preemptor ends up not borrowing, or is allowed to borrow from lower priorities.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.preemption.candidates import (
    IN_CLUSTER_QUEUE,
    IN_COHORT_RECLAIM_WHILE_BORROWING,
    IN_COHORT_RECLAMATION,
    PreemptionRequest,
    Victim,
    may_be_asked,
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


class _Queue(NamedTuple):
    """A queue with quota to be given back, and where the preemptor stands to it."""

    record: QueueRecord
    ancestor: QuotaTreeNode
    advantage: bool


def classical_victims(request: PreemptionRequest) -> list[Victim]:
    """The victims that make the request fit, or none."""
    hierarchy, priority = _others(request)
    ordered = _Candidates(_in_order(request, hierarchy, priority))
    for borrow in _attempts(request, _has_any(request, hierarchy), _has_any(request, priority)):
        victims = _attempt(request, ordered, borrow)
        if victims:
            return victims
    return []


class _Candidates:
    """In their order, each looked for when it is asked for: as a rule the first few are enough."""

    def __init__(self, source: Iterator[_Candidate]) -> None:
        self._source = source
        self._found: list[_Candidate] = []

    def __iter__(self) -> Iterator[_Candidate]:
        yield from self._found
        for candidate in self._source:
            self._found.append(candidate)
            yield candidate


def _in_order(request: PreemptionRequest, hierarchy: list[_Queue], priority: list[_Queue]) -> Iterator[_Candidate]:
    own: list[QueueMember] | None = None
    for staying in (False, True):
        for group in (hierarchy, priority):
            yield from _first_to_leave(request, group, (staying,))
        if own is None:
            policy = request.record.fact.preemption.within_cluster_queue
            own = sorted(users(request, request.record, policy), key=lambda member: order_key(request, member))
        for member in own:
            if member.evicted is not staying:
                yield _Candidate(member, request.record, _OWN, None)


def _first_to_leave(
    request: PreemptionRequest, queues: list[_Queue], parts: tuple[bool, ...] = (False, True)
) -> Iterator[_Candidate]:
    """Gangs of these queues that may be asked; `parts`: those on their way out, and those that are not."""
    policy = request.record.fact.preemption.reclaim_within_cohort
    by_name = {queue.record.name: queue for queue in queues}
    for staying in parts:
        turns = [part for queue in queues if (part := queue.record.leaving(request.now)[staying])]
        if request.record.fact.least_loss:
            found = sorted((entry for part in turns for entry in part), key=lambda entry: order_key(request, entry[-1]))
            turns = [found]
        for *_, member in heapq.merge(*turns) if len(turns) > 1 else turns[0] if turns else ():
            if may_be_asked(request, member, policy):
                queue = by_name[member.queue]
                yield _Candidate(member, queue.record, _kind(request, member, queue.advantage), queue.ancestor)


def _has_any(request: PreemptionRequest, queues: list[_Queue]) -> bool:
    """Is there a gang in these queues that may be asked?"""
    policy = request.record.fact.preemption.reclaim_within_cohort
    return any(may_be_asked(request, member, policy) for queue in queues for member in queue.record.reserved.values())


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


def _attempt(request: PreemptionRequest, ordered: Iterable[_Candidate], borrow: bool) -> list[Victim]:
    victims: list[Victim] = []
    lacking = {at: amount - request.node.available(at) for at, amount in request.wanted.items()}
    for candidate in ordered:
        if not _still_valid(request, candidate, borrow):
            continue
        victim = Victim(candidate.member, candidate.record, candidate.reason)
        victim.leave()
        victims.append(victim)
        for at, amount in victim.member.usage.items():
            if at in lacking:
                lacking[at] -= amount
        if max(lacking.values(), default=0) > 0:
            continue  # no tree gives back more than left
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


def _others(request: PreemptionRequest) -> tuple[list[_Queue], list[_Queue]]:
    """Other queues with candidates: those over which our side has a hierarchical advantage, and the rest."""
    hierarchy: list[_Queue] = []
    priority: list[_Queue] = []
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
    found: list[_Queue],
) -> None:
    for child in node.children:
        if child is skip or child.within_nominal(request.places):
            continue
        if not child.is_queue:
            _collect(request, child, ancestor, skip, advantage, found)
            continue
        record = request.records.get(child.name)
        if record is not None and not record.inactive and record.reserved:
            found.append(_Queue(record, ancestor, advantage))


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
