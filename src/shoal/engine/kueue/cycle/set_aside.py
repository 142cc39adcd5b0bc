"""What is in the trees and topologies only while a cycle runs, so that no other gang takes it.

Two kinds: the room that is kept for a preemptor, from before the first head is judged until that preemptor is served;
and what a gang that waits is to have, from when it is served until the end of the cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from shoal.engine.kueue.cycle.state import FreedQuota, QueueState
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.preemption.claims import ComingQuota
from shoal.engine.kueue.quota.tree import QuotaTreeNode
from shoal.engine.kueue.topology.ledger import Uses


class SetAside:
    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._rooms: dict[str, tuple[FreedQuota, Usage]] = {}
        """By UID of a preemptor that is not served yet."""
        self._waiting: list[tuple[QuotaTreeNode, Usage, Uses]] = []
        self._enough_in: dict[QuotaTreeNode, frozenset[str]] = {}
        """By tree: UIDs of preemptors that only have to wait for their victims."""

    # Rooms of preemptors.

    def keep(self, heads: Iterable[QueueMember]) -> None:
        """Those in the trees that the heads belong to."""
        state = self._state
        if not state.rooms:
            return
        for root in {state.records[member.queue].node.root(): None for member in heads}:
            kept = state.kept_in(root)
            self._rooms |= kept
            for each in kept.values():
                self._put(*each)

    def let_go(self, uid: str) -> None:
        """It is served now."""
        own = self._rooms.pop(uid, None)
        if own is not None:
            self._take(*own)

    @contextmanager
    def without(self, uid: str) -> Iterator[None]:
        """For the one that it is kept for."""
        self._take(*self._rooms[uid])
        yield
        self._put(*self._rooms[uid])

    def has_enough_to_come(self, uid: str, root: QuotaTreeNode) -> bool:
        """Does this preemptor, `without` whose room the tree is, fit once all victims have left that are waited for,
        beside what comes for others? As of the beginning of this cycle; all of a tree are judged in one go."""
        known = self._enough_in.get(root)
        if known is None:
            self._put(*self._rooms[uid])
            rooms, coming = self._state.rooms_in(root), ComingQuota()
            for other, room in rooms.items():
                coming.comes(room.node, _less(room.usage, self._rooms[other][1]))
                for victim in self._state.still_leaving(room, patient=True):
                    coming.leaves(victim.record.node, victim.member.usage)
            with coming.there():
                known = frozenset(other for other, room in rooms.items() if _fits_beside(room))
            self._enough_in[root] = known
            self._take(*self._rooms[uid])
        return uid in known

    def _put(self, room: FreedQuota, usage: Usage) -> None:
        room.node.add(usage)
        self._state.topologies.use(room.uses)

    def _take(self, room: FreedQuota, usage: Usage) -> None:
        room.node.remove(usage)
        self._state.topologies.use(room.uses, -1)

    # What waiting gangs are to have.

    def until_end(self, node: QuotaTreeNode, usage: Usage, uses: Uses) -> None:
        usage = {at: amount for at, amount in usage.items() if amount > 0}
        node.add(usage)
        self._state.topologies.use(uses)
        self._waiting.append((node, usage, uses))

    @contextmanager
    def without_those_that_wait(self, root: QuotaTreeNode) -> Iterator[None]:
        """This tree, and the topologies, with what is held and with rooms alone."""
        topologies = self._state.topologies
        waiting = [one for one in self._waiting if one[0].root() is root or one[2]]
        for node, usage, uses in waiting:
            node.remove(usage)
            topologies.use(uses, -1)
        yield
        for node, usage, uses in waiting:
            node.add(usage)
            topologies.use(uses)

    def end(self) -> None:
        """Trees and topologies are as they were, but for what was decided."""
        for uid in list(self._rooms):
            self.let_go(uid)
        for node, usage, uses in self._waiting:
            node.remove(usage)
            self._state.topologies.use(uses, -1)
        self._waiting.clear()


def _fits_beside(room: FreedQuota) -> bool:
    """Does a preemptor fit whose room is in the tree?"""
    room.node.remove(room.usage)
    fits = room.node.fits(room.usage)
    room.node.add(room.usage)
    return fits


def _less(usage: Usage, kept: Usage) -> Usage:
    """What of it victims hold yet."""
    return {at: amount - kept.get(at, 0) for at, amount in usage.items()}
