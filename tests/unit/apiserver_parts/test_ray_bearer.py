"""Requests to a forwarded dashboard: which of them get the cluster's token on the way; nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.local.apiserver.streams import ray_bearer
from shoal.local.apiserver.streams.grpc_bearer import PREFACE
from shoal.local.apiserver.streams.ray_bearer import RayBearer, asks_for_token
from tests.faults import proven

TOKEN = b"x-ray-authorization: Bearer secret\r\n"
GET = b"GET /api/version HTTP/1.1\r\nHost: 127.0.0.1:8265\r\n"
POST = b"POST /api/jobs/ HTTP/1.1\r\nHost: localhost:8265\r\nContent-Length: 5\r\n"
CHUNKED = b"PUT /api/packages/gcs/a.zip HTTP/1.1\r\nHost: localhost:8265\r\nTransfer-Encoding: chunked\r\n"
CHUNKS = b"4\r\nGET \r\n3;x=y\r\nend\r\n0\r\nTrailer: 1\r\n\r\n"
SENT = GET + b"\r\n" + POST + b"\r\nGET /" + CHUNKED + b"\r\n" + CHUNKS + GET + b"\r\n"
ARRIVED = (
    GET + TOKEN + b"\r\n" + POST + TOKEN + b"\r\nGET /" + CHUNKED + TOKEN + b"\r\n" + CHUNKS + GET + TOKEN + b"\r\n"
)


@given(cuts=st.lists(st.integers(0, len(SENT)), max_size=12))
def test_every_request_of_a_connection_gets_the_token_however_its_bytes_come(cuts: list[int]) -> None:
    bearer, at, found = RayBearer("secret"), 0, b""
    for cut in [*sorted(cuts), len(SENT)]:
        found += bearer.feed(SENT[at:cut])
        at = cut
    assert found + bearer.end() == ARRIVED


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # gRPC
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: " + b"x" * (80 << 10),
        CHUNKED + b"\r\n" + b"z" * 2000 + GET + b"\r\n",
        b"GET / HT",
    ],
)
def test_what_is_no_plain_request_passes_as_it_is(data: bytes) -> None:
    bearer = RayBearer("secret")
    found = bearer.feed(data) + bearer.end()
    assert found.replace(TOKEN, b"") == data and found.count(TOKEN) == data.startswith(CHUNKED)


def test_an_upgraded_connection_is_left_alone() -> None:
    bearer = RayBearer("secret")
    head = GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    assert bearer.feed(head + b"\r\n" + GET + b"\r\n") == head + TOKEN + b"\r\n" + GET + b"\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        "Host: localhost:8265",
        "Host: [::1]:8265",
        "Host: localhost:8265\r\nOrigin: http://localhost:8265\r\nSec-Fetch-Site: same-origin",
        "Host: localhost:8265\r\nSec-Fetch-Site: none",  # typed by the user
    ],
)
def test_programs_and_the_page_of_the_dashboard_get_the_token(lines: str) -> None:
    assert TOKEN in RayBearer("secret").feed(f"GET / HTTP/1.1\r\n{lines}\r\n\r\n".encode())


@proven(without=lambda patch: patch.setattr(ray_bearer, "may_have_token", lambda headers: True))
@pytest.mark.parametrize(
    "lines",
    [
        "Host: localhost:8265\r\nOrigin: https://evil.example",
        "Host: localhost:8265\r\nOrigin: null",
        "Host: localhost:8265\r\nOrigin: http://localhost:3000\r\nSec-Fetch-Site: same-site",
        "Host: localhost:8265\r\nSec-Fetch-Site: cross-site",  # an image, a link
        "Host: evil.example:8265",  # its name leads to this machine
        "Host: 192.168.1.7:8265",  # a forward that other machines reach
        "Accept: */*",
        "Host: localhost:8265\r\nAuthorization: Bearer own",
        "Host: localhost:8265\r\nX-Ray-Authorization: Bearer own",
    ],
)
def test_f540_pages_of_other_sites_get_no_token_through_a_forwarded_dashboard(lines: str) -> None:
    """F540: while a dashboard's port is forwarded, a web page of another site, or a name that leads to this machine,
    sends requests to it. Holds: they get no token, and a request that brings one keeps it."""
    assert TOKEN not in RayBearer("secret").feed(f"GET / HTTP/1.1\r\n{lines}\r\n\r\n".encode())


def test_a_token_that_would_begin_another_header_is_not_sent() -> None:
    assert RayBearer("a\r\nHost: b").feed(GET + b"\r\n") == GET + b"\r\n"


def test_the_dashboard_is_the_port_of_that_name() -> None:
    def pod(*ports: dict[str, object]) -> dict[str, object]:
        return {"metadata": {}, "spec": {"containers": [{"ports": list(ports)}]}}

    assert asks_for_token(pod(), 8265) and asks_for_token(pod(), 10001) and not asks_for_token(pod(), 8000)
    other = pod({"name": "client", "containerPort": 8000})
    assert asks_for_token(other, 8000) and asks_for_token(other, 8265) and not asks_for_token(other, 10001)
    moved = pod({"name": "dashboard", "containerPort": 9000})
    assert asks_for_token(moved, 9000) and not asks_for_token(moved, 8265)


def frame(kind: int, flags: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + b"\x00\x00\x00\x01" + payload


FIELD = b"\x1f\x08\x0dBearer secret"
CALL = frame(1, 4, b"\x83\x86")
CALLS = PREFACE + frame(4, 0, b"") + CALL + frame(0, 0, CALL) + CALL
WITH_TOKEN = PREFACE + frame(4, 0, b"") + frame(1, 4, b"\x83\x86" + FIELD) + frame(0, 0, CALL)
WITH_TOKEN += frame(1, 4, b"\x83\x86" + FIELD)


@given(cuts=st.lists(st.integers(0, len(CALLS)), max_size=12))
def test_every_call_of_grpc_gets_the_token_however_its_bytes_come(cuts: list[int]) -> None:
    bearer, at, found = RayBearer("secret"), 0, b""
    for cut in [*sorted(cuts), len(CALLS)]:
        found += bearer.feed(CALLS[at:cut])
        at = cut
    assert found + bearer.end() == WITH_TOKEN


@pytest.mark.parametrize(
    "data",
    [
        PREFACE + frame(1, 0, b"\x83") + frame(9, 4, b"\x86") + CALL,  # fields that go on in another frame
        PREFACE + frame(1, 4 | 8, b"\x01\x83\x00") + CALL,  # padded
        PREFACE + frame(1, 4, b"\x83" * 16380) + CALL,  # no room
        PREFACE + CALL[:10],
        PREFACE[:20] + b"????" + CALL,
        GET + b"Authorization: mine\r\n\r\n" + PREFACE + CALL,  # after another protocol
    ],
)
def test_what_is_no_plain_call_passes_as_it_is(data: bytes) -> None:
    bearer = RayBearer("secret")
    assert bearer.feed(data) + bearer.end() == data


@pytest.mark.parametrize("token", ["secret", "x" * 300])
async def test_a_grpc_server_understands_calls_with_the_token(token: str) -> None:
    grpc = pytest.importorskip("grpc")
    seen: list[list[str]] = []

    async def answer(request: bytes, context: Any) -> bytes:
        seen.append([str(value) for name, value in context.invocation_metadata() if name == "authorization"])
        return request

    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ray", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, onward = await asyncio.open_connection("127.0.0.1", port)
        bearer = RayBearer(token)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, by: Callable[[bytes], bytes]) -> None:
            while data := await source.read(65536):
                sink.write(by(data))
                await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, onward, bearer.feed), copy(back, writer, lambda data: data))

    forwarded = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        host, number = forwarded.sockets[0].getsockname()
        async with grpc.aio.insecure_channel(f"{host}:{number}") as channel:
            call = channel.unary_unary("/ray/Echo")
            assert [await call(b"one"), await call(b"two" * 50_000)] == [b"one", b"two" * 50_000]
            await call(b"three", metadata=(("authorization", "Bearer mine"),))
    finally:
        forwarded.close()
        await server.stop(None)
    assert seen == [[f"Bearer {token}"], [f"Bearer {token}"], ["Bearer mine", f"Bearer {token}"]]
