"""Equal gangs by what they wait for: which may be next is found without looking at all of them.

Used by `waiting` alone. A bucket holds shapes of one priority that wait for quota at the same places, in two orders: by
how much they ask for, and by turn. Knows no quota; what is within reach is given to it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from shoal.engine.kueue.index.waits_for import QuotaPlaces, WaitsFor

Order = tuple[int, int, str]
LineRank = tuple[tuple[float, float], Order]
"""What decides the place of a gang: usage of its LocalQueue and its user where that is shared, then its own order."""
NO_USAGE = (0.0, 0.0)

LARGEST = 2**62


class EqualGangs:
    """Waiting gangs of one shape, first to go first."""

    __slots__ = ("bucket", "failed_at", "heap", "inadmissible", "key", "listed", "size", "waits_for")

    def __init__(self, key: str) -> None:
        self.key = key
        self.waits_for: WaitsFor | None = None
        """Known since it last failed; None: any change may help."""
        self.bucket: Bucket | None = None
        """Where it lies; None exactly when its needs are not known."""
        self.heap: list[Order] = []
        self.inadmissible = False
        """In no bucket, and inadmissible until something changes."""
        self.failed_at = -1
        """In a bucket, and inadmissible since this call."""
        self.listed: Order | None = None
        """In a bucket: the place it has in its order. It may stand before its turn, never behind."""
        self.size = 0

    @property
    def is_inadmissible(self) -> bool:
        return self.inadmissible if self.bucket is None else self.bucket.holds_back(self)


class Bucket:
    """Shapes of one priority that missed something at the same places."""

    __slots__ = ("at_places", "calls", "line", "priority", "turns", "within")

    def __init__(self, at_places: QuotaPlaces, priority: int) -> None:
        self.at_places = at_places
        self.priority = priority
        self.line: list[tuple[int, int, str, EqualGangs]] = []
        """By the first resource they need: all together, the smallest first, and for the largest pod set."""
        self.turns: list[tuple[Order, int, int, EqualGangs]] = []
        """By whose turn it is; with what they need."""
        self.calls = 0
        """How often gangs that had failed were given another chance."""
        self.within: tuple[int, int] | None = None
        """What could be had of that resource when last looked at, in all and at one place."""

    def put(self, shape: EqualGangs, waits_for: WaitsFor) -> None:
        insort(self.line, (*waits_for.modesty, shape.key, shape))
        self.list_again(shape)

    def take(self, shape: EqualGangs, waits_for: WaitsFor) -> None:
        del self.line[bisect_left(self.line, (*waits_for.modesty, shape.key))]
        self._strike(shape)

    def list_again(self, shape: EqualGangs) -> None:
        """Its first gang is another one."""
        order = shape.heap[0] if shape.heap else None
        if order == shape.listed:
            return
        self._strike(shape)
        if order is not None and shape.waits_for is not None:
            shape.listed = order
            insort(self.turns, (order, *shape.waits_for.modesty, shape))

    def _strike(self, shape: EqualGangs) -> None:
        if shape.listed is not None:
            del self.turns[bisect_left(self.turns, (shape.listed,))]
            shape.listed = None

    @property
    def is_beyond_reach(self) -> bool:
        """Is what is within reach too little for the most modest?"""
        return self.within is not None and (not self.line or self.line[0][0] > self.within[0])

    def candidates(self) -> Iterator[EqualGangs]:
        """Those not inadmissible for which what is within reach may be enough, in turn; as a rule only few are
        looked at. While this goes on, only the one just given may be listed again."""
        if self.within is None:
            yield from self._in_turn(LARGEST, LARGEST)
            return
        most, largest = self.within
        line = self.line
        modest = bisect_left(line, (most + 1,))
        if not modest:
            return
        if modest * modest > len(line):
            yield from self._in_turn(most, largest)
            return
        found = [(shape.listed, shape) for _, alone, _, shape in line[:modest] if alone <= largest and shape.listed]
        heapq.heapify(found)
        while found:
            _, shape = found[0]
            listed = shape.listed
            if shape.failed_at != self.calls:
                yield shape
            if shape.listed is None or shape.listed == listed:
                heapq.heappop(found)
            else:
                heapq.heapreplace(found, (shape.listed, shape))

    def _in_turn(self, most: int, largest: int) -> Iterator[EqualGangs]:
        turns, position = self.turns, 0
        while position < len(turns):
            order, together, alone, shape = turns[position]
            if together <= most and alone <= largest and shape.failed_at != self.calls:
                yield shape
                if position < len(turns) and turns[position][0] is not order:
                    continue  # it stands further behind now, or nowhere
            position += 1

    def holds_back(self, shape: EqualGangs) -> bool:
        if shape.failed_at == self.calls:
            return True
        waits_for = shape.waits_for.modesty if shape.waits_for is not None else (0, 0)
        return self.within is not None and (waits_for[0] > self.within[0] or waits_for[1] > self.within[1])
