"""Runtimes: what makes a bound pod run. `ProcessRuntime` with real processes, `SimulatedRuntime` without.

The agent knows only the two protocols below.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from shoal.api.meta import Json
from shoal.local.nodes.runtime.logs import LogOptions


class RunningPod(Protocol):
    uid: str
    finished: asyncio.Event
    """Set when nothing of the pod runs any more and nothing will."""

    def start(self) -> None: ...

    def stop(self, grace: float, keep: bool = False) -> None: ...

    def status(self) -> Json: ...

    async def remove(self) -> None: ...

    async def detach(self) -> None: ...

    def logs(self, container: str, options: LogOptions) -> AsyncIterator[bytes]: ...


class Runtime(Protocol):
    name: str

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Let go of what all pods share. Pods that should end were ended before."""
        ...

    def create(self, pod: Json, changed: Callable[[], None]) -> RunningPod:
        """A pod that is bound here; resumes where an earlier agent left it. Not started yet."""
        ...

    def old_logs(self, uid: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The log of a pod that ended before this agent began."""
        ...

    async def discard(self, uid: str, grace: float) -> None:
        """End and forget a pod of an earlier agent that is being deleted."""
        ...

    async def sweep(self, known: set[str]) -> None:
        """End and forget every pod of an earlier agent whose UID is not known."""
        ...
