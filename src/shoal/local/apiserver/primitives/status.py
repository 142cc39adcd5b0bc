"""Refusals as Kubernetes words them: the code, reason, message and details that kubectl, client-go and Ray match on.

Every module of the server raises `Refused`; the front turns it into a `Status` answer. Nothing else may invent an error
shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.api.meta import Json


class Refused(Exception):
    """An answer that is not 2xx. `headers` are extra ones such as Retry-After."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        headers: dict[str, str] | None = None,
        metadata: Json | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}
        self.metadata = metadata or {}

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body

    def encoded(self) -> bytes:
        if self.headers.get("content-type", "").startswith("text/plain"):
            return self.message.encode()
        return msgspec.json.encode(self.status())


def cause(reason: str, message: str, field: str = "") -> Json:
    found: Json = {"reason": reason, "message": message}
    if field:
        found["field"] = field
    return found


def _details(group: str, kind: str, name: str = "", **more: Any) -> Json:
    details: Json = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    details.update(more)
    return details


def _resource(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def unauthorized() -> Refused:
    return Refused(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, why: str, causes: list[Json] | None = None) -> Refused:
    subject = f'{_resource(group, plural)} "{name}"' if name else _resource(group, plural)
    more = {"causes": causes} if causes else {}
    message = f"{subject} is forbidden: {why}" if subject else f"forbidden: {why}"
    return Refused(403, "Forbidden", message, details=_details(group, plural, name, **more))


def not_found(group: str, plural: str, name: str) -> Refused:
    return Refused(
        404, "NotFound", f'{_resource(group, plural)} "{name}" not found', details=_details(group, plural, name)
    )


def no_such_resource() -> Refused:
    return Refused(404, "NotFound", "the server could not find the requested resource", details={})


def page_not_found() -> Refused:
    """No such group, or a custom kind that is not there: plain text, as Kubernetes answers."""
    return Refused(404, "", "404 page not found\n", headers={"content-type": "text/plain; charset=utf-8"})


def method_not_allowed() -> Refused:
    return Refused(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", details={}
    )


def not_acceptable(offered: Iterable[str]) -> Refused:
    return Refused(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(offered)}")


def already_exists(group: str, plural: str, name: str) -> Refused:
    return Refused(
        409,
        "AlreadyExists",
        f'{_resource(group, plural)} "{name}" already exists',
        details=_details(group, plural, name),
    )


def no_unique_name(group: str, plural: str, name: str) -> Refused:
    return Refused(
        409,
        "AlreadyExists",
        f'{_resource(group, plural)} "{name}" already exists, the server was not able to generate a unique name for '
        "the object",
        details={**_details(group, plural, name), "retryAfterSeconds": 1},
    )


def conflict(group: str, plural: str, name: str, why: str, causes: list[Json] | None = None) -> Refused:
    more = {"causes": causes} if causes else {}
    return Refused(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {_resource(group, plural)} "{name}": {why}',
        details=_details(group, plural, name, **more),
    )


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def apply_conflict(message: str, causes: list[Json]) -> Refused:
    """Server-side apply met fields of other managers."""
    return Refused(409, "Conflict", message, details={"causes": causes})


def gone(message: str) -> Refused:
    return Refused(410, "Expired", message)


def too_large(limit: int) -> Refused:
    return Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def unsupported_media(media: str, offered: Iterable[str]) -> Refused:
    return Refused(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {', '.join(offered)}",
    )


def invalid(group: str, kind: str, name: str, causes: list[Json]) -> Refused:
    """`causes` hold reason, message and field; the message is built from them as Kubernetes does."""
    texts = [f"{one['field']}: {one['message']}" if one.get("field") else one["message"] for one in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(dict.fromkeys(texts)) + "]"
    shown = f"{kind}.{group}" if group else kind
    return Refused(
        422, "Invalid", f'{shown} "{name}" is invalid: {joined}', details=_details(group, kind, name, causes=causes)
    )


def too_many_requests(message: str, seconds: int = 1, causes: list[Json] | None = None) -> Refused:
    details: Json = {"causes": causes} if causes else {}
    if seconds:
        details["retryAfterSeconds"] = seconds
    return Refused(
        429, "TooManyRequests", message, details=details, headers={"retry-after": str(seconds)} if seconds else {}
    )


def internal(message: str) -> Refused:
    return Refused(
        500, "InternalError", f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
    )


def unavailable(message: str) -> Refused:
    return Refused(503, "ServiceUnavailable", message)


def out_of_space(message: str) -> Refused:
    return Refused(507, "InsufficientStorage", message)


def revision_too_large(asked: int, current: int) -> Refused:
    message = f"Too large resource version: {asked}, current: {current}"
    return Refused(
        504,
        "Timeout",
        f"Timeout: {message}",
        details={"causes": [cause("ResourceVersionTooLarge", "Too large resource version")], "retryAfterSeconds": 1},
    )
