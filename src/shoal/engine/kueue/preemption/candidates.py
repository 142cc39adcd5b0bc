"""Which gangs may be asked to make room, and in which order.

Shared by both kinds of preemption. Policies compare a candidate with the gang that wants in; the order puts first those
already leaving, then other queues before one's own, low priority, and the most recently admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import FlavorResource, Policy, Usage
from shoal.engine.kueue.quota.tree import QuotaTreeNode

IN_CLUSTER_QUEUE = "InClusterQueue"
IN_COHORT_RECLAMATION = "InCohortReclamation"
IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"

NO_GANGS: frozenset[str] = frozenset()


class Loss(NamedTuple):
    """Work that is lost; the scarce part decides first."""

    accelerator_seconds: int
    core_seconds: int


def is_accelerator(resource: str) -> bool:
    """Extended resources, such as nvidia.com/gpu; not those of Kubernetes itself."""
    return "/" in resource and not resource.startswith("kubernetes.io/") and not resource.startswith("hugepages-")


class PreemptionRequest:
    """One wish for room: the gang that wants it, where, how much in all, and at which places victims are needed."""

    __slots__ = ("claimed", "gone", "member", "now", "placeable", "places", "record", "records", "spared", "wanted")

    def __init__(
        self,
        member: QueueMember,
        record: QueueRecord,
        records: dict[str, QueueRecord],
        wanted: Usage,
        places: frozenset[FlavorResource],
        now: int,
        gone: Container[str] = NO_GANGS,
        spared: Container[str] = NO_GANGS,
    ) -> None:
        self.member = member
        self.record = record
        self.records = records
        self.wanted = wanted
        self.places = places
        self.now = now
        self.gone = gone
        """UIDs chosen in this cycle already: they count as gone."""
        self.spared = spared
        """UIDs that this gang may not evict, unless they are leaving anyway."""
        self.claimed: Container[str] = NO_GANGS
        """UIDs of gangs that another preemptor waits for, whose turn comes before this one's."""
        self.placeable: Callable[[], bool] | None = None
        """Are there places for its pods in the topology of its flavors, as things are? None: it needs none."""

    @property
    def node(self) -> QuotaTreeNode:
        return self.record.node

    def fits(self, borrow: bool = True) -> bool:
        node = self.record.node
        for at, amount in self.wanted.items():
            if not borrow and node.borrows_with(at, amount):
                return False
            if amount > node.available(at):
                return False
        return self.placeable is None or self.placeable()


class Victim:
    """A gang that leaves, and the reason it is told."""

    __slots__ = ("member", "reason", "record")

    def __init__(self, member: QueueMember, record: QueueRecord, reason: str) -> None:
        self.member = member
        self.record = record
        self.reason = reason

    def leave(self) -> None:
        self.record.node.remove(self.member.usage)
        if self.member.topology:
            self.record.topologies.use(self.member.topology, -1)

    def come_back(self) -> None:
        self.record.node.add(self.member.usage)
        if self.member.topology:
            self.record.topologies.use(self.member.topology)


def allowed(request: PreemptionRequest, candidate: QueueMember, policy: Policy) -> bool:
    """Does the policy let the request's gang evict this one?"""
    if policy == "Any":
        return True
    if policy == "Never":
        return False
    wanting = request.member
    if wanting.priority > candidate.priority:
        return True
    newer = wanting.priority == candidate.priority and wanting.time < candidate.time
    return policy == "LowerOrNewerEqualPriority" and newer


def users(request: PreemptionRequest, record: QueueRecord, policy: Policy) -> Iterable[QueueMember]:
    """Gangs in one queue that use a place in need and that the policy allows."""
    if policy == "Never":
        return
    for member in record.reserved.values():
        if may_be_asked(request, member, policy):
            yield member


def may_be_asked(request: PreemptionRequest, member: QueueMember, policy: Policy) -> bool:
    """May this gang, which has quota, be asked to leave for the request?"""
    if policy != "Any" and not allowed(request, member, policy):
        return False
    if member.uid in request.gone or member is request.member.replaced:
        return False
    if not member.evicted and member.uid in request.spared:
        return False
    if member.uid in request.claimed:
        return False
    return not request.places.isdisjoint(member.usage)


def order_key(request: PreemptionRequest, member: QueueMember) -> tuple[Any, ...]:
    """Sorts the first to go first. Not yet reserved counts as reserved now. Where usage is shared, those of a
    LocalQueue that had much lately leave first, but gangs of different queues are not compared by it. Where the queue
    asks for it, what is lost decides before priority."""
    own = member.queue == request.record.name
    if request.record.fact.least_loss:
        share = -request.record.usage_share(member) if own else 0.0
        lost = loss_of(member.usage, member.terms.saved_at or member.reserved_at, request.now)
        since = member.reserved_at or request.now
        return not member.evicted, own, share, lost, member.priority, -since, request.record.tie(member)
    return (
        not member.evicted,
        own,
        -request.record.usage_share(member) if own else 0.0,
        member.priority,
        -(member.reserved_at or request.now),
        request.record.tie(member),
    )


def order_within(request: PreemptionRequest, record: QueueRecord, member: QueueMember) -> tuple[Any, ...]:
    """As `order_key`, among the gangs of one queue: also another's may be shared by usage."""
    leaving, own, _, *rest = order_key(request, member)
    return leaving, own, -record.usage_share(member), *rest


def loss_of(usage: Usage, since: int, now: int) -> Loss:
    """What a gang loses that leaves now and last saved its work, or started, at the moment `since`."""
    seconds = max(0, now - since) // 1_000_000 if since else 0
    accelerators = sum(amount for at, amount in usage.items() if is_accelerator(at.resource))
    cores = sum(amount for at, amount in usage.items() if at.resource == "cpu")
    return Loss(accelerators * seconds, cores * seconds // 1000)


def put_back_spare(request: PreemptionRequest, victims: list[Victim], borrow: bool) -> list[Victim]:
    """Spare every victim that need not leave for it to fit, latest choice but one first. All are absent when called; a
    victim that stays in the answer still is."""
    kept = list(victims)
    for index in range(len(victims) - 2, -1, -1):
        victim = kept[index]
        victim.come_back()
        if request.fits(borrow):
            kept[index] = kept[-1]
            kept.pop()
        else:
            victim.leave()
    return kept


def restore(victims: Iterable[Victim]) -> None:
    for victim in victims:
        victim.come_back()
