"""Visitors of the page: a code that logs in once, a session that ends by itself.

A session is known by two secrets that travel apart: a cookie that scripts cannot read, and a key that a browser keeps
for this origin alone. Browsers do not keep cookies of two ports of one host apart; the key they do. All of it is in
memory: a restart logs every visitor out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from shoal.kube.client import Client
from shoal.kube.clock import Clock

CODE_SECONDS = 120.0
SESSION_SECONDS = 12 * 3600.0
AGAIN_SECONDS = 30.0
"""Within them a login may be asked for again by the browser that did not get its answer."""
MOST_CODES = 256
MOST_SESSIONS = 256
MOST_OF_ONE_USER = 16
CONFIRM_EVERY = 10.0
"""Seconds between two looks at a visitor whose page streams."""
CONFIRM_PATIENCE = 10.0
LAST_WORDS = 1.0
"""Seconds in which a stream may end by itself once its session has; then it is cut."""
AT_ONCE = 8
"""Requests of one session that are under way together; streams are counted by themselves."""


async def _confirmed() -> bool:
    return True


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """A user, and a client that acts as that user. `alive` is asked before every request: False ends the session."""

    user: str
    client: Client
    alive: Callable[[], bool] = lambda: True
    confirmed: Callable[[], Awaitable[bool]] = _confirmed
    """Asked now and then while something streams: whether the credentials still hold. False ends the session."""
    gone: Callable[[], None] = lambda: None
    """Called once when the session has ended, or was never begun."""
    namespace: str = ""
    """What the page shows first; empty for all namespaces."""


class PageSession:
    """One login of one visitor. `kept` is what the page keeps for it, by name."""

    def __init__(self, visitor: Visitor, ends: float) -> None:
        self.visitor = visitor
        self.ends = ends
        self.cookie = secrets.token_urlsafe(32)
        self.key = secrets.token_urlsafe(32)
        self.turns = asyncio.Semaphore(AT_ONCE)
        self.kept: dict[str, Any] = {}
        self.on_end: list[Callable[[], None]] = []
        self.streams = 0
        self.watching: asyncio.Task[None] | None = None


class Invitation:
    """A code that was given out. Once it is used, it leads only the attempt that used it to the same session again."""

    def __init__(self, visitor: Visitor, until: float) -> None:
        self.visitor = visitor
        self.until = until
        self.attempt = ""
        self.session: PageSession | None = None


class Sessions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._codes: dict[bytes, Invitation] = {}
        self._sessions: dict[bytes, PageSession] = {}

    def invite(self, visitor: Visitor) -> str:
        """A code that logs this visitor in, once and soon."""
        now = self._clock.monotonic()
        late = [one for one, invitation in self._codes.items() if invitation.until <= now]
        for one in late or [*self._codes][: len(self._codes) - MOST_CODES + 1]:
            forgotten = self._codes.pop(one)
            if forgotten.session is None:
                forgotten.visitor.gone()
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = Invitation(visitor, now + CODE_SECONDS)
        return code

    def enter(self, code: str, attempt: str = "") -> PageSession | None:
        """The session that a code opens; None for one that is used, late or none of ours. An answer may be lost on its
        way: the same attempt, a secret of the browser's own, gets the same session again for a while."""
        now = self._clock.monotonic()
        invitation = self._codes.get(_digest(code))
        if invitation is None or invitation.until <= now:
            return None
        if (session := invitation.session) is not None:
            same = attempt and hmac.compare_digest(invitation.attempt.encode(), attempt.encode())
            return self.find(session.cookie, session.key) if same else None
        self._make_room(invitation.visitor.user)
        session = PageSession(invitation.visitor, now + SESSION_SECONDS)
        self._sessions[_digest(session.cookie)] = session
        invitation.session, invitation.attempt = session, attempt
        invitation.until = min(invitation.until, now + AGAIN_SECONDS)
        return session

    def find(self, cookie: str, key: str) -> PageSession | None:
        session = self._sessions.get(_digest(cookie))
        if session is None or not hmac.compare_digest(session.key.encode(), key.encode()):
            return None
        if session.ends <= self._clock.monotonic() or not session.visitor.alive():
            self.end(session)
            return None
        return session

    @asynccontextmanager
    async def streaming(self, session: PageSession) -> AsyncIterator[None]:
        """While a stream lasts: the session is looked at, and the stream raises TimeoutError once it has ended."""
        limit, loop = asyncio.timeout(None), asyncio.get_running_loop()

        def cut() -> None:
            limit.reschedule(loop.time() + LAST_WORDS)

        session.on_end.append(cut)
        session.streams += 1
        if session.watching is None:
            session.watching = asyncio.ensure_future(self._watch(session))
        try:
            async with limit:
                yield
        finally:
            session.on_end.remove(cut)
            session.streams -= 1
            if not session.streams and session.watching is not None:
                session.watching.cancel()
                session.watching = None

    async def _watch(self, session: PageSession) -> None:
        """A request is judged when it comes; what streams for hours is judged here."""
        while True:
            await self._clock.sleep(CONFIRM_EVERY)
            if not await self._holds(session):
                session.watching = None
                self.end(session)
                return

    async def _holds(self, session: PageSession) -> bool:
        if session.ends <= self._clock.monotonic() or not session.visitor.alive():
            return False
        try:
            async with asyncio.timeout(CONFIRM_PATIENCE):
                return await session.visitor.confirmed()
        except TimeoutError:
            return True  # an API server that does not answer sends no rows either

    def end(self, session: PageSession) -> None:
        if self._sessions.pop(_digest(session.cookie), None) is not None:
            for function in [*session.on_end]:
                function()
            session.visitor.gone()

    def end_all(self) -> None:
        for session in [*self._sessions.values()]:
            self.end(session)

    def _make_room(self, user: str) -> None:
        """The oldest give way, those of the same user first."""
        own = [one for one in self._sessions.values() if one.visitor.user == user]
        for session in own[: max(0, len(own) - MOST_OF_ONE_USER + 1)]:
            self.end(session)
        now = self._clock.monotonic()
        for session in [one for one in self._sessions.values() if one.ends <= now]:
            self.end(session)
        while len(self._sessions) >= MOST_SESSIONS:
            self.end(next(iter(self._sessions.values())))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
