"""The sandbox without rights: a loopback address and a block of ports per pod, on the machine's own network.

Ray's daemons bind the wildcard address, so an address of one's own is not enough: every pod also gets ports that
no other pod has. Ports that a manifest names are translated to the pod's block by our side of a connection (the probe
runner, port-forward) and by the `ray` command placed first on the pod's PATH.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from shoal.errors import ShoalError
from shoal.local.nodes.runtime import rayentry
from shoal.local.nodes.runtime.ownership import claim
from shoal.local.nodes.runtime.services import PublishedPort, ServiceView
from shoal.local.nodes.sandbox import SandboxAddress
from shoal.local.nodes.sandbox.listeners import holds, listener
from shoal.local.nodes.sandbox.relays import RelayPlace, ServiceRelays, listening, wanted_relays
from shoal.remembered import Remembered

FIRST_PORT, LAST_PORT, BLOCK = 20000, 29999, 20
"""Above Ray's worker ports, below node ports and the kernel's ephemeral range, so that nothing else hits a block."""

RAY_PORTS: dict[int, int] = dict(rayentry.FLAGS.values())
"""Port that manifests and Ray's defaults name, to its place in the pod's block. The dashboard keeps its port: it binds
the pod's own address only."""
DASHBOARD = 8265
_NETWORKS = 250
MOST_SOCKETS = 4096
DASHBOARD_METRICS, AUTOSCALER_METRICS = 9, 10


class NoAddress(ShoalError):
    """All addresses or port blocks of this cluster are taken."""


class LoopbackSandbox:
    """Addresses 127.x.y.z with x from the cluster's name; blocks tested by binding before they are given."""

    name = "loopback"
    isolates = False
    roots = False

    def __init__(self, cluster: str, api: tuple[str, int] | None = None, pods: Path | None = None) -> None:
        self.api = api
        self._pods = pods
        mark = hashlib.sha256(cluster.encode()).hexdigest()[:4]
        self.scratch_root = Path("/tmp") / f"shoal-{os.getuid()}" / mark  # short, see `scratch`
        self.lookup: Callable[[str], list[str] | None] = lambda name: None
        self._place = hashlib.sha256(cluster.encode()).digest()[0]
        self._marker: socket.socket | None = None
        self._blocks: dict[int, socket.socket] = {}
        self._given: dict[str, SandboxAddress] = {}
        self.service_addresses: dict[str, str] = {}
        self._relayed = ServiceRelays(self._listen_for_service, self._reach)
        self._holder: Remembered[int, str] = Remembered(MOST_SOCKETS)
        """Inode of a socket to the pod that was seen to hold it."""
        self._next_host = 1
        self._next_block = hashlib.sha256(cluster.encode()).digest()[1] % 32 * 20

    async def start(self) -> None:
        if not self.roots:  # a container with a root of its own has its own /tmp
            claim(self.scratch_root.parent)

    async def stop(self) -> None:
        self._relayed.close()
        self._given.clear()
        for held in [self._marker, *self._blocks.values()]:
            if held is not None:
                held.close()
        self._blocks.clear()
        for directory in (self.scratch_root, self.scratch_root.parent):
            with contextlib.suppress(OSError):  # others may still use it
                os.rmdir(directory)

    @cached_property
    def _second(self) -> int:
        """Which addresses are ours: 127.SECOND.y.z. Marked by a socket, so that no two clusters choose the same."""
        for step in range(_NETWORKS):
            number = 1 + (self._place + step) % _NETWORKS
            self._marker = mark(f"network-{number}")
            if self._marker is not None:
                return number
        return 1 + self._place % _NETWORKS

    def host_ip(self) -> str:
        return f"127.{self._second}.0.1"

    async def open(self, pod_id: str, taken: SandboxAddress | None = None) -> SandboxAddress:
        if pod_id in self._given:
            return self._given[pod_id]
        if taken is not None and _is_ours(taken) and not self._clashes(taken):
            self._given[pod_id] = taken
            if held := mark(f"ports-{taken.port_base}"):
                self._blocks[taken.port_base] = held
            self._write_peers()
            return taken
        self._given[pod_id] = address = SandboxAddress(pod_id, self._free_ip(), "", self._free_block())
        self._write_peers()
        return address

    async def close(self, address: SandboxAddress) -> None:
        self._given.pop(address.pod_id, None)
        if held := self._blocks.pop(address.port_base, None):
            held.close()
        self._write_peers()
        for directory in (self.scratch(address), self.shared(address)):
            await asyncio.to_thread(shutil.rmtree, directory, True)

    def scratch(self, address: SandboxAddress) -> Path:
        """A short directory for Ray: the paths of its sockets must fit 107 bytes."""
        return self.scratch_root / address.pod_id

    def shared(self, address: SandboxAddress) -> Path:
        """What a pod tells the others of its ports. All of them see it, each writes its own."""
        return (self._pods.parent if self._pods is not None else self.scratch_root) / "peers" / address.pod_id

    def _write_peers(self) -> None:
        """Who lives where, for the `ray` entry of every pod."""
        if self._pods is None:
            return
        peers = {a.ip: {"base": a.port_base, "directory": str(self.shared(a))} for a in self._given.values()}
        for one in self._given.values():
            self.shared(one).mkdir(parents=True, exist_ok=True)
        directory = self._pods.parent / "peers"
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / ".peers.partial"
        partial.write_text(json.dumps(peers))
        partial.replace(directory / "peers.json")

    async def connect(self, address: SandboxAddress, host: str, port: int) -> socket.socket:
        target = address.ip if host in ("localhost", "127.0.0.1", "") else host
        for where, number in self._places(address, target, port):
            if address.pod_id and not await asyncio.to_thread(self._is_pods, address, where, number):
                continue  # another program of the machine, or of another pod
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

    async def publish(self, views: list[ServiceView], ports: Sequence[PublishedPort] = ()) -> dict[PublishedPort, str]:
        wanted = [view.cluster_ip for view in views if view.relayed]
        self.service_addresses = {ip: vip for ip, vip in self.service_addresses.items() if ip in wanted}
        for ip in wanted:
            self.service_addresses.setdefault(ip, self._service_address())
        node = (self.host_ip(), "127.0.0.1")
        # A pod binds such a port itself, on all addresses most likely: we must not be there before it.
        ports = [one for one in ports if one.number != one.target[1] or self.knows(one.number)]
        await self._relayed.publish(wanted_relays(views, self.service_addresses, node, ports))
        return self._relayed.refusals(ports, node)

    def _service_address(self) -> str:
        """Above those of pods."""
        taken = set(self.service_addresses.values())
        places = (f"127.{self._second}.{third}.{last}" for third in (253, 254) for last in range(1, 255))
        free = next((place for place in places if place not in taken), None)
        if free is None:
            raise NoAddress("no loopback address left for another Service; remove some")
        return free

    async def _listen_for_service(self, place: RelayPlace) -> socket.socket:
        return listening(place)

    async def _reach(self, ip: str, port: int) -> socket.socket:
        address = next((given for given in self._given.values() if given.ip == ip), SandboxAddress("", ip))
        return await self.connect(address, ip, port)

    def knows(self, port: int) -> bool:
        """Whether this is a port of Ray's own, which a pod has elsewhere or on its own address only."""
        return port in RAY_PORTS or port == DASHBOARD

    def real_port(self, ip: str, port: int) -> int:
        """Where the pod at this address has what manifests call `port`."""
        address = next((given for given in self._given.values() if given.ip == ip), None)
        if address is None:
            return port
        if self._pods is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                recorded = json.loads(_written_by_pod(self.shared(address) / "ports.json"))
                if str(port) in recorded:
                    return int(recorded[str(port)])
        return address.port_base + RAY_PORTS[port] if port in RAY_PORTS else port

    def _places(self, address: SandboxAddress, host: str, port: int) -> list[tuple[str, int]]:
        """Where a connection to host:port of this pod may lead, most likely first."""
        if host != address.ip:
            return [(host, port)]
        number = self.real_port(host, port)
        found = [(host, number), ("127.0.0.1", number)]
        return found if number == port else [*found, (host, port)]

    def _is_pods(self, address: SandboxAddress, ip: str, port: int) -> bool:
        """Whether a connection there leads to this pod: to its own address, or to a socket that it holds. What a probe
        names as a host of its own is not asked for."""
        if ip not in (address.ip, "127.0.0.1"):
            return True
        found = listener(ip, port)
        if found is None:
            return False
        inode, alone = found
        if alone and ip == address.ip:
            return True
        if self._holder.get(inode) != address.pod_id:
            if self._pods is None or not holds(self._pods / address.pod_id, inode):
                return False
            self._holder.remember(inode, address.pod_id)
        return True

    def _clashes(self, address: SandboxAddress) -> bool:
        return any(other.ip == address.ip or other.port_base == address.port_base for other in self._given.values())

    def _free_ip(self) -> str:
        taken = {address.ip for address in self._given.values()}
        for _ in range(65000):
            candidate = f"127.{self._second}.{1 + self._next_host // 254}.{1 + self._next_host % 254}"
            self._next_host = (self._next_host + 1) % 64000
            if candidate not in taken and _bindable(DASHBOARD, candidate):  # a pod of a killed cluster may live there
                return candidate
        raise NoAddress("no loopback address left; remove pods")

    def _free_block(self) -> int:
        taken = {address.port_base for address in self._given.values()}
        blocks = (LAST_PORT - FIRST_PORT + 1) // BLOCK
        for step in range(blocks):
            base = FIRST_PORT + (self._next_block + step) % blocks * BLOCK
            if base in taken or not all(_bindable(base + offset) for offset in range(BLOCK)):
                continue
            held = mark(f"ports-{base}")
            if held is not None:
                self._blocks[base] = held
                self._next_block = (self._next_block + step + 1) % blocks
                return base
        raise NoAddress(f"no block of {BLOCK} free ports left between {FIRST_PORT} and {LAST_PORT}; remove pods")


class MountsSandbox(LoopbackSandbox):
    """The same network, for containers with a root of their own: where there are mounts but no network namespaces."""

    name = "mounts"
    roots = True


def _written_by_pod(path: Path) -> bytes:
    """A file that a pod may have replaced by anything: a link, a pipe that never ends, gigabytes. Raises OSError."""
    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise OSError(f"{path} is no file")
        return os.read(held, 1 << 16)
    finally:
        os.close(held)


def mark(name: str) -> socket.socket | None:
    """Hold a network or a block of ports of this machine until closed; None when another process holds it.

    Ports that are given but not yet bound look free to all others.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0shoal-loopback-{name}")
    except OSError:
        held.close()
        return None
    return held


def _is_ours(address: SandboxAddress) -> bool:
    """Not one that the pod had in another sandbox, before the cluster was started again with this one."""
    return bool(address.port_base)


def _bindable(port: int, address: str = "") -> bool:
    """Free at this address, or on the wildcard one; Ray itself never notices a clash."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
