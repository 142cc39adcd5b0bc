"""Server-sent events: all rows once, then each row that changed, for as long as a tab is open.

A board is shared by the tabs of a session and ends a while after the last one. A quiet stream says so now and then, and
ends when the session does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from shoal.errors import BadInput
from shoal.kube.clock import SystemClock
from shoal.web.board import Board
from shoal.web.sessions import PageSession

QUIET = 15.0
LINGER = 30.0
"""Seconds for which a board stays after its last tab: a reload finds it."""
MOST_STREAMS = 12
"""Of one session."""
MOST_BOARDS = 4


class SharedBoard:
    """A board, how many tabs read it, and the task that keeps it."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.tabs = 0
        self.task = asyncio.ensure_future(board.run())
        self.ending: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self.task.cancel()
        if self.ending is not None:
            self.ending.cancel()


async def stream(request: web.Request, session: PageSession) -> web.StreamResponse:
    shared = _shared(session, request.query.get("namespace", ""))
    if sum(one.tabs for one in _boards(session).values()) >= MOST_STREAMS:
        raise BadInput("this session has too many tabs open; close some")
    ended = asyncio.Event()
    session.on_end.append(ended.set)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    shared.tabs += 1
    if shared.ending is not None:
        shared.ending.cancel()
    try:
        await response.prepare(request)
        await response.write(b": hello\n\n")
        async with aclosing(_until(ended, shared.board.read())) as told:
            async for one in told:
                if not session.visitor.alive():
                    break
                await response.write(
                    b"data: " + msgspec.json.encode(one) + b"\n\n" if one is not None else b": quiet\n\n"
                )
    except ConnectionError:
        pass  # the tab is gone
    finally:
        shared.tabs -= 1
        session.on_end.remove(ended.set)
        if not shared.tabs:
            shared.ending = asyncio.get_running_loop().call_later(LINGER, _end, session, shared)
    return response


async def _until(
    ended: asyncio.Event, told: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any] | None, None]:
    """What is told, until the session ends; None after a quiet while."""
    over = asyncio.ensure_future(ended.wait())
    following = asyncio.ensure_future(anext(told))
    try:
        while True:
            await asyncio.wait((following, over), timeout=QUIET, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return
            if not following.done():
                yield None
                continue
            found = following.result()
            following = asyncio.ensure_future(anext(told))
            yield found
    finally:
        over.cancel()
        following.cancel()
        await asyncio.gather(over, following, return_exceptions=True)
        await told.aclose()


def _boards(session: PageSession) -> dict[str, SharedBoard]:
    found: dict[str, SharedBoard] = session.kept.setdefault("boards", {})
    return found


def _shared(session: PageSession, namespace: str) -> SharedBoard:
    boards = _boards(session)
    if namespace not in boards:
        unused = [name for name, one in boards.items() if not one.tabs]
        if len(boards) >= MOST_BOARDS and not unused:
            raise BadInput("this session shows too many namespaces at once; close some tabs")
        for name in unused[: max(0, len(boards) - MOST_BOARDS + 1)]:
            boards.pop(name).close()
        made = SharedBoard(Board(session.visitor.client, namespace or None, SystemClock()))
        boards[namespace] = made
        session.on_end.append(made.close)
    return boards[namespace]


def _end(session: PageSession, shared: SharedBoard) -> None:
    if shared.tabs:
        return
    shared.close()
    boards = _boards(session)
    for name in [name for name, one in boards.items() if one is shared]:
        del boards[name]
    session.on_end.remove(shared.close)
