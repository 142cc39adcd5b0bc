"""How the timeline reads what is no longer stored: one question of a history, if one is kept.

What is stored is told by the rows themselves. A history answers for the visitor: it leaves out what the client's user
may not read.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from shoal.kube.client import Client


class GangSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gang's time: when it was created, started and ended, as times of Kubernetes; empty where it did not."""

    id: str
    namespace: str
    kind: str
    name: str
    queue: str = ""
    created: str
    started: str = ""
    ended: str = ""
    stage: str = ""


class HistorySource(Protocol):
    async def spans(self, client: Client, namespace: str | None, since: int) -> list[GangSpan]:
        """Gangs that ended after `since` (microseconds) and that the client's user may read."""
        ...
