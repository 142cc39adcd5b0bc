"""Gangs that wait because no other cluster would start them, by shape: what is said of one holds for all like it.

AppWrappers and queued jobs each have such a line. When a cluster has other room than before, only shapes that its free
room could hold are asked about, and only of that cluster; of one that would start, as many gangs are told again as
could, the first in line first. So what an end costs follows from what it frees and not from how many wait, and the
choice is the one that asking for every gang would make. Pure: `ask` and `room` read, nothing here writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import msgspec

from shoal.engine.model import Amounts, Gang

FEW = 32
"""So many are all told again at every change, so that each always says why it waits now."""
AT_ONCE = 16
"""Gangs of one shape that are told again when a cluster has room for one of them, without one having started."""
REFRESHED = 200
Rank = tuple[Any, ...]


class LineAnswer(msgspec.Struct, frozen=True):
    """`at_home`: none would start it now, and it may run in this cluster. `why`: of one that none would start."""

    starts: bool
    at_home: bool = False
    why: str = ""


class _AlikeGangs:
    """`least`: what it needs at least, in all."""

    def __init__(self, number: int, least: Amounts) -> None:
        self.number, self.least = number, least
        self.line: list[tuple[Rank, str]] = []
        self.gangs: dict[str, tuple[Gang, Rank]] = {}
        self.answer: LineAnswer | None = None
        self.at_home = False
        self.missed = 0
        """Those that were told again since one started, and did not start."""

    @property
    def front(self) -> Gang:
        return self.gangs[self.line[0][1]][0]

    def first(self, many: int) -> list[str]:
        return [uid for _, uid in self.line[:many]]


class _ByDemand:
    """Shapes that ask for the same resources, sorted by how much of each."""

    def __init__(self, resources: tuple[str, ...]) -> None:
        self._sorted: dict[str, list[tuple[int, int]]] = {one: [] for one in resources}

    def add(self, shape: _AlikeGangs) -> None:
        for resource, found in self._sorted.items():
            insort(found, (shape.least[resource], shape.number))

    def remove(self, shape: _AlikeGangs) -> None:
        for resource, found in self._sorted.items():
            del found[bisect_left(found, (shape.least[resource], shape.number))]

    def within(self, room: Amounts) -> list[int]:
        """Numbers of those that could fit, and some that do not: by the resource that leaves out most of them."""
        best: list[tuple[int, int]] | None = None
        most = 0
        for resource, found in self._sorted.items():
            many = bisect_right(found, (room.get(resource, 0), 1 << 62))
            if best is None or many < most:
                best, most = found, many
        return [number for _, number in best[:most]] if best is not None else []


class ClusterLine:
    """`ask(gang, among)` says whether it would start now, in these clusters alone where they are given; None: it is not
    there any more. `room(cluster)`: sums that nothing that starts there exceeds; None: they are not known."""

    def __init__(
        self,
        ask: Callable[[Gang, frozenset[str] | None], LineAnswer | None],
        room: Callable[[str], Amounts | None],
    ) -> None:
        self._ask, self._room = ask, room
        self._shapes: dict[Hashable, _AlikeGangs] = {}
        self._keys: dict[int, Hashable] = {}
        self._shape_of: dict[str, Hashable] = {}
        self._groups: dict[tuple[str, ...], _ByDemand] = {}
        self._without: set[int] = set()
        """Numbers of shapes that ask for nothing."""
        self._numbers = 0
        self._changed: set[str] = set()
        self._told: dict[str, tuple[Hashable, frozenset[str]]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._shape_of

    def __len__(self) -> int:
        return len(self._shape_of)

    def changed(self, cluster: str) -> None:
        """It may have other room than before; an empty name: any of them."""
        self._changed.add(cluster)

    def answer(self, shape: Hashable) -> LineAnswer | None:
        """What was said of a gang like this, where nothing has changed since."""
        found = self._shapes.get(shape) if not self._changed else None
        return found.answer if found is not None else None

    def add(self, shape: Hashable, gang: Gang, rank: Rank, answer: LineAnswer) -> None:
        """`rank`: its place among those of its shape, smallest first."""
        self.discard(gang.uid)
        found = self._shapes.get(shape) or self._begin(shape, gang)
        found.gangs[gang.uid] = (gang, rank)
        insort(found.line, (rank, gang.uid))
        found.answer, found.at_home = answer, answer.at_home
        self._shape_of[gang.uid] = shape

    def discard(self, uid: str) -> None:
        key = self._shape_of.pop(uid, None)
        if key is None:
            return
        shape = self._shapes[key]
        _, rank = shape.gangs.pop(uid)
        del shape.line[bisect_left(shape.line, (rank, uid))]
        if not shape.line:
            self._end(key, shape)

    def look(self) -> list[str]:
        """UIDs of the gangs that are to be told again, because of what changed since the last look."""
        names, self._changed = frozenset(self._changed), set()
        if not names:
            return []
        if len(self._shape_of) <= FEW:
            return self.refresh()
        if "" in names:
            return [uid for shape in self._shapes.values() for uid in self._due(shape, {"": AT_ONCE})]
        asked: dict[int, dict[str, int]] = {}
        for name in sorted(names):
            room = self._room(name)
            for shape in self._candidates(room):
                asked.setdefault(shape.number, {})[name] = _how_many(room, shape.least)
        return [uid for number, where in asked.items() for uid in self._due(self._shapes[self._keys[number]], where)]

    def doubt(self, uid: str) -> bool:
        """What is said of this one is asked again when it is told again. False: it does not stand here."""
        key = self._shape_of.get(uid)
        if key is not None:
            self._shapes[key].answer = None
        return key is not None

    def refresh(self) -> list[str]:
        """UIDs of the first few of every shape, to be told now and then for what they say of why they wait."""
        found: list[str] = []
        for shape in self._shapes.values():
            shape.answer = None
            if len(found) < REFRESHED:
                found += shape.first(FEW)
        return found

    def planned(self, started: Iterable[str]) -> bool:
        """A plan was made with those that were told again. True: look again, for one that did not start may have had a
        reason of its own, and the next of its shape none."""
        if not self._told:
            return False
        began, told, self._told = set(started), self._told, {}
        for uid, (key, names) in told.items():
            shape = self._shapes.get(key)
            if shape is None:
                continue
            if uid in began:
                shape.missed = 0
                continue
            shape.missed += 1
            if shape.missed < AT_ONCE:
                self._changed |= names
        return bool(self._changed)

    def _due(self, shape: _AlikeGangs, where: dict[str, int]) -> list[str]:
        """Those of one shape. `where`: how many of it each of these clusters could hold; an empty name: any."""
        many, before = 0, shape.at_home
        shape.answer = None
        for name, could in where.items():
            said = self._ask(shape.front, frozenset((name,)) if name else None)
            if said is None:
                return shape.first(1)
            shape.at_home = said.at_home or (said.starts and before)
            many += min(could, AT_ONCE) if said.starts else 0
        if not many:
            return shape.first(len(shape.line)) if shape.at_home != before else []
        due = shape.first(many)
        self._told |= dict.fromkeys(due, (self._keys[shape.number], frozenset(where)))
        return due

    def _candidates(self, room: Amounts | None) -> Iterator[_AlikeGangs]:
        """In the order in which they came."""
        if room is None:
            yield from [*self._shapes.values()]
            return
        numbers = {number for group in self._groups.values() for number in group.within(room)} | self._without
        for number in sorted(numbers):
            shape = self._shapes[self._keys[number]]
            if all(needed <= room.get(resource, 0) for resource, needed in shape.least.items()):
                yield shape

    def _begin(self, key: Hashable, gang: Gang) -> _AlikeGangs:
        self._numbers += 1
        shape = self._shapes[key] = _AlikeGangs(self._numbers, _least(gang))
        self._keys[shape.number] = key
        if resources := tuple(sorted(shape.least)):
            self._groups.setdefault(resources, _ByDemand(resources)).add(shape)
        else:
            self._without.add(shape.number)
        return shape

    def _end(self, key: Hashable, shape: _AlikeGangs) -> None:
        del self._shapes[key], self._keys[shape.number]
        self._without.discard(shape.number)
        if resources := tuple(sorted(shape.least)):
            self._groups[resources].remove(shape)


def _least(gang: Gang) -> Amounts:
    """What it asks of nodes at the least, by resource; none that it asks nothing of."""
    found: Amounts = {}
    for one in gang.pod_sets:
        count = one.count if one.min_count is None else min(one.count, one.min_count)
        for resource, amount in one.requests.items():
            if amount * count > 0:
                found[resource] = found.get(resource, 0) + amount * count
    return found


def _how_many(room: Amounts | None, least: Amounts) -> int:
    """Gangs of this size that such room could hold at most."""
    if room is None or not least:
        return AT_ONCE
    return min(room.get(resource, 0) // needed for resource, needed in least.items())
