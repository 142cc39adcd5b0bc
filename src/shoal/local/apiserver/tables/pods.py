"""The READY, STATUS and RESTARTS cells of a pod, read from its container statuses as kubectl shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def pod_row(pod: Json, now: int, age: Callable[[Any, int], str]) -> list[Any]:
    """Name, ready, status, restarts."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    word = str(status.get("reason") or status.get("phase") or "Unknown")
    if any(c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated"
           for c in status.get("conditions") or ()):  # fmt: skip
        word = "SchedulingGated"
    total = len(spec.get("containers") or ())
    sidecars = {c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    total += len(sidecars)
    restarts, last, ready, waiting = 0, "", 0, False
    for place, container in enumerate(status.get("initContainerStatuses") or ()):
        restarts += container.get("restartCount") or 0
        last = max(last, _last_end(container))
        state = container.get("state") or {}
        ended = state.get("terminated")
        if container.get("name") in sidecars and container.get("started"):
            ready += bool(container.get("ready"))
            continue
        if ended and ended.get("exitCode") == 0:
            continue
        word, waiting = _init_word(state, place, len(spec.get("initContainers") or ())), True
        break
    if not waiting or _initialized(status):
        word, more, ready_now, latest = _containers_word(word, status)
        restarts, ready, last = restarts + more, ready + ready_now, max(last, latest)
    if metadata.get("deletionTimestamp"):
        word = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    shown = f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)
    return [metadata.get("name") or "", f"{ready}/{total}", word, shown]


def _init_word(state: Json, place: int, total: int) -> str:
    ended, waiting = state.get("terminated"), state.get("waiting")
    if ended:
        if ended.get("reason"):
            return f"Init:{ended['reason']}"
        return f"Init:Signal:{ended['signal']}" if ended.get("signal") else f"Init:ExitCode:{ended.get('exitCode')}"
    if waiting and waiting.get("reason") and waiting["reason"] != "PodInitializing":
        return f"Init:{waiting['reason']}"
    return f"Init:{place}/{total}"


def _containers_word(word: str, status: Json) -> tuple[str, int, int, str]:
    restarts, ready, running, last = 0, 0, False, ""
    for container in reversed(status.get("containerStatuses") or ()):
        restarts += container.get("restartCount") or 0
        last = max(last, _last_end(container))
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            word = waiting["reason"]
        elif ended and ended.get("reason"):
            word = ended["reason"]
        elif ended:
            word = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode')}"
        elif container.get("ready") and "running" in state:
            running = True
            ready += 1
    if word == "Completed" and running:
        word = "Running" if _is(status, "Ready") else "NotReady"
    return word, restarts, ready, last


def _last_end(container: Json) -> str:
    return str(((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or "")


def _initialized(status: Json) -> bool:
    return _is(status, "Initialized")


def _is(status: Json, name: str) -> bool:
    return any(c.get("type") == name and c.get("status") == "True" for c in status.get("conditions") or ())
