"""Which gang yielded to which, and which gangs others may therefore not push out.

MCAD's rules let a borrower of high priority and a gang within its own quota evict each other for ever. A gang that
yielded once keeps yielding, until one of the two changes; and equals that came later do not get past it by pushing out
the one that it had to leave alone. The state keeps this book, the judge asks it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from shoal.engine.policies import Rank


class Barred(NamedTuple):
    """`holder` may not be pushed out, because `yielder` stood back for it. Both are UIDs."""

    holder: str
    yielder: str


class Yielding:
    def __init__(self) -> None:
        self.to: dict[str, set[str]] = {}
        """Which gang was ever stopped for which, by UID."""
        self._from: dict[str, set[str]] = {}
        """The same the other way round: gangs end by the thousand, and none looks through all that ever yielded."""
        self.left = 0
        """How often one of them went out of the line: those behind it are free again."""
        self._lines: dict[Hashable, dict[str, Rank]] = {}
        """Those of them that wait: equals in one line, each with its place."""
        self._line_of: dict[str, Hashable] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self.to

    def __bool__(self) -> bool:
        return bool(self.to)

    def note(self, uid: str, preemptor: str) -> None:
        self.to.setdefault(uid, set()).add(preemptor)
        self._from.setdefault(preemptor, set()).add(uid)

    def forget(self, uid: str) -> None:
        """It is gone, or asks for something else."""
        for preemptor in self.to.pop(uid, ()):
            yielders = self._from[preemptor]
            yielders.discard(uid)
            if not yielders:
                del self._from[preemptor]
        for yielder in self._from.pop(uid, ()):
            self.to[yielder].discard(uid)

    def adopt(self, other: Yielding) -> None:
        """What another book says of who yielded to which."""
        self.to = {uid: set(preemptors) for uid, preemptors in other.to.items()}
        self._from = {uid: set(yielders) for uid, yielders in other._from.items()}

    def wait(self, uid: str, line: Hashable, place: Rank) -> None:
        """It stands in a line of equals again."""
        self._lines.setdefault(line, {})[uid] = place
        self._line_of[uid] = line

    def leave(self, uid: str) -> None:
        line = self._line_of.pop(uid, None)
        if line is None:
            return
        self.left += 1
        del self._lines[line][uid]
        if not self._lines[line]:
            del self._lines[line]

    def before(self, line: Hashable, place: Rank) -> list[str]:
        """Gangs that yielded and wait in the same line, ahead of a place; the first comes first."""
        found = sorted((other, uid) for uid, other in self._lines.get(line, {}).items() if other < place)
        return [uid for _, uid in found]

    def outranks(self, other: str, uid: str) -> bool:
        """Did this gang ever yield to the other one, or to one that yielded to it, and so on?"""
        seen: set[str] = set()
        above = [uid]
        while above:
            for next_uid in self.to.get(above.pop(), ()):
                if next_uid == other:
                    return True
                if next_uid not in seen:
                    seen.add(next_uid)
                    above.append(next_uid)
        return False

    def barred(self, victims: Iterable[str], uid: str, line: Hashable, place: Rank) -> Barred | None:
        """The first of these victims that a gang has to leave alone, for its own sake or for one before it."""
        if not self.to:
            return None
        own = [uid, *self.before(line, place)]
        return next((Barred(one, who) for one in victims for who in own if self.outranks(one, who)), None)
