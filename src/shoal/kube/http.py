"""The HTTPS transport: kept connections underneath, bytes above.

Knows which failures leave a write's fate open: a refused connection never reached the server, a cut or a timeout may
have. A write goes out at most once, and a request's guard is asked after the connection stands, directly before the
first byte. Redirects, cookies and proxies are not followed: an API server has none.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import re
import ssl
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from shoal.errors import BadInput
from shoal.kube.answers import Answer
from shoal.kube.connection import TAKEN_AT_ONCE, Connection, Cut
from shoal.kube.errors import KubeError, Unknown, Unsent
from shoal.kube.slots import FairSlots
from shoal.kube.transport import Request, Response, Stream
from shoal.version import __version__

T = TypeVar("T")
TokenSource = Callable[[], Awaitable[str]]
"""Asked before every request. One that also has `refused` is told when the server did not accept what it gave."""

asyncio.sslproto.SSLProtocol.max_size = TAKEN_AT_ONCE
"""Each TLS connection keeps a buffer of this size; a controller has a hundred, and asyncio's own is 256 KiB."""
CONNECT_LIMIT = 15.0
IDLE_LIMIT = 15.0
"""Seconds after which a kept connection is not trusted any more: something on the way may have forgotten it."""
AGENT = f"shoal/{__version__}"
_UNSAFE = re.compile("[^!-~]")


class HttpTransport:
    """One API server over HTTPS. `token` is asked before every request, so that rotating credentials just work."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        token: TokenSource | None = None,
        connections: int = 128,
        headers: Mapping[str, str] | None = None,
        server_name: str = "",
        most: int = 0,
    ) -> None:
        """`most` bytes of an answer are taken, packed or unpacked; streams have no such limit. 0: any number."""
        self.server = server.rstrip("/")
        self._address = _address(self.server)
        self._tls = tls
        self._token = token
        self._packs = not _is_loopback(self._address.hostname or "")
        """Answers are asked for packed: on the way to this machine itself that costs more than it saves."""
        self._fixed_headers = {"host": self._address.netloc, "user-agent": AGENT, **_lowered(headers or {})}
        self._server_name = server_name
        self._most = most
        self._places = FairSlots(connections)
        self._free: list[Connection] = []
        self._open: set[Connection] = set()
        self._buffer = memoryview(b"")
        """Of all connections, once there is one."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """By verb and resource, the subresource included; for metrics. Watches count where they are opened."""

    def with_token(self, token: TokenSource) -> HttpTransport:
        """The same server with another credential. Only for one whose TLS shows no certificate of its own."""
        return HttpTransport(self.server, tls=self._tls, token=token, server_name=self._server_name, most=self._most)

    async def bearer(self) -> str:
        """The token that requests carry now; empty for users of certificates."""
        return await self._token() if self._token is not None else ""

    async def credential(self) -> tuple[ssl.SSLContext | None, str, dict[str, str]]:
        """What another connection there needs: TLS, the name in its certificate where that differs, headers."""
        token = await self.bearer()
        own = {name: value for name, value in self._fixed_headers.items() if name != "host"}
        return self._tls, self._server_name, {**own, **({"authorization": f"Bearer {token}"} if token else {})}

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        try:
            return await self._once(request, timeout)
        except Cut as error:
            if request.method != "GET" or error.begun:
                raise self._broken(request, error) from error
        try:
            return await self._once(request, timeout)  # the server had closed it: reading again does no harm
        except Cut as error:
            raise self._broken(request, error) from error

    async def _once(self, request: Request, timeout: float | None) -> Response:
        head = await self._head(request, compressed=self._packs and request.method == "GET")
        self.requests[request.method, resource_of(request.path)] += 1
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        connection = await self._connection(until)
        try:
            if request.guard is not None:
                request.guard()
            answer = connection.send(head + request.body, whole=True, most=self._most)
            await connection.wait(until)
            self._heed(answer.status)
            return Response(answer.status, answer.headers, _plain(answer, self._most))
        except TimeoutError as error:
            raise self._late(request) from error
        finally:
            self._give_back(connection)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        head = await self._head(request, compressed=False)
        self.requests["WATCH", resource_of(request.path)] += 1
        connection = await self._connection(None)
        try:
            if request.guard is not None:
                request.guard()
            answer = connection.send(head + request.body, whole=False)
            stream = HttpStream(connection, answer, idle_timeout)
            await stream.opened()
            self._heed(stream.status)
            yield stream
        except Cut as error:
            raise self._broken(request, error) from error
        except TimeoutError as error:
            raise self._late(request) from error
        finally:
            self._give_back(connection)

    async def close(self) -> None:
        """What is still under way ends with it."""
        self._free.clear()
        for connection in (ending := tuple(self._open)):
            connection.abort()
        await asyncio.gather(*(connection.ended for connection in ending))

    # --- connections

    async def _connection(self, until: float | None) -> Connection:
        """A kept one or a new one; whatever goes wrong here, nothing was sent."""
        now = asyncio.get_running_loop().time()
        place = self._places.take("")
        await (self._in_time(place, until, "no connection is free") if self._places.full else place)
        while self._free:
            connection = self._free.pop()
            if not connection.lost and now - connection.idle_since < IDLE_LIMIT:
                return connection
            connection.abort()
        try:
            soon = now + CONNECT_LIMIT
            return await self._in_time(self._connect(), soon if until is None else min(soon, until), "no connection")
        except BaseException:
            self._places.give_back("")
            raise

    async def _connect(self) -> Connection:
        address = self._address
        secure = address.scheme == "https"
        self._buffer = self._buffer or memoryview(bytearray(TAKEN_AT_ONCE))
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._lose, self._buffer),
                str(address.hostname),
                address.port or (443 if secure else 80),
                ssl=(self._tls or True) if secure else None,
                server_hostname=(self._server_name or address.hostname) if secure else None,
                happy_eyeballs_delay=0.25,
            )
        except ssl.SSLCertVerificationError as error:
            raise Unsent(f"the certificate of {self.server} is not accepted: {error}. Check certificate-authority in "
                         "the kubeconfig, or renew the server's certificate.") from error  # fmt: skip
        except (OSError, UnicodeError) as error:  # the latter for a host's name that cannot be one
            raise Unsent(f"cannot reach {self.server}: {error}. Does it run, and is this its address?") from error
        self._open.add(connection)
        return connection

    async def _in_time(self, waiting: Awaitable[T], until: float | None, what: str) -> T:
        try:
            async with asyncio.timeout_at(until):
                return await waiting
        except TimeoutError as error:
            raise Unsent(f"cannot reach {self.server}: {what} in time") from error

    def _give_back(self, connection: Connection) -> None:
        if connection.finish():
            self._free.append(connection)
        self._places.give_back("")

    def _lose(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._free:
            self._free.remove(connection)

    # --- what is sent

    async def _head(self, request: Request, *, compressed: bool) -> bytes:
        headers = {**self._fixed_headers, **_lowered(request.headers)}
        if compressed:
            headers["accept-encoding"] = "gzip"
        if self._token is not None and "authorization" not in headers:
            token = await self._token()
            if token:  # an exec plug-in may give a certificate instead
                headers["authorization"] = f"Bearer {token}"
        query = f"?{_encoded(*request.query.items())}" if request.query else ""
        target = f"{self._address.path}{request.path}{query}"
        if _UNSAFE.search(target):
            target = _UNSAFE.sub(lambda found: quote(found[0]), target)
        length = f"content-length: {len(request.body)}\r\n" if request.body or request.method != "GET" else ""
        return f"{request.method} {target} HTTP/1.1\r\n{_lines(*headers.items())}{length}\r\n".encode()

    def _heed(self, status: int) -> None:
        """A credential may be withdrawn before its end: the next request carries another, if there is one."""
        if status == 401 and (refused := getattr(self._token, "refused", None)) is not None:
            refused()

    # --- what went wrong

    def _broken(self, request: Request, error: Cut) -> KubeError:
        return Unknown(f"{self.server} broke off during {request.method} {request.path}: {error}")

    def _late(self, request: Request) -> KubeError:
        return Unknown(f"no answer from {self.server} to {request.method} {request.path} in time")


class HttpStream:
    """A streaming answer."""

    def __init__(self, connection: Connection, answer: Answer, idle_timeout: float | None) -> None:
        self._connection = connection
        self._answer = answer
        self._idle_timeout = idle_timeout
        self.status = 0
        self.headers: dict[str, str] = {}

    async def opened(self) -> None:
        while not self._answer.status:
            await self._more()
        self.status, self.headers = self._answer.status, self._answer.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        answer = self._answer
        while True:
            if answer.pieces:
                data = answer.body()
                self._connection.read_on()
                yield data
            elif answer.done:
                return
            else:
                await self._more()

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self])

    async def _more(self) -> None:
        limit = self._idle_timeout
        await self._connection.wait(None if limit is None else asyncio.get_running_loop().time() + limit)


def resource_of(path: str) -> str:
    """`workloads/status` of the path of an object's status; the path itself where it names no resource."""
    parts = path.split("/")
    head = 3 if parts[1:2] == ["api"] else 4
    rest = parts[head:]
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    return "/".join(rest[::2]) if rest else path


def _plain(answer: Answer, most: int) -> bytes:
    body = answer.body()
    if not body or answer.headers.get("content-encoding") != "gzip":
        return body
    unpacked = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        plain = unpacked.decompress(body, most)
    except zlib.error as error:
        raise Cut(f"its answer cannot be unpacked: {error}", begun=True) from error
    if unpacked.unconsumed_tail:
        raise Cut(f"its answer has more than {most} bytes when unpacked", begun=True)
    if not unpacked.eof:
        raise Cut("its answer cannot be unpacked: it is incomplete", begun=True)
    return plain


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _address(server: str) -> SplitResult:
    address = urlsplit(server)
    try:
        usable = address.scheme in ("https", "http") and address.hostname and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BadInput(f"the server {server!r} is not a URL such as https://10.0.0.1:6443")
    return address


@lru_cache(256)
def _encoded(*query: tuple[str, str]) -> str:
    """Nearly every write has the same one."""
    return urlencode(query, quote_via=quote)


@lru_cache(256)
def _lines(*headers: tuple[str, str]) -> str:
    """Values with several lines are sent as several headers."""
    lines = [f"{name}: {one}\r\n" for name, value in headers for one in value.split("\n")]
    if any(line.count("\r") > 1 for line in lines):
        raise BadInput("a header's value has a line break in it")
    return "".join(lines)


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """Names are the same in any case, and the last to give one decides."""
    return {name.lower(): value for name, value in headers.items()}
