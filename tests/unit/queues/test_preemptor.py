"""Which gang an evicted Workload makes way for is stored as data; sentences are for people."""

from __future__ import annotations

import pytest

from shoal.api.codec import typed
from shoal.api.gang import PREEMPTED_FOR
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.controllers.queues.checks import steps
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.facts import preemptor_of

OLD_MESSAGE = "Preempted to accommodate a workload (UID: uid-old, JobUID: job) due to prioritization"
MOMENT = "2026-01-01T00:00:00Z"


def evicted(message: str, annotation: str = "", reason: str = "Preempted") -> Json:
    condition = {
        "type": "Evicted", "status": "True", "reason": reason, "message": message, "lastTransitionTime": MOMENT,
    }  # fmt: skip
    annotations = {PREEMPTED_FOR: annotation} if annotation else {}
    return {"metadata": {"name": "w", "annotations": annotations}, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (evicted("any words at all", f"uid-new@{MOMENT}"), "uid-new"),
        (evicted(OLD_MESSAGE, f"uid-new@{MOMENT}"), "uid-new"),
        (evicted(OLD_MESSAGE), "uid-old"),  # stored by a release that had no annotation
        (evicted(OLD_MESSAGE, "uid-new@2025-01-01T00:00:00Z"), "uid-old"),  # said of an earlier eviction
        (evicted("any words at all", "uid-new@2025-01-01T00:00:00Z"), ""),
        (evicted("deactivated", f"uid-new@{MOMENT}", reason="Deactivated"), ""),
        ({"metadata": {"name": "w"}}, ""),
    ],
)
def test_the_preemptor_is_read_from_what_is_stored_for_this_eviction(workload: Json, expected: str) -> None:
    assert preemptor_of(typed(workload, Workload)) == expected


def test_what_a_preemption_stores_is_read_back() -> None:
    workload: Json = {"metadata": {"name": "w", "creationTimestamp": MOMENT}, "status": {}}
    draft = Draft(workload, 1_800_000_000_000_000)
    steps.preempt(draft, "InClusterQueue", "it makes way", "uid-of-the-other")
    stored = {"metadata": {**workload["metadata"], "annotations": draft.annotations}, "status": draft.status}
    assert preemptor_of(typed(stored, Workload)) == "uid-of-the-other"
