"""Hostile input, browsers, strangers on the machine, clocks that jump: what the server must hold against."""

from __future__ import annotations

import asyncio
import stat
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from shoal.api.kinds import CONFIG_MAP, EVENT
from shoal.kube.client import Client
from shoal.kube.errors import Gone
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from shoal.local.apiserver.auth.authentication import Authenticator
from shoal.local.apiserver.http.front import Front
from shoal.local.apiserver.requests import body
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.storage.store import Storage, WriteFailed
from shoal.local.apiserver.upkeep import Upkeep
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.apiserver.builders import config_map
from tests.unit.apiserver.conftest import ManualClock, turns
from tests.unit.apiserver.test_watch import Watch

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Socket:
    """A client that says exactly what it is told to say."""

    def __init__(self, server: Server, port: int) -> None:
        self.token = server.identity.admin_token
        self.base = f"https://127.0.0.1:{port}"
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=server.identity.client_context()))

    async def ask(
        self, method: str, path: str, *, token: str | None = None, data: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is None:
            named["Authorization"] = f"Bearer {self.token}"
        elif token:
            named["Authorization"] = f"Bearer {token}"
        async with self.session.request(
            method, URL(self.base + path, encoded=True), headers=named, data=data
        ) as answer:
            return answer.status, await answer.read()


@pytest.fixture
async def socket(server: Server) -> AsyncIterator[Socket]:
    port = await server.serve()
    one = Socket(server, port)
    yield one
    await one.session.close()


async def post(
    server: Server, data: bytes, content: str = "application/json", path: str = "/api/v1/namespaces/default/configmaps"
) -> Response:
    answer = await server.handle(
        Request(method="POST", path=path, headers={"content-type": content}, body=data),
        RequestUser("system:admin", ("system:masters",)),
    )
    assert isinstance(answer, Response)
    return answer


# --- F119, F134: who can reach it


@proven(without=lambda patch: patch.setattr(Front, "_check_origin", lambda self, http: None))
async def test_f119_a_web_page_cannot_reach_the_server_whatever_the_method(socket: Socket) -> None:
    """F119: a browser sends requests to the loopback port under a name of its own. Holds: refused, every method alike,
    even with good credentials."""
    for method in METHODS:
        status, _ = await socket.ask(method, "/api/v1/namespaces", Host="evil.example:6443")
        assert status == 403, method
        status, _ = await socket.ask(
            method, "/api/v1/namespaces", Origin="https://evil.example", User_Agent="kubectl/v1.32"
        )
        assert status == 403, method
    for origin in ("https://localhost:1", "http://127.0.0.1:8265", "null", ""):  # other pages of this machine, too
        assert (await socket.ask("GET", "/api/v1/namespaces", Origin=origin))[0] == 403, origin
    assert (await socket.ask("GET", "/api/v1/namespaces", Host="localhost"))[0] == 200
    assert (await socket.ask("GET", "/api/v1/namespaces"))[0] == 200


async def test_answers_set_no_cookies_and_allow_no_other_origin(socket: Socket) -> None:
    async with socket.session.get(socket.base + "/version") as answer:
        assert not {"Set-Cookie", "Access-Control-Allow-Origin"} & set(answer.headers)


def _everyone_is_admin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Authenticator, "user", lambda self, headers, certificate: RequestUser("system:admin", ("system:masters",))
    )


@proven(without=_everyone_is_admin)
async def test_f134_a_local_stranger_gets_nothing_without_credentials(tmp_path: Path) -> None:
    """F134: another user of the machine connects to the loopback port. Holds: 401 without a token, state readable by
    its owner alone."""
    server = Server(tmp_path / "state")
    await server.start()
    socket = Socket(server, await server.serve())
    for token in ("", "guess", "Bearer", "x" * 5000):
        for method in METHODS[:6]:
            status, _ = await socket.ask(method, "/api/v1/namespaces/default/secrets", token=token)
            assert status == 401, (method, token[:8])
    for path in ("/healthz", "/version"):
        assert (await socket.ask("GET", path, token=""))[0] == 200
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    await socket.session.close()
    await server.stop()


def _readable_by_all(patch: pytest.MonkeyPatch) -> None:
    def plain(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)

    patch.setattr("shoal.local.apiserver.auth.certificates.private_file", plain)
    patch.setattr("shoal.local.apiserver.auth.kubeconfig.private_file", plain)


@proven(without=_readable_by_all)
async def test_f129_credentials_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    """F129: the machine has other users. Holds: keys, tokens, kubeconfig, database 0600, directories 0700 (I49)."""
    server = Server(tmp_path / "state")
    await server.start()
    await server.serve()
    (tmp_path / "kubeconfig").write_text("old and open")
    (tmp_path / "kubeconfig").chmod(0o644)
    server.write_kubeconfig(tmp_path / "kubeconfig")
    await Client(server.transport()).create(CONFIG_MAP, config_map("a"), "default")
    found = [tmp_path / "kubeconfig", *(tmp_path / "state").rglob("*")]
    assert len(found) > 8
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    await server.stop()


# --- F122, F123: what it is given

ALIASES = b"metadata: {name: bomb}\na0: &a0 [x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b", ".join([b"*a%d" % (level - 1)] * 6)) for level in range(1, 8)
)


@proven(without=lambda patch: patch.setattr(body, "check", lambda found, keys=False: found))
@pytest.mark.parametrize(
    "data, content",
    [
        (b'{"metadata":{"name":"a"},"data":' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}", "application/json"),
        (
            b'{"metadata":{"name":"a","annotations":{"a":"' + b"x" * 300 + b'"}},"x":' + b"9" * 400 + b"}",
            "application/json",
        ),
        (ALIASES, "application/yaml"),
    ],
    ids=["deep", "number", "aliases"],
)
async def test_f122_bombs_are_refused_before_they_go_off(server: Server, data: bytes, content: str) -> None:
    """F122: bodies that grow, nest or overflow. Holds: 4xx in bounded time."""
    begin = time.process_time()
    answer = await post(server, data, content)
    assert 400 <= answer.status < 500 and b"the body of the request" in answer.body, answer.body[:200]
    assert time.process_time() - begin < 2.0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\x00",
        b"\xff\xfe",
        b'{"metadata":{"name":"\\ud800"}}',
        b'{"metadata":{"name":"a\\u0000b"}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"metadata":{"name":1.5e+400}}',
        b"NaN",
        b'{"metadata":null}',
        b'{"metadata":{"name":"a"}}trailing',
        b'{"metadata":{"name":"a","labels":{"x":{}}}}',
        b'{"metadata":{"name":"' + b"a" * 5000 + b'"}}',
        b"k8s\x00\xff\xff\xff\xff",
    ],
)
@pytest.mark.parametrize(
    "content", ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html", ""]
)
async def test_malformed_bodies_get_a_4xx(server: Server, data: bytes, content: str) -> None:
    answer = await post(server, data, content)
    assert 400 <= answer.status < 500, answer.body[:200]


def _unlimited(patch: pytest.MonkeyPatch) -> None:
    for module in ("requests.body", "server", "http.front"):
        patch.setattr(f"shoal.local.apiserver.{module}.MOST_BYTES", 1 << 40)
    patch.setattr("shoal.local.apiserver.verbs.writing.MOST_OBJECT_BYTES", 1 << 40)


@proven(without=_unlimited)
async def test_f123_huge_requests_are_refused_before_they_are_read(socket: Socket) -> None:
    """F123: giant bodies and objects. Holds: 413, and before memory is taken."""
    status, _ = await socket.ask(
        "POST", "/api/v1/namespaces/default/configmaps", data=b"x" * (4 << 20), Content_Type="application/json"
    )
    assert status == 413
    big = b'{"metadata":{"name":"big"},"data":{"x":"' + b"y" * (2 << 20) + b'"}}'
    status, answer = await socket.ask(
        "POST", "/api/v1/namespaces/default/configmaps", data=big, Content_Type="application/json"
    )
    assert status in (413, 422), answer[:200]


@proven(without=_unlimited)
async def test_f123_a_body_without_an_end_is_cut_off(socket: Socket) -> None:
    """F123: a body of unknown length goes on and on. Holds: refused at the limit; what came is not piled up."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1 << 16
            yield b"x" * (1 << 16)

    tracemalloc.start()
    try:
        async with socket.session.post(
            f"{socket.base}/api/v1/namespaces/default/configmaps",
            data=endless(),
            headers={"Authorization": f"Bearer {socket.token}", "Content-Type": "application/json"},
        ) as answer:
            assert answer.status == 413
    except aiohttp.ClientError:
        assert sent < 32 << 20  # cut off while it was sending
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 24 << 20
    assert (await socket.ask("GET", "/api/v1/namespaces"))[0] == 200


@pytest.mark.parametrize(
    "headers, body, status",
    [
        (b"Authorization: Bearer \xff\xfe\r\n", b"", 401),
        (b"Authorization: Bearer {token}\r\nImpersonate-User: \xff\xfe\r\n", b"{}", 403),
        (b"Authorization: Bearer {token}\r\nUser-Agent: \xffmine/1\r\n", b'{"metadata":{"name":"a"}}', 201),
        (b"Authorization: Bearer {token}\r\nContent-Encoding: gzip\r\n", b"{}", 415),
    ],
)
async def test_bytes_that_are_no_text_are_no_fault_of_the_server(
    server: Server, headers: bytes, body: bytes, status: int
) -> None:
    port = await server.serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=server.identity.client_context())
    try:
        head = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        headers = headers.replace(b"{token}", server.identity.admin_token.encode())
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        writer.write(head + b"Content-Type: application/json\r\n" + headers + length + body)
        first = await asyncio.wait_for(reader.readline(), PATIENCE)
    finally:
        writer.close()
    assert first.split()[1] == str(status).encode()


@pytest.mark.parametrize(
    "query",
    [
        "limit=x",
        "limit=99999999999999999999",
        "resourceVersion=-5",
        "resourceVersion=abc",
        "resourceVersion=%C2%B2",
        "limit=--5",
        "continue=%00",
        "continue=AAAA",
        "labelSelector=" + "a," * 5000,
        "fieldSelector===",
        "timeoutSeconds=-1&watch=1",
    ],
)
async def test_odd_queries_get_a_4xx(socket: Socket, query: str) -> None:
    status, answer = await socket.ask("GET", f"/api/v1/pods?{query}")
    assert 400 <= status < 500, (query[:40], answer[:200])


async def test_the_server_goes_on_after_garbage_on_the_wire(server: Server, socket: Socket) -> None:
    host, port = "127.0.0.1", int(socket.base.rsplit(":", 1)[1])
    for noise in (
        b"\x00" * 64,
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 100_000,
        b"POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(
            host, port, ssl=server.identity.client_context(), server_hostname="localhost"
        )
        writer.write(noise)
        writer.write_eof() if writer.can_write_eof() else None
        await asyncio.wait_for(reader.read(200), PATIENCE)
        writer.close()
    assert (await socket.ask("GET", "/api/v1/namespaces"))[0] == 200


# --- F103: clocks


@proven(without=lambda patch: patch.setattr(ManualClock, "monotonic", lambda self: self.wall / 1e6))
async def test_f103_a_clock_that_jumps_neither_ends_nor_prolongs_a_watch(client: Client, clock: ManualClock) -> None:
    """F103: the wall clock steps a day forth and back. Holds: waiting follows the monotonic clock."""
    watch = Watch(client, resource_version="1", timeout_seconds=30)
    await turns()
    clock.wall += 86_400_000_000
    await client.create(CONFIG_MAP, config_map("a"), "default")
    await turns()
    await client.create(CONFIG_MAP, config_map("b"), "default")
    assert await watch.events() == [("ADDED", "a"), ("ADDED", "b")]
    clock.wall -= 2 * 86_400_000_000
    await clock.advance(31)
    await watch.ended()


# --- F100: upkeep


@proven(without=lambda patch: patch.setattr(Upkeep, "_expired", lambda self, records: []))
async def test_f100_a_day_of_events_leaves_an_hour_of_them_and_a_failed_round_is_repeated(
    server: Server, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F100: events come for 24 hours, and one round of upkeep fails. Holds: what is kept is bounded; the next round
    makes up for it."""
    real, failures = Upkeep.round, [WriteFailed("no space left", full=True)]

    async def sometimes(self: Upkeep) -> None:
        if failures:
            raise failures.pop()
        await real(self)

    monkeypatch.setattr(Upkeep, "round", sometimes)
    for hour in range(24):
        for index in range(10):
            await client.create(
                EVENT,
                {
                    "metadata": {"name": f"e{hour}-{index}"},
                    "reason": "Churn",
                    "type": "Normal",
                    "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
                },
                "default",
            )
        await clock.advance(3600)
    assert len(await client.list(EVENT, "default")) <= 20
    assert server._upkeep is not None and server._upkeep.failures == 1


@proven(without=lambda patch: patch.setattr(Storage, "forget", lambda self, revision: None))
async def test_f403_changes_are_not_kept_for_watches_that_never_come(
    server: Server, client: Client, clock: ManualClock
) -> None:
    """F403: objects are changed day and night, and every change is kept in memory for watches that may ask for it.
    Holds: only those of the last ten minutes are; an older watch is told so, one of a quiet resource goes on."""
    quiet = await client.create(CONFIG_MAP, {"metadata": {"name": "quiet"}}, "default")
    for number in range(40):
        event = {"metadata": {"name": f"e{number}"}, "reason": "Churn", "type": "Normal"}
        event["involvedObject"] = {"kind": "Pod", "name": "p", "namespace": "default"}
        await client.create(EVENT, event, "default")
        await clock.advance(60)
    assert len(server.storage.collection(EVENT.resource).events) <= 11
    seen = client.watch(CONFIG_MAP, "default", resource_version=quiet["metadata"]["resourceVersion"])
    await client.create(CONFIG_MAP, {"metadata": {"name": "next"}}, "default")
    async for change in seen:
        assert change.type == "ADDED"
        break
    with pytest.raises(Gone):
        async for _ in client.watch(EVENT, "default", resource_version=quiet["metadata"]["resourceVersion"]):
            break
