"""The health question of gRPC (grpc.health.v1) over a plain connection: one request of HTTP/2, without a library.

Asked by gRPC probes. Understands as much of the answer as it needs: the frames, and the status in the message.
"""

from __future__ import annotations

import asyncio
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


async def serving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: str, host: str) -> str:
    """The status of a service, such as SERVING. Raises OSError when the other side does not speak gRPC."""
    message = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    body = b"\0" + struct.pack("!I", len(message)) + message
    writer.write(_PREFACE + _frame(SETTINGS, 0, 0, b""))
    writer.write(_frame(HEADERS, _END_HEADERS, 1, _headers(host)) + _frame(DATA, _END_STREAM, 1, body))
    answer = b""
    while True:
        try:
            head = await reader.readexactly(9)
            kind, flags = head[3], head[4]
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        except asyncio.IncompleteReadError as error:
            raise OSError("the connection ended before an answer") from error
        if kind == SETTINGS and not flags & _ACK:
            writer.write(_frame(SETTINGS, _ACK, 0, b""))
        elif kind == PING and not flags & _ACK:
            writer.write(_frame(PING, _ACK, 0, payload))
        elif kind == DATA:
            answer += payload
        elif kind in (RESET, GOAWAY):
            raise OSError("the server refused the health request")
        if kind in (DATA, HEADERS) and flags & _END_STREAM:
            return _status(answer)


def _status(answer: bytes) -> str:
    if len(answer) < 5:
        raise OSError("the server does not implement grpc.health.v1")
    message = answer[5:]
    number = message[1] if len(message) >= 2 and message[0] == 8 else 0
    return _STATUS.get(number, str(number))


def _headers(host: str) -> bytes:
    """Every header written out as a literal: no table to keep."""
    pairs = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", host),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "kube-probe/shoal"),
    )
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack("!I", stream) + payload
