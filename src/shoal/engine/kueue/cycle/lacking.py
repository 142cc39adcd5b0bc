"""Gangs that had their quota and found no places in a topology, and what has to be free before they may.

Noted by the planner and by heads, asked when places moved: a queue is called only if every pod set of such a gang,
taken alone, has room now on a flavor that has quota for it. Cheap, and never wrongly no; where others may be made to
leave for a gang, or it keeps its place at the front whatever is free, its queue is called whenever places moved.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.engine.kueue.facts import FlavorResource, Usage
from shoal.engine.kueue.topology import PodsToPlace
from shoal.engine.kueue.topology.ledger import TopologyLedger
from shoal.engine.kueue.topology.room import PlaceRoom, PodKind, room_of
from shoal.engine.kueue.topology.totals import EVERYWHERE
from shoal.engine.model import Toleration


class Way:
    """Places for one pod set on one flavor."""

    __slots__ = ("_known", "charge", "count", "flavor", "kind", "level", "one_domain", "pods", "tolerations")

    def __init__(
        self, flavor: str, kind: PodKind, pods: PodsToPlace, tolerations: tuple[Toleration, ...], level: int, *,
        one_domain: bool, count: int, charge: Usage,
    ) -> None:  # fmt: skip
        self.flavor = flavor
        self.kind = kind
        self.pods = pods
        self.tolerations = tolerations
        self.level = level
        self.one_domain = one_domain
        self.count = count
        self.charge = charge
        """What it takes of the quota of the flavor."""
        self._known: tuple[PlaceRoom, int, int] | None = None
        """Its number in the room that was last asked, and what that had forgotten by then."""

    def has_room(self, ledger: TopologyLedger) -> bool:
        tree = ledger.tree(self.flavor)
        if tree is None:
            return True
        room, known = room_of(tree), self._known
        if known is None or known[0] is not room or known[1] != room.forgotten:
            row = room.row(self.kind, self.pods, self.tolerations)
            known = self._known = (room, room.forgotten, row)
        return room.most(known[2], self.level if self.one_domain else EVERYWHERE) >= self.count


class PlaceNeed:
    """What gangs of one shape need in the topologies of the flavors that their queue offers."""

    __slots__ = ("_known", "_turn", "_within", "ways")

    def __init__(self, ways: tuple[tuple[Way, ...], ...]) -> None:
        """`ways`: by pod set, one of these is enough."""
        self.ways = ways
        self._turn = -1
        self._known = True
        self._within: dict[tuple[tuple[Way, ...], ...], PlaceNeed] = {}

    def within(self, free: Mapping[FlavorResource, int]) -> PlaceNeed:
        """The same where only flavors count of which so much quota is free. Until more is free there, places on others
        are of no use; once it is, the queue is called for that."""
        ways = tuple([tuple([way for way in each if _has_quota(way, free)]) for each in self.ways])
        if ways == self.ways:
            return self
        known = self._within.get(ways)
        if known is None:
            known = self._within[ways] = PlaceNeed(ways)
        return known

    def may_be_met(self, ledger: TopologyLedger) -> bool:
        """The same for all gangs of the shape, and worked out once for as long as nothing changes."""
        if self._turn != ledger.turn:
            self._known = all(any(way.has_room(ledger) for way in ways) for ways in self.ways)
            self._turn = ledger.turn
        return self._known


def _has_quota(way: Way, free: Mapping[FlavorResource, int]) -> bool:
    for at, amount in way.charge.items():  # noqa: SIM110 (asked for every head: a generator would cost more)
        if amount > 0 and amount > free[at]:
            return False
    return True


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
