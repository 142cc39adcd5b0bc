"""The Ray operator against neutral cases: our own always, recorded ones where a folder of them is there.

Recorded cases are looked for in the folder named by SHOAL_CASES, else in ../shared/cases beside the repository.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conformance.kuberay_runner import outcomes, run_case

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((Path(__file__).parent / "kuberay_cases").glob("*.json"))
OWN = [case for file in FILES for case in json.loads(file.read_text())["cases"]]
RECORDED = Path(os.environ.get("SHOAL_CASES") or ROOT.parent / "shared" / "cases") / "kuberay.json"


@pytest.mark.parametrize("case", OWN, ids=[case["id"] for case in OWN])
def test_own_case(case):
    outcome = run_case(case)
    assert outcome.result == "passed", outcome.detail


@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recorded cases at {RECORDED}; set SHOAL_CASES to their folder")
def test_recorded_cases_hold():
    found = outcomes(RECORDED)
    core = [outcome for outcome in found if outcome.level == "core" and outcome.result != "skipped"]
    failed = [f"{outcome.id}: {outcome.detail[:200]}" for outcome in core if outcome.result == "failed"]
    assert len(failed) <= len(core) * 0.02, "\n".join(failed)
