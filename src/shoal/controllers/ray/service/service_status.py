"""The status of a RayService: conditions, and which of two statuses is worth a write. Pure.

`Ready` follows the endpoints and stays what it was while there never were any; `UpgradeInProgress` follows the two
names. A condition's time changes with its status only, unless a suspended service begins again.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.ray import view
from shoal.controllers.ray.cluster.status import condition_status

READY, UPGRADING, ROLLBACK = "Ready", "UpgradeInProgress", "RollbackInProgress"
SUSPENDING, SUSPENDED = "Suspending", "Suspended"
INITIALIZING, TIMED_OUT, INVALID = "Initializing", "InitializingTimeout", "ValidationFailed"
ACTIVE, PENDING = "activeServiceStatus", "pendingServiceStatus"


class ServiceConditions:
    """The conditions of one status, changed in place."""

    def __init__(self, status: Json, generation: int, now: int) -> None:
        self._held: list[Json] = [dict(one) for one in status.get("conditions") or []]
        status["conditions"] = self._held
        self._generation, self._now = generation, seconds_text(now)

    def find(self, kind: str) -> Json:
        return next((one for one in self._held if one.get("type") == kind), {})

    def is_true(self, kind: str) -> bool:
        return self.find(kind).get("status") == "True"

    def reason(self, kind: str) -> str:
        return str(self.find(kind).get("reason") or "")

    def put(self, kind: str, status: str, reason: str, message: str = "", *, fresh: bool = False) -> None:
        held = self.find(kind)
        since = held.get("lastTransitionTime") if held.get("status") == status and not fresh else None
        new: Json = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:32000],
            "observedGeneration": self._generation,
            "lastTransitionTime": since or self._now,
        }
        if not held:
            self._held.append(new)
        elif any(held.get(field) != new[field] for field in ("status", "reason", "message")) or fresh:
            held.update(new)

    def drop(self, kind: str) -> None:
        self._held[:] = [one for one in self._held if one.get("type") != kind]


def cluster_name(status: Json, role: str) -> str:
    return str((status.get(role) or {}).get("rayClusterName") or "")


def settle_conditions(status: Json, conditions: ServiceConditions, waits_for: str = "") -> None:
    """What endpoints and names say. `waits_for` is why a pending cluster is not ready yet."""
    endpoints = int(status.get("numServeEndpoints") or 0)
    if not conditions.find(READY):
        conditions.put(READY, "False", INITIALIZING, "RayService is initializing")
        conditions.put(UPGRADING, "False", INITIALIZING, "RayService is initializing")
    if endpoints > 0:
        conditions.put(READY, "True", "NonZeroServeEndpoints", "Number of serve endpoints is greater than 0")
    elif conditions.is_true(READY):
        conditions.put(READY, "False", "ZeroServeEndpoints", "Number of serve endpoints dropped to 0")
    elif conditions.reason(READY) == INITIALIZING:
        conditions.put(READY, "False", INITIALIZING, waits_for or "RayService is initializing")
    active, pending = cluster_name(status, ACTIVE), cluster_name(status, PENDING)
    if active and pending:
        told = f"Active cluster {active} serves until pending cluster {pending} is ready"
        conditions.put(
            UPGRADING, "True", "BothActivePendingClustersExist", f"{told}: {waits_for}" if waits_for else told
        )
    elif active:
        conditions.put(UPGRADING, "False", "NoPendingCluster", "Active cluster exists and no pending cluster")
    elif conditions.reason(UPGRADING) != INITIALIZING:
        conditions.put(UPGRADING, "Unknown", "NoActiveCluster", "No active cluster exists")
    status["serviceStatus"] = "Running" if conditions.is_true(READY) else ""


def is_upgrading(service: Json) -> bool:
    return condition_status(service, UPGRADING) == "True"


def worth_a_write(old: Json, new: Json) -> bool:
    """A copy of a cluster's own status is taken along, and never a reason by itself."""
    return _compared(old) != _compared(new)


def differs_in_words(old: Json, new: Json) -> bool:
    """Only messages of conditions differ."""
    return _without_words(_compared(old)) == _without_words(_compared(new))


def _without_words(compared: Json) -> Json:
    conditions = [{**one, "message": ""} for one in compared.get("conditions") or []]
    return {**compared, "conditions": conditions}


def _compared(status: Json) -> Json:
    kept = {
        key: value for key, value in status.items() if key != "lastUpdateTime" and value not in (None, "", 0, [], {})
    }
    for role in (ACTIVE, PENDING):
        part = {
            key: value
            for key, value in (status.get(role) or {}).items()
            if key != "rayClusterStatus" and value not in (None, "", {})
        }
        kept.pop(role, None)
        if part:
            kept[role] = part
    return kept


def copied_cluster_status(cluster: Json | None) -> Json:
    return view.clone((cluster or {}).get("status") or {})
