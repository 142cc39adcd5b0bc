"""Quota that the front of a strict queue waits for, and cannot use yet, is lent to gangs behind it.

Called by the planner in queues that ask for it, after every head has been served. A gang that fills is charged beside
the quota tree, as the surplus of elastic gangs is: the front, and every gang after it, is judged as if it were not
there, and what is in the way then leaves. So the front starts when it would start without backfill, but for the time in
which a gang stops. When the turn of a gang that fills comes, it holds its quota as any other and runs on.

May fill: gangs that are drainable, and gangs whose declared end is before the moment at which the front could start by
the declared ends of those that run. Changes nothing in a queue that does not ask for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.decisions import Reserve
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.flavors.assign import Search
from shoal.engine.kueue.flavors.assignment import Assignment, Mode, Outcome
from shoal.engine.model import Turn

STARTED = ("admitted", "stopping")
OF_EACH = 31
"""Of gangs that ask for the same, so many are looked at."""
MOST = 200
"""Of one queue, so many in a plan."""


class QueueBackfill:
    def __init__(self, state: QueueState) -> None:
        self.state = state

    def take_turns(self) -> Iterator[Turn]:
        """Gangs that fill and before which none waits for quota any more: it is theirs from now on. Once those before
        them have started, too, so is their room: that is told."""
        state = self.state
        for member in sorted(state.surplus.turned.values(), key=lambda one: one.order):
            if not member.evicted and not self._waits_for_room_before(member):
                del state.surplus.turned[member.uid]
                yield Turn(gang=member.key, uid=member.uid)
        for member in sorted(state.surplus.fillers.values(), key=lambda one: one.order):
            record = state.records.get(member.queue)
            head = record.waiting.peek() if record is not None else None
            if record is None or member.evicted:
                continue
            if head is not None and record.waiting.rank(head) < record.waiting.rank(member):
                continue
            del state.surplus.fillers[member.uid]
            member.fills = False
            record.hold(member)
            state.forest.bump(record.node)
            state.heads.held(record, member.usage)
            if self._waits_for_room_before(member):
                state.surplus.turned[member.uid] = member
            else:
                yield Turn(gang=member.key, uid=member.uid)

    def _waits_for_room_before(self, member: QueueMember) -> bool:
        """Is there a gang of its queue that stood before it, has quota, and is not started?"""
        record = self.state.records.get(member.queue)
        return record is not None and any(
            not one.evicted and one.gang.state not in STARTED and one.order < member.order
            for one in record.reserved.values()
        )

    def fill(self, now: int) -> Iterator[Reserve]:
        """Quota for gangs that may have it until the front can start."""
        if self.state.settings.wait_for_pods_ready and self.state.unready:
            return
        for name in sorted(self.state.backfilling):
            record = self.state.records.get(name)
            if record is None or record.inactive or not record.waiting.strict or self._has_topology(record):
                continue
            front = record.waiting.peek()
            if front is not None:
                yield from self._fill(record, front, now)

    def _has_topology(self, record: QueueRecord) -> bool:
        """Places in a topology are not lent: a front that waits for places would not see who is in its way."""
        return not record.topologies.flavors.isdisjoint(record.flavors)

    def _fill(self, record: QueueRecord, front: QueueMember, now: int) -> Iterator[Reserve]:
        behind = [one for one in record.waiting.early(OF_EACH) if one is not front and self._is_sound(one, record)]
        needed_at: int | None = None
        unfit: set[str] = set()
        for member in heapq.nsmallest(MOST, behind, key=record.waiting.rank):
            if member.shape in unfit:
                continue
            if not member.terms.drainable:
                if not member.terms.longest:
                    continue
                if needed_at is None:
                    needed_at = self._needed_at(record, front, now)
                if now + member.terms.longest > needed_at:
                    continue
            found = self._fit(record, member)
            if found is None:
                unfit.add(member.shape)
                continue
            yield self._reserve(record, member, found, now)

    def _is_sound(self, member: QueueMember, record: QueueRecord) -> bool:
        if not (member.terms.drainable or member.terms.longest) or member.terms.checks_failed:
            return False
        odd = member.problem or member.gang.nowhere or member.wishes or member.replaced is not None
        return not odd and self.state.namespace_matches(record, member)

    def _fit(self, record: QueueRecord, member: QueueMember) -> Assignment | None:
        """Flavors for it beside everything that is held, kept for others, or filled."""
        state, root = self.state, record.node.root()
        with state.rooms_kept(root), state.surplus.charged(root, state.records):
            found = self._search(record, member)
        return found if found.outcome is Outcome.FIT else None

    def _search(self, record: QueueRecord, member: QueueMember) -> Assignment:
        memory, member.memory = member.memory, None
        search = Search(
            member, record.fact, record.groups, record.node, self.state.flavors, self.state.settings,
            lambda at, amount: (Mode.NO_CANDIDATES, 0),
        )  # fmt: skip
        found = search.run()
        member.memory = memory
        return found

    def _needed_at(self, record: QueueRecord, front: QueueMember, now: int) -> int:
        """When the front could start at the earliest, were every gang to run as long as it declared. Where that is not
        known the front may need its quota at any moment."""
        ends: list[tuple[int, str, QueueRecord, QueueMember]] = []
        for node in record.node.root().queues():
            other = self.state.records.get(node.name)
            for one in other.reserved.values() if other is not None else ():
                if one.evicted or one.terms.longest:
                    end = now if one.evicted else max(now, one.reserved_at + one.terms.longest)
                    ends.append((end, one.uid, other, one))  # type: ignore[arg-type]
        ends.sort(key=lambda entry: entry[:2])
        low, high = 0, len(ends)
        if not self._fits_without(record, front, ends):
            return now
        while low < high:
            middle = (low + high) // 2
            if self._fits_without(record, front, ends[:middle]):
                high = middle
            else:
                low = middle + 1
        return ends[low - 1][0] if low else now

    def _fits_without(
        self, record: QueueRecord, front: QueueMember, ended: Sequence[tuple[int, str, QueueRecord, QueueMember]]
    ) -> bool:
        with _gone(ended):
            return self._search(record, front).outcome is Outcome.FIT

    def _reserve(self, record: QueueRecord, member: QueueMember, found: Assignment, now: int) -> Reserve:
        state = self.state
        member.usage = found.charge
        member.assignment = assignment = found.given
        member.reserved_at = now
        member.holds = member.fills = True
        member.forget()
        record.waiting.discard(member.uid)
        state.surplus.fillers[member.uid] = member
        if state.usage is not None:
            state.usage.reserved(member)
        return Reserve(
            gang=member.key, uid=member.uid, cluster_queue=record.name, assignment=assignment, backfilled=True
        )


@contextmanager
def _gone(ended: Sequence[tuple[int, str, QueueRecord, QueueMember]]) -> Iterator[None]:
    for _, _, record, member in ended:
        record.node.remove(member.usage)
    try:
        yield
    finally:
        for _, _, record, member in ended:
            record.node.add(member.usage)
