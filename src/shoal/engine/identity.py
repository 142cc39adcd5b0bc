"""Answers remembered by the very object that was asked about: gangs of one shape ask with the same one, time and again.

Used where an object is looked at many times over and comparing it by value would cost more than the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shoal.remembered import Remembered

MOST_KNOWN = 4_096
One = TypeVar("One")
Beside = TypeVar("Beside")
Answer = TypeVar("Answer")
_all_known: list[dict[int, Any]] = []


def by_identity(work_out: Callable[[One, Beside], Answer]) -> Callable[[One, Beside], Answer]:
    """The same function, which works out only what it was not asked last with this object and what is beside it."""
    known: Remembered[int, tuple[One, Beside, Answer]] = Remembered(MOST_KNOWN)
    _all_known.append(known)

    def answer(one: One, beside: Beside) -> Answer:
        found = known.get(id(one))
        if found is not None and found[0] is one and found[1] is beside:
            return found[2]
        made = work_out(one, beside)
        known.remember(id(one), (one, beside, made))
        return made

    return answer


def forget() -> None:
    """All that is remembered, of every function: how much that is depends on what was asked before."""
    for known in _all_known:
        known.clear()
