"""Would a gang that is not there yet start now? It is put into a copy of the engine, which plans until nothing moves.

Called by `Engine.trial` and `Engine.largest` for questions about manifests. Gangs ahead, evictions, quota and room
count as they will. A gang that does not even start where every other gang and pod is gone can never run as it is
written, as long as quotas and nodes stay as they are. Nothing here decides: the copies are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from shoal.engine.explain.rehearsal import RehearsedEngine, come_to_rest, copy_of, has_started
from shoal.engine.kueue import Places
from shoal.engine.model import Explanation, Gang

MOST_COPIED = 20_000
"""Gangs, nodes and pods up to which an engine is copied for one question: about a second."""
NOT_NEVER = ("bad-fact", "held", "backing-off", "obtaining", "preempting", "order")
"""Reasons that pass, or that only a user can clear: they say nothing about room or quota."""


class TriedEngine(RehearsedEngine, Protocol):
    """What a trial uses beside."""

    def explain(self, key: str, now: int = 0, effort: int = 0) -> Explanation | None: ...
    def places(self, key: str) -> Places | None: ...
    def emptied(self) -> None: ...


class DraftTrial(msgspec.Struct, frozen=True):
    """`unknown`: the cluster is too large to try it out. `explanation` and `places` are of one that would wait."""

    verdict: Literal["starts", "waits", "never", "unknown"]
    explanation: Explanation | None = None
    places: Places | None = None


def tried(engine: TriedEngine, gang: Gang, now: int, effort: int) -> DraftTrial:
    copy = copy_of(engine)
    if starts(copy, gang, now):
        return DraftTrial("starts")
    explanation, places = copy.explain(gang.key, now, effort), copy.places(gang.key)
    if explanation is not None and explanation.reason not in NOT_NEVER:
        alone = copy_of(engine)
        alone.emptied()
        if not starts(alone, gang, now):
            found = alone.explain(gang.key, now, 0)
            if found is None or found.reason not in NOT_NEVER:
                return DraftTrial("never", found or explanation, places)
    return DraftTrial("waits", explanation, places)


def starts(engine: TriedEngine, gang: Gang, now: int) -> bool:
    """Changes this engine: does the gang start in it, and stay?"""
    engine.update(gang)
    if not come_to_rest(engine, now):
        return False
    found = engine.gang(gang.key)
    return found is not None and has_started(found)


def most(engine: TriedEngine, sized: Callable[[int], Gang], limit: int, now: int) -> int:
    """The largest number up to `limit` with which the gang starts now; -1 where none does. A gang that is larger needs
    no less, so halving finds it."""

    def fits(count: int) -> bool:
        return starts(copy_of(engine), sized(count), now)

    if not fits(0):
        return -1
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def resized(gang: Gang, pod_set: str, count: int) -> Gang:
    """The gang with so many pods in this pod set; one without any is left out."""
    sets: list[Any] = []
    for one in gang.pod_sets:
        if one.name != pod_set:
            sets.append(one)
        elif count:
            sets.append(msgspec.structs.replace(one, count=count, min_count=None))
    return msgspec.structs.replace(gang, pod_sets=tuple(sets))
