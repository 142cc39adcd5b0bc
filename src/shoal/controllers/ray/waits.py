"""When to look again: the reconcilers of Ray kinds collect waits from their parts and take the shortest."""

from __future__ import annotations


def sooner(*waits: float | None) -> float | None:
    """The shortest; None when none of them asks for another call."""
    return min((wait for wait in waits if wait is not None), default=None)
