"""What the judge at rest has found: violations in words, how many gangs it looked at, and which it cannot decide.

A gang about which any part of the question was left out counts as undecided, once, with the first reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Found:
    says: list[str] = field(default_factory=list)
    judged: int = 0
    doubts: dict[str, str] = field(default_factory=dict)
    """Gang to what was not decided about it."""

    @property
    def undecided(self) -> list[str]:
        return [f"{gang}: {why}" for gang, why in self.doubts.items()]

    def doubt(self, gang: str, why: str) -> None:
        self.doubts.setdefault(gang, why)
