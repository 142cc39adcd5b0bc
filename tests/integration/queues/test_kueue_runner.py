"""Kueue's own performance runner with Shoal as its subject, on its own API server with Kueue's CRDs: it ends."""

from __future__ import annotations

from pathlib import Path

from tests.controlplane import kueue_runner, quota_watch
from tests.patience import PATIENCE


def test_two_queues_that_preempt_each_other_leave_nothing_unfinished(tmp_path: Path) -> None:
    """70 Workloads that come one after another, of three sizes and priorities, in one cohort with too little quota,
    of which they never hold more than there is."""
    generator, limit = kueue_runner.small(tmp_path), 2 * PATIENCE  # half a minute on an idle machine
    at_once = "queues.preemption_pause_seconds=0"  # as shipped most are waited for, as they run for a second
    subject = kueue_runner.watched(tmp_path, kueue_runner.shoal(tmp_path, "--set", at_once))
    outcome = kueue_runner.run(tmp_path, subject, generator, limit)
    assert outcome.expected == 70
    assert (outcome.unfinished, outcome.ended) == (0, True), outcome
    record = quota_watch.read(tmp_path / kueue_runner.QUOTA)
    assert (record.started, record.finished, record.excess, record.lists) == (70, 70, [], 1), record
    assert outcome.evictions > 0
