"""A smaller world in which one gang fares the same: of very many that wait, only the first few of each class.

Used by `Engine.explain` where copying all would cost too much. Gangs that are judged alike stand or fall together: as
long as one of those kept still waits at the end of a trial, those left out would wait, too. A trial in which all that
were kept of a class have started proves nothing, and the rehearsal treats it so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import nsmallest

import msgspec

from shoal.engine.kueue.facts import terms_of
from shoal.engine.line.queues import QueueFact, Queues
from shoal.engine.line.state import LineState
from shoal.engine.model import Fact, Gang

KEPT = 8
"""Of each class that waits."""
MOST_AHEAD = 300
"""Equals ahead of the gang that is asked about; they all have to be kept."""


class Thinned(msgspec.Struct, frozen=True):
    facts: tuple[Fact | QueueFact, ...]
    classes: tuple[tuple[str, ...], ...]
    """For each class that was cut short, the keys of those kept."""

    @property
    def size(self) -> int:
        return len(self.facts)


def thinned(gang: Gang, state: LineState, queues: Queues) -> Thinned | None:
    """None: too many equals are ahead of the gang."""
    kept: set[str] = set()
    cut: list[tuple[str, ...]] = []
    for line in _lines(state, queues):
        first = nsmallest(KEPT, line)
        keys = [key for _, key in first]
        mine = next((entry for entry in line if entry[1] == gang.key), None)
        if mine is not None:
            ahead = [key for order, key in line if order < mine[0]]  # type: ignore[operator]  # orders of one line are alike
            if len(ahead) > MOST_AHEAD:
                return None
            keys = list(dict.fromkeys([*keys, *ahead, gang.key]))
        kept.update(keys)
        if len(keys) < len(line):
            cut.append(tuple(key for key in keys if key != gang.key))
    return Thinned((*queues.current_facts(), *_facts(state, queues, kept)), tuple(cut))


def _lines(state: LineState, queues: Queues) -> Iterator[list[tuple[Hashable, str]]]:
    """Those that wait, by what is judged alike, each with its place in order."""
    for gang_class in state.waiting.classes.values():
        for lane in gang_class.lanes.values():
            yield [(rank, state.keys[uid]) for rank, uid in lane]
    shapes: dict[tuple[str, str], list[tuple[Hashable, str]]] = {}
    for record in queues.kueue.state.records.values():
        for member in record.waiting.members():
            shapes.setdefault((record.name, member.shape), []).append((member.order, member.key))
    yield from shapes.values()


def _facts(state: LineState, queues: Queues, kept: set[str]) -> Iterator[Fact]:
    for fact in state.facts():
        if not isinstance(fact, Gang):
            yield fact
        elif fact.state not in ("waiting", "held") and fact.key not in kept and fact.uid in state.waiting:
            continue  # has quota, waits for room, and was not kept
        elif fact.state == "waiting" and fact.key not in kept:
            continue
        else:
            yield _as_fact(fact, queues)


def _as_fact(gang: Gang, queues: Queues) -> Gang:
    """A gang of a queue with the pods it asked for: its flavors are worked out again."""
    member = queues.kueue.members.get(gang.key)
    if member is None:
        return gang
    terms = terms_of(gang)
    if member.holds:
        terms = msgspec.structs.replace(terms, cluster_queue=member.queue)
    return msgspec.structs.replace(gang, pod_sets=member.gang.pod_sets, details={**gang.details, "kueue": terms})
