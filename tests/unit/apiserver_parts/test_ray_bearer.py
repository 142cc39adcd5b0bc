"""Requests to a forwarded dashboard: which of them get the cluster's token on the way; nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.local.apiserver.streams import ray_bearer
from shoal.local.apiserver.streams.ray_bearer import RayBearer, is_dashboard
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

    assert is_dashboard(pod(), 8265) and not is_dashboard(pod(), 10001)
    moved = pod({"name": "dashboard", "containerPort": 9000})
    assert is_dashboard(moved, 9000) and not is_dashboard(moved, 8265)
