"""Everyone who waits, grouped so that equal gangs are judged once.

Gangs of one kind (same pods, same quota seats, same standing) fit or do not fit together. A kind that was found not to
fit is closed until something happens that could help it; the planner only ever looks at the front of open kinds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

import msgspec

from shoal.engine.mcad.trees import TreeNode
from shoal.engine.model import Explanation, Gang, HoldReason
from shoal.engine.nodes.shape import Shape
from shoal.engine.policies import Policy, Rank

Group = tuple["Kind", Hashable]


class Signature(msgspec.Struct, frozen=True):
    """Gangs with equal signatures are judged once. Labels count only where somebody looks at them."""

    shapes: tuple[tuple[Shape, int], ...]
    supply: str
    company: tuple[str, bytes] | None = None
    """Namespace and pod terms, where its pods look at other pods."""
    leaves: tuple[str, ...] = ()
    standing: tuple[int, bool] | None = None
    """Priority and whether it may be preempted, where that matters to quota or preemption."""
    alone: str = ""
    """UID of a gang that other pods' anti-affinity concerns: judged by itself."""
    may_obtain: bool = True
    """Whether nodes may be asked for on its behalf."""
    lane: Hashable = None
    """Where gangs are evicted for quota: one line only, because who yielded stands in the way of those behind it."""


class Kind:
    """Gangs that stand or fall together, in lanes."""

    __slots__ = ("closed", "explanation", "lanes", "reason", "refused_path", "signature", "size", "stale", "watches")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.lanes: dict[Hashable, list[tuple[Rank, str]]] = {}
        self.size = 0
        self.closed = False
        self.watches: Hashable = None
        """What was seen when it was closed; where that differs now, it opens again."""
        self.reason: HoldReason = "resources"
        self.explanation: Explanation | None = None
        self.refused_path: tuple[TreeNode, ...] = ()
        """Quota nodes that a refusal by quota hung on."""
        self.stale = False
        """The explanation's numbers are of an earlier look; the verdict is the same."""


class Waiting:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.kinds: dict[Signature, Kind] = {}
        self.open: dict[Kind, None] = {}
        self.short_of_room: dict[Kind, None] = {}
        """Closed, and not because of quota."""
        self._of: dict[str, tuple[Kind, Hashable, Rank]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def add(self, gang: Gang, signature: Signature) -> Kind:
        self.remove(gang.uid)
        kind = self.kinds.get(signature)
        if kind is None:
            kind = self.kinds[signature] = Kind(signature)
            self.open[kind] = None
        lane, rank = self.policy.lane(gang), self.policy.order(gang)
        insort(kind.lanes.setdefault(lane, []), (rank, gang.uid))
        kind.size += 1
        self._of[gang.uid] = (kind, lane, rank)
        return kind

    def remove(self, uid: str) -> Kind | None:
        """Returns the kind if it was the last of it."""
        known = self._of.pop(uid, None)
        if known is None:
            return None
        kind, lane, rank = known
        line = kind.lanes[lane]
        del line[bisect_left(line, (rank, uid))]
        kind.size -= 1
        if not line:
            del kind.lanes[lane]
        if kind.size:
            return None
        del self.kinds[kind.signature]
        self.open.pop(kind, None)
        self.short_of_room.pop(kind, None)
        return kind

    def kind_of(self, uid: str) -> Kind | None:
        known = self._of.get(uid)
        return known[0] if known else None

    def is_first(self, uid: str) -> bool:
        """Is it at the front of its lane?"""
        known = self._of.get(uid)
        return known is not None and known[0].lanes[known[1]][0][1] == uid

    def close(self, kind: Kind) -> None:
        kind.closed = True
        self.open.pop(kind, None)
        if kind.reason != "quota":
            self.short_of_room[kind] = None

    def reopen(self, kind: Kind) -> None:
        if kind.closed and kind.size:
            kind.closed = False
            self.open[kind] = None
            self.short_of_room.pop(kind, None)

    def fronts(self) -> Iterator[Group]:
        """Every lane of every open kind."""
        for kind in self.open:
            for lane in kind.lanes:
                yield kind, lane

    def front(self, group: Group) -> str | None:
        """UID of the first of a lane."""
        line = group[0].lanes.get(group[1])
        return line[0][1] if line else None

    def members(self, kind: Kind) -> Iterator[str]:
        for line in kind.lanes.values():
            for _, uid in line:
                yield uid
