"""The specification of heads: every gang of every queue is tried, in order, and the first with a chance is the head.

No memory beyond one plan, no bounds, no notifications: it cannot miss a change. Far too slow for many gangs; tests
compare the index with it, and `Kueue(settings, heads=PlainHeads)` decides by it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.engine.kueue.cycle.cycle import QueueCycle
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.flavors.assignment import Outcome
from shoal.engine.kueue.quota.tree import QuotaTreeNode


class PlainHeads:
    """See `protocol.Heads`. A caller that asks for heads until there are none sees each queue at rest."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._stalled: dict[str, tuple[int, int]] = {}
        """Moment and generation at which a whole cycle moved nothing in a queue."""

    def arrived(self, record: QueueRecord) -> None:
        self._stalled.pop(record.name, None)

    def freed(self, node: QuotaTreeNode) -> None:
        pass

    def called(self, record: QueueRecord) -> None:
        self.arrived(record)

    def held(self, record: QueueRecord, usage: Usage) -> None:
        pass

    def changed(self) -> None:
        pass

    def forget(self, record: QueueRecord) -> None:
        self._stalled.pop(record.name, None)

    def heads(self, *, again: bool = False) -> list[QueueMember]:
        found = {}
        for name, record in sorted(self._state.records.items()):
            member = None if self._is_stalled(record) and not again else self.next_of(record)
            if member is not None:
                found[name] = member
        roots = {self._state.records[name].node.root() for name in found}
        for name, record in sorted(self._state.records.items()):
            if name not in found and record.waiting.strict and not record.inactive and record.node.root() in roots:
                strict = next(self._in_turn(record), None)
                if strict is not None:
                    found[name] = strict  # it keeps what it waits for from the others
        for name, member in found.items():
            waiting = self._state.records[name].waiting
            waiting.wake(member.uid)
            waiting.pop(None, member.uid)
        return [found[name] for name in sorted(found)]

    def pause(self, record: QueueRecord) -> None:
        self._stalled[record.name] = (self._state.now, record.node.root().generation)

    def rest(self, records: Iterable[QueueRecord]) -> None:
        for record in records:
            self.pause(record)

    def _is_stalled(self, record: QueueRecord) -> bool:
        return self._stalled.get(record.name) == (self._state.now, record.node.root().generation)

    def next_of(self, record: QueueRecord) -> QueueMember | None:
        """The first gang of a queue that would get quota, or other gangs evicted, if it were tried now."""
        if record.inactive:
            return None
        return next((member for member in self._in_turn(record) if self.has_chance(member, record)), None)

    def _in_turn(self, record: QueueRecord) -> Iterator[QueueMember]:
        """Only its first gang is tried in a strict queue, and where others leave for a gang, only that one. Of equal
        gangs only the first: no gang passes an equal that waits, whatever may not be evicted by that one."""
        waiting, state = record.waiting, self._state
        everyone = [member for member in waiting.everyone() if not state.is_asleep(member)]
        kept = [member for member in everyone if member.uid in state.rooms]
        sticky = [member for member in everyone if member.uid == waiting.sticky]
        if kept:
            return iter([member for member in kept if member in sticky] or kept)
        line = sticky + [member for member in everyone if member.uid != waiting.sticky]
        if waiting.strict:
            line = [member for member in line if state.namespace_matches(record, member)][:1]
        first: dict[str, QueueMember] = {}
        for member in line:
            first.setdefault(member.shape, member)
        return iter(first.values())

    def has_chance(self, member: QueueMember, record: QueueRecord) -> bool:
        """Tried on the live tree, which is as before when this returns."""
        before = (member.memory, member.memory_generation, member.memory_cycle)
        member.memory = None
        try:
            return any(self._tries(member) for _ in range(record.scans + 1))
        finally:
            member.memory, member.memory_generation, member.memory_cycle = before

    def _tries(self, member: QueueMember) -> bool:
        state = self._state
        entry = QueueCycle(state, state.now, 0, 0).trial(member)
        if entry.outcome is Outcome.FIT:
            return not (state.settings.wait_for_pods_ready and state.unready)
        if entry.outcome is Outcome.PREEMPT and not member.terms.gated:
            return any(not victim.member.evicted for victim in entry.victims)
        return False
