"""The way out of a network namespace: an HTTPS proxy on the pod's own loopback, served by the agent.

Pods have no route to other networks. Clients that honour HTTPS_PROXY (pip, requests, S3 and model hubs) get out through
here; where the machine itself needs a proxy, requests go on to that. Loopback addresses are refused: they would be the
machine's, not the pod's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from urllib.parse import urlsplit

from shoal.local.nodes.sandbox.broker import refuse_machine
from shoal.local.nodes.sandbox.outward import Outward
from shoal.local.nodes.sandbox.relay import relay_streams

PORT = 34127
KEPT = "SHOAL_MACHINE_PROXY"
"""Where the machine's proxy is kept when our own process must not use it."""
_LONGEST_HEAD = 16 << 10
_PATIENCE = 30.0


def machine_proxy() -> tuple[str, int] | None:
    """The proxy that this machine was told to use, if any."""
    names = (KEPT, "https_proxy", "HTTPS_PROXY")
    parts = urlsplit(next((os.environ[name] for name in names if os.environ.get(name)), ""))
    return (
        (parts.hostname, parts.port or 3128)
        if parts.hostname and parts.scheme == "http" and not parts.username
        else None
    )


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: tuple[str, int] | None, outward: Outward
) -> None:
    """One CONNECT request, then bytes both ways."""
    try:
        async with asyncio.timeout(_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            host, port = _target(head)
            far_reader, far_writer = await _open(host, port, upstream, head, outward)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError, ValueError) as error:
        writer.write(f"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nX-Reason: {_plain(error)}\r\n\r\n".encode())
        writer.close()
        return
    if upstream is None:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await relay_streams(reader, writer, far_reader, far_writer)


async def _open(
    host: str, port: int, upstream: tuple[str, int] | None, head: bytes, outward: Outward
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if upstream is not None:
        await _refuse_machine(host, port)
        proxy = await outward.connect(*upstream, loopback=True)
        reader, writer = await asyncio.open_connection(sock=proxy)
        writer.write(head)
        return reader, writer
    far = await outward.connect(host, port)
    return await asyncio.open_connection(sock=far, limit=_LONGEST_HEAD)


async def _refuse_machine(host: str, port: int) -> None:
    """The machine's proxy may live on this machine: its loopback is no more a pod's than ours."""
    with contextlib.suppress(socket.gaierror):  # only the proxy knows such a name
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        refuse_machine(str(entry[4][0]) for entry in found)


def _target(head: bytes) -> tuple[str, int]:
    method, where, _ = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ", 2)
    host, _, port = where.rpartition(":")
    if method != "CONNECT" or not host or not port.isdigit():
        raise ValueError("only CONNECT host:port is served")
    return host.strip("[]"), int(port)


def _plain(error: BaseException) -> str:
    return "".join(letter for letter in str(error) if letter.isascii() and letter.isprintable())[:200]
