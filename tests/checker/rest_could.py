"""Could a gang that waits get quota now, or push others out for it? Asked of all turns that the plain rules leave open.

Which turn it is depends on what stored objects do not tell: whose quota is older within one second, who came first of
two heads where shares count, and whether somebody whom a gang once made way for may still be spared. Where those
differ in the answer, it is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations

from tests.checker.rest_flavors import Unreadable
from tests.checker.rest_gangs import Demand, Gangs
from tests.checker.rest_holders import Asking, Holder
from tests.checker.rest_objects import Json, Rules, Stored, condition, is_true, moment, uid_of
from tests.checker.rest_quota import Node, Quota, charge_of, describe, preemptors_of, queue_charged
from tests.checker.rest_turn import Entry, Turn

MOST_HEADS = 4
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
        """`starts`, `evicts` with whom, `waits`, or `undecided` with why."""
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
            return turn.look(self.asking(workload, demands, self.spared(workload))).assignment.missing
        except Unreadable:
            return None

    def _decide(self, workload: Json, demands: list[Demand], spared: set[str], heads: list[Json]) -> Outcome:
        node = self.asking(workload, demands).node
        tree = {id(one) for one in node.root().everyone()}
        holders = [one for one in self.holders if id(one.node) in tree]
        found: set[str] = set()
        whom: set[str] = set()
        for spare in [spared, set[str]()] if spared else [set[str]()]:
            ask = self.asking(workload, demands, spare)
            for turn in self._turns(holders):
                if not heads:
                    entry = turn.look(ask)
                    turn.serve([entry])
                    found.add(entry.outcome)
                    whom.update(one.name for one in entry.victims if not one.is_leaving)
                    continue
                if len(heads) >= MOST_HEADS:
                    return "undecided", "too many heads of strict queues wait beside it"
                for order in self._orders(turn, ask, heads):
                    turn.serve(order)
                    mine = next(one for one in order if one.asking is ask)
                    found.add(mine.outcome)
                    whom.update(one.name for one in mine.victims if not one.is_leaving)
        found = {"waits" if one == "awaits" else one for one in found}
        if found == {"waits"}:
            return "waits", ""
        if any(one.is_leaving for one in holders):
            return "undecided", "somebody leaves this very tree, and whose room that becomes is not stored"
        if "waits" in found:
            why = "whom it once made way for" if spared else "who is first of those who wait or leave"
            return "undecided", f"it depends on {why}"
        return ("evicts", ", ".join(sorted(whom))) if "evicts" in found else ("starts", "")

    def _turns(self, holders: list[Holder]) -> Iterator[Turn]:
        equal = len({(id(one.node), one.priority, one.reserved_at) for one in holders}) < len(holders)
        for latest_uid_first in (False, True) if equal else (False,):
            yield Turn(self.stored, holders, self.rules.fair_sharing, self.rules.partial_admission, latest_uid_first)

    def _orders(self, turn: Turn, ask: Asking, heads: list[Json]) -> Iterator[list[Entry]]:
        """Least borrowing first, then priority and age; by shares, any order may be the one."""
        asked = [ask, *(self.asking(one, self.gangs.demands(one) or [], self.spared(one)) for one in heads)]
        if not self.rules.fair_sharing:
            entries = [turn.look(one) for one in asked]
            yield sorted(
                entries, key=lambda one: (one.assignment.height, -one.asking.priority, one.asking.time, one.asking.uid)
            )
            return
        for order in permutations(asked):
            yield [turn.look(one) for one in order]

    def spared(self, workload: Json) -> set[str]:
        """Whom it had to make way for, and who made way for it: nobody goes in circles."""
        by = {uid_of(one): preemptors_of(one) for one in self.stored.all("workloads")}
        found: set[str] = set()
        ask = [uid_of(workload)]
        while ask:
            for uid in by.get(ask.pop(), set()) - found:
                found.add(uid)
                ask.append(uid)
        found |= {uid for uid, whom in by.items() if uid_of(workload) in whom}
        return found & set(self.names)
