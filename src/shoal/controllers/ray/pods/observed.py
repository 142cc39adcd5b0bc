"""What a pod's status means to a Ray cluster: dead, running, ready, and why not. Pure; called by the reconciler and
the status.
"""

from __future__ import annotations

from shoal.api.labels import RAY_SUBMITTER
from shoal.api.meta import Json
from shoal.controllers.ray import view

SUBMITTER = RAY_SUBMITTER
"""The container that submits a RayJob from within the head pod."""


def phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def is_ready(pod: Json) -> bool:
    """Ready; a head whose submitter has done its work counts by its other containers, one whose Ray ended does not."""
    if is_dead(pod):
        return False
    if (condition(pod, "Ready") or {}).get("status") == "True":
        return True
    if container_terminated(pod, SUBMITTER) is None:
        return False
    others = [one for one in (pod.get("status") or {}).get("containerStatuses") or [] if one.get("name") != SUBMITTER]
    return bool(others) and all(one.get("ready") is True for one in others)


def is_running(pod: Json) -> bool:
    return phase(pod) == "Running"


def condition(pod: Json, kind: str) -> Json | None:
    found: Json
    for found in (pod.get("status") or {}).get("conditions") or ():
        if found.get("type") == kind:
            return found
    return None


def is_dead(pod: Json) -> bool:
    """A pod that will not work again: finished, or its Ray container ended for good. Sidecars do not count."""
    if phase(pod) in ("Failed", "Succeeded"):
        return True
    return phase(pod) == "Running" and restart_policy(pod) == "Never" and ray_terminated(pod) is not None


def restart_policy(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("restartPolicy") or "Always")


def ray_terminated(pod: Json) -> Json | None:
    """How the Ray container ended, if it has."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return container_terminated(pod, str(containers[0].get("name")))


def has_container(pod: Json, name: str) -> bool:
    return any(one.get("name") == name for one in (pod.get("spec") or {}).get("containers") or [])


def container_terminated(pod: Json, name: str) -> Json | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if status.get("name") == name:
            return (status.get("state") or {}).get("terminated")
    return None


def restarts(pod: Json, name: str) -> int:
    """How often a container was started again."""
    held = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((int(one.get("restartCount") or 0) for one in held if one.get("name") == name), 0)


def trouble(pod: Json) -> tuple[str, str] | None:
    """The first container that waits or ended, as reason and message: `ImagePullBackOff`, `ray-head: ...`."""
    status = pod.get("status") or {}
    for found in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = found.get("state") or {}
        for side in ("waiting", "terminated"):
            detail = state.get(side)
            if detail and detail.get("reason") and detail.get("reason") not in ("Completed", "PodInitializing"):
                return str(detail["reason"]), f"{found.get('name')}: {detail.get('message') or detail['reason']}"
    return None


def why_not_ready(pod: Json) -> tuple[str, str] | None:
    """The first container that waits or ended, whatever for; a failing init container before those it holds up."""
    failing = trouble({"status": {"initContainerStatuses": (pod.get("status") or {}).get("initContainerStatuses")}})
    if failing is not None:
        return failing
    for found in (pod.get("status") or {}).get("containerStatuses") or []:
        state = found.get("state") or {}
        detail = state.get("waiting") or state.get("terminated")
        if detail and detail.get("reason"):
            return str(detail["reason"]), f"{found.get('name')}: {detail.get('message') or ''}".rstrip(": ")
    return None


def why_dead(pod: Json) -> str:
    """A sentence for the event: which container, how it ended."""
    ended = ray_terminated(pod) or {}
    status = pod.get("status") or {}
    reason = ended.get("reason") or status.get("reason") or phase(pod)
    code = f", exit code {ended['exitCode']}" if ended.get("exitCode") is not None else ""
    return f"pod {view.name(pod)} is {phase(pod)}: {reason}{code}"
