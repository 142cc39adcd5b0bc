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
from shoal.local.runtime import planning, rayenv, raylife
from shoal.local.runtime.host import Host
from shoal.local.runtime.logs import last_lines
from shoal.local.runtime.probes import Prober, Verdict, follow
from shoal.local.runtime.process import ContainerProcess, Ended
from shoal.local.runtime.sources import ConfigError
from shoal.local.runtime.volumes import Volumes, safe_name
from shoal.local.sandbox import Address

Role = Literal["init", "sidecar", "main"]

STEADY = 600.0
"""A run this long forgives earlier failures."""
GATE_PATIENCE = 60.0
"""The longest that one starting Ray node keeps others waiting."""
RAY_START_WINDOW = 60.0
RAY_START_RETRIES = 3


class ContainerRun:
    """`pod` is the manifest with its address filled in; `environment` what the pod adds to every container."""

    def __init__(
        self,
        host: Host,
        pod: Json,
        spec: Json,
        role: Role,
        directory: Path,
        address: Address,
        volumes: Volumes,
        environment: dict[str, str],
        changed: Callable[[], None],
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
        self._prober = Prober(host.sandbox, address)
        self._changed = changed
        self._stopping = False
        self._run_number = newest_run(self.directory)
        self._resume_tried = False
        self._failures = self._ray_retries = self._gate_held = 0
        self._over_memory = self._ray_was_up = False

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

    def run_directory(self, previous: bool = False) -> Path | None:
        """Where the log of the current or the previous run lies. Between two runs the last one is both."""
        between = self.process is None and "waiting" in self.state and bool(self.last_state)
        number = self._run_number - 1 if previous and not between else self._run_number
        return self.directory / str(number) if number >= 0 and (self.directory / str(number)).exists() else None

    # --- life

    async def run(self) -> int | None:
        """Through all runs until none will follow; the last exit code."""
        while not self._stopping:
            ended = await self._one_run()
            if ended is None:
                continue
            if self._stopping or not self._runs_again(ended):
                return self.exit_code
            await self._back_off()
        return self.exit_code

    async def stop(self, grace: float) -> None:
        """preStop, SIGTERM to the main process, SIGKILL to everything after the grace; back when nothing is left."""
        self._stopping = True
        process = self.process
        if process is None:
            return
        deadline = self.host.clock.monotonic() + grace
        if hook := (self.spec.get("lifecycle") or {}).get("preStop"):
            with contextlib.suppress(TimeoutError):
                failure = await asyncio.wait_for(self._hook(hook, process, grace), max(0.05, grace))
                if failure:
                    self.host.announce(self.pod, "Warning", "FailedPreStopHook", failure)
        process.stop(max(0.0, deadline - self.host.clock.monotonic()))
        await process.wait()

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
        except planning.UnknownImage as error:
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
            self._run_number += 1
            self.process = ContainerProcess(self.directory / str(self._run_number))
            self._forget_old_runs()
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
            self._note_end(ended)
            return ended
        finally:
            self._leave_gate()

    def _leave_gate(self) -> None:
        """Let others start; once, whoever comes to it first."""
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
        self.ready = self.started and not self.spec.get("readinessProbe") and self.role != "init"
        if resumed and process.identity is not None and (known := self._known_status()):
            self.started, self.ready = bool(known.get("started")), bool(known.get("ready"))
        self._changed()
        beside = [asyncio.create_task(self._after_start(process, resumed))]
        self._ray_was_up = False
        if self.role == "main" and rayenv.gate_weight(planning.argv_of(process)):
            beside.append(asyncio.create_task(self._live_as_ray(process)))
        else:
            self._hold_cpu()
        if self.host.memory_watch is not None and planning.memory_limit(self.spec):
            beside.append(asyncio.create_task(self._mind_memory(process)))
        started = self.host.clock.monotonic()
        try:
            ended = await process.wait()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self.process = process if asyncio.current_task().cancelling() else None  # type: ignore[union-attr]
        lasted = self.host.clock.monotonic() - started
        self._failures = 0 if lasted > STEADY else self._failures
        if gated and ended.exit_code == 1 and lasted < RAY_START_WINDOW and not self._ray_was_up:
            self._ray_retries += 1
        else:
            self._ray_retries = RAY_START_RETRIES + 1
        self._note_end(ended)
        return ended

    def _known_status(self) -> Json:
        """What was last reported of this container, by an earlier agent."""
        statuses = (self.pod.get("status") or {}).get("containerStatuses") or ()
        return next((status for status in statuses if status["name"] == self.name), {})

    async def _after_start(self, process: ContainerProcess, resumed: bool) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook and not resumed:
            failure = await self._hook(hook, process, None)
            if failure:
                self.host.announce(self.pod, "Warning", "FailedPostStartHook", failure)
                process.stop(self._grace())
                return
        if (probe := self.spec.get("startupProbe")) and not self.started:
            first: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(
                follow(
                    probe,
                    self.spec,
                    process,
                    self._prober,
                    self.host.clock,
                    lambda verdict: None if first.done() else first.set_result(verdict),
                )
            )
            try:
                verdict = await first
            finally:
                task.cancel()
            if not verdict.good:
                self._unhealthy("Startup", verdict, process, probe)
                return
            self.started = True
            self.ready = not self.spec.get("readinessProbe") and self.role != "init"
            self._changed()
        self.began.set()
        async with asyncio.TaskGroup() as probes:
            if probe := self.spec.get("readinessProbe"):
                probes.create_task(follow(probe, self.spec, process, self._prober, self.host.clock, self._readiness))
            if probe := self.spec.get("livenessProbe"):
                probes.create_task(
                    follow(
                        probe,
                        self.spec,
                        process,
                        self._prober,
                        self.host.clock,
                        lambda verdict: self._liveness(verdict, process),
                    )
                )

    def _readiness(self, verdict: Verdict) -> None:
        if not verdict.good:
            self.host.announce(self.pod, "Warning", "Unhealthy", f"Readiness probe failed: {verdict.message}")
        if self.ready != verdict.good:
            self.ready = verdict.good
            self._changed()

    def _liveness(self, verdict: Verdict, process: ContainerProcess) -> None:
        if not verdict.good:
            self._unhealthy("Liveness", verdict, process, self.spec["livenessProbe"])

    def _unhealthy(self, kind: str, verdict: Verdict, process: ContainerProcess, probe: Json) -> None:
        self.host.announce(self.pod, "Warning", "Unhealthy", f"{kind} probe failed: {verdict.message}")
        self.host.announce(
            self.pod, "Normal", "Killing", f"Container {self.name} failed {kind.lower()} probe, will be restarted"
        )
        process.stop(float(probe.get("terminationGracePeriodSeconds") or self._grace()))

    async def _live_as_ray(self, process: ContainerProcess) -> None:
        """A Ray node from its start through the gate to its end, which nobody else would notice."""
        port = rayenv.agent_port(planning.argv_of(process))
        clock = self.host.clock
        try:
            async with asyncio.timeout(GATE_PATIENCE):  # others wait no longer than that
                await raylife.until_up(self._prober, port, clock)
        except TimeoutError:
            pass
        finally:
            self._leave_gate()
            self._hold_cpu()  # not before: Ray gives its own start only so much time
        await raylife.until_up(self._prober, port, clock)
        self._ray_was_up = True
        await raylife.until_gone(self.host.sandbox, self.address, port, clock, self.host.ray_period)
        if not self._stopping:  # else it was asked to go: a preStop hook may well be `ray stop`
            said = f"Ray is gone: nothing answers on port {port} any more, although `ray start` still runs"
            self.host.announce(self.pod, "Warning", "Unhealthy", said)
        self.ready = False
        self._changed()
        process.stop(self._grace())

    def _hold_cpu(self) -> None:
        if milli := planning.cpu_limit(self.spec):
            self.host.limits.hold_cpu(planning.group_name(self.address, self.name), milli)

    async def _mind_memory(self, process: ContainerProcess) -> None:
        """End the container when it is over its limit, where no control group does."""
        limit = planning.memory_limit(self.spec)
        if process.identity is not None and self.host.memory_watch is not None and limit:
            await self.host.memory_watch.exceeded(process.identity.pid, limit)
            self._over_memory = True
            process.stop(0.0)

    async def _hook(self, hook: Json, process: ContainerProcess, timeout: float | None) -> str:
        """Carry out a lifecycle hook; empty, or why it failed."""
        if action := hook.get("exec"):
            code, output = await process.enter(action.get("command") or [], timeout)
            return "" if code == 0 else f"hook exited with {code}: {output.decode(errors='replace')[-200:]}"
        if "httpGet" in hook:
            verdict = await self._prober.check(
                {"httpGet": hook["httpGet"], "timeoutSeconds": timeout or 30}, self.spec, process
            )
            return "" if verdict.good else verdict.message
        if sleep := hook.get("sleep"):
            await self.host.clock.sleep(float(sleep.get("seconds") or 0))
        return ""

    # --- endings

    def _note_end(self, ended: Ended) -> None:
        group, reason = planning.group_name(self.address, self.name), "Error"
        if ended.error:
            reason = "StartError"
        elif ended.exit_code == 0 and not self._over_memory:
            reason = "Completed"
        elif self._over_memory:
            self._over_memory = False
            ended, reason = Ended(137, 9, ended.started, ended.finished), "OOMKilled"
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
        self._drop_files()
        self._changed()

    def _termination_message(self, ended: Ended) -> str:
        directory = self.directory / str(self._run_number)
        with contextlib.suppress(OSError):
            if text := (directory / "termination-log").read_bytes()[:4096].decode(errors="replace"):
                return text
        if self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and ended.exit_code != 0:
            return last_lines(directory, 80, 2048)
        return ""

    def _runs_again(self, ended: Ended) -> bool:
        policy = self.pod["spec"].get("restartPolicy") or "Always"
        if self.role == "sidecar":
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

    def _grace(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    # --- the directories of its runs

    def _forget_old_runs(self) -> None:
        for number in range(self._run_number - 2, -1, -1):
            old = self.directory / str(number)
            if not old.exists():
                break
            shutil.rmtree(old, ignore_errors=True)

    def _drop_files(self) -> None:
        """What the container wrote outside its volumes goes with the run; log and verdict stay."""
        for part in ("upper", "scratch", "root", "tmp"):
            shutil.rmtree(self.directory / str(self._run_number) / part, ignore_errors=True)


def newest_run(directory: Path) -> int:
    """Number of the latest run of a container; -1 when it never ran."""
    if not directory.exists():
        return -1
    return max((int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()), default=-1)
