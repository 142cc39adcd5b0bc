"""Gangs that wait because no other cluster would start them, by shape: what is said of one holds for all like it.

AppWrappers and queued jobs each have such a line. When a cluster has other room than before, only shapes that its free
room could hold are asked about, and only of that cluster; as many gangs are told again as that room could hold, the
first in line first. So what an end costs follows from what it frees and not from how many wait, and the
choice is the one that asking for every gang would make. Pure: `ask` and `room` read, nothing here writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
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
    """`least`: what each needs at least, in all. Within a `lane` gangs of different shapes are compared by rank."""

    def __init__(self, number: int, least: Amounts, lane: Hashable) -> None:
        self.number, self.least, self.lane = number, least, lane
        self.line: list[tuple[Rank, str]] = []
        self.gangs: dict[str, tuple[Gang, Rank]] = {}
        self.answer: LineAnswer | None = None
        self.at_home = False
        self.missed = 0
        """Those that were told again since one started, and did not start."""

    def __lt__(self, other: _AlikeGangs) -> bool:
        return self.number < other.number

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
        self._told: dict[str, tuple[Hashable, str]] = {}
        """Those that were told again since the last plan, each with its shape and the cluster that has room."""
        self._skipped: set[str] = set()
        """Clusters whose room was promised before all that it could hold were asked about."""

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

    def add(self, shape: Hashable, gang: Gang, rank: Rank, answer: LineAnswer, lane: Hashable = None) -> None:
        """`rank`: its place within its lane, smallest first; gangs of one shape are in one lane."""
        self.discard(gang.uid)
        found = self._shapes.get(shape) or self._begin(shape, gang, lane)
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
            return [uid for shape in [*self._shapes.values()] for uid in self._due_anywhere(shape)]
        due: dict[str, None] = {}
        for name in sorted(names):
            room = self._room(name)
            lanes: dict[Hashable, list[_AlikeGangs]] = {}
            for shape in self._candidates(room):
                lanes.setdefault(shape.lane, []).append(shape)
            for shapes in lanes.values():
                self._due_in(name, shapes, dict(room) if room is not None else None, due)
        return list(due)

    def _due_in(self, name: str, shapes: list[_AlikeGangs], room: Amounts | None, due: dict[str, None]) -> None:
        """Of one lane, first in line first, for as long as there is room left in this cluster by its sums."""
        least = {one: min(shape.least[one] for shape in shapes) for one in _asked_by_all(shapes)}
        line = [
            (*next(each for each in shape.line if each[1] not in due), 0, shape)
            for shape in shapes
            if _left(shape, due)
        ]
        heapify(line)
        while line:
            _, uid, told, shape = heappop(line)
            if room is not None and any(room.get(one, 0) < needed for one, needed in least.items()):
                self._skipped.add(name)
                return
            if room is not None and any(room.get(one, 0) < needed for one, needed in shape.least.items()):
                self._skipped.add(name)
                continue
            if not told and not self._starts(shape, shape.gangs[uid][0], name, due):
                continue
            due[uid] = None
            self._told[uid] = (self._keys[shape.number], name)
            if room is not None:
                room |= {one: room[one] - needed for one, needed in shape.least.items()}
            at = bisect_left(shape.line, (shape.gangs[uid][1], uid)) + 1
            if at < len(shape.line) and told + 1 < AT_ONCE and shape.line[at][1] not in due:
                heappush(line, (*shape.line[at], told + 1, shape))

    def _starts(self, shape: _AlikeGangs, gang: Gang, name: str, due: dict[str, None]) -> bool:
        """Would it start in this cluster, or in any where the name is empty? Else those that may run at home now, or
        not any more, are due, too."""
        said = self._ask(gang, frozenset((name,)) if name else None)
        shape.answer = None
        if said is None:
            due[gang.uid] = None
            return False
        if not said.starts and said.at_home != shape.at_home:
            shape.at_home = said.at_home
            due |= dict.fromkeys(shape.first(len(shape.line)))
        return said.starts

    def _due_anywhere(self, shape: _AlikeGangs) -> list[str]:
        due: dict[str, None] = {}
        if self._starts(shape, shape.front, "", due):
            due |= dict.fromkeys(shape.first(AT_ONCE))
            self._told |= dict.fromkeys(due, (self._keys[shape.number], ""))
        return list(due)

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
        reason of its own, and the next of its shape none; and one that was passed over may find room."""
        self._changed |= self._skipped
        self._skipped = set()
        began, told, self._told = set(started), self._told, {}
        for uid, (key, name) in told.items():
            shape = self._shapes.get(key)
            if uid in began:
                if shape is not None:
                    shape.missed = 0
                continue
            if shape is not None:
                shape.missed += 1
            if shape is None or shape.missed < AT_ONCE:
                self._changed.add(name)
        return bool(self._changed)

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

    def _begin(self, key: Hashable, gang: Gang, lane: Hashable) -> _AlikeGangs:
        self._numbers += 1
        shape = self._shapes[key] = _AlikeGangs(self._numbers, _least(gang), lane)
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


def _asked_by_all(shapes: list[_AlikeGangs]) -> set[str]:
    """Resources that every one of them needs."""
    return set.intersection(*(set(shape.least) for shape in shapes))


def _left(shape: _AlikeGangs, due: dict[str, None]) -> bool:
    """Is one of them not due yet?"""
    return any(uid not in due for _, uid in shape.line)
