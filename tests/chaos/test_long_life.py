"""A little of a busy day on one machine: everything ends, nothing is left, and a clock that jumps changes only times.

`make test-long PART=day` has a whole one.
"""

from __future__ import annotations

from pathlib import Path

from tests.churn import Day

HOUR = 3600.0


def test_gangs_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    day = Day(tmp_path, seconds=10, measured=4)
    before, *_, after = day.run()
    assert (day.created, day.ends.total(), day.late, day.left) == (100, 100, [], {})
    assert after.files <= before.files and after.tasks <= before.tasks


def test_clock_jumps_and_a_closed_lid_change_nothing_but_times(tmp_path: Path) -> None:
    quiet, jumping = (
        Day(tmp_path / "quiet", seconds=8, measured=100),
        Day(tmp_path / "jumping", seconds=8, measured=100),
    )
    clock = jumping.clock
    jumping.happens = [
        (2.0, lambda: clock.set_wall(HOUR)),
        (4.0, lambda: clock.set_wall(-2 * HOUR)),
        (6.0, lambda: clock.suspend(HOUR)),
    ]
    quiet.run()
    jumping.run()
    assert jumping.ends == quiet.ends and not jumping.late
    assert (jumping.left, jumping.warnings - quiet.warnings) == ({}, {})
