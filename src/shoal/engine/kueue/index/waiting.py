"""Who waits for one cluster queue, in order, and who is set aside until something changes.

The cycle takes heads from here and gives back what was not admitted. Gangs of the same shape get the same answer, so a
shape that failed is set aside as a whole, in one step, and later arrivals of that shape join it. Shapes that once
missed something at the same places lie on one shelf, the most modest first: a call reaches only those for which what
could be there may be enough. Where age decides who may be made to leave, a gang older than all others of its shape is
a new answer and brings its shape back. Knows no quota.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol

from shoal.engine.kueue.demand import Member
from shoal.engine.kueue.index.shelf import Order, Shape, Shelf
from shoal.engine.kueue.index.wish import Frame, Wish


class Survey(Protocol):
    """What could be there for a queue's gangs, as things are."""

    def within(self, frame: Frame, priority: int) -> tuple[int, int] | None:
        """The most that gangs of this priority could find of the frame's first resource, in all and at one place."""

    def may_fit(self, wish: Wish, priority: int) -> bool:
        """Whether a gang of this priority may find enough for the whole of it."""

    def wish(self, member: Member) -> Wish:
        """What the gang asks for."""


class Waiting:
    __slots__ = (
        "_called", "_heap", "_members", "_parked", "_ranks", "_shapes", "_shelves", "_unshelved", "age_counts",
        "sticky", "strict",
    )  # fmt: skip

    def __init__(self, *, strict: bool, age_counts: bool = False) -> None:
        self.strict = strict
        self.age_counts = age_counts
        """Gangs of one shape get the same answer only as long as none is older: the eldest may evict more."""
        self.sticky = ""
        """UID of the preemptor that stays at the front until its victims have left."""
        self._members: dict[str, Member] = {}
        self._shapes: dict[str, Shape] = {}
        self._shelves: dict[tuple[Frame, int], Shelf] = {}
        self._ranks: list[tuple[int, list[Shelf]]] | None = None
        self._heap: list[tuple[Order, str]] = []
        """First gangs of shapes on no shelf; entries that are no longer true are dropped when they come up."""
        self._unshelved: dict[str, None] = {}
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
            shape = self._shapes[member.shape] = Shape(member.shape)
        shape.size += 1
        if parked:
            self._parked.add(member.uid)
            return
        self._line_up(member, shape)

    def _line_up(self, member: Member, shape: Shape) -> None:
        first = self._first(shape) if self.age_counts else None
        heapq.heappush(shape.heap, member.order)
        if shape.heap[0] is not member.order:
            return
        if self.age_counts and (first is None or member.time < first.time):
            self._bring_back(member.shape, shape)
        self._offer(member.shape, shape)

    def _bring_back(self, key: str, shape: Shape) -> None:
        """Whatever was found out about the shape does not hold for its new first gang."""
        shape.failed_at = -1
        if shape.parked:
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
        elif shape.heap and shape.heap[0] == member.order:
            self._offer(member.shape, shape)  # it may come back in another shape, with the same place in line

    def pop(self, survey: Survey | None = None, first: str = "") -> Member | None:
        """Take the head: the gang with the UID `first`, whatever was found of its shape; the sticky preemptor; else the
        first of those not set aside for whom there could be enough."""
        member = self._members.get(first) if first not in self._parked else None
        if member is None:
            member = self._head(survey)
        if member is not None:
            shape = self._shapes[member.shape]
            if shape.heap and shape.heap[0] == member.order:
                heapq.heappop(shape.heap)
            self._members.pop(member.uid)
            shape.size -= 1
            if shape.shelf is None:
                self._offer(member.shape, shape)
        return member

    def gone(self, member: Member) -> None:
        """A head that was taken does not come back. (One that does finds what was known of its shape.)"""
        shape = self._shapes.get(member.shape)
        if shape is not None and not shape.size:
            self._forget(member.shape)

    def peek(self) -> Member | None:
        """The head, whether or not there is enough for it."""
        return self._head(None)

    def _head(self, survey: Survey | None) -> Member | None:
        sticky = self._members.get(self.sticky)
        if sticky is not None and not self.is_parked(sticky):
            return sticky
        if survey is not None:
            self._shelve_all(survey)
            if self._called:
                self._called = False
                for shelf in self._shelves.values():
                    shelf.calls += 1
        best = self._first_unshelved()
        for priority, shelves in self._by_priority():
            if best is not None and -best.order[0] > priority:
                break
            for shelf in shelves:
                if survey is not None:
                    shelf.within = survey.within(shelf.frame, priority)
                best = self._first_fitting(shelf, survey, best)
            if best is not None:
                break
        return best

    def _first_fitting(self, shelf: Shelf, survey: Survey | None, best: Member | None) -> Member | None:
        """The first on this shelf for whom there may be enough, unless `best` comes before; who fails is set aside."""
        for shape in shelf.candidates():
            first = self._first(shape)
            if first is None or first.order != shape.listed:
                shelf.list_again(shape)  # those before it left; its turn may come yet
                continue
            if best is not None and best.order < first.order:
                break
            if survey is None or shape.needs is None or survey.may_fit(shape.needs, shelf.priority):
                return first
            shape.failed_at = shelf.calls
        return best

    def _by_priority(self) -> list[tuple[int, list[Shelf]]]:
        """The shelves, highest priority first."""
        if self._ranks is None:
            ranks: dict[int, list[Shelf]] = {}
            for shelf in self._shelves.values():
                ranks.setdefault(shelf.priority, []).append(shelf)
            self._ranks = sorted(ranks.items(), reverse=True)
        return self._ranks

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

    def _first(self, shape: Shape) -> Member | None:
        """The shape's first gang; entries of those that left or were set aside are dropped on the way."""
        while shape.heap:
            order = shape.heap[0]
            member = self._members.get(order[2])
            if member is not None and _stands_there(member, shape, order) and order[2] not in self._parked:
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
        shape.failed_at = self._lay(member, needs).calls

    def shelve(self, member: Member, needs: Wish) -> None:
        """Note what its shape needs, so that it is tried only when that may be there. It is not set aside."""
        self._lay(member, needs)
        self._shapes[member.shape].failed_at = -1

    def _lay(self, member: Member, needs: Wish) -> Shelf:
        key, shape = member.shape, self._shapes[member.shape]
        if shape.shelf is None or shape.needs is not needs:
            self._unshelve(key, shape)
            shape.needs, shape.parked = needs, False
            place = (needs.frame, member.priority)
            shelf = self._shelves.get(place)
            if shelf is None:
                shelf = self._shelves[place] = Shelf(*place)
                self._ranks = None
            shape.shelf = shelf
            self._first(shape)
            shelf.put(shape, needs)
        return shape.shelf

    def unpark(self, *, stays: frozenset[str] | set[str] = frozenset(), survey: Survey | None = None) -> bool:
        """Something changed: everyone may try again, but `stays` and shapes that would fail. True if anyone may.

        Without a `survey` what was known of needs is void: it rested on facts that changed.
        """
        called = [*self._unshelved]
        self._unshelved.clear()
        if survey is None:
            for key, shape in self._shapes.items():
                if shape.shelf is not None:
                    shape.shelf = shape.needs = shape.listed = None
                    called.append(key)
            self._shelves.clear()
            self._ranks = None
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

    def _offer(self, key: str, shape: Shape) -> None:
        """Its first gang is another one, or may be tried again."""
        self._first(shape)
        if shape.shelf is not None:
            shape.shelf.list_again(shape)
        elif shape.heap and not shape.parked:
            heapq.heappush(self._heap, (shape.heap[0], key))

    def _unshelve(self, key: str, shape: Shape) -> None:
        self._unshelved.pop(key, None)
        if shape.shelf is not None and shape.needs is not None:
            shape.shelf.take(shape, shape.needs)
            if not shape.shelf.line:
                del self._shelves[shape.shelf.frame, shape.shelf.priority]
                self._ranks = None
        shape.shelf = None

    def _forget(self, key: str) -> None:
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
        return iter([self._members[uid] for uid in sorted(self._parked)] if self._parked else ())

    def is_parked(self, member: Member) -> bool:
        return member.uid in self._parked or self._shapes[member.shape].is_aside

    def members(self) -> Iterable[Member]:
        """Everyone, in no order."""
        return self._members.values()

    def everyone(self) -> list[Member]:
        """In queue order, set aside or not."""
        return sorted(self._members.values(), key=_order)


def _order(member: Member) -> Order:
    return member.order


def _stands_there(member: Member, shape: Shape, order: Order) -> bool:
    """An entry may be of a gang that has another place by now, or the same one in another shape."""
    return member.order == order and member.shape == shape.key
