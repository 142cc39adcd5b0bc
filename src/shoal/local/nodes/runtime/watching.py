"""What goes on beside a container's main process: its hooks, its probes, its memory, and Ray's own life in it.

One `Watching` per run of a container, from its start to its end; it ends the run where that must be, and never starts
another: that is the container's own business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.api.meta import Json
from shoal.kube.events import EventType
from shoal.local.nodes.runtime import planning, rayenv, raylife
from shoal.local.nodes.runtime.probes import Prober, ProbeVerdict, follow
from shoal.local.nodes.runtime.process import ContainerProcess

if TYPE_CHECKING:
    from shoal.local.nodes.runtime.container import ContainerRun

GATE_PATIENCE = 60.0
"""The longest that one starting Ray node keeps others waiting."""


class Watching:
    """`container` is told when it has started up and whether it is ready."""

    def __init__(self, container: ContainerRun, process: ContainerProcess, resumed: bool) -> None:
        self.over_memory = self.ray_was_up = False
        self._container, self._process, self._resumed = container, process, resumed
        self._host, self._pod, self._spec = container.host, container.pod, container.spec
        self._prober = Prober(container.host.sandbox, container.address)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._after_start())]
        if self._container.role == "main" and rayenv.gate_weight(planning.argv_of(self._process)):
            self._tasks.append(asyncio.create_task(self._live_as_ray()))
        else:
            self._hold_cpu()
        if self._host.memory_watch is not None and planning.memory_limit(self._spec):
            self._tasks.append(asyncio.create_task(self._mind_memory()))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def before_stop(self, grace: float) -> None:
        """The preStop hook, within the grace."""
        if hook := (self._spec.get("lifecycle") or {}).get("preStop"):
            try:
                failure = await asyncio.wait_for(self._carry_out(hook, grace), max(0.05, grace))
            except TimeoutError:
                return
            if failure:
                self._announce("Warning", "FailedPreStopHook", failure)

    # --- hooks and probes

    async def _after_start(self) -> None:
        hook = (self._spec.get("lifecycle") or {}).get("postStart")
        if hook and not self._resumed and (failure := await self._carry_out(hook, None)):
            self._announce("Warning", "FailedPostStartHook", failure)
            self._process.stop(self._container.grace)
            return
        if (probe := self._spec.get("startupProbe")) and not self._container.started:
            verdict = await self._first_verdict(probe)
            if not verdict.good:
                self._unhealthy("Startup", verdict, probe)
                return
            self._container.has_started_up()
        self._container.began.set()
        async with asyncio.TaskGroup() as probes:
            if probe := self._spec.get("readinessProbe"):
                probes.create_task(self._follow(probe, self._readiness))
            if probe := self._spec.get("livenessProbe"):
                probes.create_task(self._follow(probe, self._liveness))

    async def _first_verdict(self, probe: Json) -> ProbeVerdict:
        first: asyncio.Future[ProbeVerdict] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            self._follow(probe, lambda verdict: None if first.done() else first.set_result(verdict))
        )
        try:
            return await first
        finally:
            task.cancel()

    async def _follow(self, probe: Json, tell: Callable[[ProbeVerdict], None]) -> None:
        await follow(probe, self._spec, self._process, self._prober, self._host.clock, tell)

    def _readiness(self, verdict: ProbeVerdict) -> None:
        if not verdict.good:
            self._announce("Warning", "Unhealthy", f"Readiness probe failed: {verdict.message}")
        self._container.is_ready(verdict.good)

    def _liveness(self, verdict: ProbeVerdict) -> None:
        if not verdict.good:
            self._unhealthy("Liveness", verdict, self._spec["livenessProbe"])

    def _unhealthy(self, kind: str, verdict: ProbeVerdict, probe: Json) -> None:
        self._announce("Warning", "Unhealthy", f"{kind} probe failed: {verdict.message}")
        said = f"Container {self._container.name} failed {kind.lower()} probe, will be restarted"
        self._announce("Normal", "Killing", said)
        self._process.stop(float(probe.get("terminationGracePeriodSeconds") or self._container.grace))

    async def _carry_out(self, hook: Json, timeout: float | None) -> str:
        """A lifecycle hook; empty, or why it failed."""
        if action := hook.get("exec"):
            code, output = await self._process.enter(action.get("command") or [], timeout)
            return "" if code == 0 else f"hook exited with {code}: {output.decode(errors='replace')[-200:]}"
        if "httpGet" in hook:
            asked = {"httpGet": hook["httpGet"], "timeoutSeconds": timeout or 30}
            verdict = await self._prober.check(asked, self._spec, self._process)
            return "" if verdict.good else verdict.message
        if sleep := hook.get("sleep"):
            await self._host.clock.sleep(float(sleep.get("seconds") or 0))
        return ""

    # --- Ray, memory, CPU

    async def _live_as_ray(self) -> None:
        """A Ray node from its start through the gate to its end, which would go unnoticed otherwise."""
        port = rayenv.agent_port(planning.argv_of(self._process))
        clock = self._host.clock
        try:
            async with asyncio.timeout(GATE_PATIENCE):  # others wait no longer than that
                await raylife.until_up(self._prober, port, clock)
        except TimeoutError:
            pass
        finally:
            self._container.leave_gate()
            self._hold_cpu()  # not before: Ray gives its own start only so much time
        await raylife.until_up(self._prober, port, clock)
        self.ray_was_up = True
        await raylife.until_gone(self._host.sandbox, self._container.address, port, clock, self._host.ray_period)
        if not self._container.stopping and await asyncio.to_thread(raylife.was_drained, self._ray_files()):
            said = "Ray drained this node, which is no failure: it stays until the autoscaler names it"
            self._announce("Normal", "Drained", said)
            self._container.is_ready(False)
            return
        if not self._container.stopping:  # else it was asked to go: a preStop hook may well be `ray stop`
            said = f"Ray is gone: nothing answers on port {port} any more, although `ray start` still runs"
            self._announce("Warning", "Unhealthy", said)
        self._container.is_ready(False)
        self._process.stop(self._container.grace)

    def _ray_files(self) -> Path:
        """Ray's own directory as the machine sees it, where the manifest leaves it at /tmp/ray."""
        scratch = planning.environment_of(self._process).get("SHOAL_SCRATCH")
        return Path(scratch) if scratch else self._process.directory / "tmp" / "ray"

    def _hold_cpu(self) -> None:
        if milli := planning.cpu_limit(self._spec):
            self._host.limits.hold_cpu(planning.group_name(self._container.address, self._container.name), milli)

    async def _mind_memory(self) -> None:
        """End the container when it is over its limit, where no control group does."""
        limit = planning.memory_limit(self._spec)
        if self._process.identity is not None and self._host.memory_watch is not None and limit:
            await self._host.memory_watch.exceeded(self._process.identity.pid, limit)
            self.over_memory = True
            self._process.stop(0.0)

    def _announce(self, kind: EventType, reason: str, message: str) -> None:
        self._host.announce(self._pod, kind, reason, message)
