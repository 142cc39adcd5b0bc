"""When is a silent cluster lost? Counted from what is stored, so that a restarted hub goes on counting.

When most clusters are silent at once it is the hub that is cut off: then no cluster is lost, and every clock starts
over once half of them answer again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

SECOND = 1_000_000
Loss = Literal["wait", "move", "move-anyway"]
"""What becomes of a gang whose cluster is lost. `wait`: it runs on there, and is started nowhere else. `move`: it goes
only where it stops by itself once its hub is not heard, and starts elsewhere after that. `move-anyway`: it goes back to
the queue, and may run twice until its cluster is back."""


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


def loss_policy(texts: Iterable[str], otherwise: Loss) -> Loss:
    """The first that says anything; a word that is unknown waits, which starts nothing twice."""
    said = next(filter(None, texts), otherwise)
    return said if said in ("move", "move-anyway") else "wait"  # type: ignore[return-value]
