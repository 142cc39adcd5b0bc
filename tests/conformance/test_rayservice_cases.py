"""RayService and RayCronJob against recorded cases, where SHOAL_CASES names their folder; our own: tests/unit/ray."""

from __future__ import annotations

from tests.conformance.rayservice_runner import outcomes
from tests.conformance.recorded import Recorded

RECORDED = Recorded("rayservice.json")


@RECORDED.needed
def test_recorded_cases_hold():
    found = outcomes(RECORDED.path)
    assert len(found) > 10
    assert [f"{one.id}: {one.detail[:200]}" for one in found if one.result in ("failed", "skipped")] == []
