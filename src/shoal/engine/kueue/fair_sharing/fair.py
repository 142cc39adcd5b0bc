"""Preemption under fair sharing: the queue with the largest share gives way, as long as that is fairer than before.

Called through `preempt.find_victims`. The preemptor's usage is in the tree while shares are compared. Works on the
live quota tree and leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import KueueSettings
from shoal.engine.kueue.fair_sharing.share import Share, share_of
from shoal.engine.kueue.preemption.candidates import (
    IN_CLUSTER_QUEUE,
    IN_COHORT_FAIR_SHARING,
    IN_COHORT_RECLAMATION,
    PreemptionRequest,
    Victim,
    order_key,
    order_within,
    put_back_spare,
    restore,
    users,
)
from shoal.engine.kueue.quota.tree import QuotaTreeNode

Rule = Callable[[Share, Share, Share], bool]
"""(preemptor with the gang, target before, target after) -> may the target's gang be taken?"""

RULES: dict[str, Rule] = {
    "LessThanOrEqualToFinalShare": lambda mine, before, after: mine <= after,
    "LessThanInitialShare": lambda mine, before, after: mine < before,
}


def fair_victims(request: PreemptionRequest, settings: KueueSettings) -> list[Victim]:
    """The victims that make the request fit, or none."""
    candidates = _candidates(request)
    if not candidates:
        return []
    request.node.add(request.wanted)
    rules = [RULES[name] for name in settings.share_strategies] or [RULES["LessThanOrEqualToFinalShare"]]
    fits, victims, retry = _first_pass(request, candidates, rules[0], settings)
    if not fits and len(rules) > 1:
        fits = _second_pass(request, retry, rules[1], victims)
    request.node.remove(request.wanted)
    if fits:
        victims = put_back_spare(request, victims, borrow=True)
    restore(victims)
    return victims if fits else []


def _candidates(request: PreemptionRequest) -> dict[str, list[QueueMember]]:
    """By queue name, each list in the order of going."""
    preemption = request.record.fact.preemption
    found = {request.record.name: list(users(request, request.record, preemption.within_cluster_queue))}
    if request.node.parent is not None and preemption.reclaim_within_cohort != "Never":
        for node in request.node.root().queues():
            record = request.records.get(node.name)
            if record is None or record is request.record or record.inactive or node.within_nominal(request.places):
                continue
            found[node.name] = list(users(request, record, preemption.reclaim_within_cohort))
    return {
        name: sorted(members, key=partial(order_within, request, request.records[name]))
        for name, members in found.items()
        if members
    }


def _first_pass(
    request: PreemptionRequest, candidates: dict[str, list[QueueMember]], rule: Rule, settings: KueueSettings
) -> tuple[bool, list[Victim], dict[str, list[QueueMember]]]:
    victims: list[Victim] = []
    retry: dict[str, list[QueueMember]] = {}
    reclaims = settings.gates.share_reclaims_nominal and request.node.within_nominal(request.places)
    targets = _Targets(request, candidates)
    for target in targets:
        record = request.records[target.name]
        queue = candidates[target.name]
        if target is request.node:
            if _take(request, victims, queue.pop(0), record, IN_CLUSTER_QUEUE):
                return True, victims, retry
            continue
        if reclaims:
            if _take(request, victims, queue.pop(0), record, IN_COHORT_RECLAMATION):
                return True, victims, retry
            continue
        ours, theirs = _below_common_ancestor(request.node, target)
        mine, before = share_of(ours), share_of(theirs)
        while queue:
            member = queue.pop(0)
            target.remove(member.usage)
            after = share_of(theirs)
            target.add(member.usage)
            if rule(mine, before, after):
                if _take(request, victims, member, record, IN_COHORT_FAIR_SHARING):
                    return True, victims, retry
                break  # shares have changed: choose the queue again
            retry.setdefault(target.name, []).append(member)
    return False, victims, retry


def _second_pass(
    request: PreemptionRequest, retry: dict[str, list[QueueMember]], rule: Rule, victims: list[Victim]
) -> bool:
    """At most one more victim from each queue."""
    targets = _Targets(request, retry)
    for target in targets:
        ours, theirs = _below_common_ancestor(request.node, target)
        before = share_of(theirs)
        if rule(share_of(ours), before, before):
            member = retry[target.name].pop(0)
            if _take(request, victims, member, request.records[target.name], IN_COHORT_FAIR_SHARING):
                return True
        targets.drop(target)
    return False


def _take(
    request: PreemptionRequest, victims: list[Victim], member: QueueMember, record: QueueRecord, reason: str
) -> bool:
    """Let the member leave; does the request fit now? Its own usage is in the tree and must not count against it."""
    victim = Victim(member, record, reason)
    victim.leave()
    victims.append(victim)
    request.node.remove(request.wanted)
    fits = request.fits()
    request.node.add(request.wanted)
    return fits


def _below_common_ancestor(one: QuotaTreeNode, other: QuotaTreeNode) -> tuple[QuotaTreeNode, QuotaTreeNode]:
    """The two nodes just below the lowest cohort that holds both."""
    path = [one, *one.ancestors()]
    below = other
    while below.parent is not None and below.parent not in path:
        below = below.parent
    common = below.parent
    mine = next(node for node in path if node.parent is common)
    return mine, below


class _Targets:
    """Queues in the order in which they should give way, chosen again each time because shares change meanwhile."""

    def __init__(self, request: PreemptionRequest, candidates: dict[str, list[QueueMember]]) -> None:
        self.request = request
        self.candidates = candidates
        self.pruned: set[QuotaTreeNode] = set()
        self.on_path = set(request.node.ancestors())

    def __iter__(self) -> Iterator[QuotaTreeNode]:
        node = self.request.node
        if node.parent is None:
            while self.candidates.get(node.name) and node not in self.pruned:
                yield node
            return
        root = node.root()
        while root not in self.pruned:
            target = self._choose(root)
            if target is not None:
                yield target

    def drop(self, node: QuotaTreeNode) -> None:
        self.pruned.add(node)

    def _choose(self, cohort: QuotaTreeNode) -> QuotaTreeNode | None:
        """Descend into the child with the largest share; None after pruning something."""
        best_queue, queue_share = self._best_queue(cohort)
        best_cohort, cohort_share = self._best_cohort(cohort)
        if best_cohort is not None and (
            queue_share is None or (cohort_share is not None and cohort_share >= queue_share)
        ):
            return self._choose(best_cohort)
        if best_queue is None:
            self.pruned.add(cohort)
        return best_queue

    def _best_queue(self, cohort: QuotaTreeNode) -> tuple[QuotaTreeNode | None, Share | None]:
        best: QuotaTreeNode | None = None
        most: Share | None = None
        for child in cohort.children:
            if not child.is_queue or child in self.pruned:
                continue
            share = share_of(child)
            if not self.candidates.get(child.name) or (not share.borrowing and child is not self.request.node):
                self.pruned.add(child)
            elif most is None or share > most or (share == most and self._sooner(child, best)):
                best, most = child, share
        return best, most

    def _best_cohort(self, cohort: QuotaTreeNode) -> tuple[QuotaTreeNode | None, Share | None]:
        best: QuotaTreeNode | None = None
        most: Share | None = None
        for child in cohort.children:
            if child.is_queue or child in self.pruned:
                continue
            share = share_of(child)
            if not share.borrowing and child not in self.on_path:
                self.pruned.add(child)
            elif most is None or share >= most:
                best, most = child, share
        return best, most

    def _sooner(self, one: QuotaTreeNode, other: QuotaTreeNode | None) -> bool:
        if other is None:
            return True
        first, second = self.candidates[one.name][0], self.candidates[other.name][0]
        return order_key(self.request, first) < order_key(self.request, second)
