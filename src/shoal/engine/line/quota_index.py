"""Gang classes that a quota tree refused, by what they wait for: freed quota finds the next one without asking all.

Used by the cycle where no gang is evicted and order does not change with time. A gang then needs room at the root of
every tree and at every hard node on its way up: its gates. Classes with the same gates that ask for the same amounts
form one `QuotaWait`, in order. It waits at a gate that lacks something, and is tried when that gate gets some back.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from itertools import count

from shoal.engine.line.waiting import GangClass
from shoal.engine.mcad.forest import QuotaForest
from shoal.engine.mcad.trees import Consumer, Tree, TreeNode
from shoal.engine.policies import Rank

Gates = tuple[tuple[Tree, TreeNode], ...]


class QuotaWait:
    """Gang classes that wait for the same amounts at the same quota nodes."""

    __slots__ = ("asks", "at", "gates", "key", "line")

    def __init__(self, key: Hashable, gates: Gates, asks: Consumer) -> None:
        self.key = key
        self.gates = gates
        self.asks = asks
        """Any one of them: they ask for the same."""
        self.line: list[tuple[Rank, int, GangClass]] = []
        self.at: TreeNode | None = None
        """The gate it waits at."""

    def lacking_gate(self) -> TreeNode | None:
        """A gate that lacks something for them, if any."""
        request = self.asks.request
        for tree, node in self.gates:
            if tree.is_short(node, request):
                return node
        return None


class QuotaIndex:
    def __init__(self) -> None:
        self._waits: dict[Hashable, QuotaWait] = {}
        self._waiting_at: dict[TreeNode, dict[QuotaWait, None]] = {}
        self._of: dict[GangClass, QuotaWait] = {}
        self._numbers = count()

    def add(self, gang_class: GangClass, asks: Consumer, forest: QuotaForest) -> bool:
        """False where no gate lacks anything: what keeps it out is something else."""
        gates = forest.gates(asks)
        key = (tuple(id(node) for _, node in gates), tuple(sorted(asks.request.items())))
        wait = self._waits.get(key)
        if wait is None:
            wait = QuotaWait(key, gates, asks)
        if not self.wait_at_gate(wait):
            return False
        self._waits[key] = wait
        self._of[gang_class] = wait
        self.renew(gang_class)
        return True

    def renew(self, gang_class: GangClass) -> None:
        """Its first gang may be another one."""
        wait, rank = self._of.get(gang_class), _front(gang_class)
        if wait is not None and rank is not None:
            heapq.heappush(wait.line, (rank, next(self._numbers), gang_class))

    def drop(self, gang_class: GangClass) -> None:
        self._of.pop(gang_class, None)

    def wait_at_gate(self, wait: QuotaWait) -> bool:
        """Let it wait at a gate that lacks something; False when none does."""
        node = wait.lacking_gate()
        if node is wait.at and node is not None:
            return True
        if wait.at is not None:
            self._waiting_at[wait.at].pop(wait, None)
        wait.at = node
        if node is not None:
            self._waiting_at.setdefault(node, {})[wait] = None
        return node is not None

    def opened(self, freed: Iterable[TreeNode]) -> list[QuotaWait]:
        """Those whose gates all have enough now, of those that wait where something was given back."""
        waits = [wait for node in freed for wait in list(self._waiting_at.get(node, ()))]
        return [wait for wait in waits if not self.wait_at_gate(wait)]

    def first_rank(self, wait: QuotaWait) -> Rank | None:
        """The place of its first gang; None when no gang lies there any more."""
        while wait.line:
            rank, _, gang_class = wait.line[0]
            front = _front(gang_class)
            if self._of.get(gang_class) is wait and gang_class.inadmissible and front == rank:
                return rank
            heapq.heappop(wait.line)
            if self._of.get(gang_class) is not wait or not gang_class.inadmissible:
                continue
            if front is not None:
                self.renew(gang_class)
            else:
                del self._of[gang_class]
        self._forget(wait)
        return None

    def take_first(self, wait: QuotaWait) -> GangClass | None:
        """Its first class, which leaves it."""
        if self.first_rank(wait) is None:
            return None
        _, _, gang_class = heapq.heappop(wait.line)
        del self._of[gang_class]
        return gang_class

    def _forget(self, wait: QuotaWait) -> None:
        """No gang lies there any more."""
        self._waits.pop(wait.key, None)
        if wait.at is not None:
            self._waiting_at[wait.at].pop(wait, None)
            wait.at = None

    def clear(self) -> list[GangClass]:
        """Trees are not what they were. Returns all that lay here."""
        classes = list(self._of)
        self._waits.clear()
        self._waiting_at.clear()
        self._of.clear()
        return classes


def _front(gang_class: GangClass) -> Rank | None:
    return min((line[0][0] for line in gang_class.lanes.values()), default=None)
