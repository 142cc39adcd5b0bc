"""What is asked of Ray before its workers are taken. The entry point of the process says how it is reached.

Answers are a courtesy: a cluster that does not answer loses its workers all the same, when their time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.api.kind import Key


class RayNodes(Protocol):
    async def idle(self, cluster: Key) -> frozenset[str]:
        """Names of the worker pods of this RayCluster on which nothing runs; empty where Ray does not say."""

    async def drain(self, cluster: Key, pods: Sequence[str], until: int) -> bool:
        """Tell Ray that these workers are taken at that moment (microseconds), so that nothing new starts there and
        what runs can be saved. False: it did not hear it of all. Safe to repeat."""

    async def close(self) -> None: ...


class NoRay:
    """Where no way to Ray is known."""

    async def idle(self, cluster: Key) -> frozenset[str]:
        return frozenset()

    async def drain(self, cluster: Key, pods: Sequence[str], until: int) -> bool:
        return False

    async def close(self) -> None:
        return None
