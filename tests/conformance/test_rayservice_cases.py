"""RayService and RayCronJob against recorded cases, where a folder of them is there; our own are in tests/unit/ray.

They are looked for in the folder named by SHOAL_CASES, else in ../shared/cases beside the repository.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.rayservice_runner import outcomes

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(os.environ.get("SHOAL_CASES") or ROOT.parent / "shared" / "cases") / "rayservice.json"


@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recorded cases at {RECORDED}; set SHOAL_CASES to their folder")
def test_recorded_cases_hold():
    found = outcomes(RECORDED)
    assert len(found) > 10
    assert [f"{one.id}: {one.detail[:200]}" for one in found if one.result in ("failed", "skipped")] == []
