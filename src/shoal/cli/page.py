"""The page, put together: for `shoal up` beside its API server, for `shoal controller` with users' own tokens.

Composition only; what a visitor may see is decided by the API server alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from shoal.api import kinds
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, Unauthorized
from shoal.kube.http import HttpTransport
from shoal.kube.transport import Request, Response
from shoal.web import PageServer
from shoal.web.sessions import Visitor

if TYPE_CHECKING:
    from shoal.local.apiserver import Server
    from shoal.local.apiserver.requests.route import RequestUser
    from shoal.web.ray_dashboard import Connect

LOGIN_PATH = "/shoal/page/login"
"""Of the embedded API server: answers a user with the address that logs them in."""
MANAGER = "shoal-page"


class LocalVisitors:
    """Users of the embedded API server: it has told them apart already, and hands over the user that it let in."""

    def __init__(self, server: Server, page: PageServer) -> None:
        self._server = server
        self._page = page
        server.own_paths[LOGIN_PATH] = self.login

    async def login(self, request: Request, user: RequestUser) -> Response:
        from shoal.local.apiserver.http.inprocess import LocalTransport

        header = request.headers.get("authorization", "")

        def alive() -> bool:
            """A token ends when its account does; a certificate lasts as long as the session."""
            return not header or self._server.authenticator.user({"authorization": header}, None) is not None

        client = Client(LocalTransport(self._server, user), manager=MANAGER)
        wanted = request.query.get("namespace", "")
        address = self._page.invite(Visitor(user=user.name, client=client, alive=alive, namespace=wanted))
        return Response(200, {"content-type": "application/json"}, msgspec.json.encode({"address": address}))


async def serve_locally(
    server: Server, connect: Connect, port: int, listener: socket.socket | None = None
) -> PageServer:
    """Beside the embedded API server, on loopback. A port that is taken is replaced by another."""
    page = PageServer(connect=connect)
    try:
        await page.start(port=port, listener=listener)
    except OSError:
        await page.stop()
        page = PageServer(connect=connect)
        await page.start()
    LocalVisitors(server, page)
    return page


def by_token(connect: Callable[[str], HttpTransport]) -> Callable[[str], Awaitable[Visitor]]:
    """Visitors of a cluster, each with a token of their own, which the API server judges at every request."""

    async def visitor(token: str) -> Visitor:
        transport = connect(token)
        client = Client(transport, manager=MANAGER)
        closing: set[asyncio.Future[None]] = set()

        def gone() -> None:
            closing.add(asyncio.ensure_future(transport.close()))

        async def confirmed() -> bool:
            """A watch that is open goes on after its token: the API server is asked for the user again."""
            try:
                await user_of(client)
            except Unauthorized:
                return False
            except KubeError:
                pass  # it does not answer, or not this: nothing says that the token has ended
            return True

        try:
            return Visitor(user=await user_of(client), client=client, gone=gone, confirmed=confirmed)
        except BaseException:
            await transport.close()
            raise

    return visitor


async def user_of(client: Client) -> str:
    """What the API server calls the client's user."""
    answer = await client.create(kinds.SELF_SUBJECT_REVIEW, {"metadata": {}})
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "unknown")
