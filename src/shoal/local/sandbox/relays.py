"""Addresses of Services: listeners that hand each connection to one of the pods behind.

Both sandboxes use this; they differ in which address a Service gets, how one listens there, and how a pod is reached.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable

from shoal.local.runtime.services import ServiceView, Target
from shoal.local.sandbox.relay import relay_streams

log = logging.getLogger(__name__)

Listen = Callable[[str, int], Awaitable[socket.socket]]
Reach = Callable[[str, int], Awaitable[socket.socket]]


class ServiceRelays:
    """Keeps one listener per address and port that is wanted, and none besides."""

    def __init__(self, listen: Listen, reach: Reach) -> None:
        self._listen = listen
        self._reach = reach
        self._servers: dict[Target, asyncio.Server] = {}
        self._targets: dict[Target, tuple[Target, ...]] = {}
        self._turn = 0

    async def publish(self, wanted: dict[Target, tuple[Target, ...]]) -> None:
        """Listener to the pods behind it."""
        self._targets = wanted
        for gone in [place for place in self._servers if place not in wanted]:
            self._servers.pop(gone).close()
        for place in wanted:
            if place not in self._servers:
                try:
                    listener = await self._listen(*place)
                    self._servers[place] = await asyncio.start_server(self._serving(place), sock=listener)
                except OSError as error:
                    log.warning("no listener for the Service at %s:%d: %s", *place, error.strerror)

    def listens(self, place: Target) -> bool:
        return place in self._servers

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def _serving(self, place: Target) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            targets = self._targets.get(place) or ()
            self._turn += 1
            for step in range(len(targets)):  # in turn, and past those that refuse
                try:
                    connection = await self._reach(*targets[(self._turn + step) % len(targets)])
                    far_reader, far_writer = await asyncio.open_connection(sock=connection)
                except OSError:
                    continue
                await relay_streams(reader, writer, far_reader, far_writer)
                return
            writer.transport.abort()

        return serve


def wanted_relays(views: Iterable[ServiceView], address: dict[str, str]) -> dict[Target, tuple[Target, ...]]:
    """Where to listen, by the address that each cluster IP got."""
    return {
        (address[view.cluster_ip], port.number): port.targets
        for view in views
        if view.cluster_ip in address
        for port in view.relayed
    }
