"""In which order the heads of one cycle are served.

Without fair sharing: least borrowing, then priority, then age. With it: a tournament from the leaves of each cohort
tree up, repeated for every place because each winner changes the shares. Ends with the UID, so the order is total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.engine.kueue.cycle.entry import Entry
from shoal.engine.kueue.fair_sharing.share import Share, share_of
from shoal.engine.kueue.quota.tree import QuotaTreeNode

First = Callable[[Entry], bool]
"""Is this a preemptor whose victims are on their way out? Those are served before anyone takes their room."""


def classical_order(entries: list[Entry], first: First) -> Iterator[Entry]:
    yield from sorted(entries, key=lambda entry: (not first(entry), entry.height, entry.member.order))


def fair_order(entries: list[Entry], first: First, prefers_lenders: bool) -> Iterator[Entry]:
    """The caller processes an entry, and with it changes usage, before it asks for the next."""
    trees: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.record.name):
        trees.setdefault(
            entry.record.node.root().name if entry.record.node.parent else f"\0{entry.record.name}", []
        ).append(entry)
    for left in trees.values():
        root = left[0].record.node.root()
        if root.is_queue:
            yield from left
            continue
        waiting = {entry.record.name: entry for entry in left}
        seats: dict[str, _Seat] = {}
        while waiting:
            for name, entry in waiting.items():
                if name not in seats:
                    seats[name] = _Seat(entry, first(entry))
            winner = _winner(root, seats, prefers_lenders)
            if winner is None:
                return
            del waiting[winner.entry.record.name]
            yield winner.entry
            # What one queue is given changes the shares of cohorts above it; those below the root itself stay.
            seats = {name: seats[name] for name in waiting if seats[name].entry.record.node.parent is root}


class _Seat:
    """One head in the tournament, with its share and borrowing at every level of its path, the gang added."""

    __slots__ = ("borrows", "entry", "first", "shares")

    def __init__(self, entry: Entry, first: bool) -> None:
        self.entry = entry
        self.first = first
        self.shares: dict[str, Share] = {}
        """By cohort: the share of the child on the way to this head."""
        self.borrows: dict[str, bool] = {}
        node = entry.record.node
        node.add(entry.usage)
        below = node
        for ancestor in node.ancestors():
            self.shares[ancestor.name] = share_of(below)
            self.borrows[ancestor.name] = not below.within_nominal(entry.usage)
            below = ancestor
        node.remove(entry.usage)


def _winner(cohort: QuotaTreeNode, seats: dict[str, _Seat], prefers_lenders: bool) -> _Seat | None:
    best: _Seat | None = None
    for child in cohort.children:
        seat = seats.get(child.name) if child.is_queue else _winner(child, seats, prefers_lenders)
        if seat is not None and (best is None or _before(seat, best, cohort.name, prefers_lenders)):
            best = seat
    return best


def _before(one: _Seat, other: _Seat, cohort: str, prefers_lenders: bool) -> bool:
    if one.first != other.first:
        return one.first
    if prefers_lenders and one.borrows[cohort] != other.borrows[cohort]:
        return not one.borrows[cohort]
    mine, theirs = one.shares[cohort], other.shares[cohort]
    if mine != theirs:
        return mine < theirs
    return one.entry.member.order < other.entry.member.order
