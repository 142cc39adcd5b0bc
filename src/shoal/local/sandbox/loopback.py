"""The sandbox without rights: a loopback address and a block of ports per pod, on the machine's own network.

Ray's daemons bind the wildcard address, so an address of one's own is not enough: every pod also gets ports that nobody else
has. Ports that a manifest names are translated to the pod's block by whoever connects (the probe runner, port-forward) and
by the `ray` command placed first on the pod's PATH.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.local.sandbox import Address

FIRST_PORT, LAST_PORT, BLOCK = 20000, 31999, 20
"""Above Ray's worker ports and below the kernel's ephemeral range, so that no random bind hits a block."""

RAY_PORTS = {
    6379: 0,  # GCS
    8076: 1,  # node manager
    8077: 2,  # object manager
    52366: 3,  # agent, gRPC
    52365: 4,  # agent, HTTP
    8080: 5,  # metrics
    52367: 6,  # runtime environments
    8265: 7,  # dashboard
    10001: 8,  # client server
    44227: 9,  # dashboard metrics
    44217: 10,  # autoscaler metrics
    8000: 11,  # serve
}
"""Port that manifests and Ray's defaults name, to its place in the pod's block."""


class NoAddress(ShoalError):
    """All addresses or port blocks of this cluster are taken."""


class LoopbackSandbox:
    """Addresses 127.x.y.z with x from the cluster's name; blocks tested by binding before they are given."""

    name = "loopback"
    isolates = False

    def __init__(self, cluster: str, api: tuple[str, int] | None = None) -> None:
        self.api = api
        self.lookup: Callable[[str], list[str] | None] = lambda name: None
        self._second = 1 + hashlib.sha256(cluster.encode()).digest()[0] % 250
        self._given: dict[str, Address] = {}
        self._next_host = 1
        self._next_block = hashlib.sha256(cluster.encode()).digest()[1] % 32 * 20

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        self._given.clear()

    def host_ip(self) -> str:
        return f"127.{self._second}.0.1"

    async def open(self, pod_id: str, taken: Address | None = None) -> Address:
        if pod_id in self._given:
            return self._given[pod_id]
        if taken is not None and not self._clashes(taken):
            self._given[pod_id] = taken
            return taken
        self._given[pod_id] = address = Address(pod_id, self._free_ip(), "", self._free_block())
        return address

    async def close(self, address: Address) -> None:
        self._given.pop(address.pod_id, None)

    async def connect(self, address: Address, host: str, port: int) -> socket.socket:
        target = (address.ip if host in ("localhost", "127.0.0.1", "") else host)
        for where, number in _places(address, target, port):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connection, (where, number))
                return connection
            except ConnectionRefusedError:
                connection.close()
            except BaseException:
                connection.close()
                raise
        raise ConnectionRefusedError(f"nothing listens on port {port} of the pod")

    def _clashes(self, address: Address) -> bool:
        return any(other.ip == address.ip or other.port_base == address.port_base for other in self._given.values())

    def _free_ip(self) -> str:
        taken = {address.ip for address in self._given.values()}
        for _ in range(65000):
            candidate = f"127.{self._second}.{1 + self._next_host // 254}.{1 + self._next_host % 254}"
            self._next_host = (self._next_host + 1) % 64000
            if candidate not in taken:
                return candidate
        raise NoAddress("no loopback address left; remove pods")

    def _free_block(self) -> int:
        taken = {address.port_base for address in self._given.values()}
        blocks = (LAST_PORT - FIRST_PORT + 1) // BLOCK
        for step in range(blocks):
            base = FIRST_PORT + (self._next_block + step) % blocks * BLOCK
            if base not in taken and all(_bindable(base + offset) for offset in range(BLOCK)):
                self._next_block = (self._next_block + step + 1) % blocks
                return base
        raise NoAddress(f"no block of {BLOCK} free ports left between {FIRST_PORT} and {LAST_PORT}; remove pods")


def translated(port: int, base: int) -> int:
    """Where a well-known Ray port lies in a block; other ports stay what they are."""
    return base + RAY_PORTS[port] if base and port in RAY_PORTS else port


def _places(address: Address, host: str, port: int) -> list[tuple[str, int]]:
    """Where a connection to host:port of this pod may lead, most likely first."""
    number = translated(port, address.port_base)
    found = [(host, number)]
    if host == address.ip:
        found += [("127.0.0.1", number)] if number != port else []
        found += [(host, port), ("127.0.0.1", port)] if number != port else []
    return found


def _bindable(port: int) -> bool:
    """Free on the wildcard address; Ray itself never notices a clash."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
