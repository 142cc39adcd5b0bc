"""Gangs that wait for one cluster queue, in order, and which are inadmissible until something changes.

The cycle takes heads from here and gives back what was not admitted. Gangs of the same shape get the same answer, so a
shape that failed is inadmissible as a whole, in one step, and later arrivals of that shape join it. Shapes that once
wait for quota at the same places share a bucket, the most modest first: a call reaches only those for which what
could be there may be enough. Where age decides who may be made to leave, a gang older than all others of its shape is
a new answer and brings its shape back. Knows no quota.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol

from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.index.bucket import NO_USAGE, Bucket, EqualGangs, LineRank, Order
from shoal.engine.kueue.index.waits_for import QuotaPlaces, WaitsFor


class Survey(Protocol):
    """What could be there for a queue's gangs, as things are."""

    def within(self, at_places: QuotaPlaces, priority: int) -> tuple[int, int] | None:
        """The most that gangs of this priority could find of the first resource there, in all and at one place."""

    def may_fit(self, waits_for: WaitsFor, priority: int) -> bool:
        """Whether a gang of this priority may find enough for the whole of it."""

    def waits_for(self, member: QueueMember) -> WaitsFor:
        """What the gang asks for."""


class WaitingIndex:
    __slots__ = (
        "_buckets", "_called", "_heap", "_inadmissible", "_members", "_parked", "_ranks", "_shapes", "_unindexed",
        "age_counts", "sticky", "strict",
    )  # fmt: skip

    def __init__(self, *, strict: bool, age_counts: bool = False) -> None:
        self.strict = strict
        self.age_counts = age_counts
        """Gangs of one shape get the same answer only as long as none is older: the eldest may evict more."""
        self.sticky = ""
        """UID of the preemptor that stays at the front until its victims have left."""
        self._members: dict[str, QueueMember] = {}
        self._shapes: dict[str, EqualGangs] = {}
        self._buckets: dict[tuple[QuotaPlaces, int], Bucket] = {}
        self._ranks: list[tuple[int, list[Bucket]]] | None = None
        self._heap: list[tuple[Order, str]] = []
        """First gangs of shapes in no bucket; entries that are no longer true are dropped when they come up."""
        self._unindexed: dict[str, None] = {}
        """Inadmissible shapes in no bucket."""
        self._called = False
        """Those in buckets are to be looked through before the next head."""
        self._inadmissible: set[str] = set()
        """UIDs of gangs inadmissible one by one: backing off, or for a reason that is theirs alone."""
        self._parked: set[str] = set()
        """UIDs of gangs that no other cluster would start, where others may pass them: no quota helps them, and they
        are told again when that changes."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, uid: str) -> bool:
        return uid in self._members

    # Going in and out.

    def push(self, member: QueueMember, *, inadmissible: bool = False) -> None:
        """Queue a gang. It joins its shape, which may be inadmissible; `inadmissible`: this one alone is."""
        self._members[member.uid] = member
        shape = self._shapes.get(member.shape)
        if shape is None:
            shape = self._shapes[member.shape] = EqualGangs(member.shape)
        shape.size += 1
        if member.gang.nowhere and not self.strict:
            self._parked.add(member.uid)
            return
        if inadmissible:
            self._inadmissible.add(member.uid)
            return
        self._line_up(member, shape)

    def _line_up(self, member: QueueMember, shape: EqualGangs) -> None:
        first = self._first(shape) if self.age_counts else None
        heapq.heappush(shape.heap, member.order)
        if shape.heap[0] is not member.order:
            return
        if self.age_counts and (first is None or member.time < first.time):
            self._bring_back(member.shape, shape)
        self._offer(member.shape, shape)

    def _bring_back(self, key: str, shape: EqualGangs) -> None:
        """Whatever was found out about the shape does not hold for its new first gang."""
        shape.failed_at = -1
        if shape.inadmissible:
            shape.inadmissible = False
            self._unindexed.pop(key, None)

    def discard(self, uid: str) -> None:
        member = self._members.pop(uid, None)
        if member is None:
            return
        self._inadmissible.discard(uid)
        self._parked.discard(uid)
        shape = self._shapes[member.shape]
        shape.size -= 1
        if not shape.size:
            self._forget(member.shape)
        elif shape.heap and shape.heap[0] == member.order:
            self._offer(member.shape, shape)  # it may come back in another shape, with the same place in line

    def pop(self, survey: Survey | None = None, first: str = "") -> QueueMember | None:
        """Take the head: the gang with the UID `first`, whatever was found of its shape; the sticky preemptor; else the
        first admissible one for which there could be enough."""
        waits = first in self._inadmissible or first in self._parked
        member = self._members.get(first) if not waits else None
        if member is None:
            member = self.head(survey)
        if member is not None:
            shape = self._shapes[member.shape]
            if shape.heap and shape.heap[0] == member.order:
                heapq.heappop(shape.heap)
            self._members.pop(member.uid)
            shape.size -= 1
            if shape.bucket is None:
                self._offer(member.shape, shape)
        return member

    def gone(self, member: QueueMember) -> None:
        """A head that was taken does not come back. (One that does finds what was known of its shape.)"""
        shape = self._shapes.get(member.shape)
        if shape is not None and not shape.size:
            self._forget(member.shape)

    def peek(self) -> QueueMember | None:
        """The head, whether or not there is enough for it."""
        return self.head(None)

    def head(self, survey: Survey | None, before: QueueMember | None = None) -> QueueMember | None:
        """The first for which there could be enough; without a survey the first. `before`: one of another line, which
        is returned where it comes first; those behind it are not looked at."""
        sticky = self._members.get(self.sticky)
        if sticky is not None and not self.is_inadmissible(sticky):
            return sticky
        best: QueueMember | None = None
        if survey is not None:
            self._index_all(survey)
            if self._called:
                self._called = False
                for bucket in self._buckets.values():
                    bucket.calls += 1
        else:
            best = self._first_unindexed()
        if before is not None and (best is None or before.order < best.order):
            best = before
        for priority, buckets in self._by_priority():
            if best is not None and -best.order[0] > priority:
                break
            for bucket in buckets:
                if survey is not None:
                    bucket.within = survey.within(bucket.at_places, priority)
                    if bucket.is_beyond_reach:
                        continue
                if best is None or not bucket.turns or bucket.turns[0][0] < best.order:
                    best = self._first_fitting(bucket, survey, best)
            if best is not None:
                break
        return best

    def _first_fitting(self, bucket: Bucket, survey: Survey | None, best: QueueMember | None) -> QueueMember | None:
        """The first in this bucket for which there may be enough, unless `best` comes before. The rest has failed."""
        for shape in bucket.candidates():
            first = self._first(shape)
            if first is None or first.order != shape.listed:
                bucket.list_again(shape)  # those before it left; its turn may come yet
                continue
            if best is not None and best.order < first.order:
                break
            if survey is None or shape.waits_for is None or survey.may_fit(shape.waits_for, bucket.priority):
                return first
            shape.failed_at = bucket.calls
        return best

    def _by_priority(self) -> list[tuple[int, list[Bucket]]]:
        """The buckets, highest priority first."""
        if self._ranks is None:
            ranks: dict[int, list[Bucket]] = {}
            for bucket in self._buckets.values():
                ranks.setdefault(bucket.priority, []).append(bucket)
            self._ranks = sorted(ranks.items(), reverse=True)
        return self._ranks

    def _index_all(self, survey: Survey) -> None:
        """Gangs of which nothing is known yet are looked at like all others: a gang without hope takes up no turn."""
        while (first := self._first_unindexed()) is not None:
            self.index(first, survey.waits_for(first))

    def _first_unindexed(self) -> QueueMember | None:
        while self._heap:
            order, key = self._heap[0]
            shape = self._shapes.get(key)
            free = shape is not None and shape.bucket is None and not shape.inadmissible
            first = self._first(shape) if shape is not None and free else None
            if first is not None and first.order == order:
                return first
            heapq.heappop(self._heap)
            if first is not None:
                heapq.heappush(self._heap, (first.order, key))
        return None

    def _first(self, shape: EqualGangs) -> QueueMember | None:
        """The shape's first gang; entries of those that left or became inadmissible are dropped on the way."""
        while shape.heap:
            order = shape.heap[0]
            member = self._members.get(order[2])
            if member is not None and _stands_there(member, shape, order) and order[2] not in self._inadmissible:
                return member
            heapq.heappop(shape.heap)
        return None

    # Setting aside, and calling back.

    def sweep(self, survey: Survey) -> None:
        """Set aside gangs that stand before the head and would fail again."""
        self.head(survey)

    def set_inadmissible(self, member: QueueMember, waits_for: WaitsFor | None = None) -> None:
        """It failed: set its whole shape aside until a call reaches it. The member itself must be queued."""
        shape = self._shapes[member.shape]
        if waits_for is None:
            self._unindex(member.shape, shape)
            shape.waits_for = None
            shape.inadmissible = True
            self._unindexed[member.shape] = None
            return
        shape.failed_at = self._lay(member, waits_for).calls

    def index(self, member: QueueMember, waits_for: WaitsFor) -> None:
        """Note what its shape needs, so that it is tried only when that may be there. It stays admissible."""
        self._lay(member, waits_for)
        self._shapes[member.shape].failed_at = -1

    def _lay(self, member: QueueMember, waits_for: WaitsFor) -> Bucket:
        key, shape = member.shape, self._shapes[member.shape]
        if shape.bucket is None or shape.waits_for is not waits_for:
            self._unindex(key, shape)
            shape.waits_for, shape.inadmissible = waits_for, False
            place = (waits_for.at_places, member.priority)
            bucket = self._buckets.get(place)
            if bucket is None:
                bucket = self._buckets[place] = Bucket(*place)
                self._ranks = None
            shape.bucket = bucket
            self._first(shape)
            bucket.put(shape, waits_for)
        return shape.bucket

    def requeue(self, *, stays: frozenset[str] | set[str] = frozenset(), survey: Survey | None = None) -> bool:
        """Something changed: all may try again, but `stays` and shapes that would fail. True if any may.

        Without a `survey` what was known of needs is void: it rested on facts that changed.
        """
        called = [*self._unindexed]
        self._unindexed.clear()
        if survey is None:
            for key, shape in self._shapes.items():
                if shape.bucket is not None:
                    shape.bucket = shape.waits_for = shape.listed = None
                    called.append(key)
            self._buckets.clear()
            self._ranks = None
            self._called = False
        else:
            self._called = True
        for key in called:
            self._shapes[key].inadmissible = False
            self._offer(key, self._shapes[key])
        alone = sorted(self._inadmissible - stays)
        for uid in alone:
            self.wake(uid)
        return bool(called or alone or self._buckets)

    def _offer(self, key: str, shape: EqualGangs) -> None:
        """Its first gang is another one, or may be tried again."""
        self._first(shape)
        if shape.bucket is not None:
            shape.bucket.list_again(shape)
        elif shape.heap and not shape.inadmissible:
            heapq.heappush(self._heap, (shape.heap[0], key))

    def _unindex(self, key: str, shape: EqualGangs) -> None:
        self._unindexed.pop(key, None)
        if shape.bucket is not None and shape.waits_for is not None:
            shape.bucket.take(shape, shape.waits_for)
            if not shape.bucket.line:
                del self._buckets[shape.bucket.at_places, shape.bucket.priority]
                self._ranks = None
        shape.bucket = None

    def _forget(self, key: str) -> None:
        """A shape for which no gang waits is forgotten, and with it that it failed."""
        self._unindex(key, self._shapes.pop(key))

    def wake(self, uid: str) -> None:
        """Call back one gang that was inadmissible alone."""
        if uid not in self._inadmissible:
            return
        self._inadmissible.discard(uid)
        member = self._members[uid]
        self._line_up(member, self._shapes[member.shape])

    # Looking.

    def active(self) -> list[QueueMember]:
        """Those that would be tried, in order."""
        return sorted(
            (member for member in self._members.values() if not self.is_inadmissible(member)),
            key=lambda member: (member.uid != self.sticky, member.order),
        )

    def inadmissible(self) -> list[QueueMember]:
        return sorted((member for member in self._members.values() if self.is_inadmissible(member)), key=_order)

    def inadmissible_count(self) -> int:
        """How many are inadmissible; looks at shapes, not at every gang."""
        whole = sum(shape.size for shape in self._shapes.values() if shape.is_inadmissible)
        alone = sum(not self._shapes[self._members[uid].shape].is_inadmissible for uid in self._inadmissible)
        return whole + alone + len(self._parked)

    def inadmissible_alone(self) -> Iterator[QueueMember]:
        return iter([self._members[uid] for uid in sorted(self._inadmissible)] if self._inadmissible else ())

    def is_inadmissible(self, member: QueueMember) -> bool:
        if member.uid in self._inadmissible or member.uid in self._parked:
            return True
        return self._shapes[member.shape].is_inadmissible

    def members(self) -> Iterable[QueueMember]:
        """All gangs, in no order."""
        return self._members.values()

    def member(self, uid: str) -> QueueMember | None:
        return self._members.get(uid)

    def has_shape(self, key: str) -> bool:
        return key in self._shapes

    def rank(self, member: QueueMember) -> LineRank:
        """What decides its place: lower goes first."""
        return NO_USAGE, member.order

    def early(self, of_each: int) -> list[QueueMember]:
        """Some of those that come first, of every shape, in no order; none that is inadmissible alone."""
        found: dict[str, QueueMember] = {}
        for shape in self._shapes.values():
            for order in shape.heap[:of_each]:
                member = self._members.get(order[2])
                if member is not None and _stands_there(member, shape, order) and order[2] not in self._inadmissible:
                    found[order[2]] = member
        return list(found.values())

    def everyone(self) -> list[QueueMember]:
        """In queue order, inadmissible or not."""
        return sorted(self._members.values(), key=_order)


def _order(member: QueueMember) -> Order:
    return member.order


def _stands_there(member: QueueMember, shape: EqualGangs, order: Order) -> bool:
    """An entry may be of a gang that has another place by now, or the same one in another shape."""
    return member.order == order and member.shape == shape.key
