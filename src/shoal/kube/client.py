"""The client: verbs on kinds, over any transport.

Thin on purpose: one method per verb, typed errors, bytes decoded by msgspec into whatever type the caller names
(plain dictionaries by default). It does not cache, retry writes or decide anything.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube import tracing
from shoal.kube.errors import ApiError, from_status
from shoal.kube.transport import Request, Response, Stream, Transport

T = TypeVar("T")

PatchType = Literal["json", "merge", "strategic", "apply"]
Propagation = Literal["Background", "Foreground", "Orphan"]

CONTENT_TYPES: dict[str, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}

_JSON = {"accept": "application/json"}
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class ListMeta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class RawList(msgspec.Struct, frozen=True):
    """A list whose items are still bytes: one that does not decode never spoils the others."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class DecodedList(msgspec.Struct, Generic[T], frozen=True):
    """A list for a caller that wants all of it or none."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; `object` is still bytes."""

    type: str
    object: msgspec.Raw


_list_decoder = msgspec.json.Decoder(RawList)
_FIRST_TOKEN = re.compile(
    rb'\{"kind":"[A-Za-z]*","apiVersion":"[^"\\]*","metadata":\{"resourceVersion":"\d*","continue":"([^"\\]+)"'
)
"""Where the next page begins, of a server that says so before the items; others say it after them."""
_event_decoder = msgspec.json.Decoder(WatchEvent)


class Client:
    """Verbs on kinds. `manager` is the field manager that our writes are recorded under."""

    def __init__(
        self,
        transport: Transport,
        *,
        manager: str = "shoal",
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """`namespaces` are those that caches read through it; empty for all."""
        self.transport = transport
        self.manager = manager
        self.timeout = timeout
        self.headers = dict(headers or {})
        self.namespaces = namespaces

    def impersonating(self, user: str, groups: tuple[str, ...] = (), uid: str = "") -> Client:
        """The same connection, acting as another user; the server checks that we may. Groups are comma-free names."""
        headers = {**self.headers, "Impersonate-User": user}
        if groups:
            headers["Impersonate-Group"] = "\n".join(groups)  # transports send one header per line
        if uid:
            headers["Impersonate-Uid"] = uid
        return self._like_this(self.transport, headers)

    def through(self, transport: Transport) -> Client:
        """The same client by another way."""
        return self._like_this(transport, self.headers)

    def _like_this(self, transport: Transport, headers: Mapping[str, str]) -> Client:
        return Client(
            transport, manager=self.manager, timeout=self.timeout, headers=headers, namespaces=self.namespaces
        )

    # --- reading

    @overload
    async def get(
        self, kind: Kind, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> Json: ...
    @overload
    async def get(
        self, kind: Kind, name: str, namespace: str | None = None, *, subresource: str | None = None, type: type[T]
    ) -> T: ...
    async def get(
        self, kind: Kind, name: str, namespace: str | None = None, *, subresource: str | None = None, type: Any = dict
    ) -> Any:
        answer = await self.request("GET", kind.path(namespace, name, subresource))
        return msgspec.json.decode(answer.body, type=type)

    async def list_raw(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
        metadata_only: bool = False,
        timeout: float | None = None,
    ) -> RawList:
        """One page, items undecoded. `metadata_only` asks for no more than metadata; a server may send all the same."""
        query = _query(
            labelSelector=label_selector,
            fieldSelector=field_selector,
            limit=str(limit) if limit else "",
            resourceVersion=resource_version,
            resourceVersionMatch=resource_version_match,
        )
        query.update(_query(**{"continue": continue_}))
        accept = _METADATA_ONLY if metadata_only else "application/json"
        answer = await self.request("GET", kind.path(namespace), query=query, accept=accept, timeout=timeout)
        return _list_decoder.decode(answer.body)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        type: Any = dict,
    ) -> list[Any]:
        """All items, decoded; pages followed. For caches use `list_raw`."""
        items: list[Any] = []
        decoder: msgspec.json.Decoder[DecodedList[Any]] = msgspec.json.Decoder(DecodedList[type])

        query = _query(labelSelector=label_selector, fieldSelector=field_selector, limit="500")

        def asked(continue_: str) -> asyncio.Future[Response]:
            return asyncio.ensure_future(
                self.request("GET", kind.path(namespace), query={**query, **_query(**{"continue": continue_})})
            )

        following: asyncio.Future[Response] | None = asked("")
        try:
            while following is not None:
                body = (await following).body
                if token := _FIRST_TOKEN.match(body):  # the next page comes while this one is decoded
                    following = asked(token[1].decode())
                    await asyncio.sleep(0)
                page = decoder.decode(body)
                items += page.items or ()
                if not token:
                    following = asked(page.metadata.continue_) if page.metadata.continue_ else None
        finally:
            if following is not None:
                following.cancel()
        return items

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 0,
        send_initial_events: bool = False,
        idle_timeout: float | None = None,
        opened: Callable[[], None] | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events as they come, bookmarks included; ends when the server ends the watch. ERROR events raise.

        `opened` is called once the server has accepted the watch. Close the generator (`contextlib.aclosing`) when
        leaving it early.
        """
        query = _query(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            labelSelector=label_selector,
            fieldSelector=field_selector,
            timeoutSeconds=str(timeout_seconds) if timeout_seconds else "",
        )
        if send_initial_events:
            query.update(sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
        request = Request(method="GET", path=kind.path(namespace), query=query, headers={**self.headers, **_JSON})
        async with self._open(request, idle_timeout) as stream:
            if opened is not None:
                opened()
            async for line in lines(stream):
                event = _event_decoder.decode(line)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=dict[str, Any])
                    raise from_status(int(status.get("code") or 500), status)
                yield event

    async def logs(
        self,
        name: str,
        namespace: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """A pod's log as chunks of bytes."""
        query = _query(
            container=container,
            follow="true" if follow else "",
            previous="true" if previous else "",
            tailLines="" if tail_lines is None else str(tail_lines),
            sinceSeconds="" if since_seconds is None else str(since_seconds),
            timestamps="true" if timestamps else "",
        )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        async with self._open(
            Request(method="GET", path=path, query=query, headers=dict(self.headers)), None
        ) as stream:
            async for chunk in stream:
                yield chunk

    # --- writing

    async def create(
        self,
        kind: Kind,
        body: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        name: str | None = None,
        dry_run: bool = False,
        type: Any = dict,
    ) -> Any:
        """Create from a dictionary or a typed object. `name` is only for subresources (binding, eviction, token)."""
        path = kind.path(namespace, name, subresource)
        answer = await self.request("POST", path, query=self._write_query(dry_run), body=msgspec.json.encode(body))
        return msgspec.json.decode(answer.body, type=type)

    async def update(
        self,
        kind: Kind,
        body: Any,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        type: Any = dict,
    ) -> Any:
        """Replace. The body's resourceVersion makes it conditional; without one the server takes it as it is."""
        answer = await self.request(
            "PUT",
            kind.path(namespace, name, subresource),
            query=self._write_query(dry_run),
            body=msgspec.json.encode(body),
        )
        return msgspec.json.decode(answer.body, type=type)

    async def patch(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        body: Any,
        *,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        type: Any = dict,
    ) -> Any:
        """Change some fields. `apply` is server-side apply; `force` takes fields over from other managers."""
        query = self._write_query(dry_run)
        if patch_type == "apply" and force:
            query["force"] = "true"
        answer = await self.request(
            "PATCH",
            kind.path(namespace, name, subresource),
            query=query,
            body=msgspec.json.encode(body),
            content_type=CONTENT_TYPES[patch_type],
        )
        return msgspec.json.decode(answer.body, type=type)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Delete; with `uid` only that very object (a stranger of the same name answers Conflict)."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        preconditions = _query(uid=uid, resourceVersion=resource_version)
        if preconditions:
            options["preconditions"] = preconditions
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if dry_run:
            options["dryRun"] = ["All"]
        answer = await self.request("DELETE", kind.path(namespace, name), body=msgspec.json.encode(options))
        return msgspec.json.decode(answer.body, type=dict[str, Any])

    # --- the one way out

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes = b"",
        content_type: str = "application/json",
        timeout: float | None = None,
        accept: str = "application/json",
    ) -> Response:
        """Send one request and return a 2xx answer; anything else raises its typed error."""
        headers = {**self.headers, "accept": accept}
        if body:
            headers["content-type"] = content_type
        with tracing.span(method, lambda: {"http.request.method": method, "url.path": path}, sent=True) as made:
            headers |= tracing.headers()
            request = Request(method=method, path=path, query=query or {}, headers=headers, body=body)
            answer = await self.transport.send(request, timeout=timeout or self.timeout)
            tracing.answered(made, answer.status)
        if answer.status >= 300:
            raise refusal(answer.status, answer.headers, answer.body)
        return answer

    def _write_query(self, dry_run: bool) -> dict[str, str]:
        return _query(fieldManager=self.manager, dryRun="All" if dry_run else "")

    @asynccontextmanager
    async def _open(self, request: Request, idle_timeout: float | None) -> AsyncIterator[Stream]:
        async with self.transport.stream(request, idle_timeout=idle_timeout) as stream:
            if stream.status >= 300:
                raise refusal(stream.status, stream.headers, await stream.read())
            yield stream


def refusal(code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The typed error for an answer that is not 2xx, whatever its body holds."""
    try:
        status = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        status = {"message": body[:500].decode(errors="replace").strip() or f"the server answered {code}"}
    try:
        retry_after = float(headers["retry-after"]) if "retry-after" in headers else None
    except ValueError:
        retry_after = None
    return from_status(code, status, retry_after)


async def lines(stream: Stream) -> AsyncIterator[bytes]:
    """Split chunks into lines. Cheaper than a reader's own readline, and never waits for more than it needs."""
    rest = b""
    async for chunk in stream:
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        for part in parts:
            if part:
                yield part
    if rest.strip():
        yield rest


def _query(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
