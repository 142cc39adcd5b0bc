"""One turn of Kueue's scheduler on stored objects: who of those asked would get quota, push others out, or wait.

Those asked are one gang and the heads of strict queues in its tree, who are asked in every turn. Every answer is worked
out from nothing; what a turn changes in the tree is put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.checker.rest_flavors import Assignment, Search
from tests.checker.rest_holders import Ask, Asking, Holder
from tests.checker.rest_objects import Stored
from tests.checker.rest_quota import Node, Place, Usage
from tests.checker.rest_shares import fair_victims
from tests.checker.rest_victims import victims

MOST_SCANS = 64


@dataclass
class Entry:
    asking: Asking
    assignment: Assignment
    victims: list[Holder]
    outcome: str = "waits"
    """`starts`, `evicts`, `waits`; `awaits`: those it needs gone are leaving already."""

    @property
    def leads_somewhere(self) -> bool:
        return bool(self.victims) or self.assignment.fits


@dataclass
class Turn:
    stored: Stored
    holders: list[Holder]
    fair_sharing: bool = False
    partial_admission: bool = True
    latest_uid_first: bool = False
    taken: list[Holder] = field(default_factory=list)
    """The gangs that earlier entries of this turn pushed out."""
    _set_aside: list[tuple[Node, Usage]] = field(default_factory=list)

    def look(self, asking: Asking, only: list[dict[str, str]] | None = None) -> Entry:
        """Flavors and victims for one gang as things are."""
        scans = self.scans(asking, only)
        return next((one for one in scans if one.leads_somewhere), scans[0])

    def scans(self, asking: Asking, only: list[dict[str, str]] | None = None) -> list[Entry]:
        """What one search after the other finds, each from where the one before stopped, up to one that leads
        somewhere. It looks for the whole gang, then for as much of it as may start."""
        search = Search(self.stored, asking, self._victims, self.fair_sharing)
        search.only = only
        found: list[Entry] = []
        tried: list[dict[str, int]] = []
        for _ in range(MOST_SCANS):
            whole = self._try(search, [one.count for one in asking.demands], tried)
            found.append(whole if whole.leads_somewhere else self._smaller(search, tried) or whole)
            if found[-1].leads_somewhere or not whole.assignment.goes_on:
                break
            tried = whole.assignment.tried
        return found

    def _smaller(self, search: Search, tried: list[dict[str, int]]) -> Entry | None:
        demands = search.asking.demands
        spare = [one.count - one.least for one in demands]
        if not self.partial_admission or not sum(spare):
            return None
        low, high, best = 0, sum(spare) + 1, None
        while low < high:
            middle = (low + high) // 2
            fewer = [one.count - give * middle // sum(spare) for one, give in zip(demands, spare, strict=True)]
            smaller = self._try(search, fewer, tried)
            if smaller.leads_somewhere:
                best, high = smaller, middle
            else:
                low = middle + 1
        return best

    def _try(self, search: Search, counts: list[int], tried: list[dict[str, int]]) -> Entry:
        made = search.run(counts, tried)
        gone = self._victims(search.asking, made.usage, made.short) if made.has_to_preempt else []
        return Entry(search.asking, made, gone)

    def _victims(self, asking: Asking, wanted: Usage, places: frozenset[Place]) -> list[Holder]:
        there = [one for one in self.holders if one not in self.taken]
        ask = Ask(asking, there, wanted, places, self.latest_uid_first)
        return fair_victims(ask) if self.fair_sharing else victims(ask)

    def serve(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._serve(entry)
        for node, usage in self._set_aside:
            node.take(usage, -1)
        self._set_aside.clear()
        self.taken.clear()

    def _serve(self, entry: Entry) -> None:
        asking, made = entry.asking, entry.assignment
        if any(one in self.taken for one in entry.victims):
            for one in self.taken:
                one.go()
            again = self.look(asking, made.flavors)
            for one in self.taken:
                one.come_back()
            if again.assignment.fits:
                entry.outcome = "awaits"
                self._keep(asking.node, again.assignment.usage)
                return
            made = entry.assignment = again.assignment
            entry.victims = again.victims
        if not made.fits and not entry.victims:
            if made.has_to_preempt and asking.reclaim != "Any" and asking.is_strict:
                self._keep(asking.node, _waited_for(asking.node, made))
            return
        leaving = [*self.taken, *(one for one in entry.victims if one not in self.taken)]
        for one in leaving:
            one.go()
        fits = all(value <= max(0, asking.node.available(at)) for at, value in made.usage.items())
        for one in leaving:
            one.come_back()
        if not fits:
            return
        self._keep(asking.node, made.usage)
        self.taken += [one for one in entry.victims if one not in self.taken]
        entry.outcome = "starts" if not entry.victims else "evicts"
        if entry.victims and all(one.is_leaving for one in entry.victims):
            entry.outcome = "awaits"

    def _keep(self, node: Node, usage: Usage) -> None:
        node.take(usage, 1)
        self._set_aside.append((node, usage))


def _waited_for(node: Node, made: Assignment) -> Usage:
    """What the head of a strict queue keeps from others while there is no gang that it may push out."""
    found: Usage = {}
    for at, value in made.usage.items():
        limit, room = node.limits.get(at), node.nominal(at) - node.usage(at)
        if made.height == 0:
            found[at] = max(0, min(value, room))
        elif limit is not None and limit.borrowing is not None:
            found[at] = max(0, min(value, room + limit.borrowing))
        else:
            found[at] = value
    return found
