"""Which private network a cluster's pods live in: one that nothing else on this machine uses.

Two clusters on one network would answer for each other's pods. The choice begins at a place given by the cluster's
name, so that it is mostly the same at every start, and a bridge that is still there keeps the network it has.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

from shoal.errors import ShoalError

ROUTES = Path("/proc/net/route")
FIRST, COUNT = 64, 128
NARROWEST_COMMON = 12
"""Wider routes (a default route, all of 10.0.0.0/8) say where the rest of the world is, not that a network is taken."""

Network = ipaddress.IPv4Network

SERVICES = Network("10.96.0.0/12")
"""Where API servers, ours and others, usually take the addresses of Services from: no pod may have one of those."""


class NoNetwork(ShoalError):
    """Every network that we might use is taken."""


def choose_network(place: int, bridge: str) -> Network:
    """The network of this bridge if it has one, else the first free one from `place` on."""
    taken = [(interface, network) for interface, network in routes() if network.prefixlen >= NARROWEST_COMMON]
    for interface, network in taken:
        if interface == bridge and network.prefixlen == 16:
            return network
    for step in range(COUNT):
        candidate = Network(f"10.{FIRST + (place + step) % COUNT}.0.0/16")
        if not candidate.overlaps(SERVICES) and not any(candidate.overlaps(network) for _, network in taken):
            return candidate
    raise NoNetwork(f"every network from 10.{FIRST}.0.0 to 10.{FIRST + COUNT - 1}.0.0 is in use here; stop a cluster")


def routes() -> list[tuple[str, Network]]:
    """Interface and destination of every route of this machine."""
    found = []
    for line in ROUTES.read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7:
            found.append((fields[0], Network((_address(fields[1]), _address(fields[7])), strict=False)))
    return found


def _address(text: str) -> str:
    """The kernel writes addresses as numbers in this machine's byte order."""
    return socket.inet_ntoa(struct.pack("=I", int(text, 16)))
