"""The heads of all queues, found by what has changed since they were last asked for.

A queue is asked when its line or its tree changed; of its gangs those are tried for which there may be enough
(`waiting`, `bucket`, `reach`). Costs about what changed, however many wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.index.reach import QueueSurvey, Reach
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.remembered import Remembered

MOST_TREES = 1_000
"""Trees for which what could be reached is remembered."""
NO_QUEUES: frozenset[str] = frozenset()


class IndexedHeads:
    """See `protocol.Heads`."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._hot: set[str] = set()
        """Cluster queues that may have a gang to try."""
        self._called: set[str] = set()
        """Those in which inadmissible gangs are to be looked through before the next head."""
        self._freed: dict[QuotaTreeNode, None] = {}
        """Trees in which quota came back since heads were last asked for."""
        self._out: set[str] = set()
        """Those whose heads are in the cycle that goes on, and may come back."""
        self._stalled: dict[str, int] = {}
        """The tree's generation at which a queue was found to have to wait; no need to ask again at that one."""
        self._resting: dict[QuotaTreeNode, set[str]] = {}
        """By tree: queues that have nothing new to decide before it changes."""
        self._held: dict[str, Usage] = {}
        self._surveys: Remembered[QuotaTreeNode, tuple[int, Reach, dict[str, QueueSurvey]]] = Remembered(MOST_TREES)

    # What has happened.

    def arrived(self, record: QueueRecord) -> None:
        self._stalled.pop(record.name, None)
        self._hot.add(record.name)

    def freed(self, node: QuotaTreeNode) -> None:
        root = node.root()
        if self._state.rules.indexes:
            self._freed[root] = None  # gone through once, however often that happens until then
            return
        for record in self._records_in(root):
            self._requeue(record, None)

    def called(self, record: QueueRecord) -> None:
        if len(record.waiting) or record.name in self._out:
            self._stalled.pop(record.name, None)
            self._call(record)

    def held(self, record: QueueRecord, usage: Usage) -> None:
        known = self._held.get(record.name)
        if known is None:
            self._held[record.name] = dict(usage)
        else:
            known.update(usage)

    def changed(self) -> None:
        self._resting.clear()
        self._stalled.clear()
        for record in self._state.records.values():
            self._requeue(record, None)
            if len(record.waiting):
                self._hot.add(record.name)

    def forget(self, record: QueueRecord) -> None:
        for names in (self._hot, self._called, self._out):
            names.discard(record.name)
        self._stalled.pop(record.name, None)

    # Which gangs are tried.

    def heads(self, *, again: bool = False) -> list[QueueMember]:
        state = self._state
        if self._held:
            self._call_evictors()
        for root in self._freed:
            for record in self._records_in(root):
                if len(record.waiting) or record.name in self._out:
                    self._call(record)
        self._freed.clear()
        changed = state.forest.take_changed()
        for root in changed & self._resting.keys() if changed and self._resting else ():
            self._hot |= self._resting.pop(root)
        self._out.clear()
        asked: dict[QuotaTreeNode, list[QueueRecord]] = {}
        for name in sorted(self._hot):
            record = state.records[name]
            root = record.node.root()
            if record.inactive:
                self._hot.discard(name)  # back when that changes
                continue
            if not again and self._stalled.get(name) == root.generation:
                self._hot.discard(name)
                self._resting.setdefault(root, set()).add(name)
                continue
            asked.setdefault(root, []).append(record)
        heads: list[QueueMember] = []
        for root, records in asked.items():
            if not again:
                records += [record for record in self._stuck(root) if record not in records]
            if state.rooms_in(root):
                with state.rooms_kept(root):
                    heads += self._heads_of(records)
            else:
                heads += self._heads_of(records)
        return heads

    def pause(self, record: QueueRecord) -> None:
        self._stalled[record.name] = record.node.root().generation

    def rest(self, records: Iterable[QueueRecord]) -> None:
        trees: dict[QuotaTreeNode, list[QueueRecord]] = {}
        for record in records:
            self.pause(record)
            if not record.waiting.strict:
                trees.setdefault(record.node.root(), []).append(record)
        for root, found in trees.items():
            with self._state.rooms_kept(root):
                for record in found:
                    survey = self._survey(record)
                    if survey is not None:
                        record.waiting.sweep(survey)

    def _call_evictors(self) -> None:
        """Gangs that are inadmissible for want of victims may try again where new ones hold quota."""
        held, self._held = self._held, {}
        reach = Reach(self._state.records, self._state.settings)
        for name, usage in held.items() if self._state.rules.calls_evictors else ():
            record = self._state.records.get(name)
            if record is None:
                continue
            if record.fact.preemption.within_cluster_queue != "Never":
                self._call(record)
            if _takes_from_others(record.node, usage):
                for other in self._records_in(record.node.root()):
                    if any(reach.may_reclaim(other, at) for at in usage):
                        self._call(other)

    def _records_in(self, root: QuotaTreeNode) -> list[QueueRecord]:
        records = self._state.records
        return [records[node.name] for node in root.queues() if node.name in records]

    def _call(self, record: QueueRecord) -> None:
        self._called.add(record.name)
        self._hot.add(record.name)

    def _stuck(self, root: QuotaTreeNode) -> list[QueueRecord]:
        """Strict queues at rest: their heads keep what they wait for, in every cycle that concerns their tree."""
        records = self._state.records
        resting = sorted(self._resting.get(root, NO_QUEUES))
        return [records[name] for name in resting if name in records and records[name].waiting.strict]

    def _heads_of(self, records: list[QueueRecord]) -> list[QueueMember]:
        heads = []
        for record in records:
            survey = self._survey(record)
            if record.name in self._called:
                self._requeue(record, survey)
            first = self._preemptor(record) if self._state.rooms else ""
            head = record.waiting.pop(None if record.waiting.strict else survey, first)
            if head is not None:
                heads.append(head)
                self._out.add(record.name)
            else:
                self._hot.discard(record.name)
        return heads

    def _preemptor(self, record: QueueRecord) -> str:
        """UID of a gang for which quota is kept: that is free to it alone, whatever was found of its shape."""
        rooms = self._state.rooms_in(record.node.root())
        if record.waiting.sticky in rooms:
            return record.waiting.sticky
        return next((uid for uid, room in rooms.items() if room.node is record.node and uid in record.waiting), "")

    def _requeue(self, record: QueueRecord, survey: QueueSurvey | None) -> None:
        """Call back inadmissible gangs; with a `survey` only those for which there may be enough."""
        self._called.discard(record.name)
        state = self._state
        stays = {
            member.uid
            for member in record.waiting.inadmissible_alone()
            if state.is_asleep(member) or not state.namespace_matches(record, member)
        }
        if record.waiting.requeue(stays=stays, survey=survey):
            self._hot.add(record.name)

    def _survey(self, record: QueueRecord) -> QueueSurvey | None:
        """What a queue could reach, worked out once for as long as its tree stays as it is."""
        if not self._state.rules.indexes:
            return None
        root = record.node.root()
        known = self._surveys.get(root)
        if known is None or known[0] != root.generation:
            reach = Reach(self._state.records, self._state.settings)
            known = self._surveys.remember(root, (root.generation, reach, {}))
        survey = known[2].get(record.name)
        if survey is None:
            survey = known[2][record.name] = QueueSurvey(known[1], record, self._state)
        return survey


def _takes_from_others(node: QuotaTreeNode, usage: Usage) -> bool:
    """Does the queue borrow there, or a cohort above it? One that lends what it owns makes its whole cohort borrow."""
    while node.parent is not None:
        if not node.within_nominal(usage):
            return True
        node = node.parent
    return False
