"""Partial start: the smallest reduction of a gang's pod sets that still lets it in.

Called when the full size neither fits nor can be made to. As Kueue: a binary search over one index that shrinks all
pod sets in proportion to what each may give up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Found = TypeVar("Found")


def least_reduction(
    counts: Sequence[int], least: Sequence[int], attempt: Callable[[list[int]], Found | None]
) -> Found | None:
    """`attempt(counts)` answers something when such counts are possible; returns its answer for the largest."""
    spare = [count - low for count, low in zip(counts, least, strict=True)]
    total = sum(spare)
    if total <= 0:
        return None
    best: Found | None = None
    low, high = 0, total + 1
    while low < high:
        middle = (low + high) // 2
        found = attempt([count - give * middle // total for count, give in zip(counts, spare, strict=True)])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    return best
