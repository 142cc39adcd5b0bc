"""How long a test waits for what has to come, in seconds: on a machine that others load, too.

Under `--faults-proof` most waits are in vain, and shorter. A test that waits for anything outside its own process, or
by the clock on the wall, waits this long and never less.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PATIENCE = 60.0
IN_VAIN = 20.0
PIECE = 0.5


@asynccontextmanager
async def patiently(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, counted in small pieces: while the machine stands still, no time counts."""
    async with asyncio.timeout(None) as limit:
        counting = asyncio.ensure_future(_run_out(limit, seconds))
        try:
            yield
        finally:
            counting.cancel()


async def _run_out(limit: asyncio.Timeout, seconds: float) -> None:
    for _ in range(max(1, round(seconds / PIECE))):
        await asyncio.sleep(PIECE)
    limit.reschedule(asyncio.get_running_loop().time())
