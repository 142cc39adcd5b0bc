"""A read that is made once more when no answer comes: the first request, or its answer, may be lost.

A connection whose other side is gone looks like a server that is busy. To wait for the limit of the first request
before the next would keep a controller from starting for minutes; to give up early and ask again would make a busy
server busier without end. So the second request goes out beside the first, and there is no third. Reads only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.kube.clock import Clock
from shoal.kube.errors import Unknown, Unsent

T = TypeVar("T")


async def first_answer(
    ask: Callable[[float], Coroutine[Any, Any, T]],
    limit: float,
    *,
    after: float,
    clock: Clock,
    told: Callable[[], None],
) -> T:
    """What `ask` returns within `limit` seconds, which it is given. After `after` seconds without an answer it is
    `told`, and asked once more with the seconds that are left; the first answer counts, a refusal is one."""
    asked = {asyncio.ensure_future(ask(limit))}
    pause = asyncio.ensure_future(clock.sleep(after))
    try:
        await asyncio.wait({*asked, pause}, return_when=asyncio.FIRST_COMPLETED)
        if pause.done() and limit > after and not any(one.done() for one in asked):
            told()
            asked.add(asyncio.ensure_future(ask(limit - after)))
        answered, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        if waiting and all(isinstance(one.exception(), (Unknown, Unsent)) for one in answered):
            answered, _ = await asyncio.wait(waiting)
        return answered.pop().result()
    finally:
        pause.cancel()
        for one in asked:
            await ended(one)


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancel it and wait for its end, however it ends. Not by awaiting it: our own cancellation would look like its."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
