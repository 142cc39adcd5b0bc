"""A pod's status as the kubelet writes it, from the states of its containers.

Pure bookkeeping: conditions remember when they last changed, the phase follows from the containers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.kube.clock import Clock
from shoal.local.nodes.sandbox import SandboxAddress


class ContainerView(Protocol):
    """What is read of a container, whichever runtime it belongs to."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def ready(self) -> bool: ...

    def status(self) -> Json: ...

    @property
    def exit_code(self) -> int | None: ...


class StatusBook:
    """Keeps what the containers do not know: transition times, the pod's own failure, why it has not begun."""

    def __init__(self, pod: Json, clock: Clock) -> None:
        self._pod = pod
        self._clock = clock
        known = pod.get("status") or {}
        self._began: str = known.get("startTime") or seconds_text(clock.now())
        self._conditions: dict[str, Json] = {
            condition["type"]: condition for condition in known.get("conditions") or () if condition["type"] in _OURS
        }
        self._resumed = "startTime" in known
        self._has_run = known.get("phase") == "Running"  # also under an earlier agent: it is never Pending again
        self._failure: tuple[str, str] | None = None
        self._waiting: tuple[str, str] = ("ContainerCreating", "")
        self.initialized = not (pod["spec"].get("initContainers") or ())

    def fail(self, reason: str, message: str) -> None:
        self._failure = (reason, message)

    def time_left(self) -> float | None:
        """Seconds until the pod's deadline, counted from when it began, also under an earlier agent."""
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        if not seconds:
            return None
        passed = (self._clock.now() - parse_time(self._began)) / 1e6 if self._resumed else 0.0
        return max(0.0, float(seconds) - max(0.0, passed))

    def waiting(self, reason: str, message: str) -> None:
        self._waiting = (reason, message)

    def status(
        self,
        inits: Sequence[ContainerView],
        mains: Sequence[ContainerView],
        address: SandboxAddress | None,
        host_ip: str,
    ) -> Json:
        phase = self._phase(inits, mains)
        ready = (
            phase == "Running"
            and bool(mains)
            and all(container.ready for container in mains)
            and all(container.ready for container in inits if container.role == "sidecar")
        )
        found: Json = {
            "phase": phase,
            "hostIP": host_ip,
            "hostIPs": [{"ip": host_ip}],
            "startTime": self._began,
            "qosClass": qos_class(self._pod["spec"]),
            "containerStatuses": [c.status() for c in mains] or self._not_yet("containers"),
        }
        if self._pod["spec"].get("initContainers"):
            found["initContainerStatuses"] = [c.status() for c in inits] or self._not_yet("initContainers")
        if address is not None:
            found.update(podIP=address.ip, podIPs=[{"ip": address.ip}])
        if self._failure is not None:
            found["reason"], found["message"] = self._failure
        finished = phase in ("Succeeded", "Failed")
        not_ready = [container.name for container in mains if not container.ready]
        why = (
            ("PodCompleted", "")
            if phase == "Succeeded"
            else ("PodFailed", "")
            if phase == "Failed"
            else ("ContainersNotReady", f"containers with unready status: [{' '.join(not_ready)}]")
        )
        uninitialized = [c.name for c in inits if c.exit_code != 0 and c.role == "init"]
        self._set("PodReadyToStartContainers", address is not None and not finished, "", "")
        self._set(
            "Initialized",
            self.initialized or phase == "Succeeded",
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(uninitialized)}]",
        )
        self._set("Ready", ready, *why)
        self._set("ContainersReady", ready, *why)
        found["conditions"] = [dict(condition) for condition in self._conditions.values()]
        return found

    def _phase(self, inits: Sequence[ContainerView], mains: Sequence[ContainerView]) -> str:
        if self._failure is not None:
            return "Failed"
        policy = self._pod["spec"].get("restartPolicy") or "Always"
        if any(c.role == "init" and c.exit_code not in (None, 0) for c in inits) and policy == "Never":
            return "Failed"
        if not self.initialized or not mains:
            return "Running" if self._has_run else "Pending"
        codes = [container.exit_code for container in mains]
        if all(code is not None for code in codes):
            if policy == "Never" or (policy == "OnFailure" and all(code == 0 for code in codes)):
                return "Succeeded" if all(code == 0 for code in codes) else "Failed"
            return "Running"
        self._has_run = self._has_run or not any(_never_started(container) for container in mains)
        return "Running" if self._has_run else "Pending"

    def _not_yet(self, field: str) -> list[Json]:
        reason, message = self._waiting
        waiting = {"reason": reason, **({"message": message} if message else {})}
        return [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "state": {"waiting": waiting},
                "lastState": {},
            }
            for container in self._pod["spec"].get(field) or ()
        ]

    def _set(self, kind: str, good: bool, reason: str, message: str) -> None:
        status = "True" if good else "False"
        known = self._conditions.get(kind)
        since = known["lastTransitionTime"] if known and known["status"] == status else seconds_text(self._clock.now())
        condition = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        if not good and reason:
            condition["reason"] = reason
            if message:
                condition["message"] = message
        self._conditions[kind] = condition


def _never_started(container: ContainerView) -> bool:
    """A pod is Pending until each of its containers was started once: clients run commands in one that is Running."""
    status = container.status()
    return "waiting" in status["state"] and not status["lastState"]


_OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort by requests and limits of cpu and memory."""
    wanted: list[tuple[Json, Json]] = []
    for container in [*spec.get("containers", []), *(spec.get("initContainers") or [])]:
        resources = container.get("resources") or {}
        wanted.append((resources.get("requests") or {}, resources.get("limits") or {}))
    names = ("cpu", "memory")
    if not any(name in part for pair in wanted for part in pair for name in names):
        return "BestEffort"
    exact = all(
        name in limits and requests.get(name, limits[name]) == limits[name]
        for requests, limits in wanted
        for name in names
    )
    return "Guaranteed" if exact else "Burstable"
