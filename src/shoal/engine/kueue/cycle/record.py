"""One cluster queue in the ledger: its facts, its node in the quota tree, who holds quota in it and who waits for it.

Owned by the ledger; decisions read it and change only what they are about (the waiting order, a simulated removal).
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import ClusterQueue, Flavor, FlavorResource, KueueSettings, ResourceGroup
from shoal.engine.kueue.flavors.assignment import Assignment
from shoal.engine.kueue.index.shared_line import SharedLine
from shoal.engine.kueue.index.waiting import WaitingIndex
from shoal.engine.kueue.index.waits_for import WaitsFor, WaitsForCache
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.kueue.rules import OURS, Rules
from shoal.engine.kueue.topology.ledger import TopologyLedger
from shoal.engine.kueue.usage import UsageLedger
from shoal.engine.nodes.selectors import Selector, parse_selector
from shoal.errors import BadInput

NOTHING: dict[int, int] = {}
Tie = tuple[int, bytes]
LeavingTurn = tuple[int, int, Tie, QueueMember]
"""Priority, how long ago it got its quota, and what decides where these are equal: the smallest leaves first."""
Leaving = tuple[list[LeavingTurn], list[LeavingTurn]]
BACKWARDS = bytes(range(255, -1, -1))


class QueueRecord:
    __slots__ = (
        "_held", "_largest", "_leaving", "_rules", "_usage", "_waits_for_cache", "fact", "fits", "flavors", "freed",
        "groups", "has_one_flavor", "inactive", "name", "node", "reserved", "scans", "selector",
        "topologies", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        fact: ClusterQueue,
        node: QuotaTreeNode,
        topologies: TopologyLedger,
        rules: Rules = OURS,
        usage: UsageLedger | None = None,
    ) -> None:
        self.name = fact.name
        self.topologies = topologies
        """Of all queues; what its gangs use of them is counted there."""
        self._rules = rules
        self.node = node
        self.reserved: dict[str, QueueMember] = {}
        """Gangs that hold quota here, by UID. Changed only by `hold` and `release`."""
        self._held: dict[FlavorResource, dict[int, int]] = {}
        self._largest: dict[FlavorResource, int] = {}
        self._leaving: tuple[int | None, Leaving] | None = None
        self._usage = usage
        self.waiting: WaitingIndex | SharedLine = WaitingIndex(strict=fact.strategy == "StrictFIFO")
        self.inactive = ""
        """Why nothing is admitted here; empty when the queue works."""
        self._waits_for_cache = WaitsForCache({})
        self.fits: tuple[int, dict[tuple[WaitsFor, int], Assignment | None]] = (-1, {})
        """The tree's generation, and what was found since then, by what is asked for; kept by `Reach.fit`."""
        self.freed = 0
        """Counts changes that could let a gang fit that did not: quota edits and gangs that left."""
        self.describe(fact)

    def describe(self, fact: ClusterQueue) -> None:
        """Take over changed facts."""
        self.fact = fact
        self.groups: dict[str, ResourceGroup] = {}
        for group in fact.groups:
            for resource in group.resources:
                self.groups.setdefault(resource, group)
        self.flavors = tuple(dict.fromkeys(flavor.name for group in fact.groups for flavor in group.flavors))
        self.scans = sum([len(group.flavors) for group in fact.groups])
        """How often a gang may look on from flavor to flavor before it has to wait."""
        self.has_one_flavor = all(len(group.flavors) == 1 for group in fact.groups)
        """There is nothing to choose, for any resource."""
        self._waits_for_cache = WaitsForCache(self.groups)
        self.fits = (-1, {})
        if self.shares_by_usage != isinstance(self.waiting, SharedLine):
            self._line_up_again()
        strict = fact.strategy == "StrictFIFO"
        if strict != self.waiting.strict:
            self._line_up_again()  # gangs that no cluster would start stand elsewhere in it
        newer_leave = fact.preemption.within_cluster_queue == "LowerOrNewerEqualPriority"
        self.waiting.age_counts = newer_leave and self._rules.counts_age
        self.selector: Selector | None
        try:
            self.selector = parse_selector(fact.namespace_selector, "spec.namespaceSelector")
        except BadInput:
            self.selector = None  # the ledger reports it and keeps the queue inactive

    @property
    def shares_by_usage(self) -> bool:
        return self._usage is not None and self.fact.by_usage

    def usage_share(self, member: QueueMember) -> float:
        """What its LocalQueue had lately, by weight; 0 where that does not count."""
        return self._usage.rank(self._usage.lane(member))[0] if self._usage is not None and self.fact.by_usage else 0.0

    def _line_up_again(self) -> None:
        """Gangs that wait stand by usage from now on, or no longer."""
        before = self.waiting
        strict = self.fact.strategy == "StrictFIFO"
        shared = self._usage is not None and self.fact.by_usage
        self.waiting = SharedLine(self._usage, strict=strict) if shared and self._usage else WaitingIndex(strict=strict)
        alone = {member.uid for member in before.inadmissible_alone()}
        for member in before.everyone():
            self.waiting.push(member, inadmissible=member.uid in alone)
        self.waiting.sticky = before.sticky

    def offer(self, waits_for_caches: dict[object, WaitsForCache]) -> None:
        """Share what is asked of queues that offer the same; called again whenever this queue or a flavor changed."""
        offered = tuple([(group.resources, tuple([each.name for each in group.flavors])) for group in self.fact.groups])
        self._waits_for_cache = waits_for_caches.get(offered) or waits_for_caches.setdefault(
            offered, WaitsForCache(self.groups)
        )
        self.fits = (-1, {})

    def waits_for(self, member: QueueMember, flavors: Mapping[str, Flavor], settings: KueueSettings) -> WaitsFor:
        """What gangs of this one's shape ask of this queue."""
        return self._waits_for_cache.of(member, flavors, settings)

    def hold(self, member: QueueMember) -> None:
        """The gang holds its usage here from now on."""
        self.reserved[member.uid] = member
        self._leaving = None
        self.node.add(member.usage)
        if member.topology:
            self.topologies.use(member.topology)
        self._count(member, 1)

    def release(self, uid: str) -> None:
        member = self.reserved.pop(uid)
        self._leaving = None
        self.node.remove(member.usage)
        if member.topology:
            self.topologies.use(member.topology, -1)
        self._count(member, -1)

    def confirm(self, member: QueueMember) -> None:
        """Newer facts of a gang that holds the same usage as before."""
        if member.uid in self.reserved:
            known = self.reserved[member.uid]
            self._count(known, -1)
            self._leaving = None
            self.reserved[member.uid] = member
            self._count(member, 1)
            if known.topology != member.topology:
                self.topologies.use(known.topology, -1)
                self.topologies.use(member.topology)

    def evict(self, member: QueueMember) -> None:
        """The gang is on its way out; it holds its usage until it is gone."""
        member.evicted = True
        self._leaving = None

    def leaving(self, now: int) -> Leaving:
        """The order in which others make its gangs leave: those on their way out, then the rest, each with its turn.
        Worked out once for as long as the same gangs hold quota here."""
        if self._leaving is None or self._leaving[0] not in (None, now):
            ranked = sorted(
                [(one.priority, -(one.reserved_at or now), self.tie(one), one) for one in self.reserved.values()]
            )
            parts = [one for one in ranked if one[3].evicted], [one for one in ranked if not one[3].evicted]
            undated = any(not one.reserved_at for one in self.reserved.values())  # that is now, whenever it is asked
            self._leaving = (now if undated else None, parts)
        going, staying = self._leaving[1]
        return (self._by_usage(going), self._by_usage(staying)) if self.shares_by_usage else (going, staying)

    def _by_usage(self, turns: list[LeavingTurn]) -> list[LeavingTurn]:
        """The same turns beside gangs of other queues; the first go to those whose LocalQueue had most lately."""
        wanted = sorted(turns, key=lambda one: (-self.usage_share(one[3]), *one[:3]))
        return [(*turn[:3], one[3]) for turn, one in zip(turns, wanted, strict=True)]

    def tie(self, member: QueueMember) -> Tie:
        """Orders gangs of one priority that got their quota at one moment: the smallest leaves first."""
        uid = member.uid.encode()
        return (-member.time, uid.translate(BACKWARDS)) if self._rules.last_in_line_leaves else (0, uid)

    def comes_to_another_turn(self, member: QueueMember, before: int) -> bool:
        """Would it leave before, or after, another gang here than when it counted as reserved at the moment `before`?
        Which victims are found depends on it."""
        early, late = sorted((before, member.reserved_at))
        return early != late and any(
            early <= other.reserved_at <= late and other.priority == member.priority and other.usage != member.usage
            for other in self.reserved.values()
        )

    def held(self, at: FlavorResource) -> dict[int, int]:
        """What is held at one place, by priority."""
        return self._held.get(at, NOTHING)

    def largest(self, at: FlavorResource) -> int:
        """The most that a single gang holds at one place."""
        known = self._largest.get(at)
        if known is None:
            known = max((member.usage.get(at, 0) for member in self.reserved.values()), default=0)
            self._largest[at] = known
        return known

    def _count(self, member: QueueMember, sign: int) -> None:
        for at, amount in member.usage.items():
            held = self._held.setdefault(at, {})
            left = held.get(member.priority, 0) + sign * amount
            if left:
                held[member.priority] = left
            else:
                held.pop(member.priority, None)
            largest = self._largest.get(at)
            if largest is not None and amount >= largest:
                if sign > 0:
                    self._largest[at] = amount
                else:
                    del self._largest[at]
