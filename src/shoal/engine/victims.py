"""Whose end would let a gang start?

Used three ways: to preempt, to set room aside for the front of the queue, and to explain. Tries on the ledger and puts
everything back; decides about nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.engine.fit import Placement
from shoal.engine.ledger import Ledger
from shoal.engine.model import Gang
from shoal.engine.supply import find_room


class Release(msgspec.Struct, frozen=True):
    """The gangs (UIDs) that would have to end, and where the pods would then go."""

    gangs: tuple[str, ...]
    placement: Placement
    steps: int = 0


def smallest_release(gang: Gang, candidates: Sequence[Gang], ledger: Ledger) -> Release | None:
    """The shortest beginning of `candidates` that suffices, less everyone who need not be in it. None: not even all."""
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
    chosen = uids[:high]
    for uid in reversed(uids[:high]):  # the last ones are the dearest: they are spared first
        rest = [other for other in chosen if other != uid]
        if rest and room_after(rest) is not None:
            chosen = rest
    placement = room_after(chosen)
    return None if placement is None else Release(tuple(chosen), placement, steps)
