"""Why a pod does not run yet, in one line, from what its own status says.

Read by the commands and by the controller that answers questions. Pure.
"""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json

DEFAULT_SCHEDULER = "default-scheduler"
_USUAL = ("ContainerCreating", "PodInitializing")
"""What every pod says on its way up; it is no reason by itself."""


def why_pending(status: Json, spec: Json) -> str:
    """Empty for a pod that runs, has ended, or is on its way up without trouble."""
    if (status.get("phase") or "Pending") != "Pending":
        return ""
    conditions = _dicts(status.get("conditions"))
    for one in conditions:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "it has no node")
    if silent := silent_scheduler(spec, conditions):
        return silence_of(silent)
    for one in (*_dicts(status.get("initContainerStatuses")), *_dicts(status.get("containerStatuses"))):
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason and reason not in _USUAL:
            text = str(waiting.get("message") or "")
            return f"container {one.get('name')}: {reason}{': ' + text if text else ''}"
    return ""


def silent_scheduler(spec: Json, conditions: list[Json]) -> str:
    """Name of the scheduler that a pod without a node asks for, where it is not Kubernetes' own and has said nothing of
    the pod yet: a scheduler that runs soon binds it or says why it cannot."""
    name = str(spec.get("schedulerName") or "")
    if spec.get("nodeName") or name in ("", DEFAULT_SCHEDULER):
        return ""
    return "" if any(one.get("type") == "PodScheduled" for one in conditions) else name


def silence_of(scheduler: str) -> str:
    return f"no scheduler {scheduler} has answered: does one run in this cluster, as its spec.schedulerName asks?"


def _dicts(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
