"""Bids that were refused, and what has to change before they are looked at again.

Kept by `LineState`, asked by `bids` in every plan: elastic gangs may bid for years, and thousands of them cost nothing
until the quota tree that refused one changes, or a node has room for such a pod. Decides nothing: what is due is
judged by `bids`, and may be refused again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.engine.line.surplus import Split
from shoal.engine.model import Gang, Shortfall
from shoal.engine.nodes.shape import Shape

if TYPE_CHECKING:
    from shoal.engine.kueue.quota.tree import QuotaTreeNode
    from shoal.engine.line.queues import Queues
    from shoal.engine.line.state import LineState


class RefusedGrowth(msgspec.Struct, frozen=True):
    """What the bids of one pod set lacked: of this gang and these pods, in this turn of quota and room."""

    gang: Gang
    split: Split
    turn: object
    missing: tuple[Shortfall, ...]


class Refusals:
    def __init__(self) -> None:
        self.book: dict[tuple[str, str], RefusedGrowth] = {}
        """By UID and pod set of elastic gangs."""
        self._by_tree: dict[QuotaTreeNode, tuple[int, set[str]]] = {}
        """Generation of a quota tree, and the UIDs of gangs that it refused at that one."""
        self._by_shape: dict[Shape | None, set[str]] = {}
        """UIDs of gangs for whose pods no node had room. None: where sums decide, or other pods."""
        self._overtaken: set[str] = set()
        """UIDs of gangs whose tree changed while others were judged."""
        self._turn = -1
        self._given_back = -1

    def take_due(self, state: LineState, queues: Queues) -> set[str]:
        """UIDs of elastic gangs whose bids may fare otherwise than when they were last looked at."""
        surplus, turn = state.surplus, queues.kueue.register.turn
        due, surplus.unjudged, self._overtaken = surplus.unjudged | self._overtaken, set(), set()
        if turn != self._turn:
            self._turn = turn
            self._by_tree.clear()
            self._by_shape.clear()
            return set(surplus.splits)
        for root in [root for root, (generation, _) in self._by_tree.items() if root.generation != generation]:
            due |= self._by_tree.pop(root)[1]
        if self._by_shape and self._given_back != state.ledger.given_back:
            for shape in [shape for shape in self._by_shape if shape is None or _may_hold(shape, state)]:
                due |= self._by_shape.pop(shape)
        self._given_back = state.ledger.given_back
        return due & surplus.splits.keys()

    def remember(self, uid: str, root: QuotaTreeNode | None, short_of_room: bool, shape: Shape | None) -> None:
        """Bids of this gang are refused as things are."""
        if root is not None:
            known = self._by_tree.get(root)
            if known is not None and known[0] != root.generation:
                self._overtaken |= known[1]
            if known is None or known[0] != root.generation:
                known = self._by_tree[root] = (root.generation, set())
            known[1].add(uid)
        if short_of_room:
            self._by_shape.setdefault(shape, set()).add(uid)

    def prune(self, there: dict[str, dict[str, Split]]) -> None:
        if len(self.book) > 2 * len(there):
            for gone in [one for one in self.book if one[0] not in there]:
                del self.book[gone]


def _may_hold(shape: Shape, state: LineState) -> bool:
    room = state.ledger.room
    row = room.row(shape)
    room.flush()
    return bool(room.totals[row] > 0)
