"""At rest means at rest: what must hold of all stored objects once nothing has changed for a while.

`judge_rest` takes the objects of one server and says what no lawful program would have left so. I3, I18: a gang that
waits although it could start. I4: two that keep each other from being whole. I5: pods of one without quota. I10: quota
charged to no gang, or a gang not charged. I37: a finalizer of ours without a reason. I52: a stored reason that is not
true. It knows stored objects and the plain rules, nothing of the engine or of what controllers decide. Where the plain
rules are too costly to decide, the gang is counted as undecided (`TALLY`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.checker.rest_books import books, finalizers
from tests.checker.rest_found import Found
from tests.checker.rest_objects import Json, Rules, Stored
from tests.checker.rest_places import Places
from tests.checker.rest_reasons import Reasons
from tests.checker.rest_room import Room
from tests.checker.rest_waiting import Waiting
from tests.checker.rest_whole import in_parts, without_leave
from tests.checker.rest_wrappers import Wrappers

__all__ = ["TALLY", "Rules", "Tally", "Verdict", "judge_rest"]


@dataclass
class Tally:
    """Over a whole run."""

    worlds: int = 0
    judged: int = 0
    undecided: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return len(self.undecided) / self.judged if self.judged else 0.0

    def handed_over(self) -> Json:
        return {"worlds": self.worlds, "judged": self.judged, "undecided": self.undecided, "seconds": self.seconds}

    def take(self, more: Json | None) -> None:
        """Add what another process has judged."""
        if more:
            self.worlds += more["worlds"]
            self.judged += more["judged"]
            self.undecided += more["undecided"]
            self.seconds += more["seconds"]

    def __str__(self) -> str:
        return (
            f"at rest: {self.worlds} worlds, {self.judged} gangs judged, {len(self.undecided)} undecided"
            f" ({100 * self.share:.2f} %), {self.seconds:.1f} s"
        )


TALLY = Tally()


@dataclass(frozen=True)
class Verdict:
    found: list[str]
    judged: int
    undecided: list[str]


def judge_rest(objects: Mapping[str, Iterable[Json]], rules: Rules | None = None) -> Verdict:
    """Every violation in words, each with the number of its invariant."""
    rules = rules or Rules()
    stored = Stored(objects)
    wrappers = Wrappers(stored, rules)
    promised = wrappers.promised()
    waiting = Waiting(stored, rules, Room(stored, []))
    promised += waiting.gangs.promised()
    wrappers.everything_promised = promised
    room = waiting.room = Room(stored, [part for _, part in promised])
    found = Found()
    if rules.queues:
        found = waiting.judge()
        found.says += books(stored, rules)
    if rules.wrappers:
        theirs = wrappers.judge(room)
        found.says += [*theirs.says, *wrappers.books()]
        found.judged += theirs.judged
        found.doubts |= theirs.doubts
    if rules.queues:
        found.says += [*without_leave(stored, rules), *in_parts(stored, rules)]
    found.says += finalizers(stored, rules)
    found.says += Reasons(stored, rules, waiting).judge()
    found.says += Places(stored, rules, waiting, wrappers, found).judge()
    says = [one for one in found.says if one.split(":")[0] not in rules.skipped]
    return Verdict(says, found.judged, found.undecided)
