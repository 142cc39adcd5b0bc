"""The audit log of the embedded server: every request with its answer, in the format that kube-apiserver writes.

For whoever wants to know who did what, and for tests that judge a whole history afterwards. One JSON line per request,
written when it was answered; the file is its owner's alone. Bodies of Secrets and of requests for tokens are left out.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from shoal.api.meta import Json
from shoal.api.times import micro_text
from shoal.errors import ShoalError
from shoal.kube.clock import Clock
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import route as routes
from shoal.local.apiserver.call import Answer
from shoal.local.apiserver.route import Route, User

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

    def begin(self) -> int:
        return self._clock.now()

    def end(self, request: Request, user: User | None, answer: Answer, began: int) -> None:
        """One request was answered; of a stream, that it was begun."""
        route = routes.parse(request)
        if route is None or self._file is None:
            return  # discovery and health say nothing about objects
        line = msgspec.json.encode(self._event(request, route, user, answer, began)) + b"\n"
        try:
            os.write(self._file, line)
        except OSError as error:
            log.error("the audit log %s ends here: %s", self._path, error.strerror)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _event(self, request: Request, route: Route, user: User | None, answer: Answer, began: int) -> Json:
        secret = (route.group, route.plural) == ("", "secrets") or route.subresource == "token"
        status = answer.status if not hasattr(answer, "run") else 101
        said = _decoded(answer.body) if isinstance(answer, Response) else None
        event: Json = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata" if secret else "RequestResponse",
            "auditID": str(uuid4()),
            "stage": "ResponseComplete" if isinstance(answer, Response) else "ResponseStarted",
            "requestURI": _uri(request),
            "verb": route.verb,
            "user": {"username": user.name, "groups": list(user.groups)} if user is not None else {},
            "userAgent": request.headers.get("user-agent", IN_PROCESS),
            "objectRef": _reference(route, said),
            "responseStatus": {"code": status, **_refusal(status, said)},
            "requestReceivedTimestamp": micro_text(began),
            "stageTimestamp": micro_text(self._clock.now()),
        }
        if asked := request.headers.get("impersonate-user"):
            event["impersonatedUser"] = {"username": asked}
        if not secret:
            if request.body and (sent := _decoded(request.body)) is not None:
                event["requestObject"] = sent
            if said is not None:
                event["responseObject"] = said
        return event


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
