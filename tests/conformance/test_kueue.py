"""Our own queueing cases, always; the neutral public set as well, where SHOAL_CASES names a folder with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import kueue_runner, run
from tests.conformance.recorded import Recorded

HERE = Path(__file__).resolve().parent
OWN = sorted(HERE.glob("cases/kueue-*.json"))
PUBLIC = Recorded("kueue.json")


def cases(path: Path) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in json.loads(path.read_text())["cases"]]


@pytest.mark.parametrize("case", [case for path in OWN for case in cases(path)])
def test_own_case(case):
    assert kueue_runner.differences(case) == []


def test_every_kind_of_decision_has_cases_of_our_own():
    kinds = {case["kind"] for path in OWN for case in json.loads(path.read_text())["cases"]}
    assert kinds == set(kueue_runner.JUDGES)


@PUBLIC.needed
def test_public_cases():
    results = kueue_runner.run(PUBLIC.path)
    assert {kind: result["failed_ids"] for kind, result in results.items() if result["failed"]} == {}


def test_a_wrong_expectation_fails_and_the_command_says_so(tmp_path, capsys):
    told = json.loads((HERE / "cases" / "kueue-quota.json").read_text())
    told["cases"][0]["expect"]["available"]["a"]["default|cpu"] += 1
    changed, result = tmp_path / "cases.json", tmp_path / "result.json"
    changed.write_text(json.dumps(told))
    assert run.main(["kueue", str(changed), "--json", str(result)]) == 1
    assert told["cases"][0]["id"] in capsys.readouterr().out
    written = json.loads(result.read_text())["quota"]
    assert (written["failed"], written["failed_ids"]) == (1, [told["cases"][0]["id"]])


def test_what_is_not_built_is_reported_as_skipped(tmp_path):
    changed = tmp_path / "cases.json"
    entries = [
        {"id": "t", "kind": "unheard", "tags": [], "input": {}, "expect": {}},
        {"id": "g", "kind": "cycle", "tags": ["gates"], "input": {"featureGates": {"Unheard": True}}, "expect": {}},
    ]
    changed.write_text(json.dumps({"cases": entries}))
    results = kueue_runner.run(changed)
    assert {kind: result["reasons"] for kind, result in results.items()} == {
        "unheard": {"no judge for this family": 1},
        "cycle": {"gates without a setting: Unheard": 1},
    }
