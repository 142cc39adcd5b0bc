"""One HTTP/1.1 answer, read from bytes in whatever pieces they come.

Fed by `connection.py`. Pure: knows nothing of sockets or time. It takes what an API server may send (sized, chunked or
ended by the connection's end) and refuses the rest; it never guesses where an answer ends.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_LIMIT = 256 * 1024
LINE_LIMIT = 4096


class Malformed(Exception):
    """What came is not HTTP."""


class Answer:
    """`pieces` collects the body; a reader takes them out while it still comes."""

    def __init__(self, most: int = 0) -> None:
        """`most` bytes of a body are taken; 0: any number."""
        self.status = 0
        self.headers: dict[str, str] = {}
        """Lower-case names; a name that came several times has its values on lines of their own."""
        self.pieces: list[bytes] = []
        self.begun = False
        """Something has come."""
        self.done = False
        self.reusable = True
        """After this answer the connection may carry another request."""
        self._read: Callable[[Answer, bytes, int], int] = Answer._head  # unbound: an answer must not hold itself
        self._rest = b""
        self._left = 0
        self._most = most
        self._came = 0

    def feed(self, data: bytes) -> None:
        """Raises `Malformed`; then the connection is worth nothing any more."""
        self.begun = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        while at < size and not self.done:
            at = self._read(self, data, at)
        if at < size:
            self.reusable = False  # more than was asked for

    def end(self) -> None:
        """The connection has ended: for some answers that is how one knows."""
        if self._read is Answer._until_the_end:
            self.done = True

    def body(self) -> bytes:
        """Take what has come so far."""
        body = b"".join(self.pieces)
        self.pieces.clear()
        return body

    # --- each reads on from `at` and returns how far it came; without enough it keeps `_rest` for the next time. Many
    # chunks come at once: cutting each off the front would copy all behind it.

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            return self._later(data, at, HEAD_LIMIT)
        first, *lines = data[at:end].decode("utf-8", "surrogateescape").split("\r\n")
        version, _, code = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not code[:3].isdecimal():
            raise Malformed(f"it does not speak HTTP/1.1: {first[:80]!r}")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Malformed(f"a header without a colon: {line[:80]!r}")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}\n{value}" if name in headers else value
        status = int(code[:3])
        if status >= 200:  # before come remarks such as 100 Continue
            self.status, self.headers = status, headers
            self.reusable = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
            self._expect_body()
        return end + 4

    def _expect_body(self) -> None:
        if self.status in (204, 304):
            self.done = True
        elif "transfer-encoding" in self.headers:
            if self.headers["transfer-encoding"].lower() != "chunked":
                raise Malformed(f"an unknown transfer-encoding: {self.headers['transfer-encoding']!r}")
            self._read = Answer._chunk
        elif "content-length" in self.headers:
            length = self.headers["content-length"]
            if not (length.isascii() and length.isdecimal()):
                raise Malformed(f"a content-length that is no number: {length!r}")
            self._left = int(length) if len(length) < 20 else 1 << 63
            if self._most and self._left > self._most:
                raise self._too_large()
            self._read = Answer._sized
            self.done = self._left == 0
        else:
            self.reusable = False
            self._read = Answer._until_the_end

    def _sized(self, data: bytes, at: int) -> int:
        at = self._take(data, at)
        self.done = self._left == 0
        return at

    def _until_the_end(self, data: bytes, at: int) -> int:
        self._keep(data[at:])
        return len(data)

    def _chunk(self, data: bytes, at: int) -> int:
        line = data.find(b"\r\n", at)
        if line < 0:
            return self._later(data, at, LINE_LIMIT)
        size = data[at:line].partition(b";")[0].strip()
        try:
            self._left = int(size, 16) if size.isalnum() else -1
        except ValueError:
            self._left = -1
        if self._left < 0:
            raise Malformed(f"a chunk whose size is no number: {size[:80]!r}")
        self._read = Answer._chunk_data if self._left else Answer._trailer
        return line + 2

    def _chunk_data(self, data: bytes, at: int) -> int:
        at = self._take(data, at)
        if not self._left:
            self._read = Answer._chunk_end
        return at

    def _chunk_end(self, data: bytes, at: int) -> int:
        if len(data) < at + 2:
            return self._later(data, at, LINE_LIMIT)
        if not data.startswith(b"\r\n", at):
            raise Malformed("a chunk is longer than it said")
        self._read = Answer._chunk
        return at + 2

    def _trailer(self, data: bytes, at: int) -> int:
        line = data.find(b"\r\n", at)
        if line < 0:
            return self._later(data, at, LINE_LIMIT)
        self.done = line == at
        return line + 2

    def _take(self, data: bytes, at: int) -> int:
        """As much as is left of the piece that was told."""
        piece = data[at : at + self._left]
        self._keep(piece)
        self._left -= len(piece)
        return at + len(piece)

    def _keep(self, piece: bytes) -> None:
        self._came += len(piece)
        if self._most and self._came > self._most:
            raise self._too_large()
        self.pieces.append(piece)

    def _too_large(self) -> Malformed:
        return Malformed(f"the answer has more than {self._most} bytes")

    def _later(self, data: bytes, at: int, limit: int) -> int:
        if len(data) - at > limit:
            raise Malformed("a head or line that does not end")
        self._rest = data[at:]
        return len(data)
