"""Kueue's baseline and its large scale by Kueue's own runner: 15,000 and 50,000 Workloads; some twenty minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane import kueue_runner, quota_watch

LIMIT, LARGE_LIMIT = 1500.0, 1800.0
"""Seconds: how fast it is has a benchmark of its own, here it has to end."""


@pytest.mark.timeout(LIMIT + 300)
def test_the_baseline_ends_with_nothing_unfinished_and_the_quota_never_exceeded(tmp_path: Path) -> None:
    subject = kueue_runner.watched(tmp_path, kueue_runner.shoal(tmp_path))
    outcome = kueue_runner.run(tmp_path, subject, kueue_runner.baseline(), LIMIT)
    assert outcome.expected == 15_000
    assert (outcome.unfinished, outcome.ended) == (0, True), outcome
    record = quota_watch.read(tmp_path / kueue_runner.QUOTA)
    assert (record.started, record.finished, record.excess, record.lists) == (15_000, 15_000, [], 1), outcome
    assert len(record.peaks) == 5


@pytest.mark.timeout(LARGE_LIMIT + 300)
def test_the_large_scale_ends_with_nothing_unfinished_and_the_quota_never_exceeded(tmp_path: Path) -> None:
    """The runner drops events of its own here, so that only the watch knows how many have finished."""
    subject = kueue_runner.watched(tmp_path, kueue_runner.shoal(tmp_path))
    outcome = kueue_runner.run(tmp_path, subject, kueue_runner.large(), LARGE_LIMIT)
    assert (outcome.expected, outcome.ended) == (50_000, True), outcome
    record = quota_watch.read(tmp_path / kueue_runner.QUOTA)
    assert (record.started, record.finished, record.excess, record.lists) == (50_000, 50_000, [], 1), outcome
    assert len(record.peaks) == 10
