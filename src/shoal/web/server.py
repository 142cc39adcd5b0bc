"""The page's server: its few files, login, and answers that are made with the visitor's own rights.

One origin, plain HTTP on loopback, or behind a proxy that ends TLS. Everything below `/data/` needs a session; what
a visitor may not read is left out or counted by the API server and the leading controller, never by this code.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from aiohttp import web

from shoal.errors import BadInput, ShoalError
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import ApiError, KubeError
from shoal.web import answers, files, guard
from shoal.web.history import past
from shoal.web.live import stream
from shoal.web.ray_dashboard import Connect, Dashboards
from shoal.web.replies import body, error, reply
from shoal.web.sessions import PageSession, Sessions, Visitor
from shoal.web.streams import streamed

log = logging.getLogger(__name__)

COOKIE = "shoal_page"
KEY_HEADER = "X-Shoal-Key"
LARGEST_BODY = 16 << 10
TOKENS_AT_ONCE = 8
"""Tokens of strangers that the API server is asked about together."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
VIEWS = ("/", "/waiting", "/nodes", "/queues", "/timeline", "/gang")
Handler = Callable[[web.Request, PageSession], Awaitable[web.StreamResponse]]


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    url: str = ""
    """Where browsers find the page, such as https://shoal.example; empty: at its own address of loopback."""

    @property
    def secure(self) -> bool:
        return self.url.startswith("https://")


def page_url(text: str) -> str:
    """An address as `--page-url` takes it, without a path. Raises BadInput."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/") or parts.query:
        raise BadInput(f"{text!r} is no address of a page; write https://HOST, without a path")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise BadInput(f"{text!r} would send logins in the clear; use https://")
    return f"{parts.scheme}://{parts.netloc.lower()}"


class PageServer:
    """`by_token` turns a user's bearer token into a visitor: how users of a cluster log in. None: only by `invite`."""

    def __init__(
        self,
        settings: PageSettings | None = None,
        *,
        clock: Clock | None = None,
        by_token: Callable[[str], Awaitable[Visitor]] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.settings = settings or PageSettings()
        self.clock = clock or SystemClock()
        self.sessions = Sessions(self.clock)
        self.address = ""
        self._by_token = by_token
        self._checking = asyncio.Semaphore(TOKENS_AT_ONCE)
        self._dashboards = Dashboards(self.clock, connect, self.sessions)
        self._origins: frozenset[str] = frozenset()
        self._runner: web.AppRunner | None = None

    # --- life

    async def start(self, host: str = "127.0.0.1", port: int = 0, listener: socket.socket | None = None) -> int:
        """Listen, on a socket that was bound elsewhere if one is given. Returns the port."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._guarded])
        app.on_response_prepare.append(_finish)
        self._add_routes(app.router)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        sock = listener or socket.create_server((host, port), backlog=128)
        await web.SockSite(self._runner, sock).start()
        found: int = sock.getsockname()[1]
        self.address = self.settings.url or f"http://127.0.0.1:{found}"
        local = {f"http://{name}:{found}" for name in LOOPBACK}
        self._origins = frozenset({self.settings.url, *local} if self.settings.url else local)
        return found

    async def stop(self) -> None:
        self.sessions.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def invite(self, visitor: Visitor) -> str:
        """The address that logs this visitor in: once, within two minutes. The code never reaches a server's log: it
        stands behind the `#`, and the page takes it out of the address bar."""
        where = f"&namespace={quote(visitor.namespace, safe='')}" if visitor.namespace else ""
        return f"{self.address}/#login={self.sessions.invite(visitor)}{where}"

    # --- requests

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        for path in VIEWS:
            router.add_get(path, files.index)
        router.add_get("/static/{name}", files.one)
        router.add_post("/login", self._login)
        router.add_post("/login/token", self._invite_by_token)
        router.add_post("/logout", self._with_session(self._logout))
        router.add_get("/data/me", self._with_session(answers.me))
        router.add_get("/data/live", self._with_session(stream, streams=True))
        router.add_get("/data/gang", self._with_session(answers.gang))
        router.add_get("/data/why", self._with_session(answers.why))
        router.add_get("/data/position", self._with_session(answers.position))
        router.add_get("/data/log", self._with_session(answers.log, streams=True))
        router.add_get("/data/kept-log", self._with_session(answers.kept_log))
        router.add_get("/data/history", self._with_session(past))
        router.add_post("/data/dashboard", self._with_session(self._dashboards.open))
        router.add_route("*", guard.FOREIGN + "{capability}/{path:.*}", self._dashboards.proxy)

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        if why := guard.refusal(request, self._origins):
            return error(403, why)
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except web.HTTPException as refused:
            return error(refused.status, refused.reason or "refused")
        except ApiError as refused:
            return error(refused.code if 400 <= refused.code < 500 else 502, str(refused))
        except KubeError as unreachable:
            return error(502, str(unreachable))
        except BadInput as wrong:
            return error(400, str(wrong))
        except ShoalError as other:
            return error(404, str(other))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:  # this loop owns the request: a fault in ours must not end the others
            log.exception("%s %s failed", request.method, request.path)
            return error(500, "this is a fault of the page; the log has more")

    def _with_session(
        self, handler: Handler, *, streams: bool = False
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """`streams`: it lasts as long as a tab, and counts how many there are itself."""

        async def answer(request: web.Request) -> web.StreamResponse:
            cookie, key = request.cookies.get(COOKIE, ""), request.headers.get(KEY_HEADER, "")
            session = self.sessions.find(cookie, key)
            if session is None:
                return error(401, "you are not logged in; run: shoal open")
            if streams:
                return await streamed(self.sessions, session, request, handler(request, session))
            async with session.turns:
                return await handler(request, session)

        return answer

    async def _login(self, request: web.Request) -> web.Response:
        told = await body(request)
        session = self.sessions.enter(str(told.get("code") or ""), str(told.get("attempt") or ""))
        if session is None:
            return error(401, "this code was used or is too old; run: shoal open")
        response = reply({"key": session.key, "user": session.visitor.user})
        response.set_cookie(
            COOKIE, session.cookie, httponly=True, samesite="Strict", secure=self.settings.secure, path="/"
        )
        return response

    async def _invite_by_token(self, request: web.Request) -> web.Response:
        """`shoal open` brings the user's own token; what comes back logs a browser in."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._by_token is None or scheme.lower() != "bearer" or not token:
            return error(401, "log in with: shoal open")
        if "Origin" in request.headers:
            return error(403, "requests from web pages are not served")
        async with self._checking:
            return reply({"address": self.invite(await self._by_token(token.strip()))})

    async def _logout(self, request: web.Request, session: PageSession) -> web.Response:
        self.sessions.end(session)
        response = reply({})
        response.del_cookie(COOKIE, path="/")
        return response


async def _finish(request: web.Request, response: web.StreamResponse) -> None:
    guard.put_headers(request, response)
