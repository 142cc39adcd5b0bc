"""Why a pod does not run yet, in one line, from what its own status says.

Read by the commands and by the controller that answers questions. Pure.
"""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json

_USUAL = ("ContainerCreating", "PodInitializing")
"""What every pod says on its way up; it is no reason by itself."""


def why_pending(status: Json) -> str:
    """Empty for a pod that runs, has ended, or is on its way up without trouble."""
    if (status.get("phase") or "Pending") != "Pending":
        return ""
    for one in _dicts(status.get("conditions")):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "it has no node")
    for one in (*_dicts(status.get("initContainerStatuses")), *_dicts(status.get("containerStatuses"))):
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason and reason not in _USUAL:
            text = str(waiting.get("message") or "")
            return f"container {one.get('name')}: {reason}{': ' + text if text else ''}"
    return ""


def _dicts(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
