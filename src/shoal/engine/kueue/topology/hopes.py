"""Who waits for room in a topology that is not there: found once there is, and not looked at before.

Kept by `room` beside its totals. What is waited for is so many pods of one kind in one domain of a level, or in all of
them together. A gang that is found is forgotten here, and waits again if that was not all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.engine.kueue.topology.totals import LARGEST, Ints, Totals

_NOBODY = LARGEST + 1


class Hopes:
    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, dict[Any, int]]] = {}
        """By level and kind: who waits, and for how many."""
        self._least: dict[int, Ints] = {}
        """By level; by kind: the fewest that anybody waits for."""

    def wait(self, level: int, kind: int, count: int, who: Any) -> None:
        waiting = self._waiting.setdefault(level, {}).setdefault(kind, {})
        waiting[who] = min(count, waiting.get(who, count))
        least = self._least.get(level)
        if least is None or len(least) <= kind:
            known = 0 if least is None else len(least)
            more = np.full(max(kind + 1, 2 * known) - known, _NOBODY, dtype=np.int64)
            least = self._least[level] = more if least is None else np.concatenate([least, more])
        least[kind] = min(int(least[kind]), count)

    def clear(self) -> None:
        """No gang waits any more."""
        self._waiting.clear()
        self._least.clear()

    def met(self, totals: Totals) -> list[Any]:
        """Those for which there is room now."""
        found: list[Any] = []
        for level, least in self._least.items():
            for kind in totals.reach(level, least):
                waiting = self._waiting[level].get(kind)
                most = totals.most(level, kind)
                if waiting is None or most < least[kind]:
                    continue
                ready = [who for who, count in waiting.items() if count <= most]
                for who in ready:
                    del waiting[who]
                least[kind] = min(waiting.values(), default=_NOBODY)
                found += ready
        return found
