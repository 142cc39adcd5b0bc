"""How a pod is kept apart from the others: network namespaces where the machine allows, loopback addresses where not.

The pod's lifecycle opens one sandbox per pod and asks it for sockets; all that differs between the ways is here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from shoal.local.nodes.runtime.services import PublishedPort, ServiceView


class SandboxAddress(msgspec.Struct, frozen=True):
    """Where a pod lives. `namespace` is the path of its network namespace, empty in the loopback sandbox."""

    pod_id: str
    ip: str
    namespace: str = ""
    port_base: int = 0


class Sandbox(Protocol):
    name: str
    isolates: bool
    """Whether pods get a network of their own: standard ports."""
    roots: bool
    """Whether containers get a root of their own: mount paths, /tmp, users, a PID namespace."""

    lookup: Callable[[str], list[str] | None]
    """Addresses of a cluster name, set by the agent; None for names that are not the cluster's."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Let go of what the whole cluster shares. Pods are closed before."""
        ...

    async def open(self, pod_id: str, taken: SandboxAddress | None = None) -> SandboxAddress:
        """Give a pod its address, or take back the one it had before a restart."""
        ...

    async def close(self, address: SandboxAddress) -> None: ...

    async def connect(self, address: SandboxAddress, host: str, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket to host:port as the pod itself would see it."""
        ...

    async def publish(self, views: list[ServiceView], ports: Sequence[PublishedPort] = ()) -> dict[PublishedPort, str]:
        """Serve these Services, and no others, at addresses of their own, and these ports of the machine.

        Those of the latter that cannot be had, and why.
        """
        ...

    service_addresses: dict[str, str]
    """Cluster IP to the address at which pods really reach it."""

    def host_ip(self) -> str:
        """The node's address as pods see it."""
        ...
