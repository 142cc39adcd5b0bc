"""Where shapes of waiting gangs lie whose needs are known: who may be next is found without looking at all of them.

Used by `waiting` alone. A shelf holds shapes of one priority that missed something at the same places, in two orders:
by how much they need, and by whose turn it is. Knows no quota; what is within reach it is told.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from shoal.engine.kueue.index.wish import Frame, Wish

Order = tuple[int, int, str]

LARGEST = 2**62


class Shape:
    """Waiting gangs of one shape, first to go first."""

    __slots__ = ("failed_at", "heap", "key", "listed", "needs", "parked", "shelf", "size")

    def __init__(self, key: str) -> None:
        self.key = key
        self.needs: Wish | None = None
        """Known since it last failed; None: any change may help."""
        self.shelf: Shelf | None = None
        """Where it lies; None exactly when its needs are not known."""
        self.heap: list[Order] = []
        self.parked = False
        """On no shelf, and set aside."""
        self.failed_at = -1
        """On a shelf, and set aside since this call."""
        self.listed: Order | None = None
        """On a shelf: the place it has in its order. It may stand before its turn, never behind."""
        self.size = 0

    @property
    def is_aside(self) -> bool:
        return self.parked if self.shelf is None else self.shelf.sets_aside(self)


class Shelf:
    """Shapes of one priority that missed something at the same places."""

    __slots__ = ("calls", "frame", "line", "priority", "turns", "within")

    def __init__(self, frame: Frame, priority: int) -> None:
        self.frame = frame
        self.priority = priority
        self.line: list[tuple[int, int, str, Shape]] = []
        """By the first resource they need: all together, the smallest first, and for the largest pod set."""
        self.turns: list[tuple[Order, int, int, Shape]] = []
        """By whose turn it is; with what they need."""
        self.calls = 0
        """How often those who had failed were given another chance."""
        self.within: tuple[int, int] | None = None
        """What could be had of that resource when last looked at, in all and at one place."""

    def put(self, shape: Shape, needs: Wish) -> None:
        insort(self.line, (*needs.modesty, shape.key, shape))
        self.list_again(shape)

    def take(self, shape: Shape, needs: Wish) -> None:
        del self.line[bisect_left(self.line, (*needs.modesty, shape.key))]
        self._strike(shape)

    def list_again(self, shape: Shape) -> None:
        """Its first gang is another one."""
        order = shape.heap[0] if shape.heap else None
        if order == shape.listed:
            return
        self._strike(shape)
        if order is not None and shape.needs is not None:
            shape.listed = order
            insort(self.turns, (order, *shape.needs.modesty, shape))

    def _strike(self, shape: Shape) -> None:
        if shape.listed is not None:
            del self.turns[bisect_left(self.turns, (shape.listed,))]
            shape.listed = None

    def candidates(self) -> Iterator[Shape]:
        """Those not set aside whom what was found within reach may be enough for, in turn; as a rule only few are
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

    def _in_turn(self, most: int, largest: int) -> Iterator[Shape]:
        turns, position = self.turns, 0
        while position < len(turns):
            order, together, alone, shape = turns[position]
            if together <= most and alone <= largest and shape.failed_at != self.calls:
                yield shape
                if position < len(turns) and turns[position][0] is not order:
                    continue  # it stands further behind now, or nowhere
            position += 1

    def sets_aside(self, shape: Shape) -> bool:
        if shape.failed_at == self.calls:
            return True
        needs = shape.needs.modesty if shape.needs is not None else (0, 0)
        return self.within is not None and (needs[0] > self.within[0] or needs[1] > self.within[1])
