"""Why nodes are out of the question for some pods: counted, and told in Kueue's words.

Filled while room is counted (`counts`), printed when a placement fails. Pure.
"""

from __future__ import annotations

from collections import Counter

from shoal.engine.model import Taint


class Exclusions:
    def __init__(self) -> None:
        self.nodes = 0
        """How many were looked at."""
        self.reasons: Counter[str] = Counter()

    def selector(self) -> None:
        self.reasons["nodeSelector"] += 1

    def affinity(self) -> None:
        self.reasons["affinity"] += 1

    def elsewhere(self) -> None:
        """Outside the domain that a replacement has to stay in."""
        self.reasons["topologyDomain"] += 1

    def taint(self, taint: Taint) -> None:
        self.reasons[f'taint "{shown_taint(taint)}"'] += 1

    def resource(self, name: str, nodes: int = 1) -> None:
        self.reasons[f'resource "{name}"'] += nodes

    def text(self) -> str:
        """What follows the verdict; empty when no node was excluded."""
        if not self.reasons:
            return ""
        reasons = ", ".join(sorted(f"{reason}: {count}" for reason, count in self.reasons.items()))
        return f". Total nodes: {self.nodes}; excluded: {reasons}"


def shown_taint(taint: Taint) -> str:
    """As kubectl prints taints."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}" if taint.effect else f"{taint.key}{value}"
