"""Get, list and watch.

Answers come from memory and reuse the stored bytes: an object is not decoded to be read in the version it is stored
in. A watch is a cursor into the collection's history, so a slow reader costs no memory and no event is lost or
doubled; one that falls behind the history is told to start again (410).
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import msgspec

from shoal.api.labels import INITIAL_EVENTS_END
from shoal.api.meta import Json
from shoal.kube.clock import Clock
from shoal.kube.transport import Response
from shoal.local.apiserver.primitives.status import (
    Refused,
    bad_request,
    cause,
    gone,
    invalid,
    not_found,
    revision_too_large,
)
from shoal.local.apiserver.requests.call import Answer, Call, StreamAnswer, json_answer
from shoal.local.apiserver.requests.route import truth
from shoal.local.apiserver.requests.selectors import Selection, selection
from shoal.local.apiserver.storage.collection import StoredEvent, StoredObject
from shoal.local.apiserver.storage.store import Storage
from shoal.local.apiserver.storage.watch_alarm import Alarm

MOST_SNAPSHOTS = 64
WATCH_SECONDS = 3600
BOOKMARK_SECONDS = 60.0
MOST_CHUNK = 1 << 20
_NEEDS_REVISION = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"

Convert = Callable[[Call, list[bytes]], Awaitable[list[bytes]]]


class Token(msgspec.Struct, frozen=True):
    """A continue token: the revision of the first page and the last key that was given."""

    rv: int
    namespace: str
    name: str
    fresh: bool = False  # go on from the current state, after the snapshot was forgotten


async def chosen_of(call: Call, chosen: Selection, found: list[StoredObject], convert: Convert) -> list[StoredObject]:
    """Those that the selectors mean. Fields of custom objects are those of the version that is asked for."""
    if chosen.everything:
        return found
    if call.is_stored_version or not call.resource.custom or not chosen.reads_fields:
        return [record for record in found if chosen.matches(record)]
    bodies = await convert(call, [record.raw for record in found])
    seen = [
        StoredObject(one.id, one.namespace, one.name, one.revision, raw) for one, raw in zip(found, bodies, strict=True)
    ]
    return [record for record, shown in zip(found, seen, strict=True) if chosen.matches(shown)]


class ReadVerbs:
    """The reading verbs over one storage. `convert` turns stored bytes into those of the version asked for."""

    def __init__(self, storage: Storage, clock: Clock, convert: Convert) -> None:
        self.storage = storage
        self.clock = clock
        self.convert = convert
        self._snapshots: OrderedDict[tuple[str, int], list[StoredObject]] = OrderedDict()
        self._stopping = asyncio.Event()

    # --- get

    async def get(self, call: Call) -> Answer:
        asked = call.number("resourceVersion")
        if asked and asked > self.storage.committed:
            raise revision_too_large(asked, self.storage.committed)
        record = call.resource.collection.get(call.namespace, call.route.name)
        if record is None:
            raise not_found(call.resource.group, call.resource.plural, call.route.name)
        if call.is_stored_version:
            return json_answer(record.raw)
        return json_answer((await self.convert(call, [record.raw]))[0])

    # --- list

    async def listing(self, call: Call) -> Answer:
        query = call.request.query
        chosen = selection(call.resource, call.version, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        limit = max(call.number("limit", least=-1 << 63) or 0, 0)
        call.number("timeoutSeconds", least=-1 << 63)
        self._check_list_options(call)
        if query.get("resourceVersion") == "0" and not query.get("resourceVersionMatch"):
            limit = 0  # as Kubernetes: a client that takes any state gets all of it at once
        token = _decode_token(query["continue"]) if query.get("continue") else None
        records, revision, left = await self._page(call, chosen, limit, token)
        if token is None and not left and "spec.nodeName" in query.get("fieldSelector", ""):
            # A node's pods, oldest first: kubectl adds them up in this order and prints sums in the style of the first.
            records = sorted(records, key=lambda record: record.id)
        bodies = [record.raw for record in records]
        if not call.is_stored_version:
            bodies = await self.convert(call, bodies)
        metadata: Json = {"resourceVersion": str(revision)}
        if left:
            metadata["continue"] = _encode_token(Token(revision, records[-1].namespace, records[-1].name))
            if chosen.everything:
                metadata["remainingItemCount"] = left
        return list_answer(call, metadata, bodies)

    def _check_list_options(self, call: Call) -> None:
        query = call.request.query
        faults = []
        if query.get("resourceVersionMatch") and query.get("continue"):
            if not query.get("resourceVersion"):
                faults.append(_NEEDS_REVISION)
            faults.append("Forbidden: resourceVersionMatch is forbidden when continue is provided")
        causes = [cause("FieldValueForbidden", words, "resourceVersionMatch") for words in faults]
        if "sendInitialEvents" in query:
            words = "Forbidden: sendInitialEvents is forbidden for list"
            causes.append(cause("FieldValueForbidden", words, "sendInitialEvents"))
        if causes:
            raise invalid("meta.k8s.io", "ListOptions", "", causes)
        if query.get("continue") and (call.number("resourceVersion") or 0) > 0:
            raise bad_request("specifying resource version is not allowed when using continue")

    async def _page(
        self, call: Call, chosen: Selection, limit: int, token: Token | None
    ) -> tuple[list[StoredObject], int, int]:
        """The records of one page, the list's revision, and how many are left after it."""
        namespace = call.namespace or None
        whole: list[StoredObject] | None = None
        if token is None:
            whole, revision = self._state(call, namespace)
            found = whole
        else:
            found, revision = self._rest(call, namespace, token)
            if token.fresh:
                whole = call.resource.collection.records(namespace)
        found = await chosen_of(call, chosen, found, self.convert)
        if not limit or len(found) <= limit:
            return found, revision, 0
        if whole is not None:
            self._keep((f"{call.resource.name}/{namespace or ''}", revision), whole)
        return found[:limit], revision, len(found) - limit

    def _state(self, call: Call, namespace: str | None) -> tuple[list[StoredObject], int]:
        """The state that resourceVersion and resourceVersionMatch ask for."""
        query = call.request.query
        match = query.get("resourceVersionMatch", "")
        asked = call.number("resourceVersion")
        if match and match not in ("Exact", "NotOlderThan"):
            raise _wrong_match(
                "FieldValueNotSupported",
                f'Unsupported value: "{match[:80]}": supported values: "Exact", "NotOlderThan", ""',
            )
        if match and asked is None:
            raise _wrong_match("FieldValueForbidden", _NEEDS_REVISION)
        current = self.storage.committed
        if asked is not None and asked > current:
            raise revision_too_large(asked, current)
        exact = match == "Exact" or (not match and asked and call.number("limit"))  # the second for old clients' sake
        if exact and asked is not None:
            if asked == 0:
                raise _wrong_match(
                    "FieldValueForbidden",
                    'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
                )
            found = self._state_at(call, namespace, asked)
            if found is None:
                raise gone(f"The resourceVersion for the provided list is too old: {asked}")
            return found, asked
        return call.resource.collection.records(namespace), current

    def _rest(self, call: Call, namespace: str | None, token: Token) -> tuple[list[StoredObject], int]:
        """What follows a token's key, in the snapshot it was cut from."""
        revision = token.rv
        snapshot: list[StoredObject] | None
        if token.fresh:
            snapshot, revision = call.resource.collection.records(namespace), self.storage.committed
        else:
            snapshot = self._state_at(call, namespace, revision)
        if snapshot is None:
            raise Refused(
                410,
                "Expired",
                "The provided continue parameter is too old to display a consistent list result. You "
                "can start a new list without the continue parameter, or use the continue token in this response to "
                "retrieve the remainder of the results. Continuing with the provided token results in an "
                "inconsistent list - objects that were created, modified, or deleted between the time the first "
                "chunk was returned and now may show up in the list.",
                metadata={"continue": _encode_token(Token(0, token.namespace, token.name, True))},
            )
        last = (token.namespace, token.name)
        return [record for record in snapshot if (record.namespace, record.name) > last], revision

    def _state_at(self, call: Call, namespace: str | None, revision: int) -> list[StoredObject] | None:
        """The state at an older revision, or None where it is gone."""
        if revision < self.storage.compacted:
            return None
        snapshot = self._snapshots.get((f"{call.resource.name}/{namespace or ''}", revision))
        return snapshot if snapshot is not None else call.resource.collection.records_at(revision, namespace)

    def _keep(self, key: tuple[str, int], whole: list[StoredObject]) -> None:
        """Remember the state a paged list began with, so that its later pages agree with the first."""
        if key not in self._snapshots:
            self._snapshots[key] = whole
            if len(self._snapshots) > MOST_SNAPSHOTS:
                self._snapshots.popitem(last=False)

    # --- watch

    async def watch(self, call: Call) -> Answer:
        query = call.request.query
        fields = query.get("fieldSelector", "")
        if call.route.name:  # the deprecated way to watch one object
            fields = ",".join(filter(None, (fields, f"metadata.name={call.route.name}")))
        chosen = selection(call.resource, call.version, query.get("labelSelector", ""), fields)
        asked = call.number("resourceVersion")
        initial = truth(query.get("sendInitialEvents", ""))
        self._check_watch_options(call, initial)
        bookmarks = truth(query.get("allowWatchBookmarks", ""))
        timeout = call.number("timeoutSeconds") or WATCH_SECONDS
        collection = call.resource.collection
        if asked and not initial and asked < collection.floor:
            refusal = gone(f"too old resource version: {asked} ({collection.floor})")
            return StreamAnswer(_single(_error_line(refusal)), {"content-type": "application/json"})
        if asked and initial and asked > self.storage.committed:
            raise revision_too_large(asked, self.storage.committed)
        # The place in the history is taken now, before anything is awaited: what is forgotten meanwhile shows as 410.
        sequence = None if initial or not asked else collection.sequence_after(asked)
        if not asked and "sendInitialEvents" in query and not initial:
            sequence = collection.end
        chunks = _told(self._events(call, chosen, sequence, initial, bookmarks, timeout))
        return StreamAnswer(chunks, {"content-type": "application/json"})

    def _check_watch_options(self, call: Call, initial: bool) -> None:
        query = call.request.query
        match = query.get("resourceVersionMatch", "")
        if "sendInitialEvents" in query and match != "NotOlderThan":
            raise _wrong_match(
                "FieldValueForbidden",
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )
        if match and "sendInitialEvents" not in query:
            raise _wrong_match(
                "FieldValueForbidden",
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )

    async def _events(
        self, call: Call, chosen: Selection, sequence: int | None, initial: bool, bookmarks: bool, timeout: int
    ) -> AsyncGenerator[bytes]:
        """The watch itself: chunks of whole lines, until the time is over or the history has gone past us."""
        collection = call.resource.collection
        namespace = call.namespace
        told = self.storage.committed
        if sequence is None:
            # What is visible at this moment is told first; everything after it comes from the history.
            sequence = collection.end
            state = await chosen_of(call, chosen, collection.records(namespace or None), self.convert)
            for start in range(0, len(state), 256):
                bodies = [record.raw for record in state[start : start + 256]]
                if not call.is_stored_version:
                    bodies = await self.convert(call, bodies)
                yield b"".join(b'{"type":"ADDED","object":' + body + b"}\n" for body in bodies)
            if initial and bookmarks:
                yield self._bookmark(call, told, {INITIAL_EVENTS_END: "true"})
        alarm = Alarm(self.clock)
        deadline = self.clock.monotonic() + timeout
        try:
            while not self._stopping.is_set() and (now := self.clock.monotonic()) < deadline:
                if sequence == collection.end:
                    alarm.set(min(deadline - now, BOOKMARK_SECONDS) if bookmarks else deadline - now)
                    rang = await alarm.wait(collection)
                    if rang and bookmarks and sequence == collection.end and self.clock.monotonic() < deadline:
                        yield self._bookmark(call, self.storage.committed)
                    if rang:
                        continue
                if sequence < collection.first:
                    yield _error_line(gone(f"too old resource version: {told} ({collection.floor})"))
                    return
                size, chunk = 0, []
                for event in collection.since(sequence):
                    sequence += 1
                    told = event.record.revision
                    if namespace and event.record.namespace != namespace:
                        continue
                    line = await self._line(call, chosen, event)
                    if line:
                        chunk.append(line)
                        size += len(line)
                        if size > MOST_CHUNK:
                            break
                if chunk:
                    yield b"".join(chunk)
            if bookmarks and timeout > 2 and sequence == collection.end:
                yield self._bookmark(call, self.storage.committed)
        finally:
            alarm.cancel()

    async def _line(self, call: Call, chosen: Selection, event: StoredEvent) -> bytes:
        """The event as this watcher must see it, or nothing."""
        kind, record = event.type, event.record
        if not chosen.everything:
            now = kind != "DELETED" and bool(await chosen_of(call, chosen, [record], self.convert))
            before = event.previous is not None and bool(await chosen_of(call, chosen, [event.previous], self.convert))
            if now:
                kind = "MODIFIED" if before else "ADDED"
            elif before:
                kind = "DELETED"
            else:
                return b""
        key = kind if call.is_stored_version else f"{kind}/{call.resource.group}/{call.version.name}"
        line = event.lines.get(key)
        if line is None:
            raw = record.raw
            if kind == "DELETED" and not record.removed and event.previous is not None:
                raw = _left(event.previous.raw, record.revision)  # it went out of sight: its last seen state
            if not call.is_stored_version:
                raw = (await self.convert(call, [raw]))[0]
            line = event.lines[key] = b'{"type":"' + kind.encode() + b'","object":' + raw + b"}\n"
        return line

    def _bookmark(self, call: Call, revision: int, annotations: dict[str, str] | None = None) -> bytes:
        metadata: Json = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        kind = call.version.kind
        return (
            msgspec.json.encode(
                {
                    "type": "BOOKMARK",
                    "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata},
                }
            )
            + b"\n"
        )

    def stop(self) -> None:
        """End every watch."""
        self._stopping.set()
        for collection in self.storage.collections.values():
            collection.wake()


def _wrong_match(reason: str, message: str) -> Refused:
    """The refusal of a resourceVersionMatch that does not go with the rest of the request."""
    return invalid("meta.k8s.io", "ListOptions", "", [cause(reason, message, "resourceVersionMatch")])


def list_answer(call: Call, metadata: Json, bodies: list[bytes]) -> Response:
    """A list whose items are bytes already."""
    head = msgspec.json.encode(
        {"kind": call.resource.list_kind, "apiVersion": call.version.kind.api_version, "metadata": metadata}
    )
    if not call.resource.custom:  # as Kubernetes: the list says what its items are
        kind = call.version.kind
        name = msgspec.json.encode({"kind": kind.kind, "apiVersion": kind.api_version})[:-1] + b","
        bodies = [b"{" + body[len(name) :] if body.startswith(name) else body for body in bodies]
    return json_answer(b"".join((head[:-1], b',"items":[', b",".join(bodies), b"]}")))


def _left(raw: bytes, revision: int) -> bytes:
    obj = msgspec.json.decode(raw)
    obj["metadata"]["resourceVersion"] = str(revision)
    return msgspec.json.encode(obj)


def _error_line(refusal: Refused) -> bytes:
    return b'{"type":"ERROR","object":' + refusal.encoded() + b"}\n"


async def _told(chunks: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """A watch that cannot go on (its objects cannot be converted) says why before it ends."""
    try:
        async for chunk in chunks:
            yield chunk
    except Refused as refusal:
        yield _error_line(refusal)
    finally:
        await chunks.aclose()


async def _single(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


def _encode_token(token: Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decode_token(text: str) -> Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Token)
    except (ValueError, msgspec.MsgspecError):
        raise bad_request("continue key is not valid: the token was not given out by this server") from None
