"""A histogram as plain numbers, for the metrics of the planning loop and of its sources."""

from __future__ import annotations

from bisect import bisect_left


class Spread:
    """A histogram: how many values fell below each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulative, as Prometheus wants them."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found
