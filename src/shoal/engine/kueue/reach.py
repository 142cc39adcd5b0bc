"""How much a gang could get at most, without working out who would leave.

An upper bound that costs little: what is free, plus what the gangs it may evict hold there. Asked before a search for
victims, and when quota comes back, to call only those whose turn it could be. It may say yes where the search says
no, never the other way round.
"""

from __future__ import annotations

from .facts import FlavorResource, Policy, Settings
from .record import QueueRecord
from .tree import Node
from .waiting import Needs


class Reach:
    """Good for one moment: it remembers who borrows in each tree, so throw it away when usage changes."""

    def __init__(self, records: dict[str, QueueRecord], settings: Settings) -> None:
        self.records = records
        self.settings = settings
        self._borrowers: dict[tuple[Node, FlavorResource], list[tuple[QueueRecord, int]]] = {}
        self._totals: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[str, FlavorResource, int], tuple[int, int, int]] = {}

    def allows(self, record: QueueRecord, at: FlavorResource, priority: int, amount: int) -> bool:
        """Could a gang of this priority in this queue have so much at this place?"""
        free, own, foreign = self._parts(record, at, priority)
        if amount <= free + own:
            return True
        if amount > free + own + foreign:
            return False
        if self.settings.fair_sharing or record.fact.preemption.may_borrow:
            return True
        # Others give way only to those who do not borrow in the end, or whose subtree owns what they ask for.
        node = record.node
        return node.usage.get(at, 0) - own + amount <= node.nominal(at) or _owned(node, at, amount)

    def hopeless(self, record: QueueRecord, needs: Needs, priority: int) -> bool:
        """True when what is needed cannot be there, whoever leaves."""
        for places, amount in needs.totals:
            key = (id(places), priority)  # one tuple per queue and resource: see QueueRecord.places
            most = self._totals.get(key)
            if most is None:
                most = self._totals[key] = sum(sum(self._parts(record, at, priority)) for at in places)
            if amount > most:
                return True
        return not any(self.allows(record, at, priority, amount) for at, amount in needs.places)

    def _parts(self, record: QueueRecord, at: FlavorResource, priority: int) -> tuple[int, int, int]:
        """What is free, what gangs of its own queue hold that it may evict, and what those of others do."""
        key = (record.name, at, priority)
        known = self._known.get(key)
        if known is None:
            preemption = record.fact.preemption
            own = _below(record, at, preemption.within_cluster_queue, priority)
            known = self._known[key] = (record.node.available(at), own, self._foreign(record, at, priority))
        return known

    def _foreign(self, record: QueueRecord, at: FlavorResource, priority: int) -> int:
        policy = record.fact.preemption.reclaim_within_cohort
        if policy == "Never" or record.node.parent is None:
            return 0
        total = 0
        for other, overhang in self._borrowing(record.node.root(), at):
            if other is not record:
                held = _below(other, at, policy, priority)
                # A queue gives only while it borrows; the last gang to leave may take it below.
                total += held if self.settings.fair_sharing else min(held, overhang + other.largest(at))
        return total

    def _borrowing(self, root: Node, at: FlavorResource) -> list[tuple[QueueRecord, int]]:
        key = (root, at)
        if key not in self._borrowers:
            self._borrowers[key] = [
                (self.records[node.name], overhang)
                for node in root.queues()
                if (overhang := node.usage.get(at, 0) - node.subtree.get(at, 0)) > 0 and node.name in self.records
            ]
        return self._borrowers[key]


def _below(record: QueueRecord, at: FlavorResource, policy: Policy, priority: int) -> int:
    """What gangs hold there that the policy lets this priority evict; those already leaving count as well."""
    if policy == "Never":
        return 0
    held = record.held(at)
    if policy == "Any":
        return sum(held.values())
    or_equal = policy == "LowerOrNewerEqualPriority"
    return sum(amount for other, amount in held.items() if other < priority or (or_equal and other == priority))


def _owned(node: Node, at: FlavorResource, amount: int) -> bool:
    """Does the queue, or a cohort on its way up but the topmost, own enough for usage and request?"""
    below: Node | None = node
    while below is not None and below.parent is not None:
        if not below.borrows_with(at, amount):
            return True
        amount -= below.local_available(at)
        below = below.parent
    return False
