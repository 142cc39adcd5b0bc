"""All gangs that wait, grouped so that equal gangs are judged once.

Gangs of one class (same pods, same quota seats, same standing) fit or do not fit together. A class that was found not
to fit is inadmissible until something happens that could help it; the cycle only looks at the front of all others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

import msgspec

from shoal.engine.mcad.trees import TreeNode
from shoal.engine.model import Explanation, Gang, HoldReason
from shoal.engine.nodes.shape import Shape
from shoal.engine.policies import Policy, Rank

Group = tuple["GangClass", Hashable]


class Signature(msgspec.Struct, frozen=True):
    """Gangs with equal signatures are judged once. Labels count only where a pod looks at them."""

    shapes: tuple[tuple[Shape, int], ...]
    supply: str
    company: tuple[str, bytes] | None = None
    """Namespace and pod terms, where its pods look at other pods."""
    leaves: tuple[str, ...] = ()
    standing: tuple[int, bool, str] | None = None
    """Priority, whether it may be preempted, and the dialect, where that matters to quota or preemption."""
    alone: str = ""
    """UID of a gang that other pods' anti-affinity concerns: judged by itself."""
    may_obtain: bool = True
    """Whether nodes may be asked for on its behalf."""
    lane: Hashable = None
    """Where gangs are evicted for quota: one line only, because a gang that yielded bars those behind it."""


class GangClass:
    """Gangs that stand or fall together, in lanes."""

    __slots__ = (
        "explanation",
        "inadmissible",
        "lanes",
        "reason",
        "refused_path",
        "signature",
        "size",
        "stale",
        "watches",
    )

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.lanes: dict[Hashable, list[tuple[Rank, str]]] = {}
        self.size = 0
        self.inadmissible = False
        self.watches: Hashable = None
        """What was seen when it became inadmissible; where that differs now, it is reconsidered."""
        self.reason: HoldReason = "resources"
        self.explanation: Explanation | None = None
        self.refused_path: tuple[TreeNode, ...] = ()
        """Quota nodes that a refusal by quota hung on."""
        self.stale = False
        """The explanation's numbers are of an earlier look; the verdict is the same."""


class Waiting:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.classes: dict[Signature, GangClass] = {}
        self.open: dict[GangClass, None] = {}
        self.short_of_room: dict[GangClass, None] = {}
        """Inadmissible, and not because of quota."""
        self._of: dict[str, tuple[GangClass, Hashable, Rank]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def add(self, gang: Gang, signature: Signature) -> GangClass:
        self.remove(gang.uid)
        gang_class = self.classes.get(signature)
        if gang_class is None:
            gang_class = self.classes[signature] = GangClass(signature)
            self.open[gang_class] = None
        lane, rank = self.policy.lane(gang), self.policy.order(gang)
        insort(gang_class.lanes.setdefault(lane, []), (rank, gang.uid))
        gang_class.size += 1
        self._of[gang.uid] = (gang_class, lane, rank)
        return gang_class

    def remove(self, uid: str) -> GangClass | None:
        """Returns the class if it was the last of it."""
        known = self._of.pop(uid, None)
        if known is None:
            return None
        gang_class, lane, rank = known
        line = gang_class.lanes[lane]
        del line[bisect_left(line, (rank, uid))]
        gang_class.size -= 1
        if not line:
            del gang_class.lanes[lane]
        if gang_class.size:
            return None
        del self.classes[gang_class.signature]
        self.open.pop(gang_class, None)
        self.short_of_room.pop(gang_class, None)
        return gang_class

    def class_of(self, uid: str) -> GangClass | None:
        known = self._of.get(uid)
        return known[0] if known else None

    def is_first(self, uid: str) -> bool:
        """Is it at the front of its lane?"""
        known = self._of.get(uid)
        return known is not None and known[0].lanes[known[1]][0][1] == uid

    def set_inadmissible(self, gang_class: GangClass) -> None:
        gang_class.inadmissible = True
        self.open.pop(gang_class, None)
        if gang_class.reason != "quota":
            self.short_of_room[gang_class] = None

    def reconsider(self, gang_class: GangClass) -> None:
        if gang_class.inadmissible and gang_class.size:
            gang_class.inadmissible = False
            self.open[gang_class] = None
            self.short_of_room.pop(gang_class, None)

    def fronts(self) -> Iterator[Group]:
        """Every lane of every open class."""
        for gang_class in self.open:
            for lane in gang_class.lanes:
                yield gang_class, lane

    def front(self, group: Group) -> str | None:
        """UID of the first of a lane."""
        line = group[0].lanes.get(group[1])
        return line[0][1] if line else None

    def members(self, gang_class: GangClass) -> Iterator[str]:
        for line in gang_class.lanes.values():
            for _, uid in line:
                yield uid
