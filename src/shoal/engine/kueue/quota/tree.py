"""The quota tree: what each cluster queue and cohort may use, uses, and can still get.

Used by every decision of this dialect. A node keeps its limits and its usage; `add` and `remove` walk towards the
root only as far as a change is visible there, so cost follows depth, not size. It knows nothing of gangs or order.
Simulations change the live tree and put it back exactly; there is no copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.engine.kueue.facts import WHOLE_WEIGHT, FlavorResource, Limits, Usage

NO_LIMITS = Limits(0)


class QuotaTreeNode:
    """A cluster queue (a leaf) or a cohort. Amounts missing from a mapping are zero."""

    __slots__ = (
        "bounded", "children", "generation", "height", "is_queue", "lendable", "limits", "local", "name", "parent",
        "potential", "subtree", "usage", "weight",
    )  # fmt: skip

    def __init__(self, name: str, *, is_queue: bool) -> None:
        self.name = name
        self.is_queue = is_queue
        self.parent: QuotaTreeNode | None = None
        self.children: list[QuotaTreeNode] = []
        self.limits: dict[FlavorResource, Limits] = {}
        self.weight = WHOLE_WEIGHT
        self.usage: Usage = {}
        self.subtree: Usage = {}
        """Quota of everything below, as far as it is lent upwards, plus its own."""
        self.local: Usage = {}
        """The part of `subtree` that is never visible above this node."""
        self.potential: Usage = {}
        """The largest request that could ever fit here."""
        self.lendable: dict[str, int] = {}
        """`potential` summed over flavors, by resource: what children measure their share against."""
        self.bounded = False
        """It has a borrowing or lending limit somewhere. Else it can use just what its parent can."""
        self.height = 0
        self.generation = 0
        """On a root: changes with every change below it. Elsewhere unused."""

    def root(self) -> QuotaTreeNode:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def ancestors(self) -> Iterator[QuotaTreeNode]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def queues(self) -> Iterator[QuotaTreeNode]:
        """The cluster queues at or below this node, in tree order."""
        if self.is_queue:
            yield self
            return
        for child in self.children:
            yield from child.queues()

    def path(self) -> str:
        """`/top/…/name`, as messages show it."""
        names = [self.name, *(node.name for node in self.ancestors())]
        return "/" + "/".join(reversed(names))

    # What is left.

    def local_available(self, at: FlavorResource) -> int:
        local = self.local.get(at, 0)
        return max(0, local - self.usage.get(at, 0)) if local else 0

    def raw_available(self, at: FlavorResource) -> int:
        """What can still be used here; below zero when quota shrank under its users."""
        node, parent = self, self.parent
        while parent is not None and not node.bounded:
            node, parent = parent, parent.parent
        if parent is None:
            return node.subtree.get(at, 0) - node.usage.get(at, 0)
        return node.available_below(at, parent.raw_available(at))

    def available_below(self, at: FlavorResource, above: int) -> int:
        """The same, where it is known what its parent can still use."""
        if self.parent is None:
            return self.subtree.get(at, 0) - self.usage.get(at, 0)
        if not self.bounded:
            return above
        usage = self.usage.get(at, 0)
        local = self.local.get(at, 0)
        limits = self.limits.get(at)
        if limits is not None and limits.borrowing is not None:
            stored = self.subtree.get(at, 0) - local
            above = min(above, stored - max(0, usage - local) + limits.borrowing)
        return max(0, local - usage) + above

    def available(self, at: FlavorResource) -> int:
        return max(0, self.raw_available(at))

    def nominal(self, at: FlavorResource) -> int:
        return self.limits.get(at, NO_LIMITS).nominal

    def borrows_with(self, at: FlavorResource, amount: int) -> bool:
        return self.subtree.get(at, 0) < self.usage.get(at, 0) + amount

    def within_nominal(self, places: Iterable[FlavorResource]) -> bool:
        usage, subtree = self.usage, self.subtree
        for at in places:  # noqa: SIM110 (asked for every gang: a generator would cost more than all else here)
            if usage.get(at, 0) > subtree.get(at, 0):
                return False
        return True

    def fits(self, wanted: Usage) -> bool:
        for at, amount in wanted.items():  # noqa: SIM110 (the same)
            if amount > 0 and amount > self.raw_available(at):
                return False
        return True

    def borrowing_height(self, at: FlavorResource, amount: int) -> tuple[int, bool]:
        """How far up the tree `amount` must borrow (0: not at all), and whether that place is below the root.

        The second answer means: what is short there may be reclaimed from the rest of the hierarchy.
        """
        if self.parent is None or not self.borrows_with(at, amount):
            return 0, self.parent is not None
        rest = amount - self.local_available(at) if self.bounded else amount
        node = self
        while (parent := node.parent) is not None:
            node = parent
            if not node.borrows_with(at, rest):
                return node.height, node.parent is not None
            if node.bounded:
                rest -= node.local_available(at)
        return node.height, False

    # Changing usage.

    def add(self, wanted: Usage) -> None:
        for at, amount in wanted.items():
            self._add(at, amount)

    def remove(self, wanted: Usage) -> None:
        for at, amount in wanted.items():
            self._remove(at, amount)

    def _add(self, at: FlavorResource, amount: int) -> None:
        node: QuotaTreeNode | None = self
        while node is not None and amount > 0:
            used = node.usage.get(at, 0)
            node.usage[at] = used + amount
            local = node.local.get(at, 0)
            if local > used:
                amount -= local - used
            node = node.parent

    def _remove(self, at: FlavorResource, amount: int) -> None:
        node: QuotaTreeNode | None = self
        while node is not None and amount > 0:
            used = node.usage.get(at, 0)
            node.usage[at] = used - amount
            amount = min(amount, used - node.local.get(at, 0))
            node = node.parent


def settle(root: QuotaTreeNode) -> None:
    """Work out the whole tree again, from limits and the queues' own usage. Called when its shape changed."""
    _gather(root)
    _spread(root)


def _gather(node: QuotaTreeNode) -> None:
    """Bottom up: subtree quota, the local part, cohort usage, height."""
    node.subtree = {at: limits.nominal for at, limits in node.limits.items()}
    node.height = 0
    if not node.is_queue:
        node.usage = {}
    for child in node.children:
        _gather(child)
        node.height = max(node.height, child.height + 1)
        for at, quota in child.subtree.items():
            node.subtree[at] = node.subtree.get(at, 0) + quota - child.local.get(at, 0)
        for at, used in child.usage.items():
            if (over := used - child.local.get(at, 0)) > 0:
                node.usage[at] = node.usage.get(at, 0) + over
    node.bounded = any(limits.borrowing is not None or limits.lending is not None for limits in node.limits.values())
    node.local = {
        at: max(0, node.subtree[at] - limits.lending)
        for at, limits in node.limits.items()
        if limits.lending is not None
    }


def _spread(node: QuotaTreeNode) -> None:
    """Top down: the most that could ever be available."""
    parent = node.parent
    if parent is None:
        node.potential = dict(node.subtree)
    else:
        node.potential = {}
        for at in node.subtree.keys() | parent.potential.keys():
            most = node.local.get(at, 0) + parent.potential.get(at, 0)
            limits = node.limits.get(at)
            if limits is not None and limits.borrowing is not None:
                most = min(most, node.subtree.get(at, 0) + limits.borrowing)
            node.potential[at] = most
    node.lendable = {}
    for at, most in node.potential.items():
        node.lendable[at.resource] = node.lendable.get(at.resource, 0) + most
    for child in node.children:
        _spread(child)
