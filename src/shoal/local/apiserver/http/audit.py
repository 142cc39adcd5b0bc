"""The audit log of the embedded server: every request with its answer, in the format that kube-apiserver writes.

For people that ask which user did what, and for tests that judge a whole history afterwards. One JSON line per request,
written when it was answered, and for writes one when they came; the file is its owner's alone. Bodies of lists, of
Secrets and of requests for tokens are left out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from shoal.api.meta import Json
from shoal.api.times import micro_text
from shoal.errors import ShoalError
from shoal.kube.clock import Clock
from shoal.kube.transport import Request, Response
from shoal.local.apiserver.requests import route as routes
from shoal.local.apiserver.requests.call import Answer, Upgrade
from shoal.local.apiserver.requests.route import RequestUser, Route

log = logging.getLogger(__name__)

IN_PROCESS = "shoal (in process)"
"""The user agent of controllers that call the server without a socket."""


class AuditLog:
    """Appends to `path`. A log that can no longer be written is given up with one line; the server goes on."""

    def __init__(self, path: Path, clock: Clock) -> None:
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ShoalError(f"the audit log {path} cannot be written: {error.strerror}; name another file") from error
        self._path = path
        self._clock = clock

    async def around(
        self, request: Request, user: RequestUser | None, answer: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Answer a request and write it down; of a write also that it came, in case its answer never does."""
        route = routes.parse(request)
        if route is None:
            return await answer()  # discovery and health say nothing about objects
        began, number = self._clock.now(), str(uuid4())
        if route.verb not in ("get", "list", "watch"):
            self._write(_event(number, request, route, user, None, began, began))
        given = await answer()
        self._write(_event(number, request, route, user, given, began, self._clock.now()))
        return given

    def _write(self, event: Json) -> None:
        if self._file is None:
            return
        try:
            os.write(self._file, msgspec.json.encode(event) + b"\n")
        except OSError as error:
            log.error("the audit log %s ends here: %s", self._path, error.strerror)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _event(
    number: str, request: Request, route: Route, user: RequestUser | None, answer: Answer | None, began: int, now: int
) -> Json:
    secret = (route.group, route.plural) == ("", "secrets") or route.subresource == "token"
    brief = secret or route.verb == "list"
    refused = isinstance(answer, Response) and answer.status >= 300
    said = _decoded(answer.body) if isinstance(answer, Response) and (refused or not brief) else None
    event: Json = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata" if brief else "RequestResponse",
        "auditID": number,
        "stage": _stage(answer),
        "requestURI": _uri(request),
        "verb": route.verb,
        "user": {"username": user.name, "groups": list(user.groups)} if user is not None else {},
        "userAgent": request.headers.get("user-agent", IN_PROCESS),
        "objectRef": _reference(route, said),
        "requestReceivedTimestamp": micro_text(began),
        "stageTimestamp": micro_text(now),
    }
    if asked := request.headers.get("impersonate-user"):
        event["impersonatedUser"] = {"username": asked}
    if answer is None:
        return event
    code = 101 if isinstance(answer, Upgrade) else answer.status
    event["responseStatus"] = {"code": code, **_refusal(code, said)}
    if not brief:
        if request.body and (sent := _decoded(request.body)) is not None:
            event["requestObject"] = sent
        if said is not None:
            event["responseObject"] = said
    return event


def _stage(answer: Answer | None) -> str:
    if answer is None:
        return "RequestReceived"
    return "ResponseComplete" if isinstance(answer, Response) else "ResponseStarted"


def _reference(route: Route, said: Any) -> Json:
    name = route.name or ((said.get("metadata") or {}).get("name", "") if isinstance(said, dict) else "")
    fields = {
        "resource": route.plural,
        "namespace": route.namespace,
        "name": name,
        "apiGroup": route.group,
        "apiVersion": route.version,
        "subresource": route.subresource,
    }
    return {field: value for field, value in fields.items() if value}


def _refusal(code: int, said: Any) -> Json:
    if code < 300 or not isinstance(said, dict):
        return {}
    return {field: said[field] for field in ("status", "reason", "message") if field in said}


def _uri(request: Request) -> str:
    query = "&".join(f"{name}={value}" for name, value in request.query.items())
    return f"{request.path}?{query}" if query else request.path


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
