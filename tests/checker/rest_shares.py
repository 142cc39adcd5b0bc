"""Fair sharing, as Kueue documents it: how much of what is lent a node takes, and who has to leave by that."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tests.checker.rest_holders import Ask, Holder
from tests.checker.rest_quota import Node

Share = tuple[bool, Fraction]
"""Infinite, and the ratio; compared in this order."""


def share_of(node: Node) -> Share:
    """Borrowed over lendable of the resource of which that is most, by weight."""
    if node.parent is None:
        return (False, Fraction(0))
    borrowed: dict[str, int] = {}
    for at in node.places():
        over = node.usage(at) - node.subtree(at)
        if over > 0:
            borrowed[at[1]] = borrowed.get(at[1], 0) + over
    ratio = Fraction(0)
    for resource, value in borrowed.items():
        lendable = sum(node.parent.most(at) for at in node.root().places_below() if at[1] == resource)
        if lendable > 0:
            ratio = max(ratio, Fraction(value, lendable))
    if not borrowed:
        return (False, Fraction(0))
    return (True, ratio) if node.weight == 0 else (False, ratio / node.weight)


def borrows_at_all(node: Node) -> bool:
    return node.parent is not None and any(node.usage(at) > node.subtree(at) for at in node.places())


@dataclass
class Fair:
    ask: Ask
    candidates: dict[str, list[Holder]]
    gone: list[Holder]
    closed: set[str]

    @property
    def node(self) -> Node:
        return self.ask.asking.node


def fair_victims(ask: Ask) -> list[Holder]:
    node = ask.asking.node
    candidates = {node.name: ask.of(node, ask.asking.within)}
    if node.parent is not None and ask.asking.reclaim != "Never":
        for other in node.root().everyone():
            if other.is_queue and other is not node and other.is_active and not other.is_within(ask.places):
                candidates[other.name] = ask.of(other, ask.asking.reclaim)
    candidates = {name: found for name, found in candidates.items() if found}
    if not candidates:
        return []
    node.take(ask.wanted, 1)
    fair = Fair(ask, candidates, [], set())
    again: dict[str, list[Holder]] = {}
    fits = _first_strategy(fair, again) or _second_strategy(Fair(ask, again, fair.gone, set()))
    node.take(ask.wanted, -1)
    kept = ask.without_spare(fair.gone, borrowing=True) if fits else []
    for one in kept if fits else fair.gone:
        one.come_back()
    return kept


def _first_strategy(fair: Fair, again: dict[str, list[Holder]]) -> bool:
    """No more than the other keeps when its gang has left; within one's own quota, whatever shares are."""
    within = fair.node.is_within(fair.ask.places)
    while (target := _next(fair)) is not None:
        line = fair.candidates[target.name]
        if target is fair.node or within:
            if _goes(fair, line.pop(0)):
                return True
            continue
        mine, theirs = _compared(fair.node, target)
        while line:
            one = line.pop(0)
            one.go()
            after = share_of(theirs)
            one.come_back()
            if share_of(mine) <= after:
                if _goes(fair, one):
                    return True
                break
            again.setdefault(target.name, []).append(one)
    return False


def _second_strategy(fair: Fair) -> bool:
    """Less than the other has now; one of each queue at most."""
    while (target := _next(fair)) is not None:
        mine, theirs = _compared(fair.node, target)
        if share_of(mine) < share_of(theirs) and _goes(fair, fair.candidates[target.name].pop(0)):
            return True
        fair.closed.add(target.name)
    return False


def _goes(fair: Fair, one: Holder) -> bool:
    one.go()
    fair.gone.append(one)
    fair.node.take(fair.ask.wanted, -1)
    fits = fair.ask.fits()
    fair.node.take(fair.ask.wanted, 1)
    return fits


def _next(fair: Fair) -> Node | None:
    """From the root into the child with the largest share."""
    if fair.node.parent is None:
        return fair.node if fair.candidates.get(fair.node.name) and fair.node.name not in fair.closed else None
    return _descend(fair, fair.node.root())


def _descend(fair: Fair, cohort: Node) -> Node | None:
    tried: set[int] = set()
    while True:
        best: Node | None = None
        for child in cohort.children:
            if id(child) not in tried and _may_be_chosen(fair, child) and _before(fair, child, best):
                best = child
        if best is None or best.is_queue:
            return best
        if (found := _descend(fair, best)) is not None:
            return found
        tried.add(id(best))


def _may_be_chosen(fair: Fair, child: Node) -> bool:
    if child.is_queue:
        has = bool(fair.candidates.get(child.name)) and child.name not in fair.closed
        return has and (child is fair.node or borrows_at_all(child))
    return borrows_at_all(child) or child in _above(fair.node)


def _before(fair: Fair, one: Node, best: Node | None) -> bool:
    if best is None:
        return True
    mine, theirs = share_of(one), share_of(best)
    if mine != theirs:
        return mine > theirs
    if one.is_queue != best.is_queue:
        return best.is_queue
    if not one.is_queue:
        return True
    first, second = fair.candidates[one.name][0], fair.candidates[best.name][0]
    return (fair.ask.order(first), first.uid) < (fair.ask.order(second), second.uid)


def _compared(mine: Node, theirs: Node) -> tuple[Node, Node]:
    """The two nodes just below the lowest cohort that holds both."""
    while theirs.parent is not None and theirs.parent not in _above(mine):
        theirs = theirs.parent
    while mine.parent is not theirs.parent:
        assert mine.parent is not None
        mine = mine.parent
    return mine, theirs


def _above(node: Node) -> list[Node]:
    return [] if node.parent is None else [node.parent, *_above(node.parent)]
