"""The names that an agent's pods know: Services and the pods behind them, in hosts files, variables and answers.

Followed by events; many changes at once are one rewrite.
"""

from __future__ import annotations

import asyncio
import logging

from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.cache import Cache, Change
from shoal.kube.clock import Clock
from shoal.local.nodes.runtime.names import ServiceLines, hosts_text, lookup, service_lines
from shoal.local.nodes.runtime.processes import ProcessRuntime
from shoal.local.nodes.runtime.services import PublishedPort, ServiceView, host_ports, link_variables, service_views

log = logging.getLogger(__name__)

TOGETHER = 0.05
"""Changes within this time are one."""


class Names:
    def __init__(self, pods: Cache[Json], services: Cache[Json], runtimes: list[ProcessRuntime], clock: Clock) -> None:
        self._pods, self._services, self._runtimes, self._clock = pods, services, runtimes, clock
        self._stale = asyncio.Event()
        self._lines: ServiceLines | None = None
        self._seen: list[ServiceView] | None = None
        self._refused: set[tuple[str, PublishedPort]] = set()
        self._published = False

    async def keep(self) -> None:
        """Until cancelled: hosts files and addresses of Services follow what changes."""
        self._services.subscribe(lambda change: self._stale.set())
        self._stale.set()
        while True:
            await self._stale.wait()
            await self._clock.sleep(TOGETHER)
            self._stale.clear()
            self._seen = None
            for runtime in self._runtimes:
                if runtime.pods or self._published:
                    try:
                        await self._publish(runtime)
                    except (ShoalError, OSError) as error:
                        log.warning("Services cannot be served at addresses of their own: %s", error)
            self._lines = None
            for runtime in self._runtimes:
                runtime.refresh_names()

    async def _publish(self, runtime: ProcessRuntime) -> None:
        """A port of the machine that another program has is said at every pod that asked for it, once."""
        asking = {
            pod["metadata"]["uid"]: (pod, host_ports(pod))
            for pod in self._pods.list()
            if pod["metadata"]["uid"] in runtime.pods
        }
        refused = await runtime.host.sandbox.publish(
            self._views(), [port for _, ports in asking.values() for port in ports]
        )
        told = {(uid, port) for uid, (_, ports) in asking.items() for port in ports if port in refused}
        for uid, port in told - self._refused:
            said = f"hostPort {port.number} cannot be had on this machine: {refused[port]}"
            runtime.host.announce(asking[uid][0], "Warning", "HostPortConflict", said)
        self._refused, self._published = told, bool(asking)

    def pod_changed(self, change: Change) -> None:
        if _named(change.old) != _named(change.new):
            self._stale.set()

    def hosts_text(self, pod: Json, own: str) -> str:
        return hosts_text(own, pod["metadata"].get("namespace", ""), self._service_lines(), self._named_pods())

    def look_up(self, name: str) -> list[str] | None:
        return lookup(name, self._service_lines(), self._named_pods())

    def links(self, namespace: str) -> dict[str, str]:
        return link_variables(self._views(), namespace, self._addresses())

    def _service_lines(self) -> ServiceLines:
        if self._lines is None:
            self._lines = service_lines(self._views(), self._addresses())
        return self._lines

    def _views(self) -> list[ServiceView]:
        if self._seen is None:
            self._seen = service_views(self._services.list(), self._pods.list())
        return self._seen

    def _addresses(self) -> dict[str, str]:
        return self._runtimes[0].host.sandbox.service_addresses if self._runtimes else {}

    def _named_pods(self) -> list[Json]:
        return [pod for pod in self._pods.list() if pod["spec"].get("subdomain")]


def _named(pod: Json | None) -> object:
    """What of a pod decides the names that others see."""
    if pod is None:
        return None
    status = pod.get("status") or {}
    if not status.get("podIP"):
        return None
    ready = [c["status"] for c in status.get("conditions") or () if c["type"] == "Ready"]
    return (
        status["podIP"],
        status.get("phase"),
        ready,
        pod["metadata"].get("labels"),
        "deletionTimestamp" in pod["metadata"],
    )
