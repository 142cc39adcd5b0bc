"""A cancellation that must not be lost, for loops that go on after errors."""

from __future__ import annotations

import asyncio


def end_if_cancelled() -> None:
    """A request that fails just as its task is cancelled brings its own error instead: a loop would go on for ever."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
