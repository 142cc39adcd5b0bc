"""Decisions on their way into the API server are kept by the key of the gang they are about.

A key may have been given to another gang meanwhile: whoever looks one up says which UID it means. Used by the planner
of AppWrappers and by the queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar


class Decision(Protocol):
    @property
    def uid(self) -> str: ...


D = TypeVar("D", bound=Decision)


def about(decided: Mapping[str, D], key: str, uid: str) -> D | None:
    """What was decided about this very gang."""
    found = decided.get(key)
    return found if found is not None and found.uid == uid else None
