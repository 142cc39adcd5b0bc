"""What each client asked of a server, and what came of it: one line per request, for the checker to judge afterwards.

A wrapper at the transport seam, so that it sees every request of every controller. It changes nothing on the way and
keeps no opinion; tests share one `History` between replicas, `shoal` can write one to a file.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from shoal.api.meta import Json
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import LeaseLost, Unknown, Unsent
from shoal.kube.transport import Request, Response, Stream, Transport

Outcome = Literal["done", "refused", "unknown", "unsent"]

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class HistoryEntry(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """One request, or one watch event (`verb` "event"). Times are microseconds of wall time and boot-time seconds."""

    order: int
    """When it began, counted together with all beginnings and ends of its history."""
    finished: int = 0
    """When it ended, by the same count: which requests overlapped is told whatever the clocks did."""
    began: int
    ended: int
    elapsed: float = 0.0
    replica: str = ""
    term: int = 0
    verb: str = ""
    path: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    uid: str = ""
    query: dict[str, str] = {}
    body: Any = None
    """What was sent: the object, the patch or the delete options."""
    old: Json | None = None
    """The object as this history last saw it before."""
    new: Json | None = None
    """The object in the answer."""
    event: str = ""
    """Of a watch event: ADDED, MODIFIED, DELETED, BOOKMARK."""
    watch: int = 0
    """The `order` of the watch that an event came by."""
    outcome: Outcome = "done"
    code: int = 0
    reason: str = ""
    marks: dict[str, str] = {}
    """What a test or a controller wants to be known besides, such as the decision behind a write."""


class History:
    """Entries in the order in which they ended. `sink` may write each away; `entries` keeps them for tests."""

    def __init__(self, *, path: Path | None = None, keep: bool = True) -> None:
        self.entries: list[HistoryEntry] = []
        self._order = itertools.count(1)
        self._last: dict[str, Json] = {}
        self._keep = keep
        self._file = path.open("ab") if path else None

    def number(self) -> int:
        return next(self._order)

    def known(self, path: str) -> Json | None:
        """The object at a path as last seen by any replica."""
        return self._last.get(path)

    def add(self, entry: HistoryEntry) -> None:
        if self._keep:
            self.entries.append(entry)
        if self._file is not None:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()

    def note(self, verb: str, replica: str, clock: Clock, **marks: str) -> None:
        """A fact that is not a request: "lead" and "stop" of a term, "synced", "quiet"; "company" for others
        who change the same objects and are not recorded."""
        now = clock.now()
        term = int(marks.pop("term", "0"))
        order = self.number()
        self.add(
            HistoryEntry(
                order=order,
                finished=order,
                began=now,
                ended=now,
                replica=replica,
                term=term,
                verb=verb,
                marks=marks,
            )
        )

    def saw(self, path: str, obj: Json | None) -> None:
        if obj is None:
            self._last.pop(path, None)
        else:
            self._last[path] = obj

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read(path: Path) -> list[HistoryEntry]:
    """A history from its file; a last line that was cut by a kill is left out."""
    entries = []
    for line in path.read_bytes().split(b"\n"):
        try:
            entries.append(msgspec.json.decode(line, type=HistoryEntry))
        except msgspec.DecodeError:
            continue
    return entries


class RecordingTransport:
    """Put around the transport of one replica. `term` tells the lease term that a request is sent under, 0 for none."""

    def __init__(
        self,
        inner: Transport,
        history: History,
        *,
        replica: str = "",
        term: Callable[[], int] = lambda: 0,
        clock: Clock | None = None,
        events: bool = True,
    ) -> None:
        self.inner = inner
        self.history = history
        self._replica = replica
        self._term = term
        self._clock: Clock = clock or SystemClock()
        self._events = events

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        order, began, start = self.history.number(), self._clock.now(), self._clock.monotonic()
        term = self._term()
        address = parse_path(request.path)
        path = address.object_path
        old = self.history.known(path)
        answer: Response | None = None
        outcome: Outcome = "unknown"
        reason = ""
        try:
            answer = await self.inner.send(request, timeout=timeout)
            outcome = "done" if answer.status < 300 else "refused"
            return answer
        except LeaseLost:
            outcome, reason = "unsent", "LeaseLost"
            raise
        except Unsent:
            outcome, reason = "unsent", "Unsent"
            raise
        except Unknown:
            reason = "Unknown"
            raise
        finally:
            new = _decoded(answer.body) if answer is not None else None
            if outcome == "refused":
                reason = str((new or {}).get("reason", ""))
                new = None
            verb = VERBS.get(request.method, "get" if address.name else "list")
            if verb == "list":
                new = _list_summary(new)
            name = address.name or ((new or {}).get("metadata") or {}).get("name", "")
            self.history.add(
                HistoryEntry(
                    order=order,
                    finished=self.history.number(),
                    began=began,
                    ended=self._clock.now(),
                    elapsed=self._clock.monotonic() - start,
                    replica=self._replica,
                    term=term,
                    verb=verb,
                    path=address.collection,
                    namespace=address.namespace,
                    name=name,
                    subresource=address.subresource,
                    uid=str(((new or old or {}).get("metadata") or {}).get("uid", "")),
                    query=request.query,
                    body=_decoded(request.body) if request.body else None,
                    old=old,
                    new=new,
                    outcome=outcome,
                    code=answer.status if answer else 0,
                    reason=reason,
                )
            )
            if outcome == "done" and verb not in ("list", "delete") and new is not None and "metadata" in new:
                self.history.saw(address.with_name(name), new)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        if not self._events or request.query.get("watch") != "1":
            async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
                yield stream
            return
        order, now = self.history.number(), self._clock.now()
        address = parse_path(request.path)
        async with self.inner.stream(request, idle_timeout=idle_timeout) as stream:
            self.history.add(
                HistoryEntry(
                    order=order,
                    finished=self.history.number(),
                    began=now,
                    ended=self._clock.now(),
                    replica=self._replica,
                    term=self._term(),
                    verb="watch",
                    path=address.collection,
                    namespace=address.namespace,
                    query=request.query,
                    outcome="done" if stream.status < 300 else "refused",
                    code=stream.status,
                )
            )
            yield _RecordedStream(stream, self, order, address)

    async def close(self) -> None:
        await self.inner.close()

    def event(self, line: bytes, watch: int, address: Address) -> None:
        """One line of a watch."""
        parsed = _decoded(line)
        if parsed is None or not isinstance(parsed.get("object"), dict):
            return
        obj: Json = parsed["object"]
        metadata = obj.get("metadata") or {}
        kind = str(parsed.get("type", ""))
        path = msgspec.structs.replace(address, namespace=metadata.get("namespace", "")).with_name(
            metadata.get("name", "")
        )
        now, order = self._clock.now(), self.history.number()
        self.history.add(
            HistoryEntry(
                order=order,
                finished=order,
                began=now,
                ended=now,
                replica=self._replica,
                verb="event",
                path=address.collection,
                namespace=metadata.get("namespace", ""),
                name=metadata.get("name", ""),
                uid=metadata.get("uid", ""),
                new=obj,
                event=kind,
                watch=watch,
            )
        )
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self.history.saw(path, None if kind == "DELETED" else obj)


class _RecordedStream:
    def __init__(self, inner: Stream, transport: RecordingTransport, watch: int, address: Address) -> None:
        self._inner = inner
        self._transport = transport
        self._watch = watch
        self._address = address
        self.status = inner.status
        self.headers = inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._inner:
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                self._transport.event(line, self._watch, self._address)
            yield chunk

    async def read(self) -> bytes:
        return await self._inner.read()


class Address(msgspec.Struct, frozen=True):
    """What a path names: `collection` is group, version and plural, the same for every namespace."""

    collection: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def object_path(self) -> str:
        return self.with_name(self.name)

    def with_name(self, name: str) -> str:
        return f"{self.collection}|{self.namespace}|{name}"


def parse_path(path: str) -> Address:
    parts = path.strip("/").split("/")
    head = 2 if parts[0] == "api" else 3
    rest = parts[head:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    rest += [""] * (3 - len(rest))
    return Address("/".join([*parts[:head], rest[0]]), namespace, rest[1], rest[2])


def _decoded(body: bytes) -> Json | None:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else {"items": found} if isinstance(found, list) else None


def _list_summary(answer: Json | None) -> Json | None:
    """A list's revision and the marks of its items; the items themselves would make histories enormous."""
    if answer is None:
        return None
    items = [
        {name: (item.get("metadata") or {}).get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
        for item in answer.get("items") or ()
    ]
    return {"metadata": answer.get("metadata") or {}, "items": items}
