"""The sandbox with rights: a network namespace per pod, joined by one bridge per cluster.

Pods keep the ports their manifests name. The API server stays on loopback and is relayed into every pod's own loopback,
so nothing of it shows on the bridge. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN, and no program of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from shoal.local.nodes.runtime.services import PublishedPort, ServiceView
from shoal.local.nodes.sandbox import SandboxAddress, nat, netlink, outside
from shoal.local.nodes.sandbox.dns import PodResolver, upstream_server
from shoal.local.nodes.sandbox.netlink import NetworkFailed
from shoal.local.nodes.sandbox.networks import choose_network
from shoal.local.nodes.sandbox.outward import Direct, Outward
from shoal.local.nodes.sandbox.relay import relay
from shoal.local.nodes.sandbox.relays import RelayPlace, ServiceRelays, listening, wanted_relays

log = logging.getLogger(__name__)

T = TypeVar("T")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

NETNS_DIRECTORY = "/run/netns"


class NetnsSandbox:
    """One bridge and one private network per cluster. `api` is where the API server listens on loopback."""

    name = "netns"
    isolates = True
    roots = True

    def __init__(self, cluster: str, api: tuple[str, int] | None = None, outward: Outward | None = None) -> None:
        mark = hashlib.sha256(cluster.encode()).hexdigest()
        self.mark = mark[:6]
        self.bridge = f"shoal{self.mark}"
        self.api = api
        self._network = choose_network(int(mark[6:8], 16), self.bridge)
        self._given: dict[str, str] = {}
        self._next = 256
        self._relays: dict[str, list[asyncio.Server]] = {}
        self._outward: Outward = outward or Direct()
        self._machine_proxy = outside.machine_proxy()
        self._resolvers: dict[str, asyncio.DatagramTransport] = {}
        self.lookup: Callable[[str], list[str] | None] = lambda name: None
        self._upstream = upstream_server()
        self.service_addresses: dict[str, str] = {}
        self._relayed = ServiceRelays(self._listen_for_service, self._reach)
        self._inside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netns")

    async def start(self) -> None:
        await self._do(lambda: netlink.add_bridge(self.bridge, self.host_ip()))
        if why := await self._do(lambda: nat.open_way(self.mark, self.bridge, self._network)):
            log.info("pods have no route out but their HTTPS proxy: %s", why)

    async def stop(self) -> None:
        self._relayed.close()
        for pod_id in list(self._given):
            await self.close(SandboxAddress(pod_id, self._given[pod_id]))
        for name in self.leftovers():
            await self._do(partial(netlink.remove_namespace, Path(NETNS_DIRECTORY, name)))
        await self._do(lambda: nat.close_way(self.mark))
        await self._do(lambda: netlink.remove_link(self.bridge))
        self._inside.shutdown(wait=False)

    def leftovers(self) -> list[str]:
        """Namespaces of this cluster that no pod holds any more."""
        held = {self._name(pod_id) for pod_id in self._given}
        with contextlib.suppress(FileNotFoundError):
            return [
                name
                for name in os.listdir(NETNS_DIRECTORY)
                if name.startswith(f"shoal-{self.mark}-") and name not in held
            ]
        return []

    def host_ip(self) -> str:
        return str(self._network[1])

    async def open(self, pod_id: str, taken: SandboxAddress | None = None) -> SandboxAddress:
        path = self._path(pod_id)
        if taken is not None and _exists(taken.namespace):
            self._given[pod_id] = taken.ip
            await self._serve(pod_id, taken.namespace)
            return taken
        address = self._free()
        self._given[pod_id] = address
        outside = f"sh{self.mark[:3]}{pod_id[:9]}"
        try:
            await self._do(lambda: self._join(path, outside, address))
            await self._serve(pod_id, str(path))
        except BaseException:
            self._given.pop(pod_id, None)
            raise
        return SandboxAddress(pod_id, address, str(path))

    def _join(self, path: Path, outside: str, address: str) -> None:
        netlink.remove_namespace(path)
        netlink.remove_link(outside)  # that of a pod whose namespace is still ending
        netlink.add_namespace(path)
        netlink.connect_namespace(path, self.bridge, outside, address, self.host_ip())

    async def close(self, address: SandboxAddress) -> None:
        if not address.namespace and address.pod_id not in self._given:
            return
        for server in self._relays.pop(address.pod_id, ()):
            server.close()
        resolver = self._resolvers.pop(address.pod_id, None)
        if resolver is not None:
            resolver.close()
        await self._do(lambda: netlink.remove_namespace(self._path(address.pod_id)))
        self._given.pop(address.pod_id, None)

    async def connect(self, address: SandboxAddress, host: str, port: int) -> socket.socket:
        connection = (
            await self._within(address.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            if address.namespace
            else socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # a pod on the machine's own network
        )
        connection.setblocking(False)
        try:
            target = "127.0.0.1" if host in ("localhost", "") else host
            await asyncio.get_running_loop().sock_connect(connection, (target, port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def publish(self, views: list[ServiceView], ports: Sequence[PublishedPort] = ()) -> dict[PublishedPort, str]:
        wanted = {view.cluster_ip for view in views if view.relayed}
        known = set(self.service_addresses)
        if wanted != known:
            new, old = sorted(wanted - known), sorted(known - wanted)
            await self._do(lambda: netlink.change_addresses(self.bridge, new, old))
        self.service_addresses = {ip: ip for ip in wanted}
        node = (self.host_ip(), "127.0.0.1")
        await self._relayed.publish(wanted_relays(views, self.service_addresses, node, ports))
        return self._relayed.refusals(ports, node)

    async def _listen_for_service(self, place: RelayPlace) -> socket.socket:
        """A cluster IP on the bridge alone: not for the machine's other networks, and apart from other clusters'."""
        return listening(place, self.bridge if place.address in self.service_addresses else "")

    async def _reach(self, ip: str, port: int) -> socket.socket:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (ip, port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _serve(self, pod_id: str, namespace: str) -> None:
        """What a pod finds on its own loopback: a name server, a way out, and the API server."""
        if pod_id in self._resolvers:
            return
        asked = await self._within(namespace, _datagram_socket)
        loop = asyncio.get_running_loop()
        resolver, _ = await loop.create_datagram_endpoint(
            lambda: PodResolver(self._look_up, self._upstream, self._outward), sock=asked
        )
        self._resolvers[pod_id] = resolver
        await self._listen(pod_id, namespace, outside.PORT, self._lead_out)
        if self.api is not None:
            await self._listen(pod_id, namespace, self.api[1], self._lead_to_api)

    def _look_up(self, name: str) -> list[str] | None:
        return self.lookup(name)

    async def _listen(self, pod_id: str, namespace: str, port: int, serve: Serve) -> None:
        """Listen on the pod's own loopback; connections are answered out here."""
        listener = await self._within(namespace, lambda: socket.create_server(("127.0.0.1", port), backlog=64))
        self._relays.setdefault(pod_id, []).append(await asyncio.start_server(serve, sock=listener))

    async def _lead_out(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await outside.serve(reader, writer, self._machine_proxy, self._outward)

    async def _lead_to_api(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.api is not None
        await relay(reader, writer, self.api)

    async def _within(self, namespace: str, make: Callable[[], T]) -> T:
        """Do something in a pod's network namespace. A socket stays where it was made."""
        return await self._do(lambda: netlink.within(namespace, make))

    async def _do(self, work: Callable[[], T]) -> T:
        """In the one thread that may change namespaces."""
        return await asyncio.get_running_loop().run_in_executor(self._inside, work)

    def _free(self) -> str:
        taken = set(self._given.values())
        for _ in range(65000):
            candidate = str(self._network[self._next])
            self._next = self._next + 1 if self._next < 65000 else 256
            if candidate not in taken and not candidate.endswith((".0", ".255")):
                return candidate
        raise NetworkFailed(f"no address left in {self._network}; remove pods")

    def _name(self, pod_id: str) -> str:
        return f"shoal-{self.mark}-{pod_id}"

    def _path(self, pod_id: str) -> Path:
        return Path(NETNS_DIRECTORY, self._name(pod_id))


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.bind(("127.0.0.1", 53))
    return made
