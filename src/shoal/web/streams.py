"""Answers that last: rows, logs and dashboards that go on until their session ends, and are cut off then.

A request is judged once, when it comes. What streams for hours after that must not outlive the credentials that it was
opened with, so its session is looked at while it lasts (`Sessions.streaming`).
"""

from __future__ import annotations

from collections.abc import Awaitable

from aiohttp import web

from shoal.web.sessions import PageSession, Sessions


class CutOff(ConnectionError):
    """The session ended while its answer was under way; the connection is closed, so that a browser knows."""


async def streamed(
    sessions: Sessions, session: PageSession, request: web.Request, answer: Awaitable[web.StreamResponse]
) -> web.StreamResponse:
    try:
        async with sessions.streaming(session):
            return await answer
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise CutOff("the session has ended") from None
