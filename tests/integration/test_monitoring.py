"""Prometheus's own parser reads every query of the dashboards and rules. What they name is served: test_install.py."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.controlplane import build
from tests.faults import proven
from tests.unit.cli import test_monitoring
from tests.unit.cli.test_monitoring import QUERIES, metrics_in


def parsed(queries: list[str]) -> list[dict[str, Any]]:
    """What Prometheus says of each: an error, or the metrics and labels that it names."""
    done = subprocess.run(
        [build.program("promql")], input=json.dumps(queries), capture_output=True, text=True, timeout=60, check=True
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def as_sent(query: str) -> str:
    """Grafana fills its variables in, and asks the values of a label by itself."""
    if query.startswith("label_values("):
        query = query.removeprefix("label_values(").rpartition(",")[0]
    return query.replace("$queue", ".*")


def _loses_a_bracket(patch: pytest.MonkeyPatch) -> None:
    for place, query in QUERIES.items():
        patch.setitem(test_monitoring.QUERIES, place, query.replace("))", ")", 1))


@proven(without=_loses_a_bracket)
def test_f330_prometheus_reads_every_query() -> None:
    """F330: a panel or a rule has a query that Prometheus cannot read, or selects by other names than our own reader of
    queries found. Holds: Prometheus's parser takes each of them and names the same metrics and labels."""
    places = list(QUERIES)
    for place, answer in zip(places, parsed([as_sent(QUERIES[place]) for place in places]), strict=True):
        assert "error" not in answer, f"{place}: {answer['error']}"
        ours = metrics_in(QUERIES[place])
        assert set(answer["metrics"]) == set(ours), place
        for name, labels in answer["metrics"].items():
            assert {*labels, *answer["by"]} <= ours[name], place


def test_a_query_that_cannot_be_read_is_named() -> None:
    (answer,) = parsed(["sum(rate(shoal_leading)"])
    assert "unclosed left parenthesis" in answer["error"]
