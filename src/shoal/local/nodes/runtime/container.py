"""One container of a pod through all its runs: started, watched, restarted with back-off, stopped.

Owned by the pod's lifecycle. Its `status()` is what `kubectl get pod -o yaml` shows; every change of it is announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.local.nodes.runtime import planning, rayenv
from shoal.local.nodes.runtime.chosen_image import UnknownImage
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.logs import last_lines
from shoal.local.nodes.runtime.process import ContainerProcess, Ended
from shoal.local.nodes.runtime.rundirs import drop_files, forget_old_runs, newest_run
from shoal.local.nodes.runtime.sources import ConfigError
from shoal.local.nodes.runtime.volumes import Volumes, safe_name
from shoal.local.nodes.runtime.watching import Watching
from shoal.local.nodes.sandbox import SandboxAddress

Role = Literal["init", "sidecar", "main", "debugger"]

STEADY = 600.0
"""A run this long forgives earlier failures."""
RAY_START_WINDOW = 60.0
RAY_START_RETRIES = 3


class ContainerRun:
    """`pod` is the manifest with its address filled in; `environment` what the pod adds to every container."""

    def __init__(
        self,
        host: PodHost,
        pod: Json,
        spec: Json,
        role: Role,
        directory: Path,
        address: SandboxAddress,
        volumes: Volumes,
        environment: dict[str, str],
        changed: Callable[[], None],
        target: Callable[[], ContainerProcess | None] | None = None,
    ) -> None:
        self.host, self.pod, self.spec, self.role = host, pod, spec, role
        self.name: str = spec["name"]
        self.directory = directory / safe_name(self.name)
        self.address, self.volumes, self.environment = address, volumes, environment
        self.state: Json = {"waiting": {"reason": "PodInitializing" if role == "main" else "ContainerCreating"}}
        self.last_state: Json = {}
        self.ready = self.started = self.ever_started = False
        self.restart_count = 0
        self.process: ContainerProcess | None = None
        self.began = asyncio.Event()
        """Set once it started up: where a sidecar is awaited."""
        self._changed = changed
        self._target = target
        self.stopping = False
        self._run_number = newest_run(self.directory)
        self._resume_tried = False
        self._failures = self._ray_retries = self._gate_held = 0
        self._watching: Watching | None = None

    # --- what others see

    def status(self) -> Json:
        found: Json = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": self.spec.get("image", ""),
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restart_count,
            "state": self.state,
            "lastState": self.last_state,
        }
        if self.ever_started:
            found["containerID"] = f"process://{self.address.pod_id}/{self.name}/{self._run_number}"
        return found

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def ray_was_up(self) -> bool:
        """Whether the Ray node in it, if it is one, has been up in this run."""
        return self._watching is not None and self._watching.ray_was_up

    def run_directory(self, previous: bool = False) -> Path | None:
        """Where the log of the current or the previous run lies. Between two runs the last one is both."""
        between = self.process is None and "waiting" in self.state and bool(self.last_state)
        number = self._run_number - 1 if previous and not between else self._run_number
        return self.directory / str(number) if number >= 0 and (self.directory / str(number)).exists() else None

    # --- life

    async def run(self) -> int | None:
        """Through all runs until none will follow; the last exit code."""
        while not self.stopping:
            ended = await self._one_run()
            if ended is None:
                continue
            if self.stopping or not self._runs_again(ended):
                return self.exit_code
            await self._back_off()
        return self.exit_code

    async def stop(self, grace: float) -> None:
        """preStop, SIGTERM to the main process, SIGKILL to everything after the grace; back when nothing is left."""
        self.stopping = True
        process = self.process
        if process is None:
            return
        deadline = self.host.clock.monotonic() + grace
        if self._watching is not None:
            await self._watching.before_stop(grace)
        process.stop(max(0.0, deadline - self.host.clock.monotonic()))
        await process.wait()

    def hasten(self, grace: float) -> None:
        """It is being stopped, and now with less time, for its preStop hook as well."""
        if self.process is not None:
            self.process.stop(grace)

    async def _one_run(self) -> Ended | None:
        """Start once and stay until it ended; None when it could not even be planned and should be tried again."""
        if self._resumed():
            return await self._watch(gated=0, resumed=True)
        self._resume_tried = True
        try:
            plan = await planning.plan(
                self.host,
                self.pod,
                self.spec,
                self.address,
                self.volumes,
                self.environment,
                self.directory / str(self._run_number + 1),
            )
            plan.pid_of = self._shared_processes()
        except UnknownImage as error:
            self._wait("ErrImageNeverPull", str(error))
            self.host.announce(self.pod, "Warning", "ErrImageNeverPull", str(error))
            await (
                asyncio.Event().wait()
            )  # nothing on this side can change that: the pod is deleted or the table extended
        except ConfigError as error:
            if self.state.get("waiting", {}).get("message") != str(error):
                self._wait("CreateContainerConfigError", str(error))
                self.host.announce(self.pod, "Warning", "Failed", f"Error: {error}")
            await self.host.clock.sleep(self.host.retry_period)
            return None
        except OSError as error:
            await self._could_not_create(error)
            return None
        weight = rayenv.gate_weight(plan.argv) if self.role == "main" else 0
        if weight:
            await self.host.gate.enter(weight)
            self._gate_held = weight
        try:
            await asyncio.to_thread(forget_old_runs, self.directory, self._run_number + 1)
            self._run_number += 1
            self.process = ContainerProcess(self.directory / str(self._run_number))
            try:
                started = await self.process.start(plan)
            except OSError as error:  # a full disk, most likely
                shutil.rmtree(self.process.directory, ignore_errors=True)
                self._run_number -= 1  # that was none
                await self._could_not_create(error)
                return None
            if started:
                known = f'Container image "{self.spec.get("image", "")}" already present on machine'
                self.host.announce(self.pod, "Normal", "Pulled", known)
                self.host.announce(self.pod, "Normal", "Created", f"Created container {self.name}")
                self.host.announce(self.pod, "Normal", "Started", f"Started container {self.name}")
                return await self._watch(gated=weight)
            ended = await self.process.wait()
            self.process = None
            await self._note_end(ended)
            return ended
        finally:
            self.leave_gate()

    def leave_gate(self) -> None:
        """Let others start; once, whichever path comes to it first."""
        held, self._gate_held = self._gate_held, 0
        if held:
            self.host.gate.leave(held)

    async def _could_not_create(self, error: OSError) -> None:
        """The machine refused what every container needs: said, and tried again."""
        self.process = None
        message = f"{error.strerror}: {error.filename or self.directory}"
        if self.state.get("waiting", {}).get("message") != message:
            self._wait("CreateContainerError", message)
            self.host.announce(self.pod, "Warning", "Failed", f"Error: {message}")
        await self.host.clock.sleep(self.host.retry_period)

    def _resumed(self) -> bool:
        """After an agent's restart: whether the newest run is still there (alive, or ended and not yet looked at)."""
        if self._resume_tried or self._run_number < 0:
            return False
        self._resume_tried = True
        process = ContainerProcess(self.directory / str(self._run_number))
        self.restart_count = self._run_number
        process.attach()
        self.process = process
        return True

    async def _watch(self, gated: int, resumed: bool = False) -> Ended:
        """From started to ended: hooks and probes beside it."""
        process = self.process
        assert process is not None
        self.state = {"running": {"startedAt": seconds_text(process.started_at or self.host.clock.now())}}
        self.ever_started = True
        self.started = not self.spec.get("startupProbe")
        self.ready = self.started and self._ready_when_started()
        if resumed and process.identity is not None and (known := self._known_status()):
            self.started, self.ready = bool(known.get("started")), bool(known.get("ready"))
        self._changed()
        watching = self._watching = Watching(self, process, resumed)
        watching.begin()
        began = self.host.clock.monotonic()
        try:
            ended = await process.wait()
        finally:
            await watching.end()
            task = asyncio.current_task()
            self.process = process if task is not None and task.cancelling() else None
        lasted = self.host.clock.monotonic() - began
        self._failures = 0 if lasted > STEADY else self._failures
        if gated and ended.exit_code == 1 and lasted < RAY_START_WINDOW and not watching.ray_was_up:
            self._ray_retries += 1
        else:
            self._ray_retries = RAY_START_RETRIES + 1
        await self._note_end(ended, watching.over_memory)
        return ended

    def _ready_when_started(self) -> bool:
        return not self.spec.get("readinessProbe") and self.role in ("main", "sidecar")

    def has_started_up(self) -> None:
        """Its startup probe succeeded."""
        self.started = True
        self.ready = self._ready_when_started()
        self._changed()

    def is_ready(self, ready: bool) -> None:
        if self.ready != ready:
            self.ready = ready
            self._changed()

    def _known_status(self) -> Json:
        """What was last reported of this container, by an earlier agent."""
        statuses = (self.pod.get("status") or {}).get("containerStatuses") or ()
        return next((status for status in statuses if status["name"] == self.name), {})

    # --- endings

    async def _note_end(self, ended: Ended, over_memory: bool = False) -> None:
        group, reason = planning.group_name(self.address, self.name), "Error"
        if ended.error:
            reason = "StartError"
        elif over_memory:
            ended, reason = Ended(137, 9, ended.started, ended.finished), "OOMKilled"
        elif ended.exit_code == 0:
            reason = "Completed"
        elif self.host.limits.killed_for_memory(group):
            reason = "OOMKilled"
        self.host.limits.close(group)
        now = self.host.clock.now()
        terminated: Json = {
            "exitCode": ended.exit_code,
            "reason": reason,
            "startedAt": seconds_text(ended.started or ended.finished or now),
            "finishedAt": seconds_text(ended.finished or now),
            "containerID": f"process://{self.address.pod_id}/{self.name}/{self._run_number}",
        }
        if ended.signal:
            terminated["signal"] = ended.signal
        message = ended.error or self._termination_message(ended)
        if message:
            terminated["message"] = message
        if ended.error:
            self.host.announce(self.pod, "Warning", "Failed", f"Error: {ended.error}")
        self.state = {"terminated": terminated}
        self.ready = self.started = False
        self._changed()
        await asyncio.to_thread(drop_files, self.directory / str(self._run_number))

    def _termination_message(self, ended: Ended) -> str:
        directory = self.directory / str(self._run_number)
        with contextlib.suppress(OSError):
            if text := (directory / "termination-log").read_bytes()[:4096].decode(errors="replace"):
                return text
        if self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and ended.exit_code != 0:
            return last_lines(directory, 80, 2048)
        return ""

    def _shared_processes(self) -> tuple[int, int] | None:
        """Whose processes a debugger sees beside its own, where there are PID namespaces."""
        if self._target is None or not self.host.sandbox.roots:
            return None
        target = self._target()
        first = target.first if target is not None else None
        if first is None:
            raise ConfigError(f"target container {self.spec.get('targetContainerName')} is not running")
        return first

    def _runs_again(self, ended: Ended) -> bool:
        policy = self.pod["spec"].get("restartPolicy") or "Always"
        if self.role == "debugger":
            policy = "Never"
        elif self.role == "sidecar":
            policy = "Always"
        elif self.role == "init" and policy == "Always":
            policy = "OnFailure"
        if 0 < self._ray_retries <= RAY_START_RETRIES:
            return True  # a Ray node that lost the race of its own start is the machine's fault, not the job's
        return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)

    async def _back_off(self) -> None:
        """As the kubelet: again at once, then after 10 s, 20 s and so on; a restart counts when it begins."""
        self.last_state = {"terminated": self.state["terminated"]}
        if self._failures:
            pause = min(self.host.restart_cap, self.host.restart_base * 2 ** min(self._failures - 1, 20))
            metadata = self.pod["metadata"]
            whose = f"{metadata['name']}_{metadata.get('namespace', '')}({metadata['uid']})"
            self._wait("CrashLoopBackOff", f"back-off {pause:g}s restarting failed container={self.name} pod={whose}")
            said = f"Back-off restarting failed container {self.name} in pod {whose}"
            self.host.announce(self.pod, "Warning", "BackOff", said)
            await self.host.clock.sleep(pause)
        self._failures += 1
        self.restart_count += 1

    def _wait(self, reason: str, message: str = "") -> None:
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self._changed()

    @property
    def grace(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
