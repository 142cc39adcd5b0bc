"""One cluster queue in the ledger: its facts, its node in the quota tree, who holds quota in it and who waits for it.

Owned by the ledger; decisions read it and change only what they are about (the waiting order, a simulated removal).
"""

from __future__ import annotations

from shoal.engine.selectors import Selector, parse_selector
from shoal.errors import BadInput

from .demand import Member
from .facts import ClusterQueue, FlavorResource, ResourceGroup
from .tree import Node
from .waiting import Waiting


class QueueRecord:
    __slots__ = (
        "_held", "_largest", "fact", "freed", "groups", "inactive", "name", "node", "places", "reserved",
        "selector", "stalled_at", "waiting",
    )  # fmt: skip

    def __init__(self, fact: ClusterQueue, node: Node) -> None:
        self.name = fact.name
        self.node = node
        self.reserved: dict[str, Member] = {}
        """Gangs that hold quota here, by UID. Changed only by `hold` and `release`."""
        self._held: dict[FlavorResource, dict[int, int]] = {}
        self._largest: dict[FlavorResource, int] = {}
        self.waiting = Waiting(strict=fact.strategy == "StrictFIFO")
        self.inactive = ""
        """Why nothing is admitted here; empty when the queue works."""
        self.freed = 0
        """Counts changes that could let a gang fit that did not: quota edits and gangs that left."""
        self.stalled_at = -1
        """The tree's generation at which the head was found to have to wait; no need to ask again at that one."""
        self.describe(fact)

    def describe(self, fact: ClusterQueue) -> None:
        """Take over changed facts."""
        self.fact = fact
        self.groups: dict[str, ResourceGroup] = {}
        self.places: dict[str, tuple[FlavorResource, ...]] = {}
        """By resource: everywhere this queue could have it."""
        for group in fact.groups:
            for resource in group.resources:
                self.groups.setdefault(resource, group)
                elsewhere = self.places.get(resource, ())
                self.places[resource] = elsewhere + tuple(
                    FlavorResource(flavor.name, resource) for flavor in group.flavors
                )
        self.waiting.strict = fact.strategy == "StrictFIFO"
        self.selector: Selector | None
        try:
            self.selector = parse_selector(fact.namespace_selector, "spec.namespaceSelector")
        except BadInput:
            self.selector = None  # the ledger reports it and keeps the queue inactive

    def hold(self, member: Member) -> None:
        """The gang holds its usage here from now on."""
        self.reserved[member.uid] = member
        self.node.add(member.usage)
        self._forget_sums()

    def release(self, uid: str) -> None:
        self.node.remove(self.reserved.pop(uid).usage)
        self._forget_sums()

    def confirm(self, member: Member) -> None:
        """Newer facts of a gang that holds the same usage as before."""
        if member.uid in self.reserved:
            self.reserved[member.uid] = member
            self._forget_sums()

    def held(self, at: FlavorResource) -> dict[int, int]:
        """What is held at one place, by priority."""
        known = self._held.get(at)
        if known is None:
            known = self._held[at] = {}
            largest = 0
            for member in self.reserved.values():
                amount = member.usage.get(at, 0)
                if amount:
                    known[member.priority] = known.get(member.priority, 0) + amount
                    largest = max(largest, amount)
            self._largest[at] = largest
        return known

    def largest(self, at: FlavorResource) -> int:
        """The most that a single gang holds at one place."""
        self.held(at)
        return self._largest[at]

    def _forget_sums(self) -> None:
        if self._held:
            self._held.clear()
            self._largest.clear()
