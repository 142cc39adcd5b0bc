"""Kueue's baseline by Kueue's own runner, 15,000 Workloads in 30 queues: some ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane import kueue_runner

LIMIT = 2400.0
"""Seconds: how fast it is has a benchmark of its own, here it has to end."""


@pytest.mark.timeout(LIMIT + 300)
def test_the_baseline_ends_with_nothing_unfinished(tmp_path: Path) -> None:
    outcome = kueue_runner.run(tmp_path, kueue_runner.shoal(tmp_path), kueue_runner.baseline(), LIMIT)
    assert outcome.expected == 15_000
    assert (outcome.unfinished, outcome.ended) == (0, True), outcome
