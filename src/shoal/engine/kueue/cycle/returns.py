"""How fast quota comes back by itself: what gangs held that ended lately, by tree.

Told by the pause before evictions of each end, and asked by it how long a gang would wait if none were evicted for it.
Memory only: after a restart nothing is known, and nothing is waited for.
"""

from __future__ import annotations

from math import exp

from shoal.engine.kueue.facts import FlavorResource, Usage
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.remembered import Remembered

SECOND = 1_000_000
LATELY = 20 * SECOND
"""What came back longer ago than this hardly counts."""
ENOUGH = 10
"""Ends of late from which on they are a stream and no accident."""
MOST_TREES = 10_000

Tree = tuple[bool, str]


def tree_of(root: QuotaTreeNode) -> Tree:
    """What a tree is remembered by: nodes are made again, and a queue and a cohort may have one name."""
    return root.is_queue, root.name


class _Stream:
    """Ends and amounts of late, each worth less as it gets older."""

    __slots__ = ("amounts", "at", "ends")

    def __init__(self, at: int) -> None:
        self.at = at
        self.ends = 0.0
        self.amounts: dict[FlavorResource, float] = {}

    def age(self, now: int) -> None:
        left = exp((self.at - now) / LATELY) if now > self.at else 1.0
        self.at = max(self.at, now)
        self.ends *= left
        for at in self.amounts:
            self.amounts[at] *= left


class QuotaReturns:
    def __init__(self) -> None:
        self._streams: Remembered[Tree, _Stream] = Remembered(MOST_TREES)

    def came_back(self, tree: Tree, usage: Usage, now: int) -> None:
        stream = self._streams.get(tree) or self._streams.remember(tree, _Stream(now))
        stream.age(now)
        stream.ends += 1
        for at, amount in usage.items():
            stream.amounts[at] = stream.amounts.get(at, 0.0) + amount

    def within(self, tree: Tree, usage: Usage, now: int) -> float:
        """Microseconds in which as much comes back as this; without end where too little is known, or nothing comes."""
        stream = self._streams.get(tree)
        if stream is None:
            return float("inf")
        stream.age(now)
        if stream.ends < ENOUGH:
            return float("inf")
        lately = [(amount, stream.amounts.get(at, 0.0)) for at, amount in usage.items() if amount > 0]
        return max((LATELY * amount / back if back > 0 else float("inf") for amount, back in lately), default=0.0)
