"""How many pods of each kind fit in the domains of a topology: the numbers, and who waits for larger ones.

Kept by `room`, which says what changes. Numbers of one kind are a row, those of one domain a column. The most of a row
is not worked out before it is asked for; until then there is a bound that it does not exceed. Knows no pods, no nodes.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
LARGEST = 2**62
EVERYWHERE = -1
"""In place of a level: all domains together."""
Waiter = TypeVar("Waiter")


class Totals:
    """With what placed gangs use, or without."""

    def __init__(self, sizes: list[int]) -> None:
        """`sizes`: how many domains each level has, the lowest last."""
        self.levels: list[Ints] = [np.zeros((8, size), dtype=np.int64) for size in sizes]
        self.touched: set[int] = set()
        """Lowest domains that are to be counted again."""
        self._most: list[Ints] = [np.zeros(8, dtype=np.int64) for _ in range(len(sizes) + 1)]
        """By level, and everywhere; by kind: what the best domain has room for, or more where that is `_vague`."""
        self._vague: list[NDArray[np.bool_]] = [np.zeros(8, dtype=bool) for _ in range(len(sizes) + 1)]
        self._asked = [False for _ in self._most]
        """Was the most ever asked for there? Else it is vague, and changes are not followed."""

    def widen(self, rows: int) -> None:
        known = len(self._most[0])
        if rows <= known:
            return
        more = max(rows, 2 * known) - known
        self.levels = [
            np.concatenate([level, np.zeros((more, level.shape[1]), dtype=np.int64)]) for level in self.levels
        ]
        self._most = [np.concatenate([most, np.zeros(more, dtype=np.int64)]) for most in self._most]
        self._vague = [np.concatenate([vague, np.zeros(more, dtype=bool)]) for vague in self._vague]

    def insert(self, level: int, index: int) -> None:
        """One more domain, with room for nothing yet."""
        self.levels[level] = np.insert(self.levels[level], index, 0, axis=1)

    def add(self, domains: list[int], change: Ints) -> None:
        """So much more room for the first kinds in a lowest domain, and in those it is in; given by level."""
        kinds = slice(0, len(change))
        less = change < 0
        shrinks = np.count_nonzero(less)
        for level, domain in enumerate(domains):
            here = self.levels[level][kinds, domain]
            if not self._asked[level]:
                here += change
                continue
            most = self._most[level][kinds]
            if shrinks:
                self._vague[level][kinds] |= (here == most) & less
            here += change
            if shrinks < len(change):
                np.maximum(most, here, out=most)
        if self._asked[EVERYWHERE]:
            self._most[EVERYWHERE][kinds] += change

    def renew(self, kinds: slice) -> None:
        """Room of these kinds was counted from the beginning."""
        for most, vague in zip(self._most, self._vague, strict=True):
            most[kinds], vague[kinds] = LARGEST, True

    def most(self, level: int, kind: int) -> int:
        """What the best domain of a level has room for, or all have together."""
        self._asked[level] = True
        if self._vague[level][kind]:
            row = self.levels[0 if level == EVERYWHERE else level][kind]
            self._most[level][kind] = row.sum() if level == EVERYWHERE else row.max(initial=0)
            self._vague[level][kind] = False
        return int(self._most[level][kind])

    def reach(self, level: int, least: Ints) -> list[int]:
        """The first kinds of which there may be room for so many, at one place of a level."""
        most = self._most[level]
        found: list[int] = np.flatnonzero(most[: len(least)] >= least[: len(most)]).tolist()
        return found
