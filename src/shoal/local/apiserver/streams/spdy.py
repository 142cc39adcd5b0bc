"""SPDY/3.1, as much as port-forwarding needs: streams opened by the client, over any pipe of bytes.

kubectl carries it inside a WebSocket, other clients over a plain connection. Only framing lives here; what the streams
mean is `portforward.py`'s and `channels.py`'s business.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator

import msgspec

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 0x01
MOST_FRAME = 1 << 20
_NAMES = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset="
    "iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """The words that the protocol's compression starts with; every stream carries their checksum."""
    words = [*_NAMES.split(), "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"]
    return b"".join(struct.pack(">I", len(word)) + word.encode() for word in words) + _REST.encode()


class SpdyFrame(msgspec.Struct, frozen=True):
    """`kind` is 0 for data. `headers` belong to the frame that opens a stream."""

    kind: int
    stream: int
    flags: int = 0
    data: bytes = b""
    headers: dict[str, str] = {}


class Broken(Exception):
    """What arrived is not SPDY."""


class SpdyConnection:
    """One side of a connection: bytes in, frames out; and frames to bytes through `send`."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._inflate = zlib.decompressobj(zdict=_dictionary())
        self._deflate = zlib.compressobj(zdict=_dictionary())
        self._rest = b""

    def receive(self, data: bytes) -> Iterator[SpdyFrame]:
        """The whole frames that are there now."""
        whole, at = self._rest + data, 0
        self._rest = b""
        while len(whole) - at >= 8:
            first, second = struct.unpack_from(">II", whole, at)
            size = second & 0xFFFFFF
            if size > MOST_FRAME:
                raise Broken("a frame is too large")
            if len(whole) - at < 8 + size:
                break
            body = whole[at + 8 : at + 8 + size]
            at += 8 + size
            if not first & 0x80000000:
                yield SpdyFrame(0, first & 0x7FFFFFFF, second >> 24, body)
            else:
                yield self._control(first & 0xFFFF, second >> 24, body)
        self._rest = whole[at:]

    def _control(self, kind: int, flags: int, body: bytes) -> SpdyFrame:
        stream = struct.unpack(">I", body[:4])[0] & 0x7FFFFFFF if len(body) >= 4 else 0
        if kind == SYN_STREAM:
            return SpdyFrame(kind, stream, flags, b"", self._headers(body[10:]))
        if kind == HEADERS:
            return SpdyFrame(kind, stream, flags, b"", self._headers(body[4:]))
        return SpdyFrame(kind, stream, flags, body)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            data = self._inflate.decompress(block, MOST_FRAME)
            (count,) = struct.unpack(">I", data[:4])
            found, at = {}, 4
            for _ in range(min(count, 100)):
                words = []
                for _ in range(2):
                    (size,) = struct.unpack(">I", data[at : at + 4])
                    words.append(data[at + 4 : at + 4 + size].decode())
                    at += 4 + size
                found[words[0].lower()] = words[1]
            return found
        except (zlib.error, struct.error, UnicodeDecodeError) as error:
            raise Broken(f"headers cannot be read: {error}") from None

    async def reply(self, stream: int) -> None:
        """Accept a stream."""
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        await self._control_out(SYN_REPLY, 0, struct.pack(">I", stream) + block)

    async def data(self, stream: int, data: bytes, *, last: bool = False) -> None:
        flags = FIN if last else 0
        await self._send(struct.pack(">II", stream & 0x7FFFFFFF, flags << 24 | len(data)) + data)

    async def pong(self, body: bytes) -> None:
        """Answer a question of the peer's. Those of a client have odd numbers; an even one answers ours."""
        if len(body) < 4 or not body[3] & 1:
            return
        await self._control_out(PING, 0, body[:4])

    async def _control_out(self, kind: int, flags: int, body: bytes) -> None:
        await self._send(struct.pack(">HHI", 0x8003, kind, flags << 24 | len(body)) + body)
