"""One request on its way through the server: who, what, where, with the resource it means already found."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import msgspec

from shoal.api.meta import Json
from shoal.kube.transport import Request, Response
from shoal.local.apiserver.kinds.resources import Resource, ServedVersion
from shoal.local.apiserver.primitives.status import bad_request, cause, invalid
from shoal.local.apiserver.requests.route import RequestUser, Route
from shoal.local.apiserver.storage.collection import StoredObject

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


_NUMBER = re.compile(r"-?[0-9]{1,19}")


class Call:
    """A resource request."""

    __slots__ = (
        "asked",
        "faults",
        "owned_as",
        "repeats",
        "request",
        "resource",
        "route",
        "user",
        "version",
        "view",
        "warnings",
    )

    def __init__(
        self, request: Request, user: RequestUser, route: Route, resource: Resource, version: ServedVersion
    ) -> None:
        self.request = request
        self.user = user
        self.route = route
        self.resource = resource
        self.version = version
        self.warnings: list[str] = []
        self.faults: list[str] = []  # of the body itself: what strict validation refuses and others are warned of
        self.repeats: list[str] | None = None  # fields given twice, where they were looked for already
        self.owned_as = route.subresource  # the part of the object under which its fields are owned
        self.view: SubresourceView | None = None  # as what webhooks see the object, where that is not the object itself
        self.asked = False  # webhooks have seen what was sent, before it became a change of the object

    @property
    def namespace(self) -> str:
        return self.route.namespace if self.resource.namespaced else ""

    @property
    def is_stored_version(self) -> bool:
        """Whether stored bytes are what this call speaks."""
        resource = self.resource
        return self.version.name == resource.storage_version and not resource.mixed

    @property
    def dry_run(self) -> bool:
        asked = self.request.query.get("dryRun", "")
        if asked not in ("", "All"):
            raise invalid(
                "meta.k8s.io",
                "CreateOptions",
                "",
                [
                    cause(
                        "FieldValueNotSupported",
                        f'Unsupported value: ["{asked[:80]}"]: supported values: "All"',
                        "dryRun",
                    )
                ],
            )
        return asked == "All"

    @property
    def manager(self) -> str:
        """The field manager: as asked, else the program that calls."""
        asked = self.request.query.get("fieldManager", "")
        options = {"patch": "PatchOptions", "update": "UpdateOptions"}.get(self.route.verb, "CreateOptions")
        if len(asked) > 128:
            raise invalid(
                "meta.k8s.io",
                options,
                "",
                [cause("FieldValueTooLong", "Too long: may not be more than 128 bytes", "fieldManager")],
            )
        for position, letter in enumerate(asked):
            if not letter.isprintable():
                words = f"invalid character U+{ord(letter):04X} (at position {position})"
                raise invalid(
                    "meta.k8s.io",
                    options,
                    "",
                    [cause("FieldValueInvalid", f"Invalid value: {json.dumps(asked)}: {words}", "fieldManager")],
                )
        return asked or self.request.headers.get("user-agent", "").partition("/")[0][:128] or "unknown"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """A whole number from the query."""
        text = self.request.query.get(name, "")
        if not text:
            return None
        if not _NUMBER.fullmatch(text) or int(text) < least:
            raise bad_request(f'{name}: Invalid value: "{text[:80]}": must be a whole number not less than {least}')
        return int(text)


class SubresourceView:
    """A subresource with a kind of its own: how the object looks through it, and how a change comes back."""

    def __init__(self, call: Call, show: Callable[[Json], Json], take: Callable[[Json, Json], None]) -> None:
        self.call = call
        self.show = show
        self.take = take


class StreamAnswer:
    """An answer that goes on until its iterator ends: a watch or a log."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: dict[str, str], status: int = 200) -> None:
        self.chunks = chunks
        self.headers = headers
        self.status = status


class Upgrade:
    """An answer that becomes a WebSocket or a SPDY connection (exec, attach, port-forward): `run` talks until either
    side is done. `streams` are those that a SPDY client opens, by their names; none for port-forward, where it opens
    two for every connection."""

    def __init__(
        self,
        run: Callable[[Any], Awaitable[None]],
        protocols: tuple[str, ...],
        streams: frozenset[str] = frozenset(),
    ) -> None:
        self.run = run
        self.protocols = protocols
        self.streams = streams


Answer = Response | StreamAnswer | Upgrade

JSON_HEADERS = {"content-type": "application/json"}


def json_answer(body: bytes, status: int = 200) -> Response:
    return Response(status, dict(JSON_HEADERS), body)


def object_answer(obj: Json, status: int = 200) -> Response:
    return Response(status, dict(JSON_HEADERS), msgspec.json.encode(obj))


def decoded(record: StoredObject) -> Json:
    """A fresh tree, which the caller may change."""
    found: Json = msgspec.json.decode(record.raw)
    return found
