"""Memory limits where no control group can hold them: resident memory is looked at, and an excess is told.

One look at the process table per period serves all containers. Counts private memory only, so that libraries shared by
twenty Ray processes count once per machine and not twenty times; what lies in /dev/shm is not counted either.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

from shoal.kube.clock import Clock, SystemClock

PERIOD = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """`exceeded` returns when a process and all below it hold more than a limit."""

    def __init__(self, clock: Clock | None = None, period: float = PERIOD) -> None:
        self._clock: Clock = clock or SystemClock()
        self._period = period
        self._watched: dict[asyncio.Future[int], tuple[int, int]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def exceeded(self, root: int, limit: int) -> int:
        """How many bytes it held when it was over."""
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._watched[told] = (root, limit)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._measure())
        try:
            return await told
        finally:
            self._watched.pop(told, None)

    async def _measure(self) -> None:
        """Until no container is watched any more."""
        while self._watched:
            held = await asyncio.to_thread(private_memory, [root for root, _ in self._watched.values()])
            for told, (root, limit) in list(self._watched.items()):
                if held.get(root, 0) > limit and not told.done():
                    told.set_result(held[root])
            await self._clock.sleep(self._period)


def private_memory(roots: list[int]) -> dict[int, int]:
    """Bytes that each of these processes and its descendants hold for themselves alone."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    children[int(file.read().rpartition(b")")[2].split()[1])].append(int(name))
            except (OSError, IndexError, ValueError):
                continue
    found = {}
    for root in roots:
        total, todo = 0, list(children[root])
        while todo:
            pid = todo.pop()
            todo += children[pid]
            total += _private(pid)
        found[root] = total
    return found


def _private(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return max(0, int(resident) - int(shared)) * _PAGE
