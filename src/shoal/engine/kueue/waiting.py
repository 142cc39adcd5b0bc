"""Who waits for one cluster queue, in order, and who is set aside until something changes.

The cycle takes heads from here and gives back what was not admitted. Gangs of the same shape get the same answer, so a
shape that failed is set aside as a whole, in one step, and later arrivals of that shape join it. Shapes that once
missed something at the same places lie on one shelf, the most modest first: a call reaches only those for which what
could be there may be enough. Where age decides who may be made to leave, a gang older than all others of its shape is
a new answer and brings its shape back. Knows no quota.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Protocol

from .demand import Member
from .wish import Frame, Reachable, Wish

Order = tuple[int, int, str]


class Survey(Protocol):
    """What could be there for a queue's gangs, as things are."""

    def reachable(self, frame: Frame, priority: int) -> Reachable:
        """The most that gangs of this priority could find."""

    def may_fit(self, wish: Wish, priority: int) -> bool:
        """Whether a gang of this priority may find enough for the whole of it."""

    def wish(self, member: Member) -> Wish:
        """What the gang asks for."""


class _Shelf:
    """Shapes of one priority that missed something at the same places."""

    __slots__ = ("awake", "frame", "line", "priority")

    def __init__(self, frame: Frame, priority: int) -> None:
        self.frame = frame
        self.priority = priority
        self.line: list[tuple[int, int, bytes]] = []
        """By the first resource they need: all together, the smallest first, and for the largest pod set."""
        self.awake: dict[bytes, None] = {}
        """Those not set aside."""

    def call(self, reachable: Reachable, shapes: dict[bytes, _Shape]) -> None:
        """Wake those that what is reachable may be enough for; those that ask for more in all are not looked at."""
        end = bisect_right(self.line, reachable.together[0], key=_amount) if reachable.together else len(self.line)
        largest = reachable.largest[0] if reachable.largest else 0
        self.awake = dict.fromkeys([key for _, most, key in self.line[:end] if most <= largest])
        self.settle(reachable, shapes)

    def settle(self, reachable: Reachable, shapes: dict[bytes, _Shape]) -> None:
        """Set aside those for whom it is not enough."""
        tempts = reachable.tempts
        self.awake = {key: None for key in self.awake if (needs := shapes[key].needs) is None or tempts(needs)}


class _Shape:
    """Waiting gangs of one shape, first to go first."""

    __slots__ = ("heap", "needs", "parked", "shelf", "size")

    def __init__(self) -> None:
        self.needs: Wish | None = None
        """Known since it last failed; None: any change may help."""
        self.shelf: _Shelf | None = None
        """Where it lies; None exactly when its needs are not known."""
        self.heap: list[Order] = []
        self.parked = False
        """On no shelf, and set aside. One on a shelf is set aside when it is not among the shelf's awake."""
        self.size = 0


class Waiting:
    __slots__ = (
        "_called", "_heap", "_members", "_parked", "_shapes", "_shelves", "_unshelved", "age_counts", "sticky",
        "strict",
    )  # fmt: skip

    def __init__(self, *, strict: bool, age_counts: bool = False) -> None:
        self.strict = strict
        self.age_counts = age_counts
        """Gangs of one shape get the same answer only as long as none is older: the eldest may evict more."""
        self.sticky = ""
        """UID of the preemptor that stays at the front until its victims have left."""
        self._members: dict[str, Member] = {}
        self._shapes: dict[bytes, _Shape] = {}
        self._shelves: dict[tuple[Frame, int], _Shelf] = {}
        self._heap: list[tuple[Order, bytes]] = []
        """First gangs of shapes on no shelf; entries that are no longer true are dropped when they come up."""
        self._unshelved: dict[bytes, None] = {}
        """Shapes on no shelf that are set aside."""
        self._called = False
        """Those on shelves are to be looked through before the next head."""
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
        self._line_up(member, shape)

    def _line_up(self, member: Member, shape: _Shape) -> None:
        first = self._first(shape) if self.age_counts else None
        heapq.heappush(shape.heap, member.order)
        if shape.heap[0] is not member.order:
            return
        if self.age_counts and (first is None or member.time < first.time):
            self._bring_back(member.shape, shape)
        self._offer(member.shape, shape)

    def _bring_back(self, key: bytes, shape: _Shape) -> None:
        """Whatever was found out about the shape does not hold for its new first gang."""
        if shape.shelf is not None:
            shape.shelf.awake[key] = None
        elif shape.parked:
            shape.parked = False
            self._unshelved.pop(key, None)

    def discard(self, uid: str) -> None:
        member = self._members.pop(uid, None)
        if member is None:
            return
        self._parked.discard(uid)
        shape = self._shapes[member.shape]
        shape.size -= 1
        if not shape.size:
            self._forget(member.shape)

    def pop(self, survey: Survey | None = None) -> Member | None:
        """Take the head: the sticky preemptor, else the first of those not set aside for whom there could be enough."""
        member = self._head(survey)
        if member is not None:
            shape = self._shapes[member.shape]
            if shape.heap and shape.heap[0] == member.order:
                heapq.heappop(shape.heap)
            self._members.pop(member.uid)
            shape.size -= 1
            if shape.heap:
                self._offer(member.shape, shape)
        return member

    def gone(self, member: Member) -> None:
        """A head that was taken does not come back. (One that does finds what was known of its shape.)"""
        shape = self._shapes.get(member.shape)
        if shape is not None and not shape.size:
            self._forget(member.shape)

    def _head(self, survey: Survey | None) -> Member | None:
        sticky = self._members.get(self.sticky)
        if sticky is not None and not self.is_parked(sticky):
            return sticky
        if survey is not None:
            self._shelve_all(survey)
        best = self._first_unshelved()
        called = survey is not None and self._called
        if survey is not None and called:
            self._called = False
            for shelf in self._shelves.values():
                shelf.call(survey.reachable(shelf.frame, shelf.priority), self._shapes)
        ahead: list[tuple[Order, bytes, _Shelf, Member]] = []
        for shelf in self._shelves.values():
            if not shelf.awake or (best is not None and -shelf.priority > best.order[0]):
                continue
            if survey is not None and not called:
                shelf.settle(survey.reachable(shelf.frame, shelf.priority), self._shapes)
            for key in shelf.awake:
                first = self._first(self._shapes[key])
                if first is not None and (best is None or first.order < best.order):
                    ahead.append((first.order, key, shelf, first))
        heapq.heapify(ahead)
        while ahead:
            _, key, shelf, first = heapq.heappop(ahead)
            needs = self._shapes[key].needs
            if survey is None or needs is None or survey.may_fit(needs, shelf.priority):
                return first
            del shelf.awake[key]
        return best

    def _shelve_all(self, survey: Survey) -> None:
        """Those of whom nothing is known yet are looked at like all others: a gang without hope takes up no turn."""
        while (first := self._first_unshelved()) is not None:
            self.shelve(first, survey.wish(first))

    def _first_unshelved(self) -> Member | None:
        while self._heap:
            order, key = self._heap[0]
            shape = self._shapes.get(key)
            free = shape is not None and shape.shelf is None and not shape.parked
            first = self._first(shape) if shape is not None and free else None
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

    def sweep(self, survey: Survey) -> None:
        """Set aside those who stand before the head and would fail again."""
        self._head(survey)

    def park_shape(self, member: Member, needs: Wish | None = None) -> None:
        """It failed: set its whole shape aside until a call reaches it. The member itself must be queued."""
        shape = self._shapes[member.shape]
        if needs is None:
            self._unshelve(member.shape, shape)
            shape.needs = None
            shape.parked = True
            self._unshelved[member.shape] = None
            return
        self.shelve(member, needs)
        if shape.shelf is not None:
            shape.shelf.awake.pop(member.shape, None)

    def shelve(self, member: Member, needs: Wish) -> None:
        """Note what its shape needs, so that it is tried only when that may be there. It is not set aside."""
        key, shape = member.shape, self._shapes[member.shape]
        if shape.needs is not needs or shape.shelf is None:
            self._unshelve(key, shape)
            shape.needs, shape.parked = needs, False
            place = (needs.frame, member.priority)
            shape.shelf = self._shelves.get(place) or self._shelves.setdefault(place, _Shelf(*place))
            insort(shape.shelf.line, (*needs.modesty, key))
        shape.shelf.awake[key] = None

    def unpark(self, *, stays: frozenset[str] | set[str] = frozenset(), survey: Survey | None = None) -> bool:
        """Something changed: everyone may try again, but `stays` and shapes that would fail. True if anyone may.

        Without a `survey` what was known of needs is void: it rested on facts that changed.
        """
        called = [*self._unshelved]
        self._unshelved.clear()
        if survey is None:
            for key, shape in self._shapes.items():
                if shape.shelf is not None:
                    shape.shelf = shape.needs = None
                    called.append(key)
            self._shelves.clear()
            self._called = False
        else:
            self._called = True
        for key in called:
            self._shapes[key].parked = False
            self._offer(key, self._shapes[key])
        alone = sorted(self._parked - stays)
        for uid in alone:
            self.wake(uid)
        return bool(called or alone or self._shelves)

    def _offer(self, key: bytes, shape: _Shape) -> None:
        """Its first gang is another one, or may be tried again."""
        if shape.shelf is None and not shape.parked and shape.heap:
            heapq.heappush(self._heap, (shape.heap[0], key))

    def _unshelve(self, key: bytes, shape: _Shape) -> None:
        self._unshelved.pop(key, None)
        if shape.shelf is not None and shape.needs is not None:
            line = shape.shelf.line
            del line[bisect_left(line, (*shape.needs.modesty, key))]
            shape.shelf.awake.pop(key, None)
            if not line:
                del self._shelves[shape.shelf.frame, shape.shelf.priority]
        shape.shelf = None

    def _forget(self, key: bytes) -> None:
        """A shape nobody waits for is forgotten, and with it that it failed."""
        self._unshelve(key, self._shapes.pop(key))

    def wake(self, uid: str) -> None:
        """Call back one gang that was set aside alone."""
        if uid not in self._parked:
            return
        self._parked.discard(uid)
        member = self._members[uid]
        self._line_up(member, self._shapes[member.shape])

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
        shape = self._shapes[member.shape]
        aside = shape.parked if shape.shelf is None else member.shape not in shape.shelf.awake
        return aside or member.uid in self._parked

    def everyone(self) -> list[Member]:
        """In queue order, set aside or not."""
        return sorted(self._members.values(), key=_order)


def _order(member: Member) -> Order:
    return member.order


def _amount(entry: tuple[int, int, bytes]) -> int:
    return entry[0]
