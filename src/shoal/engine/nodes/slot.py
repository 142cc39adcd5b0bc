"""One node in the room: its fact, and exactly what is taken there.

The room keeps one for every node it was told of; arrays are made from these. Plain integers, no rounding, no clipping.
"""

from __future__ import annotations

from collections import Counter

from shoal.engine.model import Amounts, HostPort, NodeFact

LARGEST = 2**62  # arrays are 64 bits wide; exact sums are Python's, and only their clipped image goes into an array


class Slot:
    """One node: its fact, and exactly what is taken there. Exists without a fact while pods name an unknown node."""

    __slots__ = ("bound", "fact", "index", "name", "planned", "ports")

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self.fact: NodeFact | None = None
        self.bound: Amounts = {}
        self.planned: Amounts = {}
        self.ports: Counter[HostPort] = Counter()

    def idle(self, resource: str) -> int:
        """Allocatable less what bound pods take; exact, below zero on an overfull node."""
        if self.fact is None:
            return 0
        if resource == "pods" and "pods" not in self.fact.allocatable:
            return LARGEST
        return max(0, self.fact.allocatable.get(resource, 0)) - self.bound.get(resource, 0)

    def free(self, resource: str) -> int:
        """Idle, less what is planned here."""
        return self.idle(resource) - self.planned.get(resource, 0)
