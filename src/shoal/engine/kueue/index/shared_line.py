"""The waiting gangs of a cluster queue that is shared by usage: one line per LocalQueue (or user), lowest usage first.

Takes the place of `WaitingIndex` in such a queue and has its methods. Usage changes with every sample and every
reservation, so lines are ranked when a head is asked for; within a line everything is as in any queue. Gangs of one
shape get the same answer in all lines, unless age decides who may be made to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.index.bucket import LineRank
from shoal.engine.kueue.index.waiting import Survey, WaitingIndex
from shoal.engine.kueue.index.waits_for import WaitsFor
from shoal.engine.kueue.usage import Lane, UsageLedger
from shoal.engine.kueue.usage import Rank as UsageRank


class SharedLine:
    __slots__ = ("_age_counts", "_lane_of", "_lines", "_usage", "sticky", "strict")

    def __init__(self, usage: UsageLedger, *, strict: bool, age_counts: bool = False) -> None:
        self._usage = usage
        self.strict = strict
        self._age_counts = age_counts
        self.sticky = ""
        """UID of the preemptor that stays at the front until its victims have left."""
        self._lines: dict[Lane, WaitingIndex] = {}
        self._lane_of: dict[str, Lane] = {}

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._lane_of

    @property
    def age_counts(self) -> bool:
        return self._age_counts

    @age_counts.setter
    def age_counts(self, counts: bool) -> None:
        self._age_counts = counts
        for line in self._lines.values():
            line.age_counts = counts

    # Going in and out.

    def push(self, member: QueueMember, *, inadmissible: bool = False) -> None:
        lane = self._usage.lane(member)
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = WaitingIndex(strict=self.strict, age_counts=self._age_counts)
        self._lane_of[member.uid] = lane
        line.push(member, inadmissible=inadmissible)

    def discard(self, uid: str) -> None:
        lane = self._lane_of.pop(uid, None)
        if lane is not None:
            self._lines[lane].discard(uid)
            self._drop_if_empty(lane)

    def pop(self, survey: Survey | None = None, first: str = "") -> QueueMember | None:
        """As `WaitingIndex.pop`, from the line with the lowest usage that has a head."""
        lane = self._lane_of.get(first)
        member = self._lines[lane].pop(survey, first) if lane is not None else self._pop_head(survey)
        if member is not None:
            self._lane_of.pop(member.uid, None)
        return member

    def _pop_head(self, survey: Survey | None) -> QueueMember | None:
        head = self._head(survey)
        return self._lines[self._lane_of[head.uid]].pop(None, head.uid) if head is not None else None

    def gone(self, member: QueueMember) -> None:
        lane = self._usage.lane(member)
        if lane in self._lines:
            self._lines[lane].gone(member)
            self._drop_if_empty(lane)

    def _drop_if_empty(self, lane: Lane) -> None:
        if not len(self._lines[lane]):
            del self._lines[lane]

    def peek(self) -> QueueMember | None:
        return self._head(None)

    def _head(self, survey: Survey | None) -> QueueMember | None:
        sticky = self._member(self.sticky)
        if sticky is not None and not self.is_inadmissible(sticky):
            return sticky
        best: QueueMember | None = None
        until: UsageRank | None = None
        for rank, lane in sorted((self._usage.rank(lane), lane) for lane in self._lines):
            if until is not None and rank > until:
                break
            head = self._lines[lane].head(survey, best)
            if head is not None:
                best, until = head, rank
        return best

    def sweep(self, survey: Survey) -> None:
        for line in self._lines.values():
            line.sweep(survey)

    # Setting aside, and calling back.

    def set_inadmissible(self, member: QueueMember, waits_for: WaitsFor | None = None) -> None:
        own = self._lane_of[member.uid]
        for lane, line in self._lines.items():
            if lane == own or (not self._age_counts and line.has_shape(member.shape)):
                line.set_inadmissible(member, waits_for)

    def index(self, member: QueueMember, waits_for: WaitsFor) -> None:
        self._lines[self._lane_of[member.uid]].index(member, waits_for)

    def requeue(self, *, stays: frozenset[str] | set[str] = frozenset(), survey: Survey | None = None) -> bool:
        called = [line.requeue(stays=stays, survey=survey) for line in self._lines.values()]
        return any(called)

    def wake(self, uid: str) -> None:
        lane = self._lane_of.get(uid)
        if lane is not None:
            self._lines[lane].wake(uid)

    # Looking.

    def rank(self, member: QueueMember) -> LineRank:
        """What decides its place: lower goes first."""
        return self._usage.rank(self._usage.lane(member)), member.order

    def active(self) -> list[QueueMember]:
        found = [member for member in self.members() if not self.is_inadmissible(member)]
        return sorted(found, key=lambda member: (member.uid != self.sticky, self.rank(member)))

    def inadmissible(self) -> list[QueueMember]:
        return sorted((member for member in self.members() if self.is_inadmissible(member)), key=self.rank)

    def inadmissible_count(self) -> int:
        return sum(line.inadmissible_count() for line in self._lines.values())

    def inadmissible_alone(self) -> Iterator[QueueMember]:
        return chain.from_iterable([line.inadmissible_alone() for line in self._lines.values()])

    def is_inadmissible(self, member: QueueMember) -> bool:
        return self._lines[self._lane_of[member.uid]].is_inadmissible(member)

    def members(self) -> Iterable[QueueMember]:
        return list(chain.from_iterable(line.members() for line in self._lines.values()))

    def early(self, of_each: int) -> list[QueueMember]:
        return list(chain.from_iterable(line.early(of_each) for line in self._lines.values()))

    def everyone(self) -> list[QueueMember]:
        return sorted(self.members(), key=self.rank)

    def _member(self, uid: str) -> QueueMember | None:
        lane = self._lane_of.get(uid)
        return self._lines[lane].member(uid) if lane is not None else None
