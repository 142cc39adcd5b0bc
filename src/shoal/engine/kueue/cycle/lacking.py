"""Gangs that had their quota and found no places in a topology, and what has to be free before they may.

Noted by the planner and by heads, asked when places moved: a queue is called only if every pod set of such a gang,
taken alone, has room now. Cheap, and never wrongly no; where others may be made to leave for a gang, or it keeps its
place at the front whatever is free, its queue is called whenever places moved. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.engine.kueue.topology import PodsToPlace
from shoal.engine.kueue.topology.ledger import TopologyLedger
from shoal.engine.kueue.topology.room import PodKind, room_of
from shoal.engine.model import Toleration


class Way(msgspec.Struct, frozen=True):
    """Places for one pod set on one flavor."""

    flavor: str
    kind: PodKind
    pods: PodsToPlace
    tolerations: tuple[Toleration, ...]
    level: int
    one_domain: bool
    count: int


class PlaceNeed:
    """What gangs of one shape need in the topologies of the flavors that their queue offers."""

    __slots__ = ("_known", "_turn", "ways")

    def __init__(self, ways: tuple[tuple[Way, ...], ...]) -> None:
        """`ways`: by pod set, one of these is enough."""
        self.ways = ways
        self._turn = -1
        self._known = True

    def may_be_met(self, ledger: TopologyLedger) -> bool:
        """The same for all gangs of the shape, and worked out once for as long as nothing changes."""
        if self._turn != ledger.turn:
            self._known = all(any(_has_room(way, ledger) for way in ways) for ways in self.ways)
            self._turn = ledger.turn
        return self._known


def _has_room(way: Way, ledger: TopologyLedger) -> bool:
    tree = ledger.tree(way.flavor)
    if tree is None:
        return True
    room = room_of(tree)
    row = room.row(way.kind, way.pods, way.tolerations)
    return room.most(row, way.level, one=way.one_domain) >= way.count


class LackingPlaces:
    def __init__(self, ledger: TopologyLedger) -> None:
        self._ledger = ledger
        self._queues: dict[PlaceNeed, dict[str, None]] = {}
        """Names of the queues in which gangs have this need."""
        self._always: dict[str, None] = {}

    def note(self, queue: str, need: PlaceNeed | None) -> None:
        """A gang of this queue was looked at in vain. None: nothing is known that would have to be free."""
        if need is None:
            self._always[queue] = None
        else:
            self._queues.setdefault(need, {})[queue] = None

    def take_hopeful(self) -> Iterable[str]:
        """Names of the queues that have a gang which may find places now."""
        found, self._always = self._always, {}
        for need in [need for need in self._queues if need.may_be_met(self._ledger)]:
            found |= self._queues.pop(need)
        return found

    def clear(self) -> None:
        """Shapes mean something else now, and all gangs are called."""
        self._queues.clear()
        self._always.clear()
