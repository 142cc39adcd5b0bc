"""What a controller wrote for gangs, with the state of the world around each write, and what must hold of it.

`Watched` is a transport that notes every write; `violations` judges the notes. Invariants by number: I1 (objects only
after a stored admission), I2 (each component made once per epoch), I7 (only own objects changed or deleted, by UID),
I19 (transition times never fall), I20 (states follow the published machine, terminal ones are final), I21 (no write
that changes nothing).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.transport import Request, Response, Stream, Transport

TERMINAL = frozenset({"Completed", "Failed", "Deleted"})
NEXT_STATES = {
    "": {"", "Pending", "Running", "Failed"},
    "Pending": {"Pending", "Running", "Failed"},
    "Running": {"Running", "RunningHoldCompletion", "Completed", "Failed", "Deleted", "Pending"},
    "RunningHoldCompletion": {"RunningHoldCompletion", "Running", "Completed", "Failed", "Pending"},
    **{state: {state} for state in TERMINAL},
}


class Write(msgspec.Struct):
    """One write with what was there before and after. `owner` is the AppWrapper that controls the object, as stored."""

    method: str
    path: str
    body: Json
    before: Json | None
    after: Json | None
    owner: Json | None
    code: int = 0

    @property
    def done(self) -> bool:
        return 200 <= self.code < 300


class Watched:
    """Passes everything on and keeps a list of the writes."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.writes: list[Write] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method == "GET" or "/events" in request.path or request.path.endswith("reviews"):
            return await self.inner.send(request, timeout=timeout)
        body = _decoded(request.body)
        named = request.path if request.method != "POST" else f"{request.path}/{body.get('metadata', {}).get('name')}"
        target = named.removesuffix("/status")
        before = await self._get(target)
        owner = await self._owner(body if request.method == "POST" else before)
        answer = await self.inner.send(request, timeout=timeout)
        after = await self._get(target)
        self.writes.append(Write(request.method, request.path, body, before, after, owner, answer.status))
        return answer

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()

    async def _get(self, path: str) -> Json | None:
        answer = await self.inner.send(Request(method="GET", path=path, query={}, headers={}, body=b""))
        return _decoded(answer.body) if answer.status == 200 else None

    async def _owner(self, obj: Json | None) -> Json | None:
        for reference in (obj or {}).get("metadata", {}).get("ownerReferences") or ():
            if reference.get("kind") == "AppWrapper" and reference.get("controller"):
                group, _, version = reference["apiVersion"].partition("/")
                kind = Kind(group, version, "AppWrapper", "appwrappers")
                found = await self._get(kind.path((obj or {})["metadata"].get("namespace"), reference["name"]))
                return found if found is not None and found["metadata"]["uid"] == reference["uid"] else None
        return None


def violations(writes: list[Write]) -> list[str]:
    """Every invariant that these writes broke, in words; empty when all is well."""
    found: list[str] = []
    created: set[tuple[str, int, str]] = set()
    for write in writes:
        found += _created_too_early(write, created)
        found += _touched_a_stranger(write)
        if write.path.endswith("/status") and "appwrappers" in write.path and write.done:
            found += _broke_the_machine(write)
        if write.done and write.method in ("PATCH", "PUT") and write.before == write.after:
            found.append(f"I21: {write.method} {write.path} changed nothing: {write.body}")
    return found


def _created_too_early(write: Write, created: set[tuple[str, int, str]]) -> list[str]:
    references = write.body.get("metadata", {}).get("ownerReferences") or ()
    if write.method != "POST" or not write.done or not references:
        return []
    if write.owner is None:
        return []  # its AppWrapper was deleted meanwhile; the collector takes it
    if write.path.endswith(("/provisioningrequests", "/podtemplates")):
        return []  # a gang that waits may ask for nodes; nothing of it starts by that
    status = write.owner.get("status", {})
    admission = _decoded((status.get("admission") or "{}").encode())
    is_admitted = status.get("canrun") or status.get("phase") in ("Resuming", "Running")
    if not is_admitted or not admission.get("epoch"):
        return [f"I1: {write.path} {write.body['metadata']['name']} was created without a stored admission"]
    what = (write.owner["metadata"]["uid"], admission["epoch"], f"{write.path}/{write.body['metadata']['name']}")
    if what in created:
        return [f"I2: {what} was created twice"]
    created.add(what)
    return []


OUR_OWN = ("appwrappers", "quotasubtrees", "leases", "events", "provisioningrequests", "podtemplates")
"""What the controller may change although no AppWrapper owns it."""


def _touched_a_stranger(write: Write) -> list[str]:
    if write.before is None or write.method == "POST":
        return []
    found = []
    if write.method != "DELETE":
        if write.done and not _is_owned(write.before) and not any(f"/{one}/" in write.path for one in OUR_OWN):
            found.append(f"I7: {write.method} {write.path} changed an object that is not an AppWrapper's")
        return found
    if not write.body.get("preconditions", {}).get("uid"):
        found.append(f"I7: DELETE {write.path} carries no UID")
    if write.done and not _is_owned(write.before):
        found.append(f"I7: DELETE {write.path} hit an object that is not an AppWrapper's")
    return found


def _is_owned(obj: Json) -> bool:
    references = obj["metadata"].get("ownerReferences") or ()
    return any(one.get("controller") and one.get("kind") == "AppWrapper" for one in references)


def _broke_the_machine(write: Write) -> list[str]:
    before, after = (write.before or {}).get("status", {}), (write.after or {}).get("status", {})
    if "phase" in after or write.after is None:
        return []
    found = []
    was, now = before.get("state", ""), after.get("state", "")
    if now not in NEXT_STATES[was]:
        found.append(f"I20: {write.path} went from {was!r} to {now!r}")
    known = {_name(one): one["lastTransitionMicroTime"] for one in before.get("conditions") or ()}
    for one in after.get("conditions") or ():
        if known.get(_name(one), "") > one["lastTransitionMicroTime"]:
            found.append(f"I19: {write.path}: the transition time of {_name(one)} fell")
    return found


def _name(condition: Json) -> tuple[Any, ...]:
    return (condition["type"], condition.get("reason"), condition.get("message"))


def _decoded(data: bytes) -> Json:
    found = msgspec.json.decode(data) if data else {}
    return found if isinstance(found, dict) else {}
