"""Could a gang that waits get quota now, or push others out for it? Asked of all turns that the plain rules leave open.

Which turn it is depends on what stored objects do not tell: whose quota is older within one second, who came first of
two heads where shares count, and whether the gangs that a gang once made way for may still be spared. Where those
differ in the answer, it is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import permutations, product

from tests.checker.preemptors import mark_of
from tests.checker.rest_flavors import Unreadable
from tests.checker.rest_gangs import Demand, Gangs
from tests.checker.rest_holders import Asking, Holder
from tests.checker.rest_objects import Json, Rules, Stored, condition, is_true, moment, uid_of
from tests.checker.rest_quota import Node, Quota, charge_of, describe, preemptors_of, queue_charged
from tests.checker.rest_turn import Entry, Turn

MOST_HEADS = 4
DEPTH = 2
"""How many more may be pushed out between two that push out each other."""
Outcome = tuple[str, str]


class Could:
    def __init__(self, stored: Stored, rules: Rules, gangs: Gangs, quota: Quota) -> None:
        self.stored = stored
        self.rules = rules
        self.gangs = gangs
        self.quota = quota
        self.holders = [self._holder(one) for one in quota.holding if queue_charged(one) in quota.queues]
        self.names = {one.uid: one.name for one in self.holders}
        for name, node in quota.queues.items():
            node.is_active = not gangs.problems(stored.get("clusterqueues", name) or {})
        self._known: dict[object, Outcome] = {}

    def _holder(self, workload: Json) -> Holder:
        return Holder(
            uid=uid_of(workload),
            name=describe(workload),
            node=self.quota.queues[queue_charged(workload)],
            usage=charge_of(workload),
            priority=int((workload.get("spec") or {}).get("priority") or 0),
            time=self.gangs.order(workload)[1],
            reserved_at=moment(condition(workload, "QuotaReserved").get("lastTransitionTime")),
            is_leaving=is_true(workload, "Evicted"),
        )

    def asking(self, workload: Json, demands: list[Demand], spared: Iterable[str] = ()) -> Asking:
        node = self.node_of(workload)
        queue = self.stored.get("clusterqueues", node.name) or {}
        minus, time, uid = self.gangs.order(workload)
        return Asking(uid, node, queue, demands, -minus, time, frozenset(spared))

    def outcome(self, workload: Json, heads: list[Json]) -> Outcome:
        """`starts`, `evicts` with the names of the victims, `waits`, or `undecided` with why."""
        demands = self.gangs.demands(workload)
        costs = [self.gangs.demands(one) for one in heads]
        if demands is None or None in costs:
            return "undecided", "what it costs cannot be read"
        ask = self.asking(workload, demands)
        spared = self.spared(workload)
        counted = [(one.count, one.least, one.requests, one.spec, one.group) for one in demands]
        key = (ask.node.name, ask.priority, ask.time, repr(counted), frozenset(spared), *map(uid_of, heads))
        if key not in self._known:
            try:
                self._known[key] = self._decide(workload, demands, spared, heads)
            except Unreadable as error:
                self._known[key] = "undecided", f"whether its pods may use flavor {error}"
        return self._known[key]

    def node_of(self, workload: Json) -> Node:
        queue = self.gangs.cluster_queue(workload)
        assert queue is not None
        return self.quota.queues[queue["metadata"]["name"]]

    def is_unsettled(self, workload: Json) -> bool:
        """Does somebody leave its tree?"""
        tree = self.quota.beside(self.node_of(workload))
        return any(one.is_leaving and one.node in tree for one in self.holders)

    def missing(self, workload: Json) -> set[tuple[str, str, int]] | None:
        """Flavor, resource and how much more it needs there. None: that cannot be read."""
        demands = self.gangs.demands(workload)
        if demands is None or self.quota.lost or not self.quota.is_readable(self.node_of(workload)):
            return None
        turn = Turn(self.stored, self.holders, self.rules.fair_sharing, partial_admission=False)
        try:
            scans = turn.scans(self.asking(workload, demands, self.spared(workload)))
            return {one for scan in scans for one in scan.assignment.missing}
        except Unreadable:
            return None

    def _decide(self, workload: Json, demands: list[Demand], spared: set[str], heads: list[Json]) -> Outcome:
        node = self.asking(workload, demands).node
        tree = {id(one) for one in node.root().everyone()}
        holders = [one for one in self.holders if id(one.node) in tree]
        found: set[str] = set()
        victims: set[str] = set()
        for spare in [spared, set[str]()] if spared else [set[str]()]:
            ask = self.asking(workload, demands, spare)
            for turn in self._turns(holders):
                if not heads:
                    entry = turn.look(ask)
                    turn.serve([entry])
                    found.add(entry.outcome)
                    victims.update(one.name for one in entry.victims if not one.is_leaving)
                    continue
                if len(heads) >= MOST_HEADS:
                    return "undecided", "too many heads of strict queues wait beside it"
                for order in self._orders(turn, ask, heads):
                    turn.serve(order)
                    mine = next(one for one in order if one.asking is ask)
                    found.add(mine.outcome)
                    victims.update(one.name for one in mine.victims if not one.is_leaving)
        found = {"waits" if one == "awaits" else one for one in found}
        if found == {"waits"}:
            return "waits", ""
        if any(one.is_leaving for one in holders):
            return "undecided", "somebody leaves this very tree, and whose room that becomes is not stored"
        if "waits" in found:
            why = "which gangs it once made way for" if spared else "who is first of those who wait or leave"
            return "undecided", f"it depends on {why}"
        if "evicts" in found:
            if self._goes_in_circles(workload, demands, holders):
                return "undecided", "those it may push out would push it out in turn"
            return "evicts", ", ".join(sorted(victims))
        return "starts", ""

    def _goes_in_circles(self, workload: Json, demands: list[Demand], holders: list[Holder]) -> bool:
        """Once it is in, would somebody who waits then push it out, or push out those who would? Somewhere such a
        circle has to end, and where it did is not stored."""
        turn = next(self._turns(holders))
        ask = self.asking(workload, demands)
        with self._moved_in(turn, ask) as (mine, gone):
            return self._loses_its_place(turn, mine, list(self._others(ask, {one.uid for one in gone})), DEPTH)

    @contextmanager
    def _moved_in(self, turn: Turn, ask: Asking) -> Iterator[tuple[Holder, list[Holder]]]:
        """The tree with this gang in it, and without the gangs that it pushes out."""
        entry, before = turn.look(ask), turn.holders
        now = max((one.reserved_at for one in before), default=0) + 1
        mine = Holder(ask.uid, ask.uid, ask.node, entry.assignment.usage, ask.priority, ask.time, now, False)
        for one in entry.victims:
            one.go()
        mine.come_back()
        turn.holders = [*(one for one in before if one not in entry.victims), mine]
        try:
            yield mine, entry.victims
        finally:
            turn.holders = before
            mine.go()
            for one in entry.victims:
                one.come_back()

    def _loses_its_place(self, turn: Turn, mine: Holder, waiting: list[Asking], depth: int) -> bool:
        for one in waiting:
            entry = turn.look(one)
            if mine in entry.victims:
                return True
            if not entry.victims or not depth:
                continue
            with self._moved_in(turn, one) as (_, gone):
                lost = [self._known_asking[other.uid] for other in gone if other.uid in self._known_asking]
                if self._loses_its_place(turn, mine, lost, depth - 1):
                    return True
        return False

    @cached_property
    def _known_asking(self) -> dict[str, Asking]:
        """Everybody, as if they asked."""
        found = {}
        for one in self.gangs.all:
            demands = self.gangs.demands(one)
            if demands is not None and self.gangs.cluster_queue(one) is not None:
                found[uid_of(one)] = self.asking(one, demands)
        return found

    def _others(self, ask: Asking, gone: set[str]) -> Iterator[Asking]:
        """Those of its tree who wait, or have just been pushed out."""
        tree, holding = self.quota.beside(ask.node), set(self.names) - gone
        for uid, one in self._known_asking.items():
            if uid not in holding and uid != ask.uid and one.node in tree:
                yield one

    def _turns(self, holders: list[Holder]) -> Iterator[Turn]:
        equal = len({(id(one.node), one.priority, one.reserved_at) for one in holders}) < len(holders)
        for latest_uid_first in (False, True) if equal else (False,):
            yield Turn(self.stored, holders, self.rules.fair_sharing, self.rules.partial_admission, latest_uid_first)

    def _orders(self, turn: Turn, ask: Asking, heads: list[Json]) -> Iterator[list[Entry]]:
        """Least borrowing first, then priority and age; by shares, any order may be the one. What a head that goes from
        flavor to flavor waits for is one of several things."""
        asked = [self.asking(one, self.gangs.demands(one) or [], self.spared(one)) for one in heads]
        for scans in product(*([*range(len(turn.scans(one)))] for one in asked)):
            entries = [turn.look(ask), *(turn.scans(one)[at] for one, at in zip(asked, scans, strict=True))]
            if self.rules.fair_sharing:
                for order in permutations(entries):
                    yield [Entry(one.asking, one.assignment, one.victims) for one in order]
            else:
                yield sorted(entries, key=_turn)

    def spared(self, workload: Json) -> set[str]:
        """The gangs it had to make way for, and those that made way for it: no gang goes in circles."""
        every = self.stored.all("workloads")
        marked = {mark_of(uid_of(one)): uid_of(one) for one in every}
        by = {uid_of(one): {marked.get(other, other) for other in preemptors_of(one)} for one in every}
        found: set[str] = set()
        ask = [uid_of(workload)]
        while ask:
            for uid in by.get(ask.pop(), set()) - found:
                found.add(uid)
                ask.append(uid)
        found |= {uid for uid, preemptors in by.items() if uid_of(workload) in preemptors}
        return found & set(self.names)


def _turn(one: Entry) -> tuple[int, int, int, str]:
    return (one.assignment.height, -one.asking.priority, one.asking.time, one.asking.uid)
