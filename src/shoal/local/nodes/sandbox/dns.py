"""A resolver small enough to sit in every pod: service names from a table, everything else from the machine's own.

Listens on the pod's loopback. /etc/hosts alone is not enough: resolvers that ask for IPv6 as well (gRPC's does) go to a
name server for that and wait for its timeout.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

from shoal.api.meta import Json
from shoal.local.nodes.runtime.names import DOMAIN
from shoal.local.nodes.sandbox.outward import Direct, Outward

Lookup = Callable[[str], list[str] | None]
"""Addresses of a cluster name; an empty list for a name without any now; None for a name that is not the cluster's."""

A, AAAA = 1, 28
_NO_ERROR, _FAILED, _NO_NAME = 0, 2, 3
_TTL = 2
_UPSTREAM_PATIENCE = 3.0


class Query:
    """One question of a DNS message."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        if len(message) < 17 or message[4:6] != b"\x00\x01":
            raise ValueError("not a query with one question")
        labels, at = [], 12
        while length := message[at]:
            if length > 63 or at + length + 1 >= len(message):
                raise ValueError("a name that does not end")
            labels.append(message[at + 1 : at + 1 + length].decode("ascii", "replace"))
            at += length + 1
        self.name = ".".join(labels).lower()
        self.kind = struct.unpack_from("!H", message, at + 1)[0]
        self.question = message[12 : at + 5]

    def answer(self, code: int, addresses: list[str] = []) -> bytes:  # noqa: B006 - never changed
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", A, 1, _TTL, 4) + socket.inet_aton(address) for address in addresses
        )
        flags = 0x8180 | code
        return self.message[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0) + self.question + records


class PodResolver(asyncio.DatagramProtocol):
    """Answers one pod."""

    def __init__(self, lookup: Lookup, upstream: str | None, outward: Outward | None = None) -> None:
        self._lookup = lookup
        self._outward: Outward = outward or Direct()
        self._upstream = upstream
        self._transport: asyncio.DatagramTransport | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            query = Query(data)
        except (ValueError, IndexError, struct.error):
            return
        found = self._lookup(query.name)
        if found is not None:
            self._send(query.answer(_NO_ERROR if found else _NO_NAME, found if query.kind == A else []), addr)
        elif self._upstream is None or query.name.endswith(f".{DOMAIN}") or "." not in query.name:
            self._send(query.answer(_NO_NAME), addr)
        else:
            task = asyncio.create_task(self._ask_upstream(query, addr))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask_upstream(self, query: Query, client: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        with await self._outward.datagram() as asking:
            try:
                await loop.sock_sendto(asking, query.message, (self._upstream or "", 53))
                answer = await asyncio.wait_for(loop.sock_recv(asking, 4096), _UPSTREAM_PATIENCE)
            except (OSError, TimeoutError):
                answer = query.answer(_FAILED)
        self._send(answer, client)

    def _send(self, answer: bytes, client: tuple[str, int]) -> None:
        if self._transport is not None:
            self._transport.sendto(answer, client)


def upstream_server() -> str | None:
    """The machine's own first name server, IPv4 only."""
    try:
        lines = Path("/etc/resolv.conf").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver" and "." in words[1]:
            return words[1]
    return None


def resolv_conf(namespace: str, spec: Json | None = None) -> str:
    """A pod's /etc/resolv.conf, by its policy and with what it adds."""
    policy, added = (spec or {}).get("dnsPolicy"), (spec or {}).get("dnsConfig") or {}
    servers, searches, options = ["127.0.0.1"], [f"{namespace}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN], {"ndots": "5"}
    if policy == "None":
        servers, searches, options = [], [], {}
    elif policy == "Default":
        searches, options = [], {}
    servers += added.get("nameservers") or ()
    searches += added.get("searches") or ()
    options |= {"timeout": "2", "attempts": "2"} if policy != "None" else {}
    options |= {option["name"]: str(option.get("value") or "") for option in added.get("options") or ()}
    lines = [f"nameserver {server}" for server in servers]
    if searches:
        lines.append(f"search {' '.join(searches)}")
    if options:
        words = [f"{name}:{value}" if value else name for name, value in options.items()]
        lines.append(f"options {' '.join(words)}")
    return "\n".join(lines) + "\n"
