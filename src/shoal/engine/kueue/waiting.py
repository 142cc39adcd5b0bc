"""Who waits for one cluster queue, in order, and who is set aside until something changes.

The cycle takes heads from here and gives back what was not admitted. Gangs of the same shape get the same answer, so a
shape that failed is set aside as a whole, in one step, and later arrivals of that shape join it. Knows no quota.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .demand import Member
from .facts import FlavorResource

Order = tuple[int, int, str]


class Needs(NamedTuple):
    """What must be there before another try makes sense: one of `places`, and all of `totals`."""

    places: tuple[tuple[FlavorResource, int], ...]
    """So much at one of these, for the pod set that found no place."""
    totals: tuple[tuple[tuple[FlavorResource, ...], int], ...]
    """So much over each of these groups of places, for all pod sets together."""


Hopeless = Callable[[Needs, int], bool]
"""Is there no way for a gang of this priority to find what it needs?"""


class _Shape:
    """Waiting gangs of one shape, first to go first. `parked`: known not to fit for now."""

    __slots__ = ("heap", "needs", "parked", "priority", "size")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.needs: Needs | None = None
        """Known since it last failed; None: any change may help."""
        self.heap: list[Order] = []
        self.parked = False
        self.size = 0


class Waiting:
    __slots__ = ("_heap", "_members", "_parked", "_shapes", "sticky", "strict")

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.sticky = ""
        """UID of the preemptor that stays at the front until its victims have left."""
        self._members: dict[str, Member] = {}
        self._shapes: dict[bytes, _Shape] = {}
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
            shape = self._shapes[member.shape] = _Shape(member.priority)
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
            del self._shapes[member.shape]  # a shape nobody waits for is forgotten, and with it that it failed

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
                del self._shapes[member.shape]
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

    def park_hopeless(self, hopeless: Hopeless) -> None:
        """Set aside heads of which it is known that they would fail again, until one is left that might not."""
        while (member := self.head()) is not None and member.uid != self.sticky:
            shape = self._shapes[member.shape]
            if shape.needs is None or not hopeless(shape.needs, shape.priority):
                return
            shape.parked = True

    def park_shape(self, member: Member, needs: Needs | None = None) -> None:
        """Set the member's whole shape aside. The member itself must be queued."""
        shape = self._shapes[member.shape]
        shape.parked = True
        shape.needs = needs

    def unpark(
        self,
        *,
        stays: frozenset[str] | set[str] = frozenset(),
        hopeless: Hopeless | None = None,
    ) -> bool:
        """Something changed: everyone may try again, but `stays` and shapes that are `hopeless`. True if anyone may.

        Without `hopeless` what was known of needs is void: it rested on facts that changed.
        """
        woke = False
        for key, shape in self._shapes.items():
            if hopeless is None:
                shape.needs = None
            if shape.parked and (shape.needs is None or hopeless is None or not hopeless(shape.needs, shape.priority)):
                shape.parked = False
                woke = True
                if shape.heap:
                    heapq.heappush(self._heap, (shape.heap[0], key))
        for uid in sorted(self._parked - stays):
            self.wake(uid)
            woke = True
        return woke

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
