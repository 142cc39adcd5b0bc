"""Whose end would let a gang start?

Used three ways: to preempt, to set room aside for the front of the queue, and to explain. Tries on the ledger and puts
everything back; decides about no gang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import msgspec

from shoal.engine.model import Gang
from shoal.engine.nodes.fit import Placement
from shoal.engine.nodes.ledger import Ledger
from shoal.engine.nodes.supply import find_room


class Release(msgspec.Struct, frozen=True):
    """The gangs (UIDs) that would have to end, and where the pods would then go."""

    gangs: tuple[str, ...]
    placement: Placement
    steps: int = 0


_TRIES = 400  # singles and pairs tried before a short list is accepted as short enough


def shortest_list(candidates: Sequence[str], suffices: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """One candidate that suffices, else two, else the first few without any that need not be among them.

    Exact for one and two within the number of tries. Empty when not even all together suffice.
    """
    if not candidates or not suffices(candidates):
        return ()
    tries = 0
    for size in (1, 2):
        for chosen in combinations(candidates, size):
            tries += 1
            if tries > _TRIES:
                break
            if suffices(chosen):
                return chosen
    low, high = 1, len(candidates)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(candidates[:middle]) else (middle + 1, high)
    return _without_spare(list(candidates[:high]), suffices)


def _without_spare(chosen: list[str], suffices: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    for one in reversed(chosen):  # the last ones are the dearest: they are spared first
        rest = [other for other in chosen if other != one]
        if rest and suffices(rest):
            chosen = rest
    return tuple(chosen)


def smallest_release(gang: Gang, candidates: Sequence[Gang], ledger: Ledger) -> Release | None:
    """The shortest beginning of `candidates` that suffices, less all that need not be in it. None: not even all."""
    uids = [candidate.uid for candidate in candidates]
    steps = 0

    def room_after(chosen: Sequence[str]) -> Placement | None:
        nonlocal steps
        steps += 1
        with ledger.without(chosen):
            found = find_room(gang, ledger, say_why=False)
        return found if isinstance(found, Placement) else None

    if not uids or room_after(uids) is None:
        return None
    low, high = 1, len(uids)
    while low < high:
        middle = (low + high) // 2
        if room_after(uids[:middle]) is None:
            low = middle + 1
        else:
            high = middle
    chosen = _without_spare(uids[:high], lambda rest: room_after(rest) is not None)
    placement = room_after(chosen)
    return None if placement is None else Release(chosen, placement, steps)
