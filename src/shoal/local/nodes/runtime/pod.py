"""One pod on this machine: sandbox, volumes, init containers in order, containers side by side, the end.

The agent makes one `PodRun` per bound pod and reads `status()`; a restarted agent makes it again over the same
directory and it goes on where the last one stopped. The pod's manifest is never changed, only its status is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.local.nodes.runtime.container import ContainerRun, Role
from shoal.local.nodes.runtime.gpus import Environment
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.logs import LogOptions, read_log
from shoal.local.nodes.runtime.podstatus import StatusBook
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.runtime.records import PodRecord, pod_id, read_record, write_record
from shoal.local.nodes.runtime.sources import MountError
from shoal.local.nodes.runtime.volumes import Volumes
from shoal.local.nodes.sandbox import SandboxAddress
from shoal.local.nodes.sandbox.dns import resolv_conf

log = logging.getLogger(__name__)


class PodRun:
    """`environment` is what the node adds for this pod alone, such as its GPUs."""

    def __init__(
        self, host: PodHost, pod: Json, changed: Callable[[], None], environment: Environment | None = None
    ) -> None:
        self.host = host
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.id = pod_id(self.uid)
        self.directory = host.pods / self.id
        self.finished = asyncio.Event()
        self.hosts_changed: Callable[[PodRun], None] = lambda run: None
        self.on_released: Callable[[], None] = lambda: None
        self.on_removed: Callable[[], None] = lambda: None
        self._changed = changed
        self._book = StatusBook(pod, host.clock)
        self._record = self._read_record(environment or {})
        self._volumes = self._make_volumes()
        self._inits: list[ContainerRun] = []
        self._mains: list[ContainerRun] = []
        self._debuggers: list[ContainerRun] = []
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._life: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stop_until = 0.0

    # --- what the agent calls

    def start(self) -> None:
        self._life = asyncio.create_task(self._live(), name=f"pod-{self.id}")

    def stop(self, grace: float, keep: bool = False) -> None:
        """End the pod within the grace period; `finished` is set when no process of it is left.

        `keep` leaves its volumes: the machine goes down, the pod does not. A later call can only shorten the grace.
        """
        until = self.host.clock.monotonic() + grace
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._end(grace, keep))
        elif until < self._stop_until:
            for container in self.containers():
                container.hasten(grace)
        else:
            return
        self._stop_until = until

    async def remove(self) -> None:
        """Forget the pod: its files and its logs. Only after `finished`."""
        await asyncio.to_thread(shutil.rmtree, self.directory, True)
        self.on_removed()

    async def detach(self) -> None:
        """The agent goes away; the processes stay and are found again."""
        for task in [self._life, self._stopping, *self._tasks.values()]:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def status(self) -> Json:
        found = self._book.status(self._inits, self._mains, self._record.address, self.host.sandbox.host_ip())
        if self._debuggers:
            found["ephemeralContainerStatuses"] = [container.status() for container in self._debuggers]
        return found

    def update(self, pod: Json) -> None:
        """The object as it is now: containers that were added to look into the pod are started."""
        wanted = pod["spec"].get("ephemeralContainers") or ()
        if not self._mains or self.finished.is_set() or self._stopping is not None:
            return
        for spec in wanted[len(self._debuggers) :]:  # they are only ever added
            container = self._made(spec, "debugger")
            self._debuggers.append(container)
            self._tasks[container.name] = asyncio.create_task(container.run())

    def containers(self) -> list[ContainerRun]:
        return [*self._inits, *self._mains, *self._debuggers]

    def container(self, name: str) -> ContainerRun | None:
        return next((container for container in self.containers() if container.name == name), None)

    @property
    def address(self) -> SandboxAddress | None:
        return self._record.address

    @property
    def environment(self) -> Environment:
        """What was given to this pod alone; survives restarts, so that no device is handed out twice."""
        return self._record.environment

    @property
    def hosts_file(self) -> Path:
        return self.directory / "hosts"

    async def logs(self, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        found = self.container(container)
        directory = found.run_directory(options.previous) if found is not None else None
        if found is None or directory is None:
            return
        process = found.process

        def ended() -> bool:
            return options.previous or found.process is not process or process is None

        async for chunk in read_log(directory, options, ended, self.host.clock):
            yield chunk

    # --- its life, top to bottom

    async def _live(self) -> None:
        try:
            await self._prepare()
            self._make_containers()
            self._changed()
            self._keep_volumes()
            async with asyncio.timeout(self._book.time_left()):
                if await self._run_inits():
                    await self._run_mains()
        except TimeoutError:
            overdue = "Pod was active on the node longer than the specified deadline"
            self._book.fail("DeadlineExceeded", overdue)
            self.host.announce(self.pod, "Normal", "DeadlineExceeded", overdue)
            await self._stop_containers(float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)))
        except ShoalError as error:
            self._book.fail("Failed", str(error))
            self.host.announce(self.pod, "Warning", "Failed", str(error))
        except Exception as error:  # this loop owns the pod: whatever went wrong, the other pods go on
            log.exception("pod %s failed", self._record.name)
            self._book.fail("AgentError", f"{type(error).__name__}: {error}")
        if self._stopping is None:
            await self._cleared()
            self.finished.set()
            self._changed()

    async def _prepare(self) -> None:
        pause = 0.5
        while True:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                write_record(self.directory, self._record)
                address = await self._open_sandbox()
                self._record.address = address
                write_record(self.directory, self._record)
                self._write_hosts(address)
                self.pod = {
                    **self.pod,
                    "status": {
                        **(self.pod.get("status") or {}),
                        "podIP": address.ip,
                        "hostIP": self.host.sandbox.host_ip(),
                    },
                }
                self._volumes = self._make_volumes()
                await self._volumes.prepare()
                return
            except MountError as error:
                self._book.waiting("ContainerCreating", str(error))
                self.host.announce(self.pod, "Warning", "FailedMount", str(error))
            except (ShoalError, OSError) as error:
                self._book.waiting("ContainerCreating", str(error))
                self.host.announce(self.pod, "Warning", "FailedCreatePodSandBox", str(error))
            self._changed()
            await self.host.clock.sleep(pause)
            pause = min(60.0, pause * 2)

    async def _open_sandbox(self) -> SandboxAddress:
        sandbox = self.host.sandbox
        if self.pod["spec"].get("hostNetwork") and sandbox.isolates:
            return SandboxAddress(self.id, sandbox.host_ip())  # no network of its own
        return await sandbox.open(self.id, self._record.address)

    def _make_volumes(self) -> Volumes:
        memory = self.host.memory / self.id if self.host.memory is not None else None
        return Volumes(self.pod, self.directory / "volumes", self.host.claims, self.host.sources, memory)

    def _make_containers(self) -> None:
        spec = self.pod["spec"]
        self._inits = [
            self._made(container, "sidecar" if container.get("restartPolicy") == "Always" else "init")
            for container in spec.get("initContainers") or ()
        ]
        self._mains = [self._made(container, "main") for container in spec.get("containers") or ()]

    def _made(self, container: Json, role: Role) -> ContainerRun:
        assert self._record.address is not None
        target = container.get("targetContainerName")
        return ContainerRun(
            self.host,
            self.pod,
            container,
            role,
            self.directory / "containers",
            self._record.address,
            self._volumes,
            self._record.environment.get(container["name"], {}),
            self._changed,
            (lambda: self._process_of(target)) if target else None,
        )

    def _process_of(self, name: str) -> ContainerProcess | None:
        found = self.container(name)
        return found.process if found is not None and found.running else None

    async def _run_inits(self) -> bool:
        """In order; False when one failed for good, which fails the pod."""
        for container in self._inits:
            task = self._tasks[container.name] = asyncio.create_task(container.run())
            if container.role == "sidecar":
                await container.began.wait()  # the next one may need it
                continue
            code = await asyncio.shield(task)
            self._changed()
            if code != 0:
                return False
        self._book.initialized = True
        return True

    async def _run_mains(self) -> None:
        for container in self._mains:
            self._tasks[container.name] = asyncio.create_task(container.run())
        mains = [self._tasks[container.name] for container in self._mains]
        await asyncio.gather(*(asyncio.shield(task) for task in mains))  # a deadline stops them in their own way

    # --- its volumes while it runs

    def _keep_volumes(self) -> None:
        if self._volumes.renewal() is not None:
            self._tasks["..tokens"] = asyncio.create_task(self._renew_tokens())
        if self._volumes.limited():
            self._tasks["..limits"] = asyncio.create_task(self._watch_volumes())

    def refers(self, kind: str, name: str) -> bool:
        """Whether files of this pod are written from that config map or secret."""
        return self._volumes.refers(kind, name)

    async def refresh(self, kind: str, name: str) -> None:
        """A config map or secret changed: files of running containers follow."""
        if not self.finished.is_set():
            await self._volumes.refresh(kind, name)

    async def _renew_tokens(self) -> None:
        while (seconds := self._volumes.renewal()) is not None:
            await self.host.clock.sleep(seconds)
            await self._volumes.renew_tokens()

    async def _watch_volumes(self) -> None:
        """Evict the pod when an emptyDir outgrows its limit."""
        while True:
            await self.host.clock.sleep(self.host.eviction_period)
            if outgrown := await asyncio.to_thread(self._volumes.over_limit):
                self._book.fail("Evicted", outgrown)
                self.host.announce(self.pod, "Warning", "Evicted", outgrown)
                await self._stop_containers(0.0)
                return

    # --- its end

    async def _end(self, grace: float, keep: bool) -> None:
        await self._stop_containers(grace)
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        await self._cleared(keep)
        self.finished.set()
        self._changed()

    async def _stop_containers(self, grace: float) -> None:
        """All together, as their own grace allows; sidecars after the others."""
        everyone = self.containers()
        first = [container for container in everyone if container.role != "sidecar"]
        last = [container for container in everyone if container.role == "sidecar"]
        for group in (first, list(reversed(last))):
            await asyncio.gather(*(container.stop(grace) for container in group))
            for container in group:
                task = self._tasks.get(container.name)
                if task is None:
                    continue
                if container.process is not None or container.exit_code is not None:
                    await asyncio.wait([task], timeout=1.0 if container.exit_code is None else 0.1)
                task.cancel()  # one that waits for an image or a config map has nothing to end

    async def _cleared(self, keep: bool = False) -> None:
        """Sidecars stopped, address given back, volumes gone. Logs stay until the pod is removed."""
        await self._stop_containers(float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)))
        if self._record.address is not None:
            with contextlib.suppress(ShoalError):
                await self.host.sandbox.close(self._record.address)
        for name in ("..tokens", "..limits"):
            if name in self._tasks and self._tasks[name] is not asyncio.current_task():
                self._tasks[name].cancel()
        if not keep:
            await asyncio.to_thread(self._volumes.remove)
            self.on_released()

    # --- its record on disk

    def _read_record(self, environment: Environment) -> PodRecord:
        found = read_record(self.directory)
        if found is not None and found.uid == self.uid:
            return found
        metadata = self.pod["metadata"]
        node = self.pod["spec"].get("nodeName", "")
        return PodRecord(self.uid, metadata.get("namespace", ""), metadata["name"], node, None, environment)

    def _write_hosts(self, address: SandboxAddress) -> None:
        if not self.hosts_file.exists():
            self.hosts_file.write_text(own_names(self.pod, address))
            names = resolv_conf(self.pod["metadata"].get("namespace", "default"), self.pod["spec"])
            (self.directory / "resolv.conf").write_text(names)
        self.hosts_changed(self)


def own_names(pod: Json, address: SandboxAddress) -> str:
    """The first lines of a pod's /etc/hosts."""
    spec, metadata = pod["spec"], pod["metadata"]
    names = spec.get("hostname") or metadata["name"]
    if spec.get("subdomain"):
        names = f"{names}.{spec['subdomain']}.{metadata.get('namespace', 'default')}.svc.cluster.local {names}"
    aliases = "".join(
        f"{entry['ip']}\t{' '.join(entry.get('hostnames') or ())}\n" for entry in spec.get("hostAliases") or ()
    )
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n{address.ip}\t{names}\n{aliases}"
