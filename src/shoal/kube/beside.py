"""A coroutine in a thread with an event loop of its own, for what must go on while this loop is busy.

Called by `lease`: a first plan over fifty thousand gangs takes longer than a lease lasts without a renewal, and a
leader that loses its lease reads and plans all of it again. The thread must touch nothing but what it was given.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any


async def beside(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Until it ends there; raises what it raises. When this is cancelled, it is cancelled and waited for."""
    here, there = asyncio.get_running_loop(), asyncio.new_event_loop()
    task = there.create_task(work())
    ended: asyncio.Future[None] = here.create_future()

    def run() -> None:
        try:
            there.run_until_complete(asyncio.wait({task}))
            there.run_until_complete(there.shutdown_asyncgens())
        finally:
            there.close()
            with suppress(RuntimeError):  # this loop is closed: nothing waits any more
                here.call_soon_threadsafe(ended.set_result, None)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        with suppress(RuntimeError):  # it has just ended by itself
            there.call_soon_threadsafe(task.cancel)
        await ended
        raise
    task.result()
