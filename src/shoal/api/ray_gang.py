"""Ray objects that are gangs by themselves: which they are, and the condition that says whether one may start.

A RayJob or RayCluster that no queue, AppWrapper or other owner holds starts once all of it has room, where the Ray
operator runs with `ray.gang=on`. The condition is written by the planning side and read by the operator, which makes
nothing before it is true; the two share no more than this. Pure.
"""

from __future__ import annotations

from shoal.api.gang import GANG_UID, PREFIX
from shoal.api.labels import KUEUE_QUEUE, RAY_OPERATOR
from shoal.api.meta import Json
from shoal.api.objects import controller_of, label

ADMITTED = PREFIX + "Admitted"
"""Type of the condition: `False` while the object waits for room, `True` from its start to its suspension."""
WAITING_FOR_ROOM = "WaitingForRoom"
ROOM_FOUND = "RoomFound"
STARTED_BEFORE = "StartedBefore"
"""Reasons of the condition; the last one of an object that ran before its gang was looked at."""


def is_gang(obj: Json) -> bool:
    """Is this RayJob or RayCluster a gang by itself? Not one that an owner made (but for a RayCronJob or a RayService,
    whose upgrade asks for its second cluster while the first serves), that names a queue or that another operator
    manages, nor a RayJob for a cluster of its user's choice."""
    spec = obj.get("spec") or {}
    return (
        stands_alone(obj)
        and not label(obj, KUEUE_QUEUE)
        and spec.get("managedBy") in (None, "", RAY_OPERATOR)
        and not spec.get("clusterSelector")
    )


def stands_alone(obj: Json) -> bool:
    """Has no owner that counts in its place: none at all, a RayCronJob, or a RayService that no AppWrapper holds (the
    marks of one would have been copied to its clusters)."""
    owner = controller_of(obj)
    marks = (obj.get("metadata") or {}).get("annotations") or {}
    of_service = owner is not None and owner.get("kind") == "RayService" and GANG_UID not in marks
    return owner is None or owner.get("kind") == "RayCronJob" or of_service


def condition_of(obj: Json) -> Json:
    """The condition, or nothing."""
    listed = (obj.get("status") or {}).get("conditions")
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return next((one for one in found if one.get("type") == ADMITTED), {})


def is_admitted(obj: Json) -> bool:
    return condition_of(obj).get("status") == "True"


def has_changed(obj: Json) -> bool:
    """Is its spec another than the one that was admitted?"""
    judged = condition_of(obj).get("observedGeneration")
    return judged is not None and judged != obj["metadata"].get("generation")


def why_waiting(obj: Json) -> str:
    """What a gang that may not start yet waits for; empty for all others."""
    found = condition_of(obj)
    return str(found.get("message") or "") if found.get("status") == "False" else ""


def with_condition(obj: Json, admitted: bool, reason: str, message: str, now: str) -> list[Json]:
    """All conditions of the object, with this one. Its time changes only with its status; its generation is that of the
    spec that was judged, 0 where none was."""
    before, status = condition_of(obj), str(admitted)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    made: Json = {
        "type": ADMITTED,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or now,
        "observedGeneration": 0 if reason == STARTED_BEFORE else int(obj["metadata"].get("generation") or 0),
    }
    return [*without_condition(obj), made]


def without_condition(obj: Json) -> list[Json]:
    """All conditions of the object but this one: what was suspended asks for room again."""
    listed = (obj.get("status") or {}).get("conditions") or []
    return [one for one in listed if one.get("type") != ADMITTED]
