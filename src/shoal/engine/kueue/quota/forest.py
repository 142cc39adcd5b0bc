"""All quota trees: which queue and cohort hangs below which, kept as facts come and go.

Owned by the ledger. Shape changes are cheap to record; the trees they touch are worked out again at the next look
(`settled`). A cohort cycle is cut and everything below it marked, so that no walk to the root can go round.
"""

from __future__ import annotations

from shoal.engine.kueue.facts import ClusterQueue, Cohort, FlavorResource, Limits, ResourceGroup
from shoal.engine.kueue.quota.tree import QuotaTreeNode, settle


class CohortForest:
    def __init__(self) -> None:
        self.queues: dict[str, QuotaTreeNode] = {}
        self.cohorts: dict[str, QuotaTreeNode] = {}
        self.cyclic: set[str] = set()
        """Cohorts whose chain of parents goes round."""
        self._queue_facts: dict[str, ClusterQueue] = {}
        self._cohort_facts: dict[str, Cohort] = {}
        self._stale: set[QuotaTreeNode] = set()
        self._generation = 0
        self._changed: set[QuotaTreeNode] = set()

    def set_queue(self, fact: ClusterQueue) -> QuotaTreeNode:
        node = self.queues.get(fact.name)
        if node is None:
            node = self.queues[fact.name] = QuotaTreeNode(fact.name, is_queue=True)
        self._queue_facts[fact.name] = fact
        node.limits = limits_of(fact.groups)
        node.weight = fact.weight
        self._hang(node, self._cohort(fact.cohort) if fact.cohort else None)
        self._touch(node)
        self._prune()
        return node

    def drop_queue(self, name: str) -> None:
        node = self.queues.pop(name, None)
        if node is None:
            return
        del self._queue_facts[name]
        self._touch(node)
        self._hang(node, None)
        self._stale.discard(node)
        self._prune()

    def set_cohort(self, fact: Cohort) -> None:
        self._cohort_facts[fact.name] = fact
        node = self._cohort(fact.name)
        node.limits = limits_of(fact.groups)
        node.weight = fact.weight
        self._relink()
        self._touch(node)

    def drop_cohort(self, name: str) -> None:
        """The cohort lives on without quota while others name it."""
        if self._cohort_facts.pop(name, None) is None:
            return
        node = self.cohorts[name]
        blank = Cohort(name=name)
        node.limits, node.weight = {}, blank.weight
        self._touch(node)
        self._relink()
        self._prune()

    def bump(self, node: QuotaTreeNode) -> None:
        """Note that usage in the node's tree changed for good."""
        self._generation += 1
        root = node.root()
        root.generation = self._generation
        self._changed.add(root)

    def take_changed(self) -> set[QuotaTreeNode]:
        """The roots of trees that have changed since this was last asked."""
        changed = self._changed
        if changed:
            self._changed = set()
        return changed

    def settled(self) -> None:
        """Bring every tree whose shape changed up to date."""
        if not self._stale:
            return
        for root in {node.root() for node in self._stale}:
            settle(root)
            self.bump(root)
        self._stale.clear()

    def is_cyclic(self, queue: QuotaTreeNode) -> bool:
        return any(node.name in self.cyclic for node in queue.ancestors())

    def _cohort(self, name: str) -> QuotaTreeNode:
        node = self.cohorts.get(name)
        if node is None:
            node = self.cohorts[name] = QuotaTreeNode(name, is_queue=False)
        return node

    def _hang(self, node: QuotaTreeNode, parent: QuotaTreeNode | None) -> None:
        if node.parent is parent:
            return
        self._touch(node)
        if node.parent is not None:
            self._touch(node.parent)
            node.parent.children.remove(node)
        node.parent = parent
        if parent is not None:
            parent.children.append(node)
            parent.children.sort(key=lambda child: (child.is_queue, child.name))  # no dependence on arrival
            self._touch(parent)

    def _relink(self) -> None:
        """Hang cohorts below their parents again; a chain that goes round is cut at every cohort on it."""
        for fact in list(self._cohort_facts.values()):
            if fact.parent:
                self._cohort(fact.parent)
        self.cyclic = {name for name in self.cohorts if self._goes_round(name)}
        for name in self.cyclic:
            self._hang(self.cohorts[name], None)
        for name, node in self.cohorts.items():
            parent = self._parent_of(name)
            if name not in self.cyclic:
                self._hang(node, self.cohorts[parent] if parent else None)

    def _parent_of(self, name: str) -> str:
        fact = self._cohort_facts.get(name)
        return fact.parent if fact is not None else ""

    def _goes_round(self, name: str) -> bool:
        seen: set[str] = set()
        at = self._parent_of(name)
        while at and at not in seen:
            if at == name:
                return True
            seen.add(at)
            at = self._parent_of(at)
        return False

    def _touch(self, node: QuotaTreeNode) -> None:
        self._stale.add(node)

    def _prune(self) -> None:
        """Forget cohorts that no Cohort object defines and no queue or cohort names any more."""
        named = {fact.parent for fact in self._cohort_facts.values()}
        for name in [name for name, node in self.cohorts.items() if not node.children]:
            if name not in self._cohort_facts and name not in named:
                node = self.cohorts.pop(name)
                self._hang(node, None)
                self._stale.discard(node)


def limits_of(groups: tuple[ResourceGroup, ...]) -> dict[FlavorResource, Limits]:
    """Quota by place. Negative amounts count as zero here; the check of the queue reports them."""
    return {
        FlavorResource(flavor.name, resource): Limits(
            max(0, limits.nominal),
            None if limits.borrowing is None else max(0, limits.borrowing),
            None if limits.lending is None else max(0, limits.lending),
        )
        for group in groups
        for flavor in group.flavors
        for resource, limits in flavor.limits.items()
    }
