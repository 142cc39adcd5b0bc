"""The token of a Ray cluster for `ray://` through `kubectl port-forward`: each gRPC call with the token.

Called by `ray_bearer.py` for a connection that begins as HTTP/2 does. One field is put behind the others of a call, as
a literal that no table remembers, so that nothing has to be decoded; a program that brings a token of its own is
believed first, as Ray takes the first. Web pages cannot send such calls: browsers speak HTTP/2 only under TLS. From the
first frame on that is not understood, all bytes pass unchanged.
"""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_FRAME = 16384
"""What every HTTP/2 server takes."""
_FRAME_HEAD = 9
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS, _PADDED = 4, 8
_AUTHORIZATION = b"\x1f\x08"
"""A literal that is never indexed, with the name of number 23 in HPACK's static table."""


class GrpcBearer:
    """The calls of one connection after its preface, each with the token."""

    def __init__(self, token: str) -> None:
        value = b"Bearer " + token.encode()
        self._field = _AUTHORIZATION + _length(len(value)) + value
        self._held = b""
        self._left = 0
        """Bytes of the frame under way that pass as they are."""
        self._gave_up = False

    def feed(self, data: bytes) -> bytes:
        """What goes on to the pod now."""
        self._held += data
        sent: list[bytes] = []
        while self._held:
            piece = self._next()
            if piece is None:
                break
            sent.append(piece)
        return b"".join(sent)

    def end(self) -> bytes:
        """What was held back of a call that has not come whole."""
        piece, self._held = self._held, b""
        return piece

    def _next(self) -> bytes | None:
        if self._gave_up:
            return self.end()
        if self._left:
            piece, self._held = self._held[: self._left], self._held[self._left :]
            self._left -= len(piece)
            return piece
        if len(self._held) < _FRAME_HEAD:
            return None
        length, kind, flags = int.from_bytes(self._held[:3]), self._held[3], self._held[4]
        if kind != _HEADERS and kind != _CONTINUATION:
            self._left = _FRAME_HEAD + length
            return b""
        whole = kind == _HEADERS and flags & _END_HEADERS and not flags & _PADDED
        if not whole or length + len(self._field) > LARGEST_FRAME:
            self._gave_up = True
            return b""
        if len(self._held) < _FRAME_HEAD + length:
            return None
        frame, self._held = self._held[: _FRAME_HEAD + length], self._held[_FRAME_HEAD + length :]
        return (length + len(self._field)).to_bytes(3) + frame[3:] + self._field


def _length(count: int) -> bytes:
    """An integer of HPACK with a prefix of seven bits."""
    if count < 127:
        return bytes([count])
    found, left = bytearray([127]), count - 127
    while left >= 128:
        found.append(left % 128 + 128)
        left //= 128
    return bytes([*found, left])
