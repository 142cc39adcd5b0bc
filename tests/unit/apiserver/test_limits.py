"""What one client can cost the others: time on the loop, memory, connections. Each has a bound."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.api.kinds import CONFIG_MAP, CRD, POD, SERVICE_ACCOUNT
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from shoal.local.apiserver.cel.cost import Budget
from shoal.local.apiserver.cel.match_conditions import ConditionFailed, matches
from shoal.local.apiserver.http import connections, fairness, front, heavy
from shoal.local.apiserver.http.connections import Doors
from shoal.local.apiserver.http.fairness import Fairness
from shoal.local.apiserver.http.front import Front
from shoal.local.apiserver.primitives import patterns
from shoal.local.apiserver.primitives.status import Refused
from shoal.local.apiserver.primitives.values import same
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.streams import portforward, spdy, terminals
from shoal.local.apiserver.verbs.subresources import LogRequest
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.apiserver.builders import WIDGET, config_map, pod, widget, widget_definition
from tests.unit.apiserver.conftest import turns
from tests.unit.apiserver.test_access import grant

MAPS = "/api/v1/namespaces/default/configmaps"


async def send(
    server: Server, method: str, path: str, body: bytes = b"", content: str = "application/json"
) -> Response:
    request = Request(method=method, path=path, headers={"content-type": content}, body=body)
    answer = await server.transport().send(request)
    assert isinstance(answer, Response)
    return answer


# --- time on the loop


async def _as_it_is(self: heavy.Beside, call: Any) -> None:
    return None


@proven(without=lambda patch: patch.setattr(heavy.Beside, "prepare", _as_it_is))
async def test_f187_others_are_answered_while_yaml_is_read(server: Server) -> None:
    """F187: a client sends a YAML body that takes seconds to read. Holds: requests of others are answered meanwhile,
    and what has too many values is refused."""
    lines = [f"  key-{number}: value of number {number}" for number in range(8_000)]
    body = "\n".join(["apiVersion: v1", "kind: ConfigMap", "metadata: {name: large}", "data:", *lines]).encode()
    sending = asyncio.ensure_future(send(server, "POST", MAPS, body, "application/yaml"))
    answered = 0
    while not sending.done():
        assert (await send(server, "GET", "/api/v1/namespaces/default")).status == 200
        answered += 1
        await asyncio.sleep(0)
    assert (await sending).status == 201
    assert answered > 5
    many = b"a:\n" + b"  - 1\n" * 120_000
    assert (await send(server, "POST", MAPS, many, "application/yaml")).status == 400


async def test_yaml_on_another_thread_means_what_it_meant(server: Server) -> None:
    filler = "x" * heavy.SMALL_YAML
    body = f'apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{b: "{filler}", c: "1"}}\n'.encode()
    made = await send(server, "POST", MAPS, body, "application/yaml")
    assert made.status == 201 and msgspec.json.decode(made.body)["data"]["c"] == "1"
    for bad in (f"- {filler}", f"a: [{filler}", f"{{a: {filler}, b: {{", f"? [{filler}]\n: 1"):
        assert (await send(server, "POST", MAPS, bad.encode(), "application/yaml")).status == 400
    twice = (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b}}\ndata: {{b: 'x'}}\ndata: {{b: '{filler}'}}\n".encode()
    )
    request = Request(
        method="POST", path=MAPS, query={"fieldValidation": "Strict"}, body=twice,
        headers={"content-type": "application/yaml"},
    )  # fmt: skip
    refused = await server.transport().send(request)
    assert refused.status == 400 and b"already set" in refused.body
    large = await send(server, "GET", MAPS)
    assert large.status == 200


def _goes_back(pattern: str) -> Callable[[str], bool]:
    import re

    found = re.compile(pattern).search
    return lambda text: found(text) is not None


@proven(without=lambda patch: patch.setattr("shoal.local.apiserver.schema.values.matcher", _goes_back))
async def test_f188_a_pattern_is_matched_in_time_that_grows_with_the_text(server: Server, client: Client) -> None:
    """F188: a text makes a pattern of a custom kind try every way to match. Holds: it is refused in milliseconds, and
    what all patterns of one object may cost together is bounded."""
    text = {"type": "string", "pattern": "^(a+)+$"}
    wide = {"type": "string", "pattern": "^(.{0,500}x){0,2}$"}
    spec = {"type": "object", "properties": {"text": text, "wide": {"type": "array", "items": wide}}}
    await client.create(CRD, widget_definition(spec=spec))
    path = WIDGET.path("default")
    start = time.process_time()
    refused = await send(server, "POST", path, msgspec.json.encode(widget("w", text="a" * 27 + "b")))
    assert refused.status == 422 and b"spec.text" in refused.body
    refused = await send(server, "POST", path, msgspec.json.encode(widget("w", wide=["y" * 2000] * 1000)))
    assert refused.status == 422 and b"take too long to match" in refused.body
    assert time.process_time() - start < 3
    assert (await send(server, "POST", path, msgspec.json.encode(widget("w", text="aa", wide=["x"])))).status == 201


def test_patterns_mean_what_they_mean_to_re2() -> None:
    assert patterns.matcher(r"^[[:alpha:]]+$")("abc") and not patterns.matcher("^a$")("a\n")
    assert patterns.matcher(r"^\pL+$")("é") and not patterns.matcher(r"^\d$")("٣")
    assert patterns.find(r"\d+", "a1b22", -1) == ["1", "22"] and patterns.find(r"\d+", "a1b22") == ["1"]
    for bad in ("(?=x)", r"(a)\1", "a{1001}", "("):
        with pytest.raises(Exception, match="RE2"):
            patterns.matcher(bad)


@proven(without=lambda patch: patch.setattr(Budget, "spend", lambda self, weight, size: ""))
async def test_f189_rules_of_a_custom_kind_cost_a_bounded_amount(server: Server, client: Client) -> None:
    """F189: an object makes a CEL rule read a long text once per item, or runs a rule for very many items. Holds: it is
    refused because of its cost, as Kubernetes does, before it takes the time."""
    text = {"type": "string"}
    items = {"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= 0"}]}}
    spec = {
        "type": "object",
        "properties": {"items": items, "text": {"type": "string"}, "words": {"type": "array", "items": text}},
        "x-kubernetes-validations": [
            {"rule": "!has(self.words) || self.words.all(word, !self.text.contains(word + 'y'))"}
        ],
    }  # fmt: skip
    await client.create(CRD, widget_definition(spec=spec))
    path = WIDGET.path("default")
    start = time.process_time()
    hostile = widget("w", text="z" * 200_000, words=["z" * 20] * 9_000)
    refused = await send(server, "POST", path, msgspec.json.encode(hostile))
    assert refused.status == 422 and b"call cost exceeds limit" in refused.body
    refused = await send(server, "POST", path, msgspec.json.encode(widget("w", items=[1] * 250_000)))
    assert refused.status == 422 and b"running out of cost budget" in refused.body
    assert time.process_time() - start < 5
    good = widget("w", text="z" * 2000, words=["a"] * 100, items=[1] * 1000)
    assert (await send(server, "POST", path, msgspec.json.encode(good))).status == 201


def _each_with_all(patch: pytest.MonkeyPatch) -> None:
    class Slow:
        """Known only by comparing, as before there were marks."""

        def __init__(self, value: Any) -> None:
            self.value = value

        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Slow) and same(self.value, other.value)

    for module in ("patch.strategic_merge", "kinds.objects", "validation.pods"):
        patch.setattr(f"shoal.local.apiserver.{module}.mark", Slow)


@proven(without=_each_with_all)
async def test_f198_long_lists_are_merged_in_time_that_grows_with_them(server: Server, client: Client) -> None:
    """F198: a client patches objects with lists of thousands of owners, variables, tolerations. Holds: each takes a
    fraction of a second, not the square of its length."""
    count = 3000
    owners = [{"apiVersion": "v1", "kind": "K", "name": f"n{n}", "uid": f"u{n}"} for n in range(count)]
    variables = [{"name": f"V{n}", "value": "v"} for n in range(count)]
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(count)]
    spec = {
        "containers": [{"name": "c", "image": "i", "env": variables}],
        "tolerations": tolerations,
        "serviceAccount": "default",
        "serviceAccountName": "default",
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "ownerReferences": owners}, "spec": spec}
    pods = "/api/v1/namespaces/default/pods"
    start = time.process_time()
    assert (await send(server, "POST", pods, msgspec.json.encode(manifest))).status == 201
    manifest["metadata"]["annotations"] = {"a": "b"}
    body = msgspec.json.encode(manifest)
    for content in ("application/strategic-merge-patch+json", "application/merge-patch+json"):
        assert (await send(server, "PATCH", f"{pods}/p", body, content)).status == 200
    assert (await send(server, "PUT", f"{pods}/p", body)).status == 200
    assert time.process_time() - start < 8


def test_conditions_of_webhooks_cost_a_bounded_amount_too() -> None:
    condition = {"name": "c", "expression": "object.words.all(word, !object.text.contains(word + 'y'))"}
    assert matches([condition], {"object": {"words": ["a"], "text": "z" * 1000}})
    with pytest.raises(ConditionFailed, match="cost too much"):
        matches([condition], {"object": {"words": ["z" * 20] * 9_000, "text": "z" * 200_000}})


class _Hours:
    """Time that passes only when somebody works or sleeps."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def now(self) -> int:
        return int(self.elapsed * 1_000_000)

    async def sleep(self, seconds: float) -> None:
        self.elapsed += seconds
        await asyncio.sleep(0)


async def _unfair(self: Fairness, user: RequestUser, work: Any) -> Any:
    return await work


@proven(without=lambda patch: patch.setattr(Fairness, "run", _unfair))
async def test_f192_one_client_cannot_have_the_loop_to_itself() -> None:
    """F192: one token sends as much as it can, or many tokens of one namespace do. Holds: they get a share of the
    loop's time and the rest stays for controllers; others do not wait for them, and administrators for no client."""
    hours = _Hours()
    fair = Fairness(hours)

    async def work() -> None:
        hours.elapsed += 0.1

    hostile = [RequestUser(f"system:serviceaccount:red:{number}", ("system:serviceaccounts",)) for number in range(4)]
    for turn in range(200):
        await fair.run(hostile[turn % 4], work())
    assert hours.elapsed >= (200 * 0.1 - fairness.BURST - 0.2) / fairness.SHARE
    before = hours.elapsed
    await fair.run(RequestUser("system:serviceaccount:blue:bot"), work())
    await fair.run(RequestUser("admin", ("system:masters",)), work())
    assert hours.elapsed - before == pytest.approx(0.2)


async def test_what_one_client_has_under_way_is_bounded() -> None:
    fair, user = Fairness(), RequestUser("mallory")
    async with _many(fair.request, user, fairness.MOST_REQUESTS):
        with pytest.raises(Refused) as refused:
            async with fair.request(user):
                pass
        assert refused.value.code == 429 and refused.value.headers == {"retry-after": "1"}
        async with fair.request(RequestUser("ann")):
            pass
    async with fair.request(user):
        pass
    async with _many(fair.stream, user, fairness.MOST_STREAMS):
        with pytest.raises(Refused):
            async with fair.stream(user):
                pass
    async with fair.answer(user, 2 * fairness.MOST_ANSWER_BYTES):  # a single one may be as large as it is
        with pytest.raises(Refused):
            async with fair.answer(user, 1):
                pass


@asynccontextmanager
async def _many(enter: Any, user: RequestUser, count: int) -> AsyncIterator[None]:
    held = [enter(user) for _ in range(count)]
    for one in held:
        await one.__aenter__()
    yield
    for one in held:
        await one.__aexit__(None, None, None)


async def test_only_time_on_the_loop_is_counted_and_a_failure_passes_through() -> None:
    hours = _Hours()
    fair, user = Fairness(hours), RequestUser("ann")

    async def work() -> str:
        hours.elapsed += 0.2
        await asyncio.sleep(0)
        return "done"

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    assert await fair.run(user, work()) == "done"
    with pytest.raises(ValueError, match="no"):
        await fair.run(user, fail())
    client = fair._client(user)
    assert client is not None and client.account.left == pytest.approx(fairness.BURST - 0.2 + 0.2 * fairness.SHARE)
    waiting = asyncio.ensure_future(fair.run(user, asyncio.sleep(60)))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# --- connections


class Wire:
    """A TLS connection that says exactly what it is told to say."""

    def __init__(self, server: Server, port: int) -> None:
        self.tls: ssl.SSLContext = server.identity.client_context()
        self.port = port

    async def open(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        writer.write(data)
        return reader, writer


def half(token: str, size: int = 2 << 20, sent: int = 64) -> bytes:
    """A request whose body never ends."""
    head = f"POST {MAPS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n"
    return f"{head}Authorization: Bearer {token}\r\n\r\n".encode() + b"x" * sent


async def token_of(client: Client, server: Server, name: str) -> str:
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": name}}, "default")
    answer = await send(server, "POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", b"{}")
    return str(msgspec.json.decode(answer.body)["status"]["token"])


def _reads_first(patch: pytest.MonkeyPatch) -> None:
    answer = Front._answer

    async def late(self: Front, http: Any) -> Any:
        await http.read()
        return await answer(self, http)

    patch.setattr(Front, "_answer", late)


@proven(without=_reads_first)
async def test_f190_no_body_is_read_from_strangers_and_few_from_one_client(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F190: strangers and one service account send hundreds of requests whose bodies never end. Holds: strangers are
    refused before their body, the account gets room for a few; memory stays bounded and others are served."""
    wire = Wire(server, await server.serve())
    token = await token_of(client, server, "bot")
    await grant(client, "system:serviceaccount:default:bot", ["create"], ["configmaps"])
    reader, writer = await wire.open(half("guess"))
    assert b" 401 " in await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.close()
    tracemalloc.start()
    try:
        opened = [await wire.open(half(token, sent=(2 << 20) - 1)) for _ in range(40)]
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
        assert (await send(server, "POST", MAPS, body)).status == 201
        held = server._fronts[0].fairness._clients["system:serviceaccount:default"]
        for _ in range(2000):
            if held.body_bytes + (2 << 20) > fairness.MOST_BODY_BYTES:
                break
            await asyncio.sleep(0.005)
        assert held.requests <= 40 and held.body_bytes <= fairness.MOST_BODY_BYTES
        for _, writer in opened:
            writer.transport.abort()
        assert (await send(server, "GET", MAPS)).status == 200
    finally:
        tracemalloc.stop()


@proven(without=lambda patch: patch.setattr(Doors, "_show_out", lambda self, handler: None))
async def test_f191_connections_that_say_nothing_are_closed(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F191: connections stay silent, or send half a header, or half a body. Holds: each is closed after its time, there
    are never many of them, and a client that is known keeps its own."""
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.3)
    monkeypatch.setattr(connections, "MOST_STRANGERS", 4)
    monkeypatch.setattr(front, "BODY_SECONDS", 0.3)
    wire = Wire(server, await server.serve())
    token = await token_of(client, server, "bot")
    for said in (b"", b"GET /api HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        reader, writer = await wire.open(said)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    reader, writer = await wire.open(half(token))
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    reader, writer = await wire.open(b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
    await asyncio.wait_for(reader.read(), 5)  # it ends: who asks without a name gets one answer
    asked = f"GET /api HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    reader, known = await wire.open(asked)
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
    many = [await wire.open() for _ in range(12)]
    first = many[0][0]
    assert await asyncio.wait_for(first.read(), 5) == b""
    assert len(server._fronts[0]._doors.strangers) <= 4  # type: ignore[union-attr]
    for other, _ in many[1:]:
        await asyncio.wait_for(other.read(), 5)
    known.write(asked)
    while b" 200 " not in (line := await asyncio.wait_for(reader.readline(), 5)):
        assert line
    for _, writer in many:
        writer.close()


# --- to and from pods


class _Message(msgspec.Struct):
    data: bytes
    type: aiohttp.WSMsgType = aiohttp.WSMsgType.BINARY


class _Client:
    """The client's end of a WebSocket: what it sends, one message at a time as they are taken."""

    def __init__(self, *messages: bytes, repeated: bytes = b"", times: int = 0) -> None:
        self._messages, self._repeated, self._times = messages, repeated, times
        self.taken = 0
        self.closed = False
        self.told: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def __aiter__(self) -> AsyncIterator[_Message]:
        for data in self._messages:
            yield _Message(data)
        for _ in range(self._times):
            self.taken += 1
            yield _Message(self._repeated)
            await asyncio.sleep(0)

    async def send_bytes(self, data: bytes) -> None:
        await self.reads.wait()
        self.told.append(data)


class _Pod:
    """A pod's end of a connection, that reads when it is let."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.got = 0
        self.ended = asyncio.Event()

    async def connect(self, pod: Json, port: int) -> Any:
        return asyncio.StreamReader(), self

    @property
    def transport(self) -> Any:
        return self

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.got += len(data)

    async def drain(self) -> None:
        await self.reads.wait()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended.set()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.ended.set()

    abort = close


def _opened(*requests: str) -> bytes:
    """Streams of data numbered 1, 3, 5; headers are compressed as one stream over the whole connection."""
    deflate = zlib.compressobj(zdict=spdy._dictionary())
    found = b""
    for index, request in enumerate(requests):
        block = struct.pack(">I", 3)
        for name, value in (("port", "80"), ("streamtype", "data"), ("requestid", request)):
            block += struct.pack(">I", len(name)) + name.encode() + struct.pack(">I", len(value)) + value.encode()
        packed = deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack(">IIBB", 2 * index + 1, 0, 0, 0) + packed
        found += struct.pack(">HHI", 0x8003, spdy.SYN_STREAM, len(body)) + body
    return found


def _data(stream: int, data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", stream, flags << 24 | len(data)) + data


@proven(without=lambda patch: patch.setattr(portforward, "MOST_WAITING", 1 << 40))
async def test_f193_a_pod_that_does_not_read_holds_up_its_client(server: Server) -> None:
    """F193: a client sends without end to a forwarded port of a pod that never reads. Holds: after a megabyte nothing
    more is read from the client; when the pod reads, all of it arrives."""
    pod_end, size = _Pod(), 64 << 10
    client = _Client(_opened("0"), repeated=_data(1, b"x" * size), times=1000)
    session = asyncio.ensure_future(portforward.run(pod_end.connect, {"metadata": {"name": "p"}}, client))
    await turns(5000)
    assert client.taken * size <= portforward.MOST_WAITING + 4 * size
    assert not session.done()
    pod_end.reads.set()
    while pod_end.got < 1000 * size:
        await asyncio.wait_for(asyncio.sleep(0), PATIENCE)
    await session


async def test_a_connection_that_stalls_is_ended_when_it_holds_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portforward, "STALLED", 0.05)
    pods = iter((stalled := _Pod(), other := _Pod()))
    other.reads.set()

    async def connect(pod: Json, port: int) -> Any:
        return asyncio.StreamReader(), next(pods)

    opening = _opened("0", "1")
    flood = [_data(1, b"x" * (1 << 20))] * 3
    client = _Client(opening, *flood, _data(3, b"hello"))
    session = asyncio.ensure_future(portforward.run(connect, {"metadata": {"name": "p"}}, client))
    await asyncio.wait_for(session, PATIENCE)
    assert stalled.ended.is_set() and other.got == 5


async def test_very_many_small_frames_are_read_in_time_that_grows_with_them() -> None:
    wire = spdy.SpdyConnection(_Client().send_bytes)
    start = time.process_time()
    frames = sum(1 for _ in wire.receive(_data(1, b"") * 300_000 + b"\0\0"))
    assert frames == 300_000 and time.process_time() - start < 10
    assert [frame.data for frame in wire.receive(_data(1, b"x")[2:])] == [b"x"]


class _Program:
    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.got = 0
        self.shown = 0
        self.over = asyncio.Event()

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.got += len(data)

    async def close_input(self) -> None: ...

    async def resize(self, width: int, height: int) -> None: ...

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        for _ in range(1000):
            self.shown += 1
            yield 1, b"x" * 1024
        await self.over.wait()

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        self.over.set()


def _forgets_to_wait(patch: pytest.MonkeyPatch) -> None:
    async def hasty(http: Any, response: Any, chunk: bytes) -> None:
        response._payload_writer._write(chunk)

    patch.setattr(front, "send", hasty)


@proven(without=_forgets_to_wait)
async def test_f194_logs_exec_and_attach_go_no_faster_than_they_are_read(server: Server, client: Client) -> None:
    """F194: a client asks for a log and does not read it; a program in a pod does not read what is typed, or its client
    not what it prints. Holds: the producer waits, in each direction, and nothing piles up."""
    for attaching in (False, True):
        program = _Program()
        end = _Client(repeated=b"\0" + b"y" * 1024, times=1000)
        end.reads.clear()

        async def start(pod: Json, asked: terminals.ExecOptions, program: _Program = program) -> Any:
            return program

        spec = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
        running = asyncio.ensure_future(terminals.run(start, spec, {"command": "sh"}, end, attaching))
        await turns(2000)
        assert end.taken <= 2 and program.shown <= 2
        program.reads.set()
        end.reads.set()
        await asyncio.wait_for(running, PATIENCE)
        assert program.got == 1000 * 1024
    await _unread_log(server, client)


async def _unread_log(server: Server, client: Client) -> None:
    produced, finished = 0, asyncio.Event()

    async def log(pod: Json, asked: LogRequest) -> AsyncIterator[bytes]:
        async def chunks() -> AsyncIterator[bytes]:
            nonlocal produced
            for _ in range(1000):
                produced += 1
                yield b"z" * (64 << 10)
            finished.set()

        return chunks()

    server.set_log_source(log)
    await client.create(POD, pod("p", nodeName="n"), "default")
    wire = Wire(server, await server.serve())
    head = "GET /api/v1/namespaces/default/pods/p/log HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    reader, writer = await wire.open(f"{head}Authorization: Bearer {server.identity.admin_token}\r\n\r\n".encode())
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(finished.wait(), 1.0)
    assert produced < 500
    writer.transport.abort()
    assert (await client.create(CONFIG_MAP, config_map("after"), "default"))["metadata"]["name"] == "after"
