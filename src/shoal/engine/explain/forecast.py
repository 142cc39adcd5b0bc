"""When would a gang start? A copy of the engine in which gangs end when they are expected to, planned after each end.

Called by `Engine.forecast`. How long gangs run is not the engine's to know: `lengths` says it, by declared limits or by
what history has. Everything else (order, quota, room, preemption) is the engine's own. Where a gang that would have to
end has no known end, that is the answer. Nothing here decides: the copy is thrown away.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

import msgspec

from shoal.engine.explain.rehearsal import SECOND, come_to_rest, end, has_started
from shoal.engine.explain.trial import NOT_NEVER, TriedEngine, starts
from shoal.engine.model import Gang

Basis = Literal["declared", "history"]
MOST_ENDS = 500
"""Ends that are gone through; a start that lies behind more of them is not foretold."""
OVERDUE = 0.1
"""A gang that has run longer than expected is given this much more of its run so far."""


class RunLength(msgspec.Struct, frozen=True):
    """How long a gang is expected to run from its start, and where that is from."""

    seconds: float
    basis: Basis


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is 0 where it is not known."""

    at: int = 0
    ends: int = 0
    """How many gangs end before it."""
    bases: tuple[Basis, ...] = ()
    endless: tuple[str, ...] = ()
    """Keys of gangs that run and of which no end is known; none where their end would not start it either."""
    too_far: bool = False


class ForecastEngine(TriedEngine, Protocol):
    def running(self) -> Iterator[Gang]: ...


def foretold(
    engine: ForecastEngine, key: str, now: int, lengths: Callable[[Gang], RunLength | None], most_ends: int = MOST_ENDS
) -> Forecast:
    """Changes this engine. The gang is in it and waits."""
    ends: list[tuple[int, str, str]] = []
    known: set[str] = set()
    bases: set[Basis] = set()
    endless: list[str] = []

    def note(moment: int) -> None:
        """Gangs that run now and did not before."""
        for gang in engine.running():
            if gang.uid in known or gang.key == key:
                continue
            known.add(gang.uid)
            length = lengths(gang)
            if length is None:
                endless.append(gang.key)
                continue
            bases.add(length.basis)
            heapq.heappush(ends, (_end_of(gang, length, moment), gang.uid, gang.key))

    come_to_rest(engine, now)
    note(now)
    moment, gone = now, 0
    while gone <= most_ends:
        found = engine.gang(key)
        if found is None or has_started(found):
            return Forecast(at=moment, ends=gone, bases=tuple(sorted(bases)))
        if not ends:
            blamed = tuple(endless) if endless and _starts_without_others(engine, key, moment) else ()
            return Forecast(ends=gone, bases=tuple(sorted(bases)), endless=blamed)
        moment, uid, other = heapq.heappop(ends)
        gang = engine.gang(other)
        known.discard(uid)
        if gang is None or gang.uid != uid or not has_started(gang):
            continue  # it was stopped for another, and waits again
        gone += 1
        end(engine, other)
        come_to_rest(engine, moment)
        note(moment)
    return Forecast(ends=gone, too_far=True)


def _starts_without_others(engine: ForecastEngine, key: str, now: int) -> bool:
    """Whether it starts where nothing else is: if not, the ends of others have nothing to do with its wait. Empties
    this engine. A gang that something else holds back for a while is given the benefit of the doubt."""
    gang = engine.fact_of(key)
    if gang is None:
        return True
    engine.emptied()
    if starts(engine, gang, now):
        return True
    found = engine.explain(key, now)
    return found is not None and found.reason in NOT_NEVER


def _end_of(gang: Gang, length: RunLength, now: int) -> int:
    began = gang.admitted_at or now
    expected = began + round(length.seconds * SECOND)
    return expected if expected > now else now + max(SECOND, round((now - began) * OVERDUE))
