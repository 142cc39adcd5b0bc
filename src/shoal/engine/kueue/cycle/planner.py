"""How often to ask: one cycle for comparison with Kueue, or cycles until nothing moves.

Owned by `Kueue`. A queue whose head has to wait is not asked again before its tree changes, so a plan over many
waiting gangs costs about what changed. The number of cycles is bounded; what is left then waits for the next plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager

from shoal.engine.kueue.cycle import entry as back
from shoal.engine.kueue.cycle.cycle import Cycle, send_back
from shoal.engine.kueue.cycle.entry import Entry
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import State
from shoal.engine.kueue.decisions import Decisions, Evict, Reserve, Wait
from shoal.engine.kueue.demand import Member
from shoal.engine.kueue.index.reach import QueueSurvey, Reach
from shoal.engine.kueue.quota.tree import Node
from shoal.engine.kueue.unheard import Known, why_waiting

MOST_TREES = 1_000
"""Trees for which what could be reached is remembered."""


class Planner:
    def __init__(self, state: State, register: Register) -> None:
        self.state = state
        self.register = register
        self.cycles = 0
        self._since = 0
        self._surveys: dict[Node, tuple[int, Reach, dict[str, QueueSurvey]]] = {}

    def cycle(self) -> Decisions:
        """Exactly one cycle with one head per cluster queue."""
        heads = self._heads(again=True)
        return self._run(heads)[0]

    def settle(self) -> Decisions:
        """Cycles until nothing moves, merged into one answer: the last word on every gang. A gang that was given quota
        on the way and has to yield to another was never given any: it was not told yet."""
        reserved: dict[str, Reserve] = {}
        evicted: dict[str, Evict] = {}
        waiting: dict[str, Wait] = {}
        skipped: dict[str, int] = {}
        warnings: list[str] = []
        idle: dict[str, int] = {}
        budget = self.state.settings.step_budget
        self._since = self.cycles + 1
        for _ in range(budget):
            heads = self._heads()
            if not heads:
                break
            generations = {head.queue: self._generation(head.queue) for head in heads}
            decisions, judged = self._run(heads)
            self._note_idle(judged, generations, idle)
            reserved |= {entry.uid: entry for entry in decisions.reserved}
            waiting |= {entry.uid: entry for entry in decisions.waiting}
            for entry in decisions.evicted:
                if self._take_back(entry, reserved):
                    waiting.pop(entry.uid, None)
                else:
                    evicted[entry.uid] = entry
            for name, count in decisions.skipped_preemptions.items():
                skipped[name] = skipped.get(name, 0) + count
        else:
            warnings.append(f"decisions did not settle within {budget} cycles; the rest waits for the next plan")
        for uid in reserved:
            waiting.pop(uid, None)
        waiting |= self._notify_unheard(reserved.keys() | waiting.keys())
        return Decisions(
            reserved=tuple(reserved.values()),
            evicted=tuple(evicted.values()),
            waiting=tuple(waiting.values()),
            skipped_preemptions=skipped,
            warnings=tuple(warnings),
            unfinished=bool(warnings),
        )

    def _take_back(self, evict: Evict, reserved: dict[str, Reserve]) -> bool:
        """Has the victim its quota since this very plan? Then it waits on, and its preemptor need not wait for it."""
        if self.state.settings.exact or reserved.pop(evict.uid, None) is None:
            return False
        self.register.take_back(evict.gang)
        return True

    def _notify_unheard(self, heard: Set[str]) -> dict[str, Wait]:
        """Newcomers that nobody looked at because they have no chance get to know why, too."""
        unheard, self.register.unheard = self.register.unheard, {}
        found: dict[str, Wait] = {}
        known = Known()
        for key in unheard:
            member = self.register.members.get(key)
            record = self.state.records.get(member.queue) if member is not None else None
            if member is None or record is None or record.inactive or member.uid in heard:
                continue
            if member.uid in record.waiting and not self.register.is_asleep(member):
                wait = why_waiting(member, record, self.state, self.register.now, known)
                if wait is not None:
                    found[member.uid] = wait
        return found

    def _heads(self, *, again: bool = False) -> list[Member]:
        """One head from every queue that may have something new to say; `again`: from all, whatever is known."""
        forest, hot = self.state.forest, self.register.hot
        hot |= forest.woken
        forest.woken.clear()
        asked: dict[Node, list[QueueRecord]] = {}
        for name in sorted(hot):
            record = self.state.records[name]
            root = record.node.root()
            if record.inactive:
                hot.discard(name)  # back when that changes
                continue
            if not again and record.stalled_at == root.generation:
                hot.discard(name)
                forest.rest(root, name)
                continue
            asked.setdefault(root, []).append(record)
        heads: list[Member] = []
        for root, records in asked.items():
            if not again:
                records += [record for record in self._stuck(root) if record not in records]
            if self.state.rooms_in(root):
                with self._kept(root):
                    heads += self._heads_of(records)
            else:
                heads += self._heads_of(records)
        return heads

    def _stuck(self, root: Node) -> list[QueueRecord]:
        """Strict queues at rest: their heads keep what they wait for, in every cycle that concerns their tree."""
        records = self.state.records
        return [records[name] for name in sorted(self.state.forest.resting(root)) if records[name].waiting.strict]

    def _heads_of(self, records: list[QueueRecord]) -> list[Member]:
        heads = []
        for record in records:
            survey = self._survey(record)
            if record.called:
                self.register.requeue(record, survey)
            sticky = record.waiting.sticky
            first = sticky if sticky in self.state.rooms else ""  # what is kept for it is free to it alone
            head = record.waiting.pop(None if record.waiting.strict else survey, first)
            if head is not None:
                heads.append(head)
            else:
                self.register.hot.discard(record.name)
        return heads

    @contextmanager
    def _kept(self, root: Node) -> Iterator[None]:
        """The tree with the room in it that is kept for preemptors: others have no chance there."""
        rooms = list(self.state.rooms_in(root).values())
        for room in rooms:
            room.node.add(room.usage)
        yield
        for room in rooms:
            room.node.remove(room.usage)

    def _survey(self, record: QueueRecord) -> QueueSurvey | None:
        """What a queue could reach, worked out once for as long as its tree stays as it is."""
        if self.state.settings.exact:
            return None
        root = record.node.root()
        known = self._surveys.get(root)
        if known is None or known[0] != root.generation:
            if len(self._surveys) >= MOST_TREES:
                self._surveys.clear()
            known = self._surveys[root] = (root.generation, Reach(self.state.records, self.state.settings), {})
        survey = known[2].get(record.name)
        if survey is None:
            survey = known[2][record.name] = QueueSurvey(known[1], record, self.state.flavors)
        return survey

    def _generation(self, name: str) -> int:
        return self.state.records[name].node.root().generation

    def _run(self, heads: list[Member]) -> tuple[Decisions, list[Entry]]:
        self.cycles += 1
        state = self.state
        decisions, judged = Cycle(state, self.register.now, self.cycles, self._since).run(heads)
        for entry in judged:
            if entry.admitted:
                continue
            record, member = entry.record, entry.member
            exact = state.settings.exact
            known = (
                None if exact or entry.assignment is None else record.waits_for(member, state.flavors, state.settings)
            )
            send_back(entry, record, known, exact=exact)
            if member.uid in state.rooms:
                if entry.back in (back.PENDING_PREEMPTION, back.AFTER_NOMINATION) or member.flavors_remain:
                    record.waiting.sticky = member.uid  # whatever the strategy: its room must not wait long
                else:
                    state.give_up_room(member.uid)
            self._make_way(record, member)
            if entry.back == back.PENDING_PREEMPTION and not state.settings.exact:
                record.stalled_at = self._generation(record.name)  # before somebody leaves it has nothing new to say
        return decisions, judged

    def _make_way(self, record: QueueRecord, member: Member) -> None:
        """No gang leaves for it any more: in a strict queue, the first is the head again."""
        waiting, state = record.waiting, self.state
        if waiting.strict and waiting.sticky == member.uid not in state.rooms and not state.settings.exact:
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
            if scanning and self._give_up_scanning(entries):
                idle[tree] = 0  # others of their queues have their turn now
            else:
                self._stall([entry.record for entry in entries])

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

    def _stall(self, records: list[QueueRecord]) -> None:
        """Not to be asked again before something changes: gangs there without a chance become inadmissible."""
        for record in records:
            root = record.node.root()
            record.stalled_at = root.generation
            survey = self._survey(record)
            if survey is not None and not record.waiting.strict:
                with self._kept(root):
                    record.waiting.sweep(survey)

    def _moved(self, entry: Entry, generations: dict[str, int]) -> bool:
        name, waiting = entry.record.name, entry.record.waiting
        if entry.admitted or generations[name] != self._generation(name):
            return True
        return waiting.is_inadmissible(entry.member)
