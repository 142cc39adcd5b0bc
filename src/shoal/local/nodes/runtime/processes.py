"""The runtime with real processes: pods' directories, their devices, their names."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

from shoal.api.meta import Json
from shoal.local.nodes.runtime.gpus import GpuLedger
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.logs import LogOptions, read_log
from shoal.local.nodes.runtime.names import rewrite
from shoal.local.nodes.runtime.pod import PodRun, own_names
from shoal.local.nodes.runtime.records import pod_id, read_record, remove_stray
from shoal.local.nodes.runtime.rundirs import newest_run
from shoal.local.nodes.runtime.volumes import safe_name

log = logging.getLogger(__name__)


class ProcessRuntime:
    """All process pods of one agent."""

    name = "process"

    def __init__(self, host: PodHost, gpus: GpuLedger | None = None) -> None:
        self.host = host
        self.gpus = gpus or GpuLedger(host.directory / "gpus.json")
        self.pods: dict[str, PodRun] = {}
        self.hosts_text: Callable[[Json, str], str] = lambda pod, own: own

    async def start(self) -> None:
        self.host.pods.mkdir(parents=True, exist_ok=True)
        for directory in self.host.pods.iterdir():
            record = read_record(directory)
            if record is not None:  # before any new pod asks for a device
                self.gpus.note(record.node, record.uid, record.environment)
        await self.host.sandbox.start()

    async def stop(self) -> None:
        await self.host.sandbox.stop()
        self.host.limits.release()

    def create(self, pod: Json, changed: Callable[[], None]) -> PodRun:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        record = read_record(self.host.pods / pod_id(uid))
        known = record is not None and record.uid == uid
        run = PodRun(self.host, pod, changed, {} if known else self.gpus.take(node, uid, pod))
        run.hosts_changed = self._write_hosts
        self.pods[uid] = run
        run.on_released = lambda: self.gpus.give_back(node, uid)
        run.on_removed = lambda: self._forget(uid)
        return run

    def _forget(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def refresh_names(self) -> None:
        """Services or the pods behind them changed: every live pod's hosts file follows."""
        for run in self.pods.values():
            self._write_hosts(run)

    def _write_hosts(self, run: PodRun) -> None:
        if run.address is not None and not run.finished.is_set():
            rewrite(run.hosts_file, self.hosts_text(run.pod, own_names(run.pod, run.address)))

    async def old_logs(self, uid: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        directory = self.host.pods / pod_id(uid) / "containers" / safe_name(container)
        newest = newest_run(directory) - int(options.previous)
        if newest >= 0:
            async for chunk in read_log(directory / str(newest), options, lambda: True, self.host.clock):
                yield chunk

    async def discard(self, uid: str, grace: float) -> None:
        directory = self.host.pods / pod_id(uid)
        record = read_record(directory)
        await remove_stray(self.host, directory, grace)
        if record is not None:
            self.gpus.give_back(record.node, uid)

    async def sweep(self, known: set[str]) -> None:
        if not self.host.pods.exists():
            return
        for directory in list(self.host.pods.iterdir()):
            record = read_record(directory)
            if record is None or record.uid not in known:
                log.info("removing what is left of pod %s", directory.name if record is None else record.name)
                await remove_stray(self.host, directory)
                if record is not None:
                    self.gpus.give_back(record.node, record.uid)
