"""Gangs that had their quota and found no places in a topology, and what has to be free before they may.

Noted by the planner and by heads, asked when places moved: a queue is called only if the pod sets of such a gang, each
taken alone, have room now on flavors that have quota for all of them. Those that have none wait in the topologies for
the room that they lack (`hopes`), so that only those are looked at for which there is more of it. Never wrongly no;
where others may be made to leave for a gang, or it keeps its place at the front whatever is free, its queue is called
whenever places moved. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from shoal.engine.kueue.facts import FlavorResource, Usage
from shoal.engine.kueue.topology import PodsToPlace
from shoal.engine.kueue.topology.ledger import TopologyLedger
from shoal.engine.kueue.topology.room import PlaceRoom, PodKind, room_of
from shoal.engine.kueue.topology.totals import EVERYWHERE
from shoal.engine.model import Toleration

MOST_TOGETHER = 64
"""Ways to give flavors to pod sets up to which these are looked at together."""


class Way:
    """Places for one pod set on one flavor."""

    __slots__ = ("_known", "charge", "count", "flavor", "kind", "level", "pods", "tolerations")

    def __init__(
        self, flavor: str, kind: PodKind, pods: PodsToPlace, tolerations: tuple[Toleration, ...], level: int, *,
        one_domain: bool, count: int, charge: Usage,
    ) -> None:  # fmt: skip
        self.flavor = flavor
        self.kind = kind
        self.pods = pods
        self.tolerations = tolerations
        self.level = level if one_domain else EVERYWHERE
        self.count = count
        self.charge = charge
        """What it takes of the quota of the flavor."""
        self._known: tuple[PlaceRoom, int, int] | None = None
        """The room that was last asked, what that had forgotten by then, and its number there."""

    def _row(self, room: PlaceRoom) -> int:
        known = self._known
        if known is None or known[0] is not room or known[1] != room.forgotten:
            row = room.row(self.kind, self.pods, self.tolerations)
            known = self._known = (room, room.forgotten, row)
        return known[2]

    def has_room(self, ledger: TopologyLedger) -> bool:
        tree = ledger.tree(self.flavor)
        if tree is None:
            return True
        room = room_of(tree)
        return room.most(self._row(room), self.level) >= self.count

    def wait(self, ledger: TopologyLedger, need: PlaceNeed) -> tuple[PlaceRoom, int] | None:
        """Until there is room. Where, and what that had forgotten by then."""
        tree = ledger.tree(self.flavor)
        if tree is None:
            return None
        room = room_of(tree)
        room.hopes.wait(self.level, self._row(room), self.count, need)
        return room, room.forgotten


class Ways:
    """Flavors for some pod sets of a gang: one way for each."""

    __slots__ = ("charge", "each")

    def __init__(self, each: tuple[Way, ...]) -> None:
        self.each = each
        self.charge: Usage = {}
        """What they take of quota together."""
        for way in each:
            for at, amount in way.charge.items():
                if amount > 0:
                    self.charge[at] = self.charge.get(at, 0) + amount

    def have_quota(self, free: Mapping[FlavorResource, int]) -> bool:
        for at, amount in self.charge.items():  # noqa: SIM110 (asked for every head: a generator would cost more)
            if amount > free[at]:
                return False
        return True

    def lacking(self, ledger: TopologyLedger) -> Way | None:
        """The first that has no room; None: each has some."""
        for way in self.each:
            if not way.has_room(ledger):
                return way
        return None


Choices = tuple[tuple[Ways, ...], ...]


class PlaceNeed:
    """What gangs of one shape need in the topologies of the flavors that their queue offers."""

    __slots__ = ("_known", "_most", "_turn", "_within", "choices")

    def __init__(self, choices: Choices) -> None:
        """`choices`: of each of these one is enough."""
        self.choices = choices
        self._turn = -1
        self._known = True
        self._within: dict[Choices, PlaceNeed] = {}
        self._most: Usage = {}
        """What any choice takes of quota at most."""
        for ways in [one for each in choices for one in each]:
            for at, amount in ways.charge.items():
                self._most[at] = max(amount, self._most.get(at, 0))

    @classmethod
    def of(cls, pod_sets: tuple[tuple[Way, ...], ...]) -> PlaceNeed:
        """`pod_sets`: for each of these one way is enough, beside those of the others."""
        groups: list[list[tuple[Way, ...]]] = [[]]
        together = 1
        for ways in pod_sets:
            together *= len(ways)
            if together > MOST_TOGETHER and groups[-1]:
                groups.append([])
                together = len(ways)
            groups[-1].append(ways)
        return cls(tuple([tuple([Ways(each) for each in product(*group)]) for group in groups]))

    def within(self, free: Mapping[FlavorResource, int]) -> PlaceNeed:
        """The same where only flavors count of which so much quota is free. Until more is free there, places on others
        are of no use; once it is, the queue is called for that."""
        for at, amount in self._most.items():
            if amount > free[at]:
                break
        else:
            return self
        choices = tuple([tuple([ways for ways in each if ways.have_quota(free)]) for each in self.choices])
        known = self._within.get(choices)
        if known is None:
            known = self._within[choices] = PlaceNeed(choices)
        return known

    def may_be_met(self, ledger: TopologyLedger) -> bool:
        """The same for all gangs of the shape, and worked out once for as long as nothing changes."""
        if self._turn != ledger.turn:
            self._known = all(any(ways.lacking(ledger) is None for ways in each) for each in self.choices)
            self._turn = ledger.turn
        return self._known

    def wait(self, ledger: TopologyLedger) -> dict[str, tuple[PlaceRoom, int]]:
        """It is not met, and cannot be before one of these has more room; by flavor."""
        rooms = {}
        for each in self.choices:
            lacking = [ways.lacking(ledger) for ways in each]
            if None in lacking:
                continue
            for way in lacking:
                where = way.wait(ledger, self) if way is not None else None
                if way is not None and where is not None:
                    rooms[way.flavor] = where
            break
        return rooms


class LackingPlaces:
    def __init__(self, ledger: TopologyLedger) -> None:
        self._ledger = ledger
        self._queues: dict[PlaceNeed, dict[str, None]] = {}
        """Names of the queues in which gangs have this need."""
        self._new: dict[PlaceNeed, None] = {}
        """Those that do not wait in a topology yet."""
        self._rooms: dict[str, tuple[PlaceRoom, int]] = {}
        """By flavor: where the others wait, and what that had forgotten by then."""
        self._always: dict[str, None] = {}

    def note(self, queue: str, need: PlaceNeed | None) -> None:
        """A gang of this queue was looked at in vain. None: nothing is known that would have to be free."""
        if need is None:
            self._always[queue] = None
            return
        queues = self._queues.get(need)
        if queues is None:
            queues = self._queues[need] = {}
            self._new[need] = None
        queues[queue] = None

    def take_hopeful(self) -> Iterable[str]:
        """Names of the queues that have a gang which may find places now."""
        found, self._always = self._always, {}
        for need in self._to_look_at():
            if need not in self._queues:
                continue
            if need.may_be_met(self._ledger):
                found |= self._queues.pop(need)
            else:
                self._rooms |= need.wait(self._ledger)
        return found

    def _to_look_at(self) -> dict[PlaceNeed, None]:
        found, self._new = self._new, {}
        for flavor, (room, forgotten) in self._rooms.items():
            tree = self._ledger.tree(flavor)
            if tree is None or room_of(tree) is not room or room.forgotten != forgotten:
                self._rooms.clear()  # and with it, who waited there
                return dict.fromkeys(self._queues)
            found |= dict.fromkeys(room.met())
        return found

    def clear(self) -> None:
        """Shapes mean something else now, and all gangs are called."""
        for room, _ in self._rooms.values():
            room.hopes.clear()
        self._rooms.clear()
        self._queues.clear()
        self._new.clear()
        self._always.clear()
