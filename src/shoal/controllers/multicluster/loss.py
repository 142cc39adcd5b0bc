"""When is a silent cluster lost? Counted from what is stored, so that a restarted hub goes on counting.

When most clusters are silent at once it is the hub that is cut off: then no cluster is lost, and every clock starts
over once half of them answer again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

SECOND = 1_000_000


class Standing(msgspec.Struct, frozen=True):
    """Whether a cluster answers, and since when that is so, as its stored condition says."""

    name: str
    connected: bool
    since: int


def seconds_until_lost(name: str, standings: Iterable[Standing], now: int, limit: float) -> float | None:
    """None: it answers, or the hub itself is cut off. Zero or less: it is lost."""
    known = list(standings)
    mine = next((one for one in known if one.name == name), None)
    if mine is None or mine.connected:
        return None
    needed = (len(known) + 1) // 2
    answering = sorted(one.since for one in known if one.connected)
    if len(answering) < needed:
        return None
    since = max(mine.since, answering[needed - 1])
    return limit - (now - since) / SECOND
