"""The port of a node that a real API server asks: logs, exec, attach and port-forward of an agent's pods.

For `shoal node serve`; the embedded API server has the agent in its own process. Speaks HTTP/1.1 over TLS by hand,
because the streams are plain SPDY after an upgrade. No request is answered without a certificate of the cluster's
client authority, and then only what the API server says they may: `nodes/proxy`, as with a kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from shoal.api.kind import Key
from shoal.api.kinds import SUBJECT_ACCESS_REVIEW
from shoal.api.meta import Json
from shoal.kube.certificates import make_authority, make_leaf
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.local.apiserver.auth.authentication import from_certificate
from shoal.local.apiserver.auth.certificates import private_file
from shoal.local.apiserver.primitives.status import Refused, bad_request, not_found
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.streams import portforward, spdy, terminals
from shoal.local.apiserver.streams.channels import Channels, Pipe
from shoal.local.apiserver.verbs.subresources import LogRequest
from shoal.local.nodes.agent.agent import Agent
from shoal.local.nodes.agent.streams import PodStreams

log = logging.getLogger(__name__)

HEAD_LIMIT = 64 << 10
HEAD_PATIENCE = 30.0
_PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}
_TERMINAL_PROTOCOL = "v4.channel.k8s.io"
_FORWARD_PROTOCOL = "portforward.k8s.io"


class Asked(msgspec.Struct, frozen=True):
    """One request without its body, which none of these have."""

    method: str
    path: tuple[str, ...]
    query: dict[str, list[str]]
    headers: dict[str, str]

    def first(self, name: str) -> str:
        return (self.query.get(name) or [""])[0]

    def flag(self, name: str) -> bool:
        return self.first(name) in ("1", "true")

    def number(self, name: str) -> int | None:
        text = self.first(name)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise bad_request(f"{name} {text[:40]!r} is not a number")
        return int(text)


class KubeletPort:
    def __init__(self, client: Client, agent: Agent, streams: PodStreams, authority: str) -> None:
        """`authority` is what the API server's client certificate is signed by, as PEM."""
        self._client = client
        self._agent = agent
        self._streams = streams
        self._authority = authority
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int = 0) -> int:
        self._server = await asyncio.start_server(
            self._connected, host, port, ssl=_context(host, self._authority), limit=HEAD_LIMIT
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """This task owns one connection: whatever goes wrong on it, the others go on."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, spdy.Broken) as error:
            log.debug("a client went away or did not speak HTTP: %s", error)
        except Exception:
            log.exception("a request to the node's port failed")
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            asked = parse(head)
            user = from_certificate(writer.get_extra_info("peercert") or {})
            if user is None:
                raise Refused(401, "Unauthorized", "Unauthorized: a client certificate of this cluster is needed")
            answer = await self._route(asked, user)
        except Refused as refusal:
            await _whole(writer, refusal.code, refusal.message.encode())
            return
        await answer(reader, writer)

    async def _route(
        self, asked: Asked, user: RequestUser
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        match asked.path:
            case ("healthz",):
                return lambda reader, writer: _whole(writer, 200, b"ok")
            case ("containerLogs", namespace, name, container):
                pod = await self._pod(asked, user, namespace, name)
                chunks = await self._log(asked, pod, container)
                return lambda reader, writer: _chunked(writer, chunks)
            case ("exec" | "attach" as what, namespace, name, container):
                pod = await self._pod(asked, user, namespace, name)
                _check_upgrade(asked)
                return lambda reader, writer: self._terminal(asked, pod, container, what == "attach", reader, writer)
            case ("portForward", namespace, name):
                pod = await self._pod(asked, user, namespace, name)
                _check_upgrade(asked)
                return lambda reader, writer: self._forward(pod, reader, writer)
        raise Refused(404, "NotFound", "404 page not found")

    async def _pod(self, asked: Asked, user: RequestUser, namespace: str, name: str) -> Json:
        """The pod, if it is one of ours and the caller may look into its node."""
        pod = self._agent.pods.get(Key(namespace, name))
        node = ((pod or {}).get("spec") or {}).get("nodeName", "")
        ours = pod is not None and node in self._agent.keeper.shapes
        await self._check_right(asked, user, node if ours else "")
        if pod is None or not ours:
            raise not_found("", "pods", name)
        return pod

    async def _check_right(self, asked: Asked, user: RequestUser, node: str) -> None:
        verb = {"GET": "get", "POST": "create"}.get(asked.method, asked.method.lower())
        wish = {"verb": verb, "resource": "nodes", "subresource": "proxy", "name": node}
        body = {
            "apiVersion": SUBJECT_ACCESS_REVIEW.api_version,
            "kind": "SubjectAccessReview",
            "spec": {"user": user.name, "groups": list(user.groups), "resourceAttributes": wish},
        }
        try:
            review: Any = await self._client.create(SUBJECT_ACCESS_REVIEW, body)
        except KubeError as error:
            raise Refused(
                403, "Forbidden", f"the API server could not be asked whether {user.name} may do this: {error}"
            ) from None
        if not (review.get("status") or {}).get("allowed"):
            said = f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource(s)=[proxy])"
            raise Refused(403, "Forbidden", said)

    async def _log(self, asked: Asked, pod: Json, container: str) -> AsyncIterator[bytes]:
        _check_container(pod, container)
        options = LogRequest(
            container,
            asked.flag("follow"),
            asked.flag("previous"),
            asked.flag("timestamps"),
            asked.number("tailLines"),
            asked.number("sinceSeconds"),
            asked.first("sinceTime"),
            asked.number("limitBytes"),
        )
        return await self._streams.log(pod, options)

    async def _terminal(
        self,
        asked: Asked,
        pod: Json,
        container: str,
        attaching: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        tty = asked.flag("tty")
        wanted = {"stdin": asked.flag("input"), "stdout": asked.flag("output"), "resize": tty}
        wanted |= {"stderr": asked.flag("error") and not tty, "error": True}
        query = {
            "container": container,
            "command": terminals.SEPARATOR.join(asked.query.get("command", ())),
            "stdin": str(wanted["stdin"]).lower(),
            "tty": str(tty).lower(),
        }
        _upgrade(writer, _TERMINAL_PROTOCOL)
        channels = Channels(Pipe(reader, writer), frozenset(name for name, on in wanted.items() if on))
        await channels.open()
        start: terminals.Start = self._streams.attach if attaching else self._streams.start
        await terminals.run(start, pod, query, channels, attaching)
        await channels.finish()

    async def _forward(self, pod: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _upgrade(writer, _FORWARD_PROTOCOL)
        await portforward.run(self._streams.connect, pod, Pipe(reader, writer))


def parse(head: bytes) -> Asked:
    """The head of a request. Refuses what is not HTTP."""
    try:
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, version = line.split(" ")
        parts = urlsplit(target)
        headers = {}
        for one in filter(None, rest):
            name, colon, value = one.partition(":")
            if not colon:
                raise ValueError(one)
            headers[name.strip().lower()] = value.strip()
        query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=1000)
    except ValueError:
        raise bad_request("this is not an HTTP request") from None
    if not version.startswith("HTTP/1."):
        raise bad_request("only HTTP/1.1 is spoken here")
    return Asked(method, tuple(unquote(part) for part in parts.path.strip("/").split("/")), query, headers)


def _check_upgrade(asked: Asked) -> None:
    if asked.headers.get("upgrade", "").lower() != "spdy/3.1":
        raise bad_request("unable to upgrade: only SPDY/3.1 is spoken here")


CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


def _check_container(pod: Json, container: str) -> None:
    names = [one.get("name") for part in CONTAINERS for one in (pod["spec"].get(part) or ())]
    if container not in names:
        raise bad_request(f"container {container} is not valid for pod {pod['metadata']['name']}")


def _upgrade(writer: asyncio.StreamWriter, protocol: str) -> None:
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: SPDY/3.1"]
    writer.write("\r\n".join([*lines, f"X-Stream-Protocol-Version: {protocol}", "", ""]).encode())


async def _whole(writer: asyncio.StreamWriter, code: int, body: bytes) -> None:
    lines = [f"HTTP/1.1 {code} {_PHRASES.get(code, 'Refused')}", "Content-Type: text/plain; charset=utf-8"]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""])
    writer.write(head.encode() + body)
    await writer.drain()


async def _chunked(writer: asyncio.StreamWriter, chunks: AsyncIterator[bytes]) -> None:
    """As it comes: a quiet log must still be seen to have begun."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/plain; charset=utf-8", "Transfer-Encoding: chunked"]
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
    await writer.drain()
    async for chunk in chunks:
        if chunk:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _context(host: str, authority: str) -> ssl.SSLContext:
    """A certificate of our own making, as kubelets have by default; callers need one of the cluster's."""
    pair = make_leaf(make_authority("shoal-node"), f"system:node:{host}", hosts=(host,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL  # without one the answer is a 401 with words, not a broken handshake
    context.load_verify_locations(cadata=authority)
    with tempfile.TemporaryDirectory() as place:  # ssl reads keys from files only; mode 0700
        for name, data in (("crt", pair.certificate), ("key", pair.key)):
            private_file(Path(place) / name, data)
        context.load_cert_chain(Path(place) / "crt", Path(place) / "key")
    return context
