"""The Ray operator against neutral cases: our own always, recorded ones where SHOAL_CASES names a folder of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.kuberay_runner import outcomes, run_case
from tests.conformance.recorded import Recorded

FILES = sorted((Path(__file__).parent / "kuberay_cases").glob("*.json"))
OWN = [case for file in FILES for case in json.loads(file.read_text())["cases"]]
RECORDED = Recorded("kuberay.json")


@pytest.mark.parametrize("case", OWN, ids=[case["id"] for case in OWN])
def test_own_case(case):
    outcome = run_case(case)
    assert outcome.result == "passed", outcome.detail


@RECORDED.needed
def test_recorded_cases_hold():
    found = outcomes(RECORDED.path)
    core = [outcome for outcome in found if outcome.level == "core" and outcome.result != "skipped"]
    failed = [f"{outcome.id}: {outcome.detail[:200]}" for outcome in core if outcome.result == "failed"]
    assert len(failed) <= len(core) * 0.02, "\n".join(failed)
