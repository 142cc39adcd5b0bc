"""What a request asks for, read from its method, path and query.

Authorisation, admission and the verbs all work on a `Route`; nothing else looks at the path.
"""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from shoal.kube.transport import Request


class RequestUser(msgspec.Struct, frozen=True):
    """The user that asks."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, tuple[str, ...]] = {}


class Route(msgspec.Struct):
    """A resource request. `name` is empty for collections; `rest` is what follows a subresource.

    `placed`: the path names a namespace before the resource. A namespace itself is authorised in itself and not placed.
    """

    verb: str
    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""
    placed: bool = False


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get", "HEAD": "get", "DELETE": "delete"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


def parse(request: Request) -> Route | None:
    """The route of a resource request; None when the path is none (discovery, health, unknown)."""
    parts = request.path.split("/")
    if parts and parts[-1] == "":
        parts.pop()
    if "%" in request.path:
        parts = [unquote(part) for part in parts]
    if len(parts) >= 4 and parts[1] == "api":
        group, version, rest = "", parts[2], parts[3:]
    elif len(parts) >= 5 and parts[1] == "apis":
        group, version, rest = parts[2], parts[3], parts[4:]
    else:
        return None
    verb = _VERBS.get(request.method, request.method.lower())
    old_watch = False
    if rest[0] == "watch" and len(rest) > 1:  # the deprecated /watch/ prefix
        old_watch, rest = True, rest[1:]
    namespace, placed = "", False
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest, placed = rest[1], rest[2:], True
    elif rest[0] == "namespaces" and len(rest) >= 2:
        namespace = rest[1]  # a namespace lies in itself, for authorisation
    route = Route(
        verb,
        group,
        version,
        rest[0],
        namespace,
        rest[1] if len(rest) > 1 else "",
        rest[2] if len(rest) > 2 else "",
        "/".join(rest[3:]),
        placed,
    )
    if old_watch:
        route.verb = "watch"
    elif not route.name:
        if verb == "get":
            route.verb = "watch" if truth(request.query.get("watch", "")) else "list"
        elif verb == "delete":
            route.verb = "deletecollection"
    return route


def truth(text: str) -> bool:
    """A boolean query parameter: given, and neither false nor nought."""
    return text.lower() not in ("", "0", "false")
