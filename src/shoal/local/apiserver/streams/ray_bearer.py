"""The token of a Ray cluster for requests that come through `kubectl port-forward`.

The API server knows who forwards the port. To a user who may read the cluster's Secret the token is no secret, so the
server adds it on the way to the dashboard and to the port of `ray://`: programs that cannot know it (`kubectl ray job
submit`, `… session`) work as on a cluster without one. Web pages of other sites get nothing: a request carries the
token only when a program or a page of the dashboard itself sent it, to a loopback address. What is neither plain
HTTP/1.1 nor gRPC (`grpc_bearer.py`) passes unchanged.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from shoal.api import ray_token
from shoal.api.meta import Json
from shoal.local.apiserver.streams.grpc_bearer import PREFACE, GrpcBearer

HEADER = b"x-ray-authorization"
LARGEST_HEAD = 64 << 10
_OWN = (b"authorization", HEADER)
_PORTS = {"dashboard": 8265, "client": 10001}
_LOOPBACK = re.compile(r"(localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_REQUEST = re.compile(rb"[A-Z]{3,10} [^ \r\n]+ HTTP/1\.1\r\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(;[^\r\n]*)?\r\n")


def secret_name(pod: Json) -> str:
    """The Secret that the node agent takes the token of this pod from; empty where the pod has it in its own spec."""
    name = (pod["metadata"].get("annotations") or {}).get(ray_token.ANNOTATION)
    return name if isinstance(name, str) else ""


def asks_for_token(pod: Json, port: int) -> bool:
    """Is it the port of the dashboard or of `ray://`? By the names of container ports; Ray's own by default."""
    listed = [
        (str(one.get("name")), one.get("containerPort"))
        for container in (pod.get("spec") or {}).get("containers") or ()
        for one in container.get("ports") or ()
    ]
    return any(port in ({number for name, number in listed if name == word} or {own}) for word, own in _PORTS.items())


class RayBearer:
    """The requests of one connection, each with the token where it may have it."""

    def __init__(self, token: str) -> None:
        usable = token.isascii() and token.isprintable()  # a line break would begin another header
        self._line = b"%s: Bearer %s\r\n" % (HEADER, token.encode()) if usable else b""
        self._calls = GrpcBearer(token) if usable else None
        self._held = b""
        self._step: Any = self._head
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """What goes on to the pod now."""
        self._held += data
        sent: list[bytes] = []
        while self._held:
            piece = self._step()
            if piece is None:
                break
            sent.append(piece)
        return b"".join(sent)

    def end(self) -> bytes:
        """What was held back of a request that has not come whole."""
        return self._give_up() + (self._calls.end() if self._calls is not None else b"")

    def _head(self) -> bytes | None:
        if self._calls is not None and self._held.startswith(PREFACE[: len(self._held)]):
            return self._preface() if len(self._held) >= len(PREFACE) else None
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return None if len(self._held) < LARGEST_HEAD and _begins(self._held) else self._give_up()
        if end > LARGEST_HEAD or not _REQUEST.match(self._held):
            return self._give_up()
        head, self._held, self._calls = self._held[: end + 2], self._held[end + 4 :], None
        headers = _headers(head)
        if headers is None:
            self._held = head + b"\r\n" + self._held
            return self._give_up()
        if b"upgrade" in headers:
            self._step = self._rest
        elif b"transfer-encoding" in headers:
            self._step = self._chunk
        else:
            self._left = int(headers.get(b"content-length", b"0"))
            self._step = self._body if self._left else self._head
        return head + (self._line if may_have_token(headers) else b"") + b"\r\n"

    def _preface(self) -> bytes:
        """Here begins gRPC."""
        self._step = self._frames
        self._held = self._held[len(PREFACE) :]
        return PREFACE

    def _frames(self) -> bytes:
        assert self._calls is not None
        data, self._held = self._held, b""
        return self._calls.feed(data)

    def _body(self) -> bytes:
        piece, self._held = self._held[: self._left], self._held[self._left :]
        self._left -= len(piece)
        if not self._left:
            self._step = self._head
        return piece

    def _chunk(self) -> bytes | None:
        """The line before a chunk; the one of length 0 is followed by trailers up to an empty line."""
        found = _CHUNK.match(self._held)
        if found is None:
            return None if len(self._held) < 1024 else self._give_up()
        length = int(found[1], 16)
        self._left = len(found[0]) + length + 2
        self._step = self._chunk_data if length else self._trailers
        return b""

    def _chunk_data(self) -> bytes:
        piece = self._body()
        if not self._left:
            self._step = self._chunk
        return piece

    def _trailers(self) -> bytes | None:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return None if len(self._held) < LARGEST_HEAD else self._give_up()
        piece, self._held = self._held[: end + 4], self._held[end + 4 :]
        self._step = self._head
        return piece

    def _give_up(self) -> bytes:
        """From here on the bytes are the program's own."""
        self._step = self._rest
        return self._rest()

    def _rest(self) -> bytes:
        piece, self._held = self._held, b""
        return piece


def may_have_token(headers: dict[bytes, bytes]) -> bool:
    """Not where the sender brings one, and not where a page of another site may be the sender."""
    if any(name in headers for name in _OWN):
        return False
    host = headers.get(b"host", b"").decode("latin-1")
    if not _LOOPBACK.fullmatch(host):
        return False  # a name of another site that leads here, or a forward that is open to other machines
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return False
    origin = headers.get(b"origin")
    return origin is None or urlsplit(origin.decode("latin-1")).netloc == host


def _begins(data: bytes) -> bool:
    """Whether this may still become a request."""
    return data[:1].isupper() and b"\x00" not in data


def _headers(head: bytes) -> dict[bytes, bytes] | None:
    """None where a reader might understand it differently."""
    found: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:-1]:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name != name.strip() or b"\n" in line or b"\r" in line:
            return None
        if name in found and name in (b"content-length", b"transfer-encoding", b"host", b"origin", b"sec-fetch-site"):
            return None
        found[name] = value.strip()
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    if length is not None and (coding is not None or not re.fullmatch(rb"\d{1,18}", length)):
        return None
    return found if coding is None or coding.lower() == b"chunked" else None
