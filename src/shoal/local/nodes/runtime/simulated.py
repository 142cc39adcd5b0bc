"""The runtime without processes: pods run and end by the clock, for thousands of nodes and for tests.

A pod's annotations say how long it runs and how it ends; without them a plain `sleep N` in its command does, and
anything else runs until it is deleted. A simulated Ray head answers its health and job API over loopback (`simray.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable

import msgspec

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock, SystemClock
from shoal.local.nodes.runtime.logs import LogOptions
from shoal.local.nodes.runtime.podstatus import StatusBook
from shoal.local.nodes.runtime.simray import SIMULATION, SimulatedRay, Submission, follow_job, is_head, submission
from shoal.local.nodes.sandbox import SandboxAddress
from shoal.remembered import Remembered

RUN_SECONDS = SIMULATION + "run-seconds"
"""How long the pod's containers run, from their start."""
EXIT_CODE = SIMULATION + "exit-code"
START_SECONDS = SIMULATION + "start-seconds"
"""How long until the containers run and are ready."""

_READ = ("uid", "name", "namespace", "labels", "annotations")
_PER_POD = ("nodeName", "hostname", "subdomain")
_MOST_SPECS = 100
_SLEEP = re.compile(r"(?:^|[\s;&/])sleep\s+(\d+(?:\.\d+)?)([smh]?)(?=$|[\s;&'\"])")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class SimulatedContainer:
    """What the status book reads of a container."""

    def __init__(self, spec: Json, role: str, pod_id: str) -> None:
        self.spec, self.role = spec, role
        self.name: str = spec["name"]
        self.ready = self.started = self.ever_started = False
        self.state: Json = {"waiting": {"reason": "ContainerCreating"}}
        self._pod_id = pod_id

    @property
    def exit_code(self) -> int | None:
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    def begin(self, moment: int) -> None:
        self.state = {"running": {"startedAt": seconds_text(moment)}}
        self.ready, self.started, self.ever_started = self.role != "init", True, True

    def end(self, moment: int, code: int) -> None:
        began = self.state.get("running", {}).get("startedAt") or seconds_text(moment)
        reason = "Completed" if code == 0 else "Error"
        self.state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": began,
                "finishedAt": seconds_text(moment),
                "containerID": self._id,
            }
        }
        self.ready = self.started = False

    def status(self) -> Json:
        found = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": self.spec.get("image", ""),
            "ready": self.ready,
            "started": self.started,
            "restartCount": 0,
            "state": self.state,
            "lastState": {},
        }
        if self.ever_started:
            found["containerID"] = self._id
        return found

    @property
    def _id(self) -> str:
        return f"simulated://{self._pod_id}/{self.name}"


class SimulatedPod:
    """One pod that only the clock moves."""

    def __init__(self, runtime: SimulatedRuntime, pod: Json, changed: Callable[[], None]) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self.pod = pod
        self.finished = asyncio.Event()
        self._runtime, self._clock, self._changed = runtime, runtime.clock, changed
        self._address = SandboxAddress(self.uid, runtime.take_address(self.uid))
        self._book = StatusBook(pod, runtime.clock)
        spec = pod["spec"]
        self._inits = [
            SimulatedContainer(c, "sidecar" if c.get("restartPolicy") == "Always" else "init", self.uid)
            for c in spec.get("initContainers") or ()
        ]
        self._mains = [SimulatedContainer(c, "main", self.uid) for c in spec.get("containers") or ()]
        self._task: asyncio.Task[None] | None = None
        self._ray: SimulatedRay | None = None

    def start(self) -> None:
        """Without a start delay the pod runs at once: its first status is Running, one write instead of two."""
        delay = self._seconds(START_SECONDS)
        if not delay:
            self._begin()
        submits = any(submission(container.spec) for container in self._mains)
        if delay or submits or is_head(self.pod) or duration(self.pod) is not None:
            self._task = asyncio.create_task(self._live(delay))

    def stop(self, grace: float, keep: bool = False) -> None:
        if self.finished.is_set():
            return
        if self._task is not None:
            self._task.cancel()
        now = self._clock.now()
        for container in self._mains:
            if container.ever_started and container.exit_code is None:
                container.end(now, 143)
        self._over()

    async def remove(self) -> None:
        self._runtime.give_back(self.uid)

    async def detach(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._ray is not None:
            await self._ray.stop()

    def status(self) -> Json:
        return self._book.status(self._inits, self._mains, self._address, self._runtime.host_ip)

    async def logs(self, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        yield b"this pod is simulated; it has no output\n"

    async def _live(self, delay: float) -> None:
        if delay:
            await self._clock.sleep(delay)
            self._begin()
        if is_head(self.pod):
            self._ray = SimulatedRay(self.pod, self._address.ip, self._clock)
            await self._ray.start()
        self._changed()
        if submissions := {c.name: found for c in self._mains if (found := submission(c.spec)) is not None}:
            await asyncio.gather(*(self._submit(name, found) for name, found in submissions.items()))
        elif (lasts := duration(self.pod)) is not None:
            await self._clock.sleep(lasts)
            self._end({container.name for container in self._mains}, int(self._seconds(EXIT_CODE)))

    async def _submit(self, container: str, wanted: Submission) -> None:
        """What a RayJob's submitter does: hand the job over and wait for its end."""
        code = await follow_job(wanted, self._look_up, self._clock)
        self._end({container}, code)

    def _look_up(self, host: str) -> str | None:
        if host in ("localhost", "127.0.0.1"):
            return self._address.ip
        found = self._runtime.lookup(host)
        return found[0] if found else None

    def _end(self, names: set[str], code: int) -> None:
        policy = self.pod["spec"].get("restartPolicy") or "Always"
        alone = len(names) == len(self._mains)
        if alone and (policy == "Always" or (policy == "OnFailure" and code)):
            return  # it would only be started again: for the cluster it goes on running
        for container in self._mains:
            if container.name in names:
                container.end(self._clock.now(), code)
        if all(container.exit_code is not None for container in self._mains):
            self._over()
        self._changed()

    def _begin(self) -> None:
        now = self._clock.now()
        for container in self._inits:
            container.begin(now)
            if container.role == "init":
                container.end(now, 0)
        self._book.initialized = True
        for container in self._mains:
            container.begin(now)

    def _seconds(self, annotation: str) -> float:
        try:
            return max(0.0, float((self.pod["metadata"].get("annotations") or {}).get(annotation) or 0))
        except ValueError:
            return 0.0

    def _over(self) -> None:
        if self._ray is not None:
            self._ray.close_soon()
        self.finished.set()


class SimulatedRuntime:
    """Hands out addresses; there is nothing else to share."""

    name = "simulated"
    host_ip = "127.0.0.1"

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.lookup: Callable[[str], list[str] | None] = lambda name: None
        self._addresses: dict[str, str] = {}
        self._specs: Remembered[bytes, Json] = Remembered(_MOST_SPECS)
        self._next = 0

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    def create(self, pod: Json, changed: Callable[[], None]) -> SimulatedPod:
        return SimulatedPod(self, self._slim(pod), changed)

    def _slim(self, pod: Json) -> Json:
        """What a simulated pod is asked for, with one spec for all that are alike: there may be ten thousand."""
        spec = {name: value for name, value in pod["spec"].items() if name not in _PER_POD}
        shared = self._specs.shared(msgspec.json.encode(spec), spec)
        metadata = {name: pod["metadata"][name] for name in _READ if name in pod["metadata"]}
        return {"metadata": metadata, "spec": shared, "status": pod.get("status") or {}}

    async def old_logs(self, uid: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        yield b"this pod was simulated; it had no output\n"

    async def discard(self, uid: str, grace: float) -> None:
        self.give_back(uid)

    async def sweep(self, known: set[str]) -> None:
        return None

    def take_address(self, uid: str) -> str:
        """From a block of 127.0.0.0/8 of this process's own, so that a simulated Ray head can really listen there."""
        self._next += 1
        number = self._next % 64000
        self._addresses[uid] = f"127.{128 + os.getpid() % 120}.{1 + number // 250}.{1 + number % 250}"
        return self._addresses[uid]

    def give_back(self, uid: str) -> None:
        self._addresses.pop(uid, None)


def duration(pod: Json) -> float | None:
    """Seconds that a pod runs; None for one without an end."""
    written = (pod["metadata"].get("annotations") or {}).get(RUN_SECONDS)
    if written is not None:
        try:
            return max(0.0, float(written))
        except ValueError:
            return None
    lengths = [_sleep(container) for container in pod["spec"].get("containers") or ()]
    known = [length for length in lengths if length is not None]
    return max(known) if known and len(known) == len(lengths) else None


def _sleep(container: Json) -> float | None:
    text = " ".join(str(word) for word in [*(container.get("command") or ()), *(container.get("args") or ())])
    found = _SLEEP.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in found) if found else None
