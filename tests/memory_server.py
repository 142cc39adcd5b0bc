"""An API server in a dictionary: the few behaviours that clients and controllers depend on, for tests.

List, watch, revisions, conflicts, UIDs, generations, preconditions, patches, finalizers. No validation, no
admission, no permissions, nothing durable. Production code never imports it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import Unknown
from shoal.kube.selectors import field_selector, label_selector
from shoal.kube.transport import Request, Response, Stream

Match = Callable[[Json], bool]


class _Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }


class _Place(msgspec.Struct, frozen=True):
    """What a path names."""

    collection: str
    namespace: str
    name: str
    subresource: str
    api_version: str


class _Record(msgspec.Struct, frozen=True):
    """One revision: what was there before and after."""

    revision: int
    collection: str
    old: Json | None
    new: Json | None


class _Watcher(msgspec.Struct, eq=False):
    queue: asyncio.Queue[bytes | None]
    collection: str
    select: Match


class MemoryServer:
    """Shared state; `transport()` gives any number of connections to it."""

    def __init__(self, *, clock: Clock | None = None, revision: int = 1) -> None:
        self.clock: Clock = clock or SystemClock()
        self.revision = revision
        self.not_installed: set[str] = set()
        """Collections such as `apis/ray.io/v1/rayclusters` that answer 404."""
        self.refusals: dict[str, tuple[int, str, str]] = {}
        """Collections that answer with this code, reason and message."""
        self.streaming_lists = True
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        self._log: list[_Record] = []
        self._compacted = 0
        self._watchers: list[_Watcher] = []
        self._kinds: dict[str, str] = {}

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self)

    # --- what tests do to it

    def cut_watches(self) -> None:
        """End every watch silently, as a server does to watchers that fall behind."""
        for watcher in list(self._watchers):
            watcher.queue.put_nowait(None)

    def compact(self) -> None:
        """Forget history: watches from an older revision answer 410."""
        self._compacted = self.revision
        self._log.clear()

    def bookmark(self) -> None:
        """Tell every watcher the current revision."""
        for watcher in self._watchers:
            watcher.queue.put_nowait(self._bookmark(watcher.collection))

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def snapshot(self, collection: str) -> dict[tuple[str, str], Json]:
        """The truth to compare a cache with, by namespace and name."""
        return {key: msgspec.json.decode(msgspec.json.encode(obj)) for key, obj in self._of(collection).items()}

    # --- verbs

    def handle(self, request: Request) -> Response:
        try:
            status, body = self._dispatch(request)
        except _Refused as refused:
            status, body = refused.code, refused.status
        return Response(status, {"content-type": "application/json"}, msgspec.json.encode(body))

    def _dispatch(self, request: Request) -> tuple[int, Json]:
        place = self._place(request.path)
        match request.method:
            case "GET" if not place.name:
                return 200, self._list(place, request.query)
            case "GET":
                return 200, self._found(place)
            case "POST":
                return 201, self._create(place, msgspec.json.decode(request.body))
            case "PUT":
                return 200, self._replace(place, msgspec.json.decode(request.body))
            case "PATCH":
                return 200, self._patch(place, request)
            case "DELETE":
                return 200, self._delete(place, msgspec.json.decode(request.body) if request.body else {})
        raise _Refused(405, "MethodNotAllowed", f"{request.method} is not supported")

    def _list(self, place: _Place, query: dict[str, str]) -> Json:
        select = _selection(place, query)
        items = [obj for _, obj in sorted(self._of(place.collection).items()) if select(obj)]
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0)
        metadata: Json = {"resourceVersion": str(self.revision)}
        if limit and start + limit < len(items):
            metadata.update({"continue": str(start + limit), "remainingItemCount": len(items) - start - limit})
        page = items[start : start + limit] if limit else items
        kind = self._kinds.get(place.collection, "Unknown")
        return {"kind": f"{kind}List", "apiVersion": place.api_version, "metadata": metadata, "items": page}

    def _create(self, place: _Place, body: Json) -> Json:
        if place.subresource == "binding":
            pod = self._copy(self._found(place))
            pod["spec"]["nodeName"] = body["target"]["name"]
            self._store(place, pod)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise _Refused(422, "Invalid", "metadata.name: Required value: name or generateName is required")
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if place.namespace:
            metadata["namespace"] = place.namespace
        place = msgspec.structs.replace(place, name=metadata["name"])
        if (place.namespace, place.name) in self._of(place.collection):
            raise _Refused(409, "AlreadyExists", f'{place.collection.split("/")[-1]} "{place.name}" already exists')
        if body.get("kind"):
            self._kinds[place.collection] = body["kind"]
        if body.get("kind") != "Node":  # a kubelet registers its node with a status; nothing else may
            body.pop("status", None)
        metadata.update(uid=str(uuid.uuid4()), generation=1, creationTimestamp=seconds_text(self.clock.now()))
        return self._store(place, body, fresh=True)

    def _replace(self, place: _Place, body: Json) -> Json:
        old = self._found(place)
        given = (body.get("metadata") or {}).get("resourceVersion")
        if given and given != old["metadata"]["resourceVersion"]:
            raise _Refused(
                409, "Conflict", f'"{place.name}" has been modified; apply your changes to the latest version'
            )
        return self._change(place, old, body)

    def _patch(self, place: _Place, request: Request) -> Json:
        patch = msgspec.json.decode(request.body)
        applied = "apply-patch" in request.headers.get("content-type", "")
        if applied and (place.namespace, place.name) not in self._of(place.collection):
            return self._create(msgspec.structs.replace(place, name=""), patch)
        old = self._found(place)
        given = (patch.get("metadata") or {}).get("resourceVersion") if isinstance(patch, dict) else None
        if given and given != old["metadata"]["resourceVersion"]:
            raise _Refused(
                409, "Conflict", f'"{place.name}" has been modified; apply your changes to the latest version'
            )
        new = self._copy(old)
        if isinstance(patch, list):
            for step in patch:
                _json_patch(new, step)
        else:
            _merge(new, patch)
        return self._change(place, old, new)

    def _change(self, place: _Place, old: Json, new: Json) -> Json:
        kept = {name: old["metadata"][name] for name in ("name", "uid", "creationTimestamp", "generation")}
        new.setdefault("metadata", {}).update(kept)
        for name in ("namespace", "deletionTimestamp"):
            if name in old["metadata"]:
                new["metadata"][name] = old["metadata"][name]
        if place.subresource == "status":
            new = {**self._copy(old), "status": new.get("status")}
        else:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return old  # as the real server: no write, no event
        if _spec(new) != _spec(old):
            new["metadata"]["generation"] += 1
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            return self._remove(place, new)
        return self._store(place, new)

    def _delete(self, place: _Place, options: Json) -> Json:
        old = self._found(place)
        wanted = options.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name, old["metadata"][name]) != old["metadata"][name]:
                raise _Refused(
                    409,
                    "Conflict",
                    f"the {name} in the precondition ({wanted[name]}) does not match the "
                    f"{name} in record ({old['metadata'][name]})",
                )
        if old["metadata"].get("finalizers"):
            new = self._copy(old)
            new["metadata"].setdefault("deletionTimestamp", seconds_text(self.clock.now()))
            return old if new == old else self._store(place, new)
        return self._remove(place, self._copy(old))

    # --- storing

    def _store(self, place: _Place, obj: Json, *, fresh: bool = False) -> Json:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        key = (place.namespace, place.name)
        old = None if fresh else self._of(place.collection).get(key)
        self._of(place.collection)[key] = obj
        self._tell(_Record(self.revision, place.collection, old, obj))
        return obj

    def _remove(self, place: _Place, last: Json) -> Json:
        self.revision += 1
        old = self._of(place.collection).pop((place.namespace, place.name))
        last["metadata"]["resourceVersion"] = str(self.revision)
        self._tell(_Record(self.revision, place.collection, {**old, "metadata": last["metadata"]}, None))
        return last

    def _tell(self, record: _Record) -> None:
        self._log.append(record)
        for watcher in self._watchers:
            if watcher.collection == record.collection and (line := _event(record, watcher.select)):
                watcher.queue.put_nowait(line)

    def _of(self, collection: str) -> dict[tuple[str, str], Json]:
        return self._objects.setdefault(collection, {})

    def _found(self, place: _Place) -> Json:
        obj = self._of(place.collection).get((place.namespace, place.name))
        if obj is None:
            raise _Refused(404, "NotFound", f'{place.collection.split("/")[-1]} "{place.name}" not found')
        return obj

    def _copy(self, obj: Json) -> Json:
        copy: Json = msgspec.json.decode(msgspec.json.encode(obj))
        return copy

    def _place(self, path: str) -> _Place:
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        api_version = "/".join(parts[1:head])
        rest = parts[head:]
        namespace = ""
        if rest and rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        rest += [""] * (3 - len(rest))
        collection = "/".join([*parts[:head], rest[0]])
        if collection in self.not_installed:
            raise _Refused(404, "NotFound", "the server could not find the requested resource")
        if collection in self.refusals:
            raise _Refused(*self.refusals[collection])
        return _Place(collection, namespace, rest[1], rest[2], api_version)

    # --- watching

    def open_watch(self, request: Request) -> _Watcher:
        place = self._place(request.path)
        select = _selection(place, request.query)
        watcher = _Watcher(asyncio.Queue(), place.collection, select)
        initial = request.query.get("sendInitialEvents") == "true"
        since = int(request.query.get("resourceVersion") or 0)
        if initial and not self.streaming_lists:
            raise _Refused(
                422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature is on"
            )
        if since and since < self._compacted:
            raise _Refused(410, "Expired", f"too old resource version: {since} ({self._compacted})")
        if initial or not since:
            for _, obj in sorted(self._of(place.collection).items()):
                if select(obj):
                    watcher.queue.put_nowait(_line("ADDED", obj))
            if initial:
                watcher.queue.put_nowait(self._bookmark(place.collection, initial_end=True))
        else:
            for record in self._log:
                line = _event(record, select) if record.collection == place.collection else None
                if record.revision > since and line:
                    watcher.queue.put_nowait(line)
        self._watchers.append(watcher)
        return watcher

    def close_watch(self, watcher: _Watcher) -> None:
        self._watchers.remove(watcher)

    def _bookmark(self, collection: str, *, initial_end: bool = False) -> bytes:
        metadata: Json = {"resourceVersion": str(self.revision)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return _line("BOOKMARK", {"kind": self._kinds.get(collection, ""), "metadata": metadata})


class MemoryTransport:
    """A connection to a `MemoryServer`."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await asyncio.sleep(0)
        return self.server.handle(request)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        await asyncio.sleep(0)
        server = self.server
        try:
            watcher = server.open_watch(request)
        except _Refused as refused:
            yield _Answer(refused.code, msgspec.json.encode(refused.status))
            return
        try:
            yield _Events(watcher, server.clock, idle_timeout)
        finally:
            server.close_watch(watcher)

    async def close(self) -> None:
        return None


class _Answer:
    """A refusal in place of a stream."""

    def __init__(self, status: int, body: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.status, self._body = status, body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def read(self) -> bytes:
        return self._body


class _Events:
    status = 200

    def __init__(self, watcher: _Watcher, clock: Clock, idle_timeout: float | None) -> None:
        self.headers: dict[str, str] = {}
        self._watcher, self._clock, self._idle = watcher, clock, idle_timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (line := await self._next()) is not None:
            yield line

    async def read(self) -> bytes:
        return b""

    async def _next(self) -> bytes | None:
        if self._idle is None or not self._watcher.queue.empty():
            return await self._watcher.queue.get()
        line = asyncio.ensure_future(self._watcher.queue.get())
        idle = asyncio.ensure_future(self._clock.sleep(self._idle))
        try:
            await asyncio.wait({line, idle}, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                return line.result()
            raise Unknown("the stream was idle too long")
        finally:
            line.cancel()
            idle.cancel()


def _selection(place: _Place, query: dict[str, str]) -> Match:
    labels = label_selector(query.get("labelSelector", ""))
    fields = field_selector(query.get("fieldSelector", ""))

    def select(obj: Json) -> bool:
        if place.namespace and obj["metadata"].get("namespace") != place.namespace:
            return False
        return labels(obj["metadata"].get("labels") or {}) and fields(obj)

    return select


def _event(record: _Record, select: Match) -> bytes | None:
    before = record.old is not None and select(record.old)
    after = record.new is not None and select(record.new)
    if after:
        assert record.new is not None
        return _line("MODIFIED" if before else "ADDED", record.new)
    if before:
        assert record.old is not None
        metadata = {**record.old["metadata"], "resourceVersion": str(record.revision)}
        return _line("DELETED", {**record.old, "metadata": metadata})
    return None


def _line(type: str, obj: Json) -> bytes:
    return msgspec.json.encode({"type": type, "object": obj}) + b"\n"


def _spec(obj: Json) -> Json:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def _merge(target: Json, patch: Json) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            child = target.get(name)
            if not isinstance(child, dict):
                child = target[name] = {}
            _merge(child, value)
        else:
            target[name] = value


def _json_patch(target: Any, step: Json) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    try:
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            index = len(target) if last == "-" else int(last)
            found = target[index] if index < len(target) else None
        else:
            index, found = last, target.get(last)
    except (KeyError, IndexError, ValueError):
        raise _Refused(422, "Invalid", f"the path {step['path']} does not exist") from None
    match step["op"]:
        case "test":
            if found != step.get("value"):
                raise _Refused(422, "Invalid", f"testing path {step['path']}: value differs")
        case "add" if isinstance(target, list):
            target.insert(index, step["value"])
        case "add" | "replace":
            target[index] = step["value"]
        case "remove":
            if found is None:
                raise _Refused(422, "Invalid", f"the path {step['path']} does not exist")
            del target[index]
        case other:
            raise _Refused(422, "Invalid", f"the operation {other} is not supported here")
