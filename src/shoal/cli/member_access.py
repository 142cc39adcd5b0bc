"""What gangs have in other clusters, told by an installed hub: an aggregated API that the leader answers.

It stands beside the visibility API, at the same server and Service. Below `…/clusters/NAME/proxy` a client finds what
the API server of the member NAME would answer; kubectl takes that path as its `--server`. Callers are API servers,
which say for which user they ask: that user needs the right that the same request about the hub's own objects takes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.api import members_api
from shoal.api.meta import Json
from shoal.controllers.multicluster.reading import FORWARD, MemberObject, MemberPorts, MemberReading
from shoal.kube import front_proxy
from shoal.kube.admission_review import User
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.transport import Request, Response
from shoal.kube.webhooks import WebhookServer
from shoal.local.apiserver.requests import route as routes
from shoal.local.apiserver.requests.route import Route

if TYPE_CHECKING:
    from shoal.controllers.multicluster import HubPlaces

ROOT = f"/apis/{members_api.GROUP}/{members_api.VERSION}"
API_SERVICE = f"{members_api.VERSION}.{members_api.GROUP}"
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 503: "ServiceUnavailable"}
UserOf = Callable[[web.Request], User | None]


class MemberAccess:
    """Answers for the hub whose `places` these are; 503 while another replica leads."""

    def __init__(self, places: HubPlaces) -> None:
        self._places = places
        self._client: Client | None = None
        self._user_of: UserOf = lambda request: None

    def serve(self, client: Client, server: WebhookServer, user_of: UserOf) -> None:
        """Take the paths. `user_of(request)`: for which user an API server asks; None: it is none."""
        self._client, self._user_of = client, user_of
        server.answer(ROOT, self._discovery)
        path = f"{ROOT}/{members_api.PLURAL}/{{name}}/{members_api.PROXY}"
        server.answer(path + "/{path:.*}", self._answer, posts=True)  # kubectl's second try, which is told why

    async def _discovery(self, request: web.Request) -> web.StreamResponse:
        if self._user_of(request) is None:
            return refused(401, "ask the API server")
        return web.json_response(members_api.discovery())

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        user = self._user_of(request)
        if user is None or self._client is None:
            return refused(401, "ask the API server")
        asked = Request(method="GET", path=f"/{request.match_info['path']}", query=dict(request.query))
        route = routes.parse(asked)
        forwards = route is not None and route.subresource == "portforward"
        if not forwards and (request.method != "GET" or (route is not None and route.verb not in ("get", "list"))):
            return refused(405, "other clusters are read through this one, and nothing else")
        try:
            if route is not None and (why := await self._refusal(user, _attributes(route, forwards))):
                return refused(403, why)
            members = self._places.placing.members
            if members is None:
                return refused(503, "this replica does not lead; ask again")
            wanted = None
            if route is not None:
                wanted = MemberObject(route.group, route.plural, route.namespace, route.name, route.subresource)
            found = await MemberReading(members).read(request.match_info["name"], asked, wanted)
            if isinstance(found, MemberPorts) and found.secret:
                secret = {"verb": "get", "resource": "secrets", "namespace": found.namespace, "name": found.secret}
                if why := await self._refusal(user, secret):
                    return refused(403, why)
        except KubeError as error:
            return refused(503, f"the API server does not review the rights of {user.username}: {error}")
        if isinstance(found, Response):
            return web.Response(status=found.status, body=found.body, content_type="application/json")
        if isinstance(found, MemberPorts):
            return await _forward(request, found)
        return await _stream(request, found)

    async def _refusal(self, user: User, attributes: Json) -> str:
        """Why this user may not; empty for one that may."""
        assert self._client is not None
        if await front_proxy.may(self._client, user, attributes):
            return ""
        what = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
        return f"user {user.username} may not {attributes['verb']} {what} in namespace {attributes['namespace']!r}"


def _attributes(route: Route, forwards: bool) -> Json:
    return {
        "verb": "create" if forwards else route.verb,  # a GET opens them, but it is no reading
        "group": route.group,
        "resource": route.plural,
        "subresource": route.subresource,
        "namespace": route.namespace,
        "name": route.name,
    }


async def _forward(request: web.Request, ports: MemberPorts) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=(FORWARD,))
    if not socket.can_prepare(request):
        return refused(405, "ports are forwarded over a WebSocket")
    await socket.prepare(request)
    try:
        await ports.forward(socket)
    finally:
        await socket.close()
    return socket


async def _stream(request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/plain"})
    await answer.prepare(request)
    async for chunk in chunks:
        await answer.write(chunk)
    return answer


def refused(code: int, message: str) -> web.Response:
    told = {"message": message, "reason": _REASONS[code], "code": code}
    return web.json_response(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **told}, status=code
    )
