"""One cluster queue in the ledger: its facts, its node in the quota tree, who holds quota in it and who waits for it.

Owned by the ledger; decisions read it and change only what they are about (the waiting order, a simulated removal).
"""

from __future__ import annotations

from shoal.engine.selectors import Selector, parse_selector
from shoal.errors import BadInput

from .demand import Member
from .facts import ClusterQueue, ResourceGroup
from .tree import Node
from .waiting import Waiting


class QueueRecord:
    __slots__ = ("fact", "freed", "groups", "inactive", "name", "node", "reserved", "selector", "stalled_at", "waiting")

    def __init__(self, fact: ClusterQueue, node: Node) -> None:
        self.name = fact.name
        self.node = node
        self.reserved: dict[str, Member] = {}
        """Gangs that hold quota here, by UID."""
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
        for group in fact.groups:
            for resource in group.resources:
                self.groups.setdefault(resource, group)
        self.waiting.strict = fact.strategy == "StrictFIFO"
        self.selector: Selector | None
        try:
            self.selector = parse_selector(fact.namespace_selector, "spec.namespaceSelector")
        except BadInput:
            self.selector = None  # the ledger reports it and keeps the queue inactive
