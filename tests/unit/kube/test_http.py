"""The HTTP transport: which failures leave a write's fate open, and what it never does twice."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from shoal.errors import BadInput
from shoal.kube.certificates import make_authority, make_leaf
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.credentials import ExecPlugin, ExecSettings, TokenFile
from shoal.kube.errors import BadRequest, LeaseLost, ServerError, Unknown, Unsent
from shoal.kube.http import HttpTransport
from shoal.kube.transport import Request

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Place:
    """A server on loopback whose behaviour a test sets."""

    def __init__(self) -> None:
        self.handler: Handler | None = None
        self.requests: list[web.Request] = []
        self.asked = asyncio.Event()
        self.port = self.secure_port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.asked.set()
        assert self.handler is not None
        return await self.handler(request)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For the server, and for a client that trusts it."""
    folder, authority = tmp_path_factory.mktemp("tls"), make_authority()
    make_leaf(authority, "server", hosts=["127.0.0.1"]).write(folder / "crt", folder / "key")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "crt", folder / "key")
    return serving, ssl.create_default_context(cadata=authority.certificate.decode())


@pytest.fixture
async def place(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> AsyncIterator[Place]:
    place = Place()
    app = web.Application()
    app.router.add_route("*", "/{path:(?s:.*)}", place.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=contexts[0]).start()
    place.port, place.secure_port = (address[1] for address in runner.addresses)
    yield place
    await runner.cleanup()


@pytest.fixture(params=["http", "https"])
async def transport(
    request: pytest.FixtureRequest, place: Place, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> AsyncIterator[HttpTransport]:
    port = place.port if request.param == "http" else place.secure_port
    transport = HttpTransport(f"{request.param}://127.0.0.1:{port}", tls=contexts[1])
    yield transport
    await transport.close()


async def fine(request: web.Request) -> web.Response:
    return web.json_response({"path": request.path, "query": dict(request.query)})


async def test_paths_and_queries_arrive_as_they_were_given(place: Place, transport: HttpTransport) -> None:
    place.handler = fine
    query = {"labelSelector": "a=b,c in (d, e)", "fieldSelector": "metadata.name!=x"}
    answer = await transport.send(Request(method="GET", path="/api/v1/namespaces/a%2Fb/pods", query=query))
    assert answer.status == 200
    assert place.requests[0].rel_url.raw_path == "/api/v1/namespaces/a%2Fb/pods"
    assert dict(place.requests[0].query) == query


async def test_several_values_of_a_header_are_sent_apart(place: Place, transport: HttpTransport) -> None:
    place.handler = fine
    await transport.send(Request(method="GET", path="/", headers={"Impersonate-Group": "a\nb"}))
    assert place.requests[0].headers.getall("Impersonate-Group") == ["a", "b"]


async def test_a_requests_own_header_stands_for_the_transports_whatever_its_case(place: Place) -> None:
    place.handler = fine
    transport = HttpTransport(f"http://127.0.0.1:{place.port}", headers={"Impersonate-User": "ann"})
    await transport.send(Request(method="GET", path="/", headers={"user-agent": "kubelet", "impersonate-USER": "bob"}))
    await transport.close()
    assert place.requests[0].headers.getall("User-Agent") == ["kubelet"]
    assert place.requests[0].headers.getall("Impersonate-User") == ["bob"]


async def test_a_refused_connection_is_unsent() -> None:
    transport = HttpTransport("http://127.0.0.1:1")
    with pytest.raises(Unsent, match="cannot reach"):
        await transport.send(Request(method="POST", path="/", body=b"{}"))
    await transport.close()


async def test_a_host_whose_name_cannot_be_one_is_unsent() -> None:
    transport = HttpTransport(f"http://{'x' * 70}.test")
    with pytest.raises(Unsent, match="cannot reach"):
        await transport.send(Request(method="GET", path="/"))
    await transport.close()


async def test_a_write_without_an_answer_is_unknown(place: Place, transport: HttpTransport) -> None:
    release = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    place.handler = hang
    with pytest.raises(Unknown, match="no answer"):
        await transport.send(Request(method="POST", path="/x", body=b"{}"), timeout=0.2)
    release.set()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_write_cut_off_is_unknown_and_never_sent_twice(
    place: Place, transport: HttpTransport, method: str
) -> None:
    place.handler = fine
    await transport.send(Request(method="GET", path="/"))  # leaves a connection to be used again

    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    place.handler = cut
    place.requests.clear()
    with pytest.raises(Unknown):
        await transport.send(Request(method=method, path="/x", body=b"{}"), timeout=5)
    assert len(place.requests) == 1


async def test_a_read_cut_off_is_tried_once_more(place: Place, transport: HttpTransport) -> None:
    async def cut_once(request: web.Request) -> web.Response:
        if len(place.requests) == 1:
            assert request.transport is not None
            request.transport.close()
        return web.Response(text="ok")

    place.handler = cut_once
    assert (await transport.send(Request(method="GET", path="/x"), timeout=5)).body == b"ok"


async def test_a_guard_keeps_a_request_back_when_its_connection_stands(place: Place, transport: HttpTransport) -> None:
    place.handler = fine

    def refuse() -> None:
        raise LeaseLost("too late")

    for _ in range(2):
        with pytest.raises(LeaseLost):
            await transport.send(Request(method="POST", path="/x", body=b"{}", guard=refuse))
        await transport.send(Request(method="GET", path="/"))  # so that the second try finds an open connection
    assert [request.method for request in place.requests] == ["GET", "GET"]
    assert place.requests[0].transport is place.requests[1].transport  # what was kept back costs no connection


async def test_a_silent_stream_ends_by_its_idle_limit(place: Place, transport: HttpTransport) -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first\n")
        await asyncio.sleep(30)
        return answer

    place.handler = trickle
    chunks = []
    with pytest.raises(Unknown):
        async with transport.stream(Request(method="GET", path="/watch"), idle_timeout=0.2) as stream:
            async for chunk in stream:
                chunks.append(chunk)
    assert chunks == [b"first\n"]


async def test_redirects_are_not_followed(place: Place, transport: HttpTransport) -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://example.test/")

    place.handler = elsewhere
    assert (await transport.send(Request(method="GET", path="/"))).status == 302


async def test_a_token_is_asked_for_each_request(place: Place) -> None:
    tokens = iter(["one", "two"])

    async def token() -> str:
        return next(tokens)

    place.handler = fine
    transport = HttpTransport(f"http://127.0.0.1:{place.port}", token=token)
    for _ in range(2):
        await transport.send(Request(method="GET", path="/"))
    await transport.close()
    assert [request.headers["Authorization"] for request in place.requests] == ["Bearer one", "Bearer two"]


async def test_a_refused_token_is_replaced_before_the_next_request(place: Place, tmp_path: Path) -> None:
    """From a file that was replaced a moment ago, and from a plug-in that named a later end, or none."""
    file, command = tmp_path / "token", tmp_path / "plugin"
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    command.write_text(f"#!/bin/sh\nprintf '{answer}' \"$(cat {file})\"\n")
    command.chmod(0o700)
    clock = VirtualClock()

    async def only_new(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == "Bearer new" else 401)

    place.handler = only_new
    settings = ExecSettings(command=str(command))
    for token in (TokenFile(file, clock=clock), ExecPlugin(settings, tmp_path, source="the test", clock=clock)):
        file.write_text("old")
        transport = HttpTransport(f"http://127.0.0.1:{place.port}", token=token)
        ask = Request(method="GET", path="/")
        assert (await transport.send(ask)).status == 401
        file.write_text("new")
        assert (await transport.send(ask)).status == 200
        await transport.close()


async def test_a_pods_log_is_streamed_with_its_options(place: Place, transport: HttpTransport) -> None:
    async def log(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(3):
            await answer.write(f"line {number}\n".encode())
        return answer

    place.handler = log
    chunks = [
        chunk
        async for chunk in Client(transport).logs(
            "head", "team", container="ray", follow=True, tail_lines=0, since_seconds=9
        )
    ]
    assert b"".join(chunks) == b"line 0\nline 1\nline 2\n"
    assert place.requests[0].path == "/api/v1/namespaces/team/pods/head/log"
    assert dict(place.requests[0].query) == {
        "container": "ray",
        "follow": "true",
        "tailLines": "0",
        "sinceSeconds": "9",
    }


async def test_a_log_that_is_not_there_is_a_typed_error(place: Place, transport: HttpTransport) -> None:
    async def refuse(request: web.Request) -> web.Response:
        body = {"kind": "Status", "reason": "BadRequest", "code": 400, "message": "container is waiting to start"}
        return web.json_response(body, status=400)

    place.handler = refuse
    with pytest.raises(BadRequest, match="waiting to start"):
        async for _ in Client(transport).logs("head", "team"):
            pass


async def test_an_answer_that_is_not_a_status_is_still_an_error_with_its_text(
    place: Place, transport: HttpTransport
) -> None:
    async def gateway(request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>", headers={"Retry-After": "7"})

    place.handler = gateway
    with pytest.raises(ServerError, match="bad gateway") as error:
        await Client(transport).request("GET", "/x")
    assert error.value.retry_after == 7.0


async def test_a_large_answer_from_afar_comes_packed_and_is_unpacked(
    place: Place, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def packed(request: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(b"x" * 200_000), headers={"Content-Encoding": "gzip"})

    place.handler = packed
    assert (await transport.send(Request(method="GET", path="/"))).body == b"x" * 200_000
    assert "Accept-Encoding" not in place.requests[-1].headers  # this machine: packing takes longer than sending
    monkeypatch.setattr("shoal.kube.http._is_loopback", lambda host: False)
    afar = HttpTransport(transport.server, tls=transport._tls)
    await afar.send(Request(method="GET", path="/"))
    await afar.close()
    assert place.requests[-1].headers["Accept-Encoding"] == "gzip"


async def test_a_connection_is_kept_for_the_next_request_but_not_for_long(
    place: Place, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.handler = fine
    for _ in range(3):
        await transport.send(Request(method="POST", path="/", body=b"{}"))
    monkeypatch.setattr("shoal.kube.http.IDLE_LIMIT", -1.0)  # as if it had lain idle for long
    await transport.send(Request(method="POST", path="/", body=b"{}"))
    assert [request.transport for request in place.requests[:3]] == [place.requests[0].transport] * 3
    assert place.requests[3].transport is not place.requests[0].transport


async def test_a_kept_connection_that_the_server_closed_meanwhile_is_not_used_for_a_write(
    place: Place, transport: HttpTransport
) -> None:
    place.handler = fine
    await transport.send(Request(method="GET", path="/"))
    [kept] = transport._open
    closing = place.requests[0].transport
    assert closing is not None
    closing.close()
    await kept.ended
    assert (await transport.send(Request(method="POST", path="/", body=b"{}"))).status == 200


async def test_more_requests_than_connections_wait_their_turn(place: Place) -> None:
    running: list[int] = []
    most = 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.pop()
        return web.Response()

    place.handler = slow
    transport = HttpTransport(f"http://127.0.0.1:{place.port}", connections=2)
    answers = await asyncio.gather(*(transport.send(Request(method="GET", path="/")) for _ in range(9)))
    await transport.close()
    assert ([answer.status for answer in answers], most) == ([200] * 9, 2)


async def test_a_write_that_found_no_free_connection_in_time_is_unsent(place: Place) -> None:
    release = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    place.handler = hang
    transport = HttpTransport(f"http://127.0.0.1:{place.port}", connections=1)
    first = asyncio.ensure_future(transport.send(Request(method="GET", path="/")))
    await place.asked.wait()
    with pytest.raises(Unsent, match="no connection is free"):
        await transport.send(Request(method="POST", path="/", body=b"{}"), timeout=0.05)
    release.set()
    assert (await first).status == 200
    await transport.close()


async def test_a_server_that_never_finishes_the_handshake_is_unsent(place: Place) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    transport = HttpTransport(f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    with pytest.raises(Unsent, match="no connection in time"):
        await transport.send(Request(method="POST", path="/", body=b"{}"), timeout=0.1)
    await transport.close()
    silent.close()


async def test_a_request_given_up_leaves_nothing_of_its_answer_to_the_next(
    place: Place, transport: HttpTransport
) -> None:
    async def late(request: web.Request) -> web.Response:
        if request.path == "/late":
            await asyncio.sleep(0.05)
        return web.Response(text=request.path)

    place.handler = late
    given_up = asyncio.ensure_future(transport.send(Request(method="GET", path="/late")))
    await place.asked.wait()
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert (await transport.send(Request(method="GET", path="/next"))).body == b"/next"


async def test_a_stream_that_no_caller_reads_makes_the_server_wait_and_loses_nothing(
    place: Place, transport: HttpTransport
) -> None:
    block, count, sent = b"x" * 65536, 400, 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(count):
            await answer.write(block)
            sent += 1
        return answer

    place.handler = flood
    async with transport.stream(Request(method="GET", path="/watch")) as stream:
        before = -1
        while before != sent:  # until the server gets nothing more away
            before = sent
            await asyncio.sleep(0.1)
        assert sent < count
        assert len(await stream.read()) == count * len(block)


async def test_a_stream_cut_off_is_told_after_what_had_come(place: Place, transport: HttpTransport) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first\n")
        assert request.transport is not None
        request.transport.close()
        return answer

    place.handler = cut
    chunks = []
    with pytest.raises(Unknown, match="broke off during GET /watch"):
        async with transport.stream(Request(method="GET", path="/watch")) as stream:
            async for chunk in stream:
                chunks.append(chunk)
    assert chunks == [b"first\n"]


async def test_closing_ends_what_is_under_way(place: Place, transport: HttpTransport) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    place.handler = hang
    waiting = asyncio.ensure_future(transport.send(Request(method="POST", path="/", body=b"{}")))
    await place.asked.wait()
    await transport.close()
    with pytest.raises(Unknown):
        await waiting


async def test_nothing_can_be_smuggled_into_a_request(place: Place, transport: HttpTransport) -> None:
    place.handler = fine
    await transport.send(Request(method="GET", path="/a b\r\nX-Smuggled: 1\r\n/ü"))
    assert place.requests[0].rel_url.raw_path == "/a%20b%0D%0AX-Smuggled:%201%0D%0A/%C3%BC"
    assert "X-Smuggled" not in place.requests[0].headers
    with pytest.raises(BadInput, match="line break"):
        await transport.send(Request(method="GET", path="/", headers={"Impersonate-User": "ann\rX: 1"}))


@pytest.mark.parametrize("server", ["10.0.0.1:6443", "https://", "https://host:port", "ftp://host"])
def test_a_server_that_is_no_url_is_named(server: str) -> None:
    with pytest.raises(BadInput, match="is not a URL such as"):
        HttpTransport(server)


async def test_a_server_whose_certificate_has_expired_is_named(tmp_path: Path) -> None:
    authority = make_authority()
    leaf = make_leaf(authority, "server", hosts=["127.0.0.1"], days=30, clock=VirtualClock())  # in November 2023
    leaf.write(tmp_path / "crt", tmp_path / "key")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    transport = HttpTransport(f"https://127.0.0.1:{port}", tls=trusting)
    with pytest.raises(Unsent, match=r"certificate has expired.*renew the server's certificate"):
        await transport.send(Request(method="GET", path="/version"))
    await transport.close()
    server.close()
