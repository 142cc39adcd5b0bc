"""Ray's dashboards below the page's own address, each behind a path that was made for one visitor.

What a dashboard serves is code of the gang's owner, so the browser gets it in a sandbox: no origin, no cookie, nothing
of the page. The path's secret part stands for the right, which is looked up when it is made: ports of pods of that
namespace, and the Secret with the cluster's token, both as the visitor.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import msgspec
from aiohttp import web

from shoal.api import kinds
from shoal.api.labels import RAY_CLUSTER_NAME, RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.controllers.ray import cluster_token, view
from shoal.errors import ShoalError
from shoal.kube.answers import Answer, Malformed
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import Forbidden
from shoal.kube.transport import Request, Stream
from shoal.web import answers, guard
from shoal.web.replies import body, reply
from shoal.web.sessions import PageSession, Sessions
from shoal.web.streams import CutOff, streamed

Connect = Callable[[Json, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""A connection to a port of a pod. The caller has asked whether the visitor may."""

SECONDS = 3600.0
MOST = 64
LARGEST_BODY = 8 << 20
LARGEST_INDEX = 1 << 20
CHUNK = 64 << 10
PATIENCE = 30.0
PASSED_ON = ("accept", "content-type", "if-none-match", "range")
PASSED_BACK = ("content-type", "etag", "last-modified", "content-encoding", "content-disposition", "content-range")
SHIM = b"""<script>for (const name of ["localStorage", "sessionStorage"]) {
const kept = new Map();
Object.defineProperty(window, name, {value: {
getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => { kept.set(key, String(value)); },
removeItem: (key) => { kept.delete(key); }, clear: () => kept.clear(),
key: (at) => [...kept.keys()][at] ?? null, get length() { return kept.size; }}});
}
let cookie = "";
Object.defineProperty(document, "cookie", {get: () => cookie, set: (text) => { cookie = text.split(";")[0]; }});
</script>"""
"""A sandboxed page has neither storage nor cookies and fails where it asks for them; these end with the tab."""


class OpenDashboard(msgspec.Struct, frozen=True, kw_only=True):
    session: PageSession
    until: float
    namespace: str
    service: str
    port: int
    token: str
    pod: Json | None = None


class Dashboards:
    """`connect` reaches pods directly, as the embedded cluster can; else the API server's proxy is the way."""

    def __init__(self, clock: Clock, connect: Connect | None, sessions: Sessions) -> None:
        self._clock = clock
        self._connect = connect
        self._sessions = sessions
        self._open: dict[str, OpenDashboard] = {}

    async def open(self, request: web.Request, session: PageSession) -> web.Response:
        """The path of a Ray cluster's dashboard, for this visitor and for an hour."""
        asked, client = await body(request), session.visitor.client
        _, cluster = await answers.named_gang(client, {**asked, "kind": "raycluster.ray.io"})
        namespace = view.namespace(cluster)
        pod = await self._head(client, cluster) if self._connect is not None else None
        made = OpenDashboard(
            session=session, until=self._clock.monotonic() + SECONDS, namespace=namespace, pod=pod,
            service=view.head_service_name(cluster), port=view.dashboard_port(cluster),
            token=await _token(client, cluster),
        )  # fmt: skip
        capability = secrets.token_urlsafe(24)
        self._open = {one: found for one, found in self._open.items() if self._lives(found)}
        while len(self._open) >= MOST:
            self._open.pop(next(iter(self._open)))
        self._open[capability] = made
        session.on_end.append(lambda: self._close(capability))
        return reply({"path": f"{guard.FOREIGN}{capability}/"})

    async def _head(self, client: Client, cluster: Json) -> Json:
        namespace, name = view.namespace(cluster), view.name(cluster)
        action = {"verb": "create", "resource": "pods", "subresource": "portforward", "namespace": namespace}
        review = {"spec": {"resourceAttributes": action}}
        answer: Json = await client.create(kinds.SELF_SUBJECT_ACCESS_REVIEW, review)
        if not (answer.get("status") or {}).get("allowed"):
            raise ShoalError(f"you may not create pods/portforward in namespace {namespace}; ask for that right")
        labels = f"{RAY_CLUSTER_NAME}={name},{RAY_NODE_TYPE}=head"
        pods = await client.list(kinds.POD, namespace, label_selector=labels)
        own = [
            one
            for one in pods
            if any(ref.get("uid") == cluster["metadata"]["uid"] for ref in one["metadata"].get("ownerReferences") or ())
        ]
        running = [one for one in own if (one.get("status") or {}).get("phase") == "Running"]
        if not running:
            raise ShoalError(f"the head of Ray cluster {name} does not run")
        return dict(running[0])

    def _close(self, capability: str) -> None:
        self._open.pop(capability, None)

    def _lives(self, found: OpenDashboard) -> bool:
        return found.until > self._clock.monotonic() and found.session.visitor.alive()

    async def proxy(self, request: web.Request) -> web.StreamResponse:
        found = self._open.get(request.match_info["capability"])
        if found is None or not self._lives(found):
            raise web.HTTPNotFound(reason="this dashboard is closed; open it from the gang's page")
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=_sandboxed())
        path = "/" + quote(request.match_info["path"], safe="/:@!$&'()*+,;=~-._")
        query = f"?{request.query_string}" if request.query_string else ""
        body = await request.content.read(LARGEST_BODY + 1)
        if len(body) > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, len(body))
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        if found.token:
            headers["x-ray-authorization"] = f"Bearer {found.token}"
        asked = Request(method=request.method, path=path + query, headers=headers, body=body)
        try:
            way = self._direct(found, asked) if found.pod is not None else _proxied(found, asked)
            async with asyncio.timeout(PATIENCE) as limit, way as stream:
                limit.reschedule(None)
                return await streamed(self._sessions, found.session, request, _pass_on(request, stream))
        except CutOff:
            raise
        except (OSError, Malformed, TimeoutError) as error:
            raise web.HTTPBadGateway(reason=f"the dashboard does not answer: {str(error)[:200] or 'timeout'}") from None

    @asynccontextmanager
    async def _direct(self, found: OpenDashboard, asked: Request) -> AsyncIterator[Stream]:
        assert self._connect is not None and found.pod is not None
        reader, writer = await self._connect(found.pod, found.port)
        try:
            lines = {"host": f"{found.service}:{found.port}", "connection": "close", **asked.headers}
            if asked.body or asked.method not in ("GET", "HEAD"):
                lines["content-length"] = str(len(asked.body))
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"{asked.method} {asked.path} HTTP/1.1\r\n{head}\r\n".encode() + asked.body)
            await writer.drain()
            stream = PodAnswer(reader)
            await stream.opened()
            yield stream
        finally:
            writer.close()


class PodAnswer:
    """An HTTP answer that comes straight from a pod."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._answer = Answer()
        self.status = 0
        self.headers: dict[str, str] = {}

    async def opened(self) -> None:
        while not self._answer.status:
            await self._more()
        self.status, self.headers = self._answer.status, self._answer.headers

    async def _more(self) -> None:
        data = await self._reader.read(CHUNK)
        if data:
            self._answer.feed(data)
            return
        self._answer.end()
        if not self._answer.done:
            raise Malformed("the connection was closed")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            if self._answer.pieces:
                yield self._answer.body()
            elif self._answer.done:
                return
            else:
                await self._more()

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self])


@asynccontextmanager
async def _proxied(found: OpenDashboard, asked: Request) -> AsyncIterator[Stream]:
    """Through the API server, which judges the visitor's right to the Service's proxy at every request."""
    client = found.session.visitor.client
    base = f"/api/v1/namespaces/{found.namespace}/services/{found.service}:{found.port}/proxy"
    request = msgspec.structs.replace(asked, path=base + asked.path, headers={**client.headers, **asked.headers})
    async with client.transport.stream(request, idle_timeout=PATIENCE) as stream:
        yield stream


async def _pass_on(request: web.Request, stream: Stream) -> web.StreamResponse:
    headers = {name: stream.headers[name] for name in PASSED_BACK if name in stream.headers}
    if stream.headers.get("content-type", "").startswith("text/html") and request.method == "GET":
        text = (await stream.read())[:LARGEST_INDEX]
        head = text.find(b"<head>")
        text = text[: head + 6] + SHIM + text[head + 6 :] if head >= 0 else text
        return web.Response(status=stream.status, body=text, headers={**headers, **_sandboxed()})
    response = web.StreamResponse(status=stream.status, headers={**headers, **_sandboxed()})
    await response.prepare(request)
    try:
        async for chunk in stream:
            await response.write(chunk)
        await response.write_eof()
    except ConnectionError:
        pass  # the tab is gone
    return response


def _sandboxed() -> dict[str, str]:
    """Readable by a page without an origin, which is what a sandboxed one is; its path is a secret."""
    return {
        "Content-Security-Policy": guard.FOREIGN_POLICY,
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": "*",
        "Access-Control-Allow-Headers": "*",
    }


async def _token(client: Client, cluster: Json) -> str:
    try:
        return await cluster_token.read_token(client, cluster)
    except Forbidden as error:
        raise ShoalError(f"{error}; the dashboard's token is in that Secret: ask for that right") from None
