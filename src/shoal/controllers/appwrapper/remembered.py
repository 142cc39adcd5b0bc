"""What history is told of an AppWrapper: its user, its limit, how it ended."""

from __future__ import annotations

from shoal.api.appwrapper import AppWrapper
from shoal.api.gang import NOTIFY
from shoal.controllers.planning.creators import creator_of
from shoal.controllers.planning.history.records import DELETED, FAILED, SUCCEEDED, GangFacts

_OUTCOMES = {"Completed": SUCCEEDED, "Succeeded": SUCCEEDED, "Failed": FAILED, "Deleted": DELETED}


def remembered(wrapper: AppWrapper) -> GangFacts:
    """When it ended is when it was first seen to have."""
    creator, status = creator_of(wrapper), wrapper.status
    duration = wrapper.spec.scheduling_spec.dispatch_duration
    return GangFacts(
        kind="AppWrapper",
        name=wrapper.metadata.name,
        user=creator.user if creator is not None else "",
        limit=duration.expected or duration.limit,
        notify=(wrapper.metadata.annotations or {}).get(NOTIFY, ""),
        outcome=_OUTCOMES.get(status.state or status.phase or "", ""),
    )
