"""Addresses and node ports of Services: listeners that hand each connection or datagram to one of the pods behind.

Both sandboxes use this; they differ in which address a Service gets, how one listens there, and how a pod is reached.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from shoal.local.nodes.runtime.services import PublishedPort, ServedPort, ServiceView, Target
from shoal.local.nodes.sandbox.datagrams import DatagramRelay
from shoal.local.nodes.sandbox.relay import relay_streams

log = logging.getLogger(__name__)


class RelayPlace(msgspec.Struct, frozen=True):
    """Where one listens."""

    address: str
    port: int
    protocol: str = "TCP"

    @property
    def socket_type(self) -> socket.SocketKind:
        return socket.SOCK_DGRAM if self.protocol == "UDP" else socket.SOCK_STREAM


Wanted = dict[RelayPlace, tuple[Target, ...]]
Listen = Callable[[RelayPlace], Awaitable[socket.socket]]
"""A socket bound to a place, and listening if it is one for connections. Raises OSError."""
Reach = Callable[[str, int], Awaitable[socket.socket]]


class ServiceRelays:
    """Keeps one listener per place that is wanted, and none besides."""

    def __init__(self, listen: Listen, reach: Reach) -> None:
        self._listen = listen
        self._reach = reach
        self._servers: dict[RelayPlace, asyncio.Server | asyncio.DatagramTransport] = {}
        self._targets: Wanted = {}
        self._turn = 0
        self.refused: dict[RelayPlace, str] = {}
        """Where no relay can listen, and why."""

    async def publish(self, wanted: Wanted) -> None:
        """Listener to the pods behind it."""
        self._targets = wanted
        refused: dict[RelayPlace, str] = {}
        for gone in [place for place in self._servers if place not in wanted]:
            self._servers.pop(gone).close()
        for place in wanted:
            if place not in self._servers:
                try:
                    self._servers[place] = await self._begin(place, await self._listen(place))
                except OSError as error:
                    refused[place] = error.strerror or str(error)
        for place in [one for one in refused if one not in self.refused]:
            log.warning("no relay listens at %s: %s", place, refused[place])
        self.refused = refused

    def refusals(self, ports: Iterable[PublishedPort], node: tuple[str, ...]) -> dict[PublishedPort, str]:
        """Host ports that lead nowhere, and why."""
        return {
            asked: self.refused[place] for asked in ports for place in host_places(asked, node) if place in self.refused
        }

    def listens(self, place: RelayPlace) -> bool:
        return place in self._servers

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    async def _begin(self, place: RelayPlace, held: socket.socket) -> asyncio.Server | asyncio.DatagramTransport:
        if place.protocol == "UDP":
            loop = asyncio.get_running_loop()
            relay = DatagramRelay(lambda: next(iter(self._in_turn(place)), None))
            transport, _ = await loop.create_datagram_endpoint(lambda: relay, sock=held)
            return transport

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for target in self._in_turn(place):  # past those that refuse
                try:
                    connection = await self._reach(*target)
                    far_reader, far_writer = await asyncio.open_connection(sock=connection)
                except OSError:
                    continue
                await relay_streams(reader, writer, far_reader, far_writer)
                return
            writer.transport.abort()

        return await asyncio.start_server(serve, sock=held)

    def _in_turn(self, place: RelayPlace) -> list[Target]:
        """The pods behind it, another one first each time."""
        targets = self._targets.get(place) or ()
        self._turn += 1
        first = self._turn % len(targets) if targets else 0
        return [*targets[first:], *targets[:first]]


def listening(place: RelayPlace, device: str = "") -> socket.socket:
    """A socket at a place; with a device, for what comes from there alone."""
    made = socket.socket(socket.AF_INET, place.socket_type)
    try:
        made.setblocking(False)
        if place.protocol != "UDP":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if device:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        made.bind((place.address, place.port))
        if place.protocol != "UDP":
            made.listen(128)
    except BaseException:
        made.close()
        raise
    return made


def wanted_relays(
    views: Iterable[ServiceView],
    address: dict[str, str],
    node: tuple[str, ...] = (),
    host_ports: Iterable[PublishedPort] = (),
) -> Wanted:
    """Where to listen: by the address that each cluster IP got, and for ports of the node at those of the node.

    Pods of several nodes may ask for one host port; here they share a machine, and are reached in turn.
    """
    found: Wanted = {}
    for asked in host_ports:
        for place in host_places(asked, node):
            found[place] = (*found.get(place, ()), asked.target)
    for view in views:
        for port in view.relayed:
            if view.cluster_ip in address:
                found[RelayPlace(address[view.cluster_ip], port.number, port.protocol)] = port.targets
            for place in _node_places(port, node):
                found[place] = port.targets
    return found


def host_places(asked: PublishedPort, node: tuple[str, ...]) -> list[RelayPlace]:
    return [
        RelayPlace(address, asked.number, asked.protocol) for address in ((asked.address,) if asked.address else node)
    ]


def _node_places(port: ServedPort, node: tuple[str, ...]) -> list[RelayPlace]:
    return [RelayPlace(address, port.node_port, port.protocol) for address in node] if port.node_port else []
