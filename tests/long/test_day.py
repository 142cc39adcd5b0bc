"""A virtual day of churn on one machine, ten gangs a second in waves: memory, database and open files stay flat.

All 864,000 gangs of a day would take ten hours of a core. The part has the whole day all the same: every timer, lease
and time to live of 24 hours passes. Every ten minutes gangs come, ten a second, DAY_WAVE (200) of them, or as many as
leave the part its DAY_MINUTES (50); in between everything must go. What a gang leaves behind is the slope of what is
held.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import linear_regression, mean

import pytest

from tests.churn import RATE, Day, Waves

MINUTES = float(os.environ.get("DAY_MINUTES", "50"))
WAVE = max(int(os.environ.get("DAY_WAVE", "200")), 100)
HOUR = 3600.0
DAY = 24 * HOUR
EVERY = 600.0
WARM = 2 * HOUR
"""Virtual seconds, of at least 1,200 gangs, until there are as many events as are kept, and what is remembered of a
bounded number of gangs and pods has its size."""
MOST = {"memory": 0.05, "objects": 0.02, "stored": 0.02, "database": 0.1}
"""By what part of itself each may grow in a day, as a line through all measurements has it."""


@pytest.mark.timeout(3550)
def test_a_day_of_churn_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    waves = Waves(EVERY, WAVE, steady=int(WARM / EVERY))
    day = Day(tmp_path, DAY, HOUR / 2, waves=waves, wall_limit=60 * MINUTES)
    held = day.run()
    before, after = held[0], held[-1]
    settled = [one for one in held[1:-1] if one.at - before.at > WARM]
    times, gangs = [one.at for one in settled], settled[-1].gangs - settled[0].gangs
    grown = {}
    for name in MOST:
        values = [float(getattr(one, name)) for one in settled]
        a_day = linear_regression(times, values).slope * DAY
        grown[name] = a_day / mean(values)
        whole = a_day * RATE * DAY / max(gangs, 1)
        print(f"{name}: {mean(values):.0f}, {a_day:+.0f} in this day, {whole:+.0f} in one of {RATE * DAY:.0f} gangs")
    print(f"{day.created} gangs in {(after.at - before.at) / HOUR:.2f} hours")
    assert (len(day.ends), day.late, day.left) == (day.created, [], {})
    assert after.at - before.at >= DAY - EVERY
    assert after.files <= before.files and after.tasks <= before.tasks
    assert {name: part for name, part in grown.items() if part > MOST[name]} == {}
