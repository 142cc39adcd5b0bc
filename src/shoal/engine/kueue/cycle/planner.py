"""How often to ask: one cycle for comparison with Kueue, or cycles until nothing moves.

Owned by `Kueue`. A queue whose head has to wait is not asked again before its tree changes, so a plan over many
waiting gangs costs about what changed. The number of cycles is bounded; what is left then waits for the next plan.
"""

from __future__ import annotations

from collections.abc import Set

from shoal.engine.kueue.cycle import entry as back
from shoal.engine.kueue.cycle.backfill import QueueBackfill
from shoal.engine.kueue.cycle.cycle import QueueCycle, send_back
from shoal.engine.kueue.cycle.entry import Entry
from shoal.engine.kueue.cycle.placing import place_need, topologies_matter
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.decisions import Displace, Evict, QueueDecisions, Reserve, Shed, Wait
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.flavors.assignment import WAITING_FOR_QUOTA
from shoal.engine.kueue.index.waits_for import Free
from shoal.engine.kueue.unheard import Known, why_waiting
from shoal.engine.model import Turn

MOST_CYCLES = 100_000
"""That one plan may take; a bound, not a target."""
RESTLESS = 1_000
"""Cycles after which a plan is taken for one that goes round: a gang gets what another freed, and is sent off again."""
KEPT_FROM = "What is free is kept for a workload at the front of another queue of its cohort"
"""Said of a gang that fits, and that the head of a strict queue keeps from starting."""
MOST_TOLD = 20
"""Gangs of one queue up to which a plan says why newcomers wait."""
CROWD = 1_000
"""The same of all queues together, those with quota included."""


class QueuePlanner:
    def __init__(self, state: QueueState, register: Register) -> None:
        self.state = state
        self.register = register
        self.heads = state.heads
        self.backfill = QueueBackfill(state)
        self.cycles = 0
        self._since = 0

    def cycle(self) -> QueueDecisions:
        """Exactly one cycle with one head per cluster queue."""
        heads = self.heads.heads(again=True)
        return self._run(heads)[0]

    def settle(self, most: int | None = None) -> QueueDecisions:
        """Cycles until nothing moves, or until so many gangs have quota, merged into one answer: the last word on every
        gang. A gang that was given quota on the way and has to yield to another was never given any: it was not told
        yet. What was not looked at is looked at by the next plan."""
        reserved: dict[str, Reserve] = {}
        evicted: dict[str, Evict] = {}
        waiting: dict[str, Wait] = {}
        skipped: dict[str, int] = {}
        warnings: list[str] = []
        idle: dict[str, int] = {}
        self._since = self.cycles + 1
        first = True
        placed: dict[str, Reserve] = {}
        displaced: dict[str, Displace] = {}
        shed: dict[str, Shed] = {}
        turns: list[Turn] = []
        enough = False
        for cycle in range(MOST_CYCLES):
            enough = most is not None and len(reserved) >= most
            if enough:
                break
            self.state.is_restless = cycle >= RESTLESS
            if self.state.surplus.fillers or self.state.surplus.turned:
                turns += self.backfill.take_turns()
            self.register.call_for_places()  # a gang that had its quota since this very plan gave places back
            heads = self.heads.heads()
            if not heads and (not first or not self.state.needing_places):
                break
            first = False
            generations = {head.queue: self._generation(head.queue) for head in heads}
            decisions, judged = self._run(heads)
            self._note_idle(judged, generations, idle)
            reserved |= {entry.uid: entry for entry in decisions.reserved}
            waiting |= {entry.uid: entry for entry in decisions.waiting}
            waiting |= {one.member.uid: _kept_from(one) for one in judged if one.passed}
            placed |= {entry.uid: entry for entry in decisions.placed}
            displaced |= {entry.uid: entry for entry in decisions.displaced}
            for each in decisions.shed:
                shed.setdefault(each.pod, each)
            for entry in decisions.evicted:
                if self._take_back(entry, reserved):
                    waiting.pop(entry.uid, None)
                else:
                    evicted[entry.uid] = entry
            for name, count in decisions.skipped_preemptions.items():
                skipped[name] = skipped.get(name, 0) + count
        else:
            warnings.append(f"decisions did not settle within {MOST_CYCLES} cycles; the rest waits for the next plan")
        self.state.is_restless = False
        if self.state.backfilling and not enough:  # the front may have what it waits for, and is not looked at yet
            reserved |= {entry.uid: entry for entry in self.backfill.fill(self.register.now)}
        for uid in reserved:
            waiting.pop(uid, None)
        waiting |= self._notify_unheard(reserved.keys() | waiting.keys())
        return QueueDecisions(
            reserved=tuple(reserved.values()),
            evicted=tuple(evicted.values()),
            waiting=tuple(waiting.values()),
            placed=tuple(placed.values()),
            displaced=tuple(displaced.values()),
            shed=tuple(shed.values()),
            turns=tuple(turns),
            skipped_preemptions=skipped,
            warnings=tuple(warnings),
            unfinished=enough or bool(warnings),
        )

    def _take_back(self, evict: Evict, reserved: dict[str, Reserve]) -> bool:
        """Has the victim its quota since this very plan? Then it waits on, and its preemptor need not wait for it."""
        if not self.state.rules.takes_back or reserved.pop(evict.uid, None) is None:
            return False
        self.register.take_back(evict.gang)
        for later in self._equals_behind(self.register.members[evict.gang], reserved):
            del reserved[later.uid]
            self.register.take_back(later.key)  # the first of them tries first, on what is left
        return True

    def _equals_behind(self, first: QueueMember, reserved: dict[str, Reserve]) -> list[QueueMember]:
        """Gangs that ask for the same in the same queue, came later, and have quota since this very plan: on another
        flavor, or with fewer pods."""
        members = (self.register.members[one.gang] for one in reserved.values() if one.cluster_queue == first.queue)
        return [one for one in members if one.shape == first.shape and one.order > first.order]

    def _notify_unheard(self, heard: Set[str]) -> dict[str, Wait]:
        """New gangs that the cycle did not look at, because they have no chance, get to know why, too; where many wait,
        when they are asked about (`Kueue.reason`)."""
        unheard, self.register.unheard = self.register.unheard, {}
        found: dict[str, Wait] = {}
        known = Known()
        crowded = len(self.register.members) > CROWD
        for key in unheard:
            member = self.register.members.get(key)
            record = self.state.records.get(member.queue) if member is not None else None
            if member is None or record is None or record.inactive or member.uid in heard:
                continue
            if (crowded or len(record.waiting) > MOST_TOLD) and not member.gang.nowhere:
                continue
            if member.uid in record.waiting and not self.register.is_asleep(member):
                wait = why_waiting(member, record, self.state, self.register.now, known)
                if wait is not None:
                    found[member.uid] = wait
        return found

    def _generation(self, name: str) -> int:
        return self.state.records[name].node.root().generation

    def _run(self, heads: list[QueueMember]) -> tuple[QueueDecisions, list[Entry]]:
        self.cycles += 1
        state = self.state
        decisions, judged = QueueCycle(state, self.register.now, self.cycles, self._since).run(heads)
        for entry in judged:
            if entry.admitted:
                continue
            record, member = entry.record, entry.member
            known = None
            if state.rules.indexes and entry.assignment is not None:
                known = record.waits_for(member, state.flavors, state.settings)
                # One that was overtaken is tried again before places move.
                if entry.back != back.AFTER_NOMINATION and topologies_matter(member, record, state.settings):
                    need = place_need(member, record, known, state.settings)
                    state.lacking.note(record.name, need.within(Free(record.node)) if need is not None else None)
            send_back(entry, record, known, state.rules)
            if member.uid in state.rooms:
                if entry.back in (back.PENDING_PREEMPTION, back.AFTER_NOMINATION) or member.flavors_remain:
                    record.waiting.sticky = member.uid  # whatever the strategy: its room must not wait long
                else:
                    state.give_up_room(member.uid)
            self._make_way(record, member)
            if entry.back == back.PENDING_PREEMPTION and state.rules.keeps_room:
                self.heads.pause(record)  # before a victim leaves it has nothing new to decide
        return decisions, judged

    def _make_way(self, record: QueueRecord, member: QueueMember) -> None:
        """No gang leaves for it any more: in a strict queue, the first is the head again."""
        waiting, state = record.waiting, self.state
        if waiting.strict and waiting.sticky == member.uid not in state.rooms and state.rules.demotes_preemptors:
            waiting.sticky = ""

    def _note_idle(self, judged: list[Entry], generations: dict[str, int], idle: dict[str, int]) -> None:
        """Queues of a tree in which a whole cycle moved nothing need not be asked again before something does."""
        trees: dict[str, list[Entry]] = {}
        for entry in judged:
            root = entry.record.node.root()
            trees.setdefault(f"{'queue' if root.is_queue else 'cohort'}/{root.name}", []).append(entry)
        for tree, entries in trees.items():
            if any(self._moved(entry, generations) for entry in entries):
                idle[tree] = 0
                continue
            idle[tree] = idle.get(tree, 0) + 1
            scanning = any(entry.member.flavors_remain for entry in entries)
            if idle[tree] <= (max([entry.record.scans for entry in entries]) if scanning else 0):
                continue
            if (scanning and self._give_up_scanning(entries)) or self._let_others_pass(entries):
                idle[tree] = 0  # others of their queues have their turn now
            else:
                self.heads.rest([entry.record for entry in entries])

    def _give_up_scanning(self, entries: list[Entry]) -> bool:
        """Set those aside who go round their flavors without finding what they need; strict heads keep their place."""
        state, found = self.state, False
        for entry in entries:
            record, member = entry.record, entry.member
            if record.waiting.strict or not member.flavors_remain or member.uid not in record.waiting:
                continue
            member.forget()
            state.give_up_room(member.uid)
            record.waiting.set_inadmissible(member, record.waits_for(member, state.flavors, state.settings))
            found = True
        return found

    def _let_others_pass(self, entries: list[Entry]) -> bool:
        """Heads that fit and are kept from it by the head of a strict queue, in every cycle: unless their own queue is
        strict, those behind them get their turn."""
        state, found = self.state, False
        if not state.rules.lets_others_pass:
            return False
        for entry in entries:
            record, member = entry.record, entry.member
            if record.waiting.strict or not entry.overtaken or member.uid not in record.waiting:
                continue
            if member.uid in state.rooms:
                continue
            record.waiting.set_inadmissible(member, record.waits_for(member, state.flavors, state.settings))
            entry.passed = found = True
        return found

    def _moved(self, entry: Entry, generations: dict[str, int]) -> bool:
        name, waiting = entry.record.name, entry.record.waiting
        if entry.admitted or generations[name] != self._generation(name):
            return True
        return waiting.is_inadmissible(entry.member)


def _kept_from(entry: Entry) -> Wait:
    member, name = entry.member, entry.record.name
    return Wait(gang=member.key, uid=member.uid, cluster_queue=name, reason=WAITING_FOR_QUOTA, message=KEPT_FROM)
