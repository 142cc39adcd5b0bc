"""Connections to other networks, for what is done on behalf of pods: names looked up, proxied requests.

Two ways: straight from this process, or through the broker when this process lives in a network of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Protocol

from shoal.local.nodes.sandbox.broker import refuse_machine


class Outward(Protocol):
    async def connect(self, host: str, port: int, loopback: bool = False) -> socket.socket:
        """A connected, non-blocking socket. Raises OSError or ValueError; loopback only where that is meant."""
        ...

    async def datagram(self) -> socket.socket: ...


class Direct:
    """This process is in the machine's own network."""

    async def connect(self, host: str, port: int, loopback: bool = False) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not loopback:
            refuse_machine(str(entry[4][0]) for entry in found)
        refusal: OSError | None = None
        for family, kind, protocol, _, address in found:
            made = socket.socket(family, kind, protocol)
            made.setblocking(False)
            try:
                await loop.sock_connect(made, address)
                return made
            except OSError as error:
                refusal = error
                made.close()
            except BaseException:
                made.close()
                raise
        raise refusal or OSError(f"{host} has no address")

    async def datagram(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setblocking(False)
        return made


class Brokered:
    """Sockets made by the broker at the other end of `channel`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    async def connect(self, host: str, port: int, loopback: bool = False) -> socket.socket:
        return await self._ask({"kind": "connect", "host": host, "port": port, "loopback": loopback})

    async def datagram(self) -> socket.socket:
        return await self._ask({"kind": "datagram"})

    async def _ask(self, request: dict[str, object]) -> socket.socket:
        here, there = socket.socketpair()
        here.setblocking(False)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        with here:
            with there:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [there.fileno()])
            loop.add_reader(here, lambda: None if answered.done() else answered.set_result(None))
            try:
                await answered
            finally:
                loop.remove_reader(here)
            text, descriptors, _, _ = socket.recv_fds(here, 4096, 1)
        if not descriptors:
            raise OSError(json.loads(text or b"{}").get("error") or "the proxy to other networks has ended")
        made = socket.socket(fileno=descriptors[0])
        made.setblocking(False)
        return made
