"""Who waits for one cluster queue, in order, and who is set aside until something changes.

The cycle takes heads from here and gives back what was not admitted. Gangs of the same shape get the same answer, so a
shape that failed is set aside as a whole, in one step, and later arrivals of that shape join it. Shapes that miss
something at the same places lie on one shelf, the most modest first, so that what came back calls only those it could
be enough for. Knows no quota.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .demand import Member
from .facts import FlavorResource

Order = tuple[int, int, str]


class Frame(NamedTuple):
    """Where something must be found: at one of `places`, and over each of `totals`."""

    places: tuple[FlavorResource, ...]
    totals: tuple[tuple[FlavorResource, ...], ...]


class Needs(NamedTuple):
    """What must be there before another try makes sense, in the order of the frame."""

    frame: Frame
    alone: tuple[int, ...]
    """So much at one of the places, for the pod set that found none."""
    together: tuple[int, ...]
    """So much over each group of places, for all pod sets together."""


class Reachable(NamedTuple):
    """The most that could be there, in the order of a frame."""

    alone: tuple[int, ...]
    together: tuple[int, ...]

    def allows(self, needs: Needs) -> bool:
        for most, needed in zip(self.together, needs.together, strict=True):
            if needed > most:
                return False
        return any(needed <= most for most, needed in zip(self.alone, needs.alone, strict=True))


Survey = Callable[[Frame, int], Reachable]
"""What a gang of this priority could find."""


class _Shelf:
    """Shapes of one priority that miss something at the same places; `parked` holds those that are set aside."""

    __slots__ = ("frame", "parked", "priority")

    def __init__(self, frame: Frame, priority: int) -> None:
        self.frame = frame
        self.priority = priority
        self.parked: list[tuple[int, bytes]] = []
        """By the first of what they need together, the smallest first."""

    def within(self, reachable: Reachable) -> list[bytes]:
        """Those that what is reachable may be enough for; the rest is not even looked at."""
        if not reachable.together:
            return [key for _, key in self.parked]
        most = reachable.together[0]
        return [key for _, key in self.parked[: bisect_right(self.parked, most, key=_amount)]]


class _Shape:
    """Waiting gangs of one shape, first to go first. `parked`: known not to fit for now."""

    __slots__ = ("heap", "needs", "parked", "shelf", "size")

    def __init__(self) -> None:
        self.needs: Needs | None = None
        """Known since it last failed; None: any change may help."""
        self.shelf: _Shelf | None = None
        """Where it lies when set aside; None exactly when its needs are not known."""
        self.heap: list[Order] = []
        self.parked = False
        self.size = 0


class Waiting:
    __slots__ = ("_blind", "_heap", "_members", "_parked", "_shapes", "_shelves", "sticky", "strict")

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.sticky = ""
        """UID of the preemptor that stays at the front until its victims have left."""
        self._members: dict[str, Member] = {}
        self._shapes: dict[bytes, _Shape] = {}
        self._shelves: dict[tuple[Frame, int], _Shelf] = {}
        self._blind: dict[bytes, None] = {}
        """Shapes set aside of which no needs are known."""
        self._heap: list[tuple[Order, bytes]] = []
        self._parked: set[str] = set()
        """UIDs set aside one by one: backing off, or for a reason that is theirs alone."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, uid: str) -> bool:
        return uid in self._members

    # Going in and out.

    def push(self, member: Member, *, parked: bool = False) -> None:
        """Queue a gang. It joins its shape, which may be set aside; `parked` sets this one aside alone."""
        self._members[member.uid] = member
        shape = self._shapes.get(member.shape)
        if shape is None:
            shape = self._shapes[member.shape] = _Shape()
        shape.size += 1
        if parked:
            self._parked.add(member.uid)
            return
        heapq.heappush(shape.heap, member.order)
        if not shape.parked and shape.heap[0] is member.order:
            heapq.heappush(self._heap, (member.order, member.shape))

    def discard(self, uid: str) -> None:
        member = self._members.pop(uid, None)
        if member is None:
            return
        self._parked.discard(uid)
        shape = self._shapes[member.shape]
        shape.size -= 1
        if not shape.size:
            self._forget(member.shape)

    def pop(self) -> Member | None:
        """Take the head: the sticky preemptor, else the first of those not set aside."""
        member = self.head()
        if member is not None:
            shape = self._shapes[member.shape]
            if shape.heap and shape.heap[0] == member.order:
                heapq.heappop(shape.heap)
            self._members.pop(member.uid)
            shape.size -= 1
            if not shape.size:
                self._forget(member.shape)
            elif shape.heap:
                heapq.heappush(self._heap, (shape.heap[0], member.shape))
        return member

    def head(self) -> Member | None:
        sticky = self._members.get(self.sticky)
        if sticky is not None and self.sticky not in self._parked and not self._shapes[sticky.shape].parked:
            return sticky
        while self._heap:
            order, key = self._heap[0]
            shape = self._shapes.get(key)
            first = None if shape is None or shape.parked else self._first(shape)
            if first is not None and first.order == order:
                return first
            heapq.heappop(self._heap)
            if first is not None:
                heapq.heappush(self._heap, (first.order, key))
        return None

    def _first(self, shape: _Shape) -> Member | None:
        """The shape's first gang; entries of those that left or were set aside are dropped on the way."""
        while shape.heap:
            order = shape.heap[0]
            member = self._members.get(order[2])
            if member is not None and member.order == order and order[2] not in self._parked:
                return member
            heapq.heappop(shape.heap)
        return None

    # Setting aside, and calling back.

    def park_hopeless(self, survey: Survey) -> None:
        """Set aside heads of which it is known that they would fail again, until one is left that might not."""
        seen: dict[_Shelf, Reachable] = {}
        while (member := self.head()) is not None and member.uid != self.sticky:
            shape = self._shapes[member.shape]
            shelf, needs = shape.shelf, shape.needs
            if shelf is None or needs is None:
                return
            reachable = seen.get(shelf)
            if reachable is None:
                reachable = seen[shelf] = survey(shelf.frame, shelf.priority)
            if reachable.allows(needs):
                return
            self._put_aside(member.shape, shape)

    def park_shape(self, member: Member, needs: Needs | None = None) -> None:
        """Set the member's whole shape aside. The member itself must be queued."""
        shape = self._shapes[member.shape]
        self._take_back(member.shape, shape)
        shape.needs, shape.shelf = needs, None
        if needs is not None:
            key = (needs.frame, member.priority)
            shelf = self._shelves.get(key)
            if shelf is None:
                shelf = self._shelves[key] = _Shelf(*key)
            shape.shelf = shelf
        self._put_aside(member.shape, shape)

    def unpark(self, *, stays: frozenset[str] | set[str] = frozenset(), survey: Survey | None = None) -> bool:
        """Something changed: everyone may try again, but `stays` and shapes that would fail. True if anyone may.

        Without a `survey` what was known of needs is void: it rested on facts that changed.
        """
        if survey is None:
            woken = [key for key, shape in self._shapes.items() if shape.parked]
        else:
            woken = [*self._blind]
            for shelf in self._shelves.values():
                if shelf.parked:
                    reachable = survey(shelf.frame, shelf.priority)
                    woken += (key for key in shelf.within(reachable) if reachable.allows(self._needs(key)))
        for key in woken:
            shape = self._shapes[key]
            self._take_back(key, shape)
            if shape.heap:
                heapq.heappush(self._heap, (shape.heap[0], key))
        if survey is None:
            self._shelves.clear()
            for shape in self._shapes.values():
                shape.needs = shape.shelf = None
        alone = sorted(self._parked - stays)
        for uid in alone:
            self.wake(uid)
        return bool(woken or alone)

    def _needs(self, key: bytes) -> Needs:
        needs = self._shapes[key].needs
        assert needs is not None, "a shape on a shelf has known needs"
        return needs

    def _put_aside(self, key: bytes, shape: _Shape) -> None:
        shape.parked = True
        if shape.shelf is None:
            self._blind[key] = None
        else:
            insort(shape.shelf.parked, (_first_need(shape), key))

    def _take_back(self, key: bytes, shape: _Shape) -> None:
        if not shape.parked:
            return
        shape.parked = False
        if shape.shelf is None:
            del self._blind[key]
        else:
            line = shape.shelf.parked
            del line[bisect_left(line, (_first_need(shape), key))]

    def _forget(self, key: bytes) -> None:
        """A shape nobody waits for is forgotten, and with it that it failed."""
        self._take_back(key, self._shapes[key])
        del self._shapes[key]

    def wake(self, uid: str) -> None:
        """Call back one gang that was set aside alone."""
        if uid not in self._parked:
            return
        self._parked.discard(uid)
        member = self._members[uid]
        shape = self._shapes[member.shape]
        heapq.heappush(shape.heap, member.order)
        if not shape.parked:
            heapq.heappush(self._heap, (shape.heap[0], member.shape))

    # Looking.

    def active(self) -> list[Member]:
        """Those that would be tried, in order."""
        return sorted(
            (member for member in self._members.values() if not self.is_parked(member)),
            key=lambda member: (member.uid != self.sticky, member.order),
        )

    def parked(self) -> list[Member]:
        return sorted((member for member in self._members.values() if self.is_parked(member)), key=_order)

    def parked_alone(self) -> Iterator[Member]:
        return (self._members[uid] for uid in sorted(self._parked))

    def is_parked(self, member: Member) -> bool:
        return member.uid in self._parked or self._shapes[member.shape].parked

    def everyone(self) -> list[Member]:
        """In queue order, set aside or not."""
        return sorted(self._members.values(), key=_order)


def _order(member: Member) -> Order:
    return member.order


def _amount(entry: tuple[int, bytes]) -> int:
    return entry[0]


def _first_need(shape: _Shape) -> int:
    return shape.needs.together[0] if shape.needs is not None and shape.needs.together else 0
