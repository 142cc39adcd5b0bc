"""How a gang stands, in words that end the sentence "it is …", and since when it ran and how it ended.

Shared by `shoal why`, the page and the Python door. Controllers store states by name; a person reads words. Pure.
"""

from __future__ import annotations

import re
from typing import Any

from shoal.api import ray_gang
from shoal.api.kind import Kind
from shoal.api.kueue_told import condition
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.sdk import gangs
from shoal.sdk.outcomes import outcome_of

_WORDS = {
    "QuotaReserved": "waiting with its quota reserved",
    "ValidationFailed": "refused",
    "RunningHoldCompletion": "running until its pods end",
    "Initializing": "starting",
    "FailureTarget": "failing",
    "SuccessCriteriaMet": "ending",
}
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(state: str) -> str:
    """A state as words: `QuotaReserved` never becomes one long word."""
    return _WORDS.get(state) or _CAPITALS.sub(" ", state).lower()


def started_at(kind: Kind, obj: Json, workload: Json | None) -> str:
    """When it was last let go, as the object that decided it says; empty while it waits."""
    status = obj.get("status") or {}
    if workload is not None:
        return _turned_true(workload, "Admitted")
    match kind.kind:
        case "AppWrapper":
            return _turned_true(obj, "Dispatched") or _turned_true(obj, "ResourcesDeployed")
        case "RayJob" | "RayCluster":
            times = status.get("stateTransitionTimes") or {}
            return _turned_true(obj, ray_gang.ADMITTED) or str(status.get("startTime") or times.get("ready") or "")
        case "Workload":
            return _turned_true(obj, "Admitted")
    return str(status.get("startTime") or "")


def runs_since(kind: Kind, obj: Json, workload: Json | None) -> str:
    """Since when a gang that was let go starts or runs, as far as something stored says it; of a Ray job that runs,
    since its driver does."""
    info = (obj.get("status") or {}).get("rayJobInfo") or {}
    return str((kind.kind == "RayJob" and info.get("startTime")) or "") or started_at(kind, obj, workload)


def how_it_ended(kind: Kind, obj: Json, workload: Json | None) -> dict[str, Any]:
    """Outcome, when, and how long it ran; empty while it goes on."""
    ended, outcome = gangs.ended_at(kind, obj), outcome_of(kind, obj, workload)
    if not ended or not outcome.has_ended:
        return {}
    began = started_at(kind, obj, workload)
    told: dict[str, Any] = {"outcome": outcome.stage, "endedAt": ended}
    if outcome.exit_code is not None:
        told["exitCode"] = outcome.exit_code
    try:
        told |= {"startedAt": began, "ranSeconds": max(0, (parse_time(ended) - parse_time(began)) // 1_000_000)}
    except BadInput:
        pass  # it never ran, or nothing says when
    return told


def _turned_true(obj: Json, name: str) -> str:
    found = condition(obj, name)
    if found.get("status") != "True":
        return ""
    return str(found.get("lastTransitionMicroTime") or found.get("lastTransitionTime") or "")
