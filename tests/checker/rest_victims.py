"""Preemption without shares, as Kueue documents it: who leaves so that a gang fits, or that none may be made to.

Who is reached through a subtree whose quota covers the request has to give way whatever is borrowed; all others only
where the preemptor does not borrow, or is let borrow from lower priorities.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.checker.rest_holders import Ask, Holder
from tests.checker.rest_quota import Node, Usage


@dataclass(frozen=True)
class Candidate:
    holder: Holder
    ancestor: Node | None = None
    """The lowest cohort that holds it and the preemptor; None in the preemptor's own queue."""
    by_hierarchy: bool = False
    while_borrowing: bool = True


def victims(ask: Ask) -> list[Holder]:
    own = [Candidate(one) for one in ask.of(ask.asking.node, ask.asking.within)]
    others = _others(ask)
    hierarchy = [one for one in others if one.by_hierarchy]
    rest = [one for one in others if not one.by_hierarchy]
    groups = [sorted(group, key=lambda one: ask.order(one.holder)) for group in (hierarchy, rest, own)]
    ordered = [
        one for leaving in (True, False) for group in groups for one in group if one.holder.is_leaving is leaving
    ]
    for borrowing in _attempts(ask, bool(hierarchy), bool(rest)):
        if found := _attempt(ask, ordered, borrowing):
            return found
    return []


def _attempts(ask: Ask, hierarchy: bool, rest: bool) -> tuple[bool, ...]:
    node, may_borrow = ask.asking.node, bool(ask.asking.borrow)
    below = all(node.usage(at) < node.nominal(at) for at in ask.places)
    if not (hierarchy or rest) or (not may_borrow and not below):
        return (True,)
    return (False, True) if not may_borrow and not hierarchy else (True, False)


def _attempt(ask: Ask, ordered: list[Candidate], borrowing: bool) -> list[Holder]:
    gone: list[Holder] = []
    found: list[Holder] = []
    for one in ordered:
        if not _is_still_one(ask, one, borrowing):
            continue
        one.holder.go()
        gone.append(one.holder)
        if ask.fits(borrowing=borrowing):
            gone = found = ask.without_spare(gone, borrowing=borrowing)
            break
    for holder in gone:
        holder.come_back()
    return found


def _is_still_one(ask: Ask, one: Candidate, borrowing: bool) -> bool:
    if one.ancestor is None:
        return True
    if borrowing and not one.while_borrowing:
        return False
    node: Node | None = one.holder.node
    while node is not None and node is not one.ancestor:
        if node.is_within(ask.places):
            return False
        node = node.parent
    return True


def _others(ask: Ask) -> list[Candidate]:
    if ask.asking.reclaim == "Never":
        return []
    found: list[Candidate] = []
    before, node = ask.asking.node, ask.asking.node.parent
    covered, rest = _covers(before, ask.wanted)
    while node is not None:
        found += _below(ask, node, node, before, covered)
        covers, rest = _covers(node, rest)
        covered = covered or covers
        before, node = node, node.parent
    return found


def _covers(node: Node, wanted: Usage) -> tuple[bool, Usage]:
    """Is this subtree's quota enough for its usage and the request? And how much of that is asked for above it?"""
    covered = not any(node.borrows(at, value) for at, value in wanted.items())
    return covered, {at: max(0, value - node.local_left(at)) for at, value in wanted.items()}


def _below(ask: Ask, node: Node, ancestor: Node, without: Node, by_hierarchy: bool) -> list[Candidate]:
    found: list[Candidate] = []
    for child in node.children:
        if child is without or child.is_within(ask.places):
            continue
        found += _below(ask, child, ancestor, without, by_hierarchy)
        if child.is_queue and child.is_active:
            for one in ask.of(child, ask.asking.reclaim):
                found.append(Candidate(one, ancestor, by_hierarchy, by_hierarchy or _while_borrowing(ask, one)))
    return found


def _while_borrowing(ask: Ask, one: Holder) -> bool:
    borrow = ask.asking.borrow
    if not borrow or one.priority >= ask.asking.priority:
        return False
    most = borrow.get("maxPriorityThreshold")
    return most is None or one.priority <= int(most)
