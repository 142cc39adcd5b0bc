"""What a stored Workload says of itself, in one word and one line: how far it has come, and what it waits for.

Read by the commands and by the controller that answers questions, so that both say the same. Pure; decides nothing.
"""

from __future__ import annotations

import re

from shoal.api.meta import Json

_MORE_NEEDED = re.compile(
    r"insufficient unused quota for (?P<resource>\S+) in flavor (?P<flavor>\S+), (?P<amount>\S+) more needed"
)
_OF_POD_SET = re.compile(r"couldn't assign flavors to pod set \S+:")
PODS_MISSING = "shoal.dev/PodsMissing"
"""Condition of an admitted gang of which pods have no node, since which moment, and why."""

WORK_LOST = "shoal.dev/WorkLost"
"""Condition of a gang that was preempted: what it had done since it last saved its work, or since its start."""

BACKFILLED = "shoal.dev/Backfilled"
"""Condition of a gang that runs in quota for which the front of its queue waits: it leaves when that one can start."""


def told(workload: Json) -> tuple[str, str] | None:
    """State and reason while a queue holds the job, or while it runs and pods of it have no node; None once it runs
    whole or has ended: then the job tells more."""
    if is_incomplete(workload):
        return "Incomplete", message(workload, PODS_MISSING)
    if holds(workload, "Finished") or (holds(workload, "Admitted") and not holds(workload, "Evicted")):
        return None
    if (workload.get("spec") or {}).get("active") is False:
        return "Inactive", message(workload, "Evicted")
    if holds(workload, "QuotaReserved"):
        if holds(workload, "Evicted"):
            return "Stopping", message(workload, "Evicted")
        waiting = open_checks(workload)
        if waiting:
            return "QuotaReserved", "waits for " + "; ".join(_check(one) for one in waiting)
        return "QuotaReserved", message(workload, "Admitted") or "waits for room"
    at = requeue_at(workload)
    reason = message(workload, "QuotaReserved") or "no controller has looked at it yet"
    return "Queued", f"{reason}; not before {at}" if at else reason


def brief(reason: str) -> str:
    """Kueue's sentence of what is short of quota, for a table: `2 cpu, 2448Mi memory more needed in flavor main`. Its
    sums grow from pod set to pod set, so that the last of each is the whole. Any other reason is left as it is."""
    if "more needed" not in reason:
        return reason
    found: dict[tuple[str, str], str] = {}
    for match in _MORE_NEEDED.finditer(reason):
        found[match["flavor"], match["resource"]] = match["amount"]
    if not found or _OF_POD_SET.sub("", _MORE_NEEDED.sub("", reason)).strip(" ,;"):
        return reason
    flavors = dict.fromkeys(flavor for flavor, _ in found)
    return "; ".join(
        ", ".join(f"{amount} {resource}" for (at, resource), amount in found.items() if at == flavor)
        + f" more needed in flavor {flavor}"
        for flavor in flavors
    )


def standing_since(workload: Json) -> str:
    """Since when it stands where `told` says; empty where nothing stored says so."""
    if is_incomplete(workload):
        return _turned(workload, PODS_MISSING)
    if (workload.get("spec") or {}).get("active") is False or holds(workload, "Evicted"):
        return _turned(workload, "Evicted")
    if holds(workload, "QuotaReserved"):
        return _turned(workload, "QuotaReserved")
    turns = [_turned(workload, name) for name in ("QuotaReserved", "Evicted", "Requeued")]
    return max([str(workload["metadata"].get("creationTimestamp") or ""), *turns])


def _turned(workload: Json, name: str) -> str:
    return str(condition(workload, name).get("lastTransitionTime") or "")


def ran(workload: Json) -> tuple[str, str]:
    """State and reason of a gang that was started."""
    finished = condition(workload, "Finished")
    return ("Finished", str(finished.get("message") or "")) if finished.get("status") == "True" else ("Running", "")


def is_incomplete(workload: Json) -> bool:
    """It was started, and some of its pods have no node."""
    runs = holds(workload, "Admitted") and not holds(workload, "Evicted") and not holds(workload, "Finished")
    return runs and holds(workload, PODS_MISSING)


def open_checks(workload: Json) -> list[Json]:
    return [one for one in status_of(workload).get("admissionChecks") or () if one.get("state") != "Ready"]


def requeue_at(workload: Json) -> str:
    return str((status_of(workload).get("requeueState") or {}).get("requeueAt") or "")


def ended_at(workload: Json) -> str:
    """When it finished; empty while it has not."""
    found = condition(workload, "Finished")
    return str(found.get("lastTransitionTime") or "") if found.get("status") == "True" else ""


def status_of(workload: Json) -> Json:
    return workload.get("status") or {}


def condition(workload: Json, kind: str) -> Json:
    return next((one for one in status_of(workload).get("conditions") or () if one.get("type") == kind), {})


def holds(workload: Json, kind: str) -> bool:
    return bool(condition(workload, kind).get("status") == "True")


def message(workload: Json, kind: str) -> str:
    return str(condition(workload, kind).get("message") or "")


def _check(check: Json) -> str:
    return f"{check['name']}: {check['message']}" if check.get("message") else str(check["name"])
