"""Those whom a quota tree refused, laid out so that freed quota finds the next one without asking all.

Used by the cycle where nobody is evicted and order does not change with time. A gang then needs room at the root of
every tree and at every hard node on its way up: its gates. Kinds with the same gates that ask for the same share
a ledge, in order; a ledge waits at a gate that lacks something, and is looked at when something is given back there.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from itertools import count

from shoal.engine.line.waiting import Kind
from shoal.engine.mcad.forest import Forest
from shoal.engine.mcad.trees import Consumer, Tree, TreeNode
from shoal.engine.policies import Rank

Gates = tuple[tuple[Tree, TreeNode], ...]


class Ledge:
    __slots__ = ("asks", "at", "gates", "key", "line")

    def __init__(self, key: Hashable, gates: Gates, asks: Consumer) -> None:
        self.key = key
        self.gates = gates
        self.asks = asks
        """Any one of them: they ask for the same."""
        self.line: list[tuple[Rank, int, Kind]] = []
        self.at: TreeNode | None = None
        """The gate it waits at."""

    def closed_at(self) -> TreeNode | None:
        """A gate that lacks something for them, if any."""
        request = self.asks.request
        for tree, node in self.gates:
            if tree.is_short(node, request):
                return node
        return None


class Refused:
    def __init__(self) -> None:
        self._ledges: dict[Hashable, Ledge] = {}
        self._waiting_at: dict[TreeNode, dict[Ledge, None]] = {}
        self._of: dict[Kind, Ledge] = {}
        self._numbers = count()

    def add(self, kind: Kind, asks: Consumer, forest: Forest) -> bool:
        """False where no gate lacks anything: what keeps it out is something else."""
        gates = forest.gates(asks)
        key = (tuple(id(node) for _, node in gates), tuple(sorted(asks.request.items())))
        ledge = self._ledges.get(key)
        if ledge is None:
            ledge = Ledge(key, gates, asks)
        if not self.park(ledge):
            return False
        self._ledges[key] = ledge
        self._of[kind] = ledge
        self.renew(kind)
        return True

    def renew(self, kind: Kind) -> None:
        """Its first gang may be another one."""
        ledge, rank = self._of.get(kind), _front(kind)
        if ledge is not None and rank is not None:
            heapq.heappush(ledge.line, (rank, next(self._numbers), kind))

    def drop(self, kind: Kind) -> None:
        self._of.pop(kind, None)

    def park(self, ledge: Ledge) -> bool:
        """Let it wait at a gate that lacks something; False when none does."""
        node = ledge.closed_at()
        if node is ledge.at and node is not None:
            return True
        if ledge.at is not None:
            self._waiting_at[ledge.at].pop(ledge, None)
        ledge.at = node
        if node is not None:
            self._waiting_at.setdefault(node, {})[ledge] = None
        return node is not None

    def opened(self, freed: Iterable[TreeNode]) -> list[Ledge]:
        """Ledges whose gates are all open now, of those that wait where something was given back."""
        ledges = [ledge for node in freed for ledge in list(self._waiting_at.get(node, ()))]
        return [ledge for ledge in ledges if not self.park(ledge)]

    def first_rank(self, ledge: Ledge) -> Rank | None:
        """The place of its first gang; None when nobody lies there any more."""
        while ledge.line:
            rank, _, kind = ledge.line[0]
            front = _front(kind)
            if self._of.get(kind) is ledge and kind.closed and front == rank:
                return rank
            heapq.heappop(ledge.line)
            if self._of.get(kind) is not ledge or not kind.closed:
                continue
            if front is not None:
                self.renew(kind)
            else:
                del self._of[kind]
        self._forget(ledge)
        return None

    def take_first(self, ledge: Ledge) -> Kind | None:
        """Its first kind, which leaves it."""
        if self.first_rank(ledge) is None:
            return None
        _, _, kind = heapq.heappop(ledge.line)
        del self._of[kind]
        return kind

    def _forget(self, ledge: Ledge) -> None:
        """Nobody lies there any more."""
        self._ledges.pop(ledge.key, None)
        if ledge.at is not None:
            self._waiting_at[ledge.at].pop(ledge, None)
            ledge.at = None

    def clear(self) -> list[Kind]:
        """Trees are not what they were. Returns everyone who lay here."""
        kinds = list(self._of)
        self._ledges.clear()
        self._waiting_at.clear()
        self._of.clear()
        return kinds


def _front(kind: Kind) -> Rank | None:
    return min((line[0][0] for line in kind.lanes.values()), default=None)
