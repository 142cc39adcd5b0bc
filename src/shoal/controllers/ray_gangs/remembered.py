"""What history is told of a Ray job or Ray cluster without a queue: its user, its limit, how it ended."""

from __future__ import annotations

from shoal.api.gang import NOTIFY, SUBMITTED_BY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.planning.history.records import FAILED, SUCCEEDED, GangFacts
from shoal.errors import BadInput


def remembered(kind: Kind, obj: Json) -> GangFacts:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    stage, outcome = status.get("jobDeploymentStatus"), ""
    if stage in ("Complete", "Failed", "ValidationFailed"):
        good = stage == "Complete" and status.get("jobStatus") in (None, "", "SUCCEEDED")
        outcome = SUCCEEDED if good else FAILED
    try:
        ended = parse_time(str(status.get("endTime"))) if outcome and status.get("endTime") else 0
    except BadInput:
        ended = 0
    limit = spec.get("activeDeadlineSeconds")
    return GangFacts(
        kind=kind.kind,
        name=metadata["name"],
        user=str((metadata.get("annotations") or {}).get(SUBMITTED_BY, "")),
        notify=str((metadata.get("annotations") or {}).get(NOTIFY, "")),
        limit=limit if isinstance(limit, int) else 0,
        outcome=outcome,
        ended_at=ended,
    )
