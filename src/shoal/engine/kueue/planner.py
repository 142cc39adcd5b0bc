"""How often to ask: one cycle for comparison with Kueue, or cycles until nothing moves.

Owned by `Kueue`. A queue whose head has to wait is not asked again before its tree changes, so a plan over many
waiting gangs costs about what changed. The number of cycles is bounded; what is left then waits for the next plan.
"""

from __future__ import annotations

from functools import partial

from . import entry as back
from .cycle import Cycle, send_back
from .decisions import Decisions, Evict, Reserve, Wait
from .demand import Member
from .entry import Entry
from .reach import Reach
from .record import QueueRecord
from .register import Register
from .state import State
from .waiting import Survey


class Planner:
    def __init__(self, state: State, register: Register) -> None:
        self.state = state
        self.register = register
        self.cycles = 0

    def cycle(self) -> Decisions:
        """Exactly one cycle with one head per cluster queue."""
        heads = self._heads(again=True)
        return self._run(heads)[0]

    def settle(self) -> Decisions:
        """Cycles until nothing moves, merged into one answer: the last word on every gang."""
        reserved: list[Reserve] = []
        evicted: dict[str, Evict] = {}
        waiting: dict[str, Wait] = {}
        skipped: dict[str, int] = {}
        warnings: list[str] = []
        idle: dict[str, int] = {}
        budget = self.state.settings.step_budget
        for _ in range(budget):
            heads = self._heads()
            if not heads:
                break
            generations = {head.queue: self._generation(head.queue) for head in heads}
            decisions, judged = self._run(heads)
            self._note_idle(judged, generations, idle)
            reserved += decisions.reserved
            evicted |= {entry.uid: entry for entry in decisions.evicted}
            waiting |= {entry.uid: entry for entry in decisions.waiting}
            for name, count in decisions.skipped_preemptions.items():
                skipped[name] = skipped.get(name, 0) + count
        else:
            warnings.append(f"decisions did not settle within {budget} cycles; the rest waits for the next plan")
        for entry in reserved:
            waiting.pop(entry.uid, None)
        return Decisions(
            reserved=tuple(reserved),
            evicted=tuple(evicted.values()),
            waiting=tuple(waiting.values()),
            skipped_preemptions=skipped,
            warnings=tuple(warnings),
        )

    def _heads(self, *, again: bool = False) -> list[Member]:
        """One head from every queue that may have something new to say; `again`: from all, whatever is known."""
        reach = None if again else self._reach()
        heads = []
        for name in sorted(self.register.hot):
            record = self.state.records[name]
            if record.inactive or (not again and record.stalled_at == self._generation(name)):
                continue
            head = record.waiting.pop(_survey(reach, record))
            if head is not None:
                heads.append(head)
            else:
                self.register.hot.discard(name)
        return heads

    def _reach(self) -> Reach | None:
        return None if self.state.settings.exact else Reach(self.state.records, self.state.settings)

    def _generation(self, name: str) -> int:
        return self.state.records[name].node.root().generation

    def _run(self, heads: list[Member]) -> tuple[Decisions, list[Entry]]:
        self.cycles += 1
        decisions, judged = Cycle(self.state, self.register.now, self.cycles).run(heads)
        for entry in judged:
            if entry.admitted:
                continue
            send_back(entry, entry.record)
            if entry.member.uid in self.state.rooms:
                if entry.back in (back.PENDING_PREEMPTION, back.AFTER_NOMINATION) or entry.member.flavors_remain:
                    entry.record.waiting.sticky = entry.member.uid  # whatever the strategy: its room must not wait long
                else:
                    self.state.give_up_room(entry.member.uid)
        return decisions, judged

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
            longest = max((len(group.flavors) for entry in entries for group in entry.record.fact.groups), default=1)
            if idle[tree] > (longest if scanning else 0):
                self._stall([entry.record for entry in entries])

    def _stall(self, records: list[QueueRecord]) -> None:
        """Not to be asked again before something changes: whoever waits there without hope is set aside."""
        reach = self._reach()
        for record in records:
            record.stalled_at = self._generation(record.name)
            survey = _survey(reach, record)
            if survey is not None:
                record.waiting.sweep(survey)

    def _moved(self, entry: Entry, generations: dict[str, int]) -> bool:
        name, waiting = entry.record.name, entry.record.waiting
        if entry.admitted or generations[name] != self._generation(name):
            return True
        return waiting.is_parked(entry.member)


def _survey(reach: Reach | None, record: QueueRecord) -> Survey | None:
    """How a queue tells who waits in vain; a strict one tries its first whatever is known."""
    return None if reach is None or record.waiting.strict else partial(reach.survey, record)
