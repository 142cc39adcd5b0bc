"""Environments that annotations of pods ask for, while they are built.

One build for all pods that wait for it; a failure is told to all of them, and tried again after a while. The building
itself is `shoal.local.environments`, from wheels alone; it runs in a thread and never holds up the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from shoal.api.times import seconds_text
from shoal.errors import ShoalError
from shoal.kube.clock import Clock
from shoal.kube.events import EventType
from shoal.local import environments

AGAIN = 60.0
"""Seconds until a build that failed is tried again."""


class Builds:
    """Environments that are being built: once each, however many pods wait for one."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[float, str]] = {}

    async def built(self, name: str, file: Path, clock: Clock, announce: Callable[[EventType, str, str], None]) -> str:
        """Where it lies; waits until it does. Raises ShoalError."""
        environments.check_plain(file)
        place = environments.prefix_of(str(file))
        if (Path(place) / environments.MARK).exists():
            return place
        self._raise_failure(place, clock)
        if place not in self._running:
            announce("Normal", "Pulling", f"image {name} is built from {file}; this happens once")
            self._running[place] = asyncio.create_task(self._build(place, name, file, clock))
        await asyncio.shield(self._running[place])  # another pod may wait for it, too
        self._raise_failure(place, clock)
        return place

    async def _build(self, place: str, name: str, file: Path, clock: Clock) -> None:
        try:
            await asyncio.to_thread(environments.build, name, file, seconds_text(clock.now()))
            self._failed.pop(place, None)
        except (ShoalError, OSError) as error:
            self._failed[place] = (clock.monotonic(), str(error))
        finally:
            del self._running[place]

    def _raise_failure(self, place: str, clock: Clock) -> None:
        when, why = self._failed.get(place, (0.0, ""))
        if why and clock.monotonic() - when < AGAIN:
            raise ShoalError(why)
