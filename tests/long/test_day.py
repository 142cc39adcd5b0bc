"""A virtual day of churn on one machine, ten gangs a second: memory, database, objects and open files stay flat.

All 864,000 gangs of a day would take one core more than five hours. So DAY_CLUSTERS (1) clusters share them: each runs
as a process of its own (DAY_SHARE, from 0 on, says which), has the whole day and its part of the ten gangs a second.
One cluster alone has waves instead: every ten minutes gangs come, ten a second, DAY_WAVE (200) of them. Either way
there are as many gangs as leave the part its DAY_MINUTES (50), from the third hour on; in between everything must go.
What a gang leaves behind is the slope of what is held.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import linear_regression, mean

import pytest

from tests.churn import RATE, Day, Waves

MINUTES = float(os.environ.get("DAY_MINUTES", "50"))
WAVE = max(int(os.environ.get("DAY_WAVE", "200")), 100)
CLUSTERS = max(int(os.environ.get("DAY_CLUSTERS", "1")), 1)
SHARE = int(os.environ.get("DAY_SHARE", "0"))
HOUR = 3600.0
DAY = 24 * HOUR
EVERY = 600.0
WARM = 2 * HOUR
"""Virtual seconds, of at least 1,200 gangs, until there are as many events as are kept, and what is remembered of a
bounded time of gangs and pods has its size."""
FULL = {"memory": 6 * HOUR}
"""What is remembered by number (4,096 admissions that were read, 16,384 moments) takes longer to have its size."""
MOST = {"memory": 0.05, "objects": 0.02, "stored": 0.02, "database": 0.1}
"""By what part of itself each may grow in a day, as a line through all measurements has it."""


def the_day(directory: Path) -> Day:
    steady = int(WARM / EVERY)
    if CLUSTERS == 1:
        return Day(directory, DAY, HOUR / 2, waves=Waves(EVERY, WAVE, steady), wall_limit=60 * MINUTES)
    waves = Waves(EVERY, round(EVERY * RATE / CLUSTERS), steady, spread=True)
    first = SHARE * round(RATE * DAY)
    return Day(directory, DAY, HOUR / 2, waves=waves, wall_limit=60 * MINUTES, first=first, nodes=1)


@pytest.mark.timeout(3550)
def test_a_day_of_churn_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    day, spent = the_day(tmp_path), time.process_time()
    held = day.run()
    spent = time.process_time() - spent
    before, after = held[0], held[-1]
    grown = {}
    for name in MOST:
        settled = [one for one in held[1:-1] if one.at - before.at > FULL.get(name, WARM)]
        gangs, values = settled[-1].gangs - settled[0].gangs, [float(getattr(one, name)) for one in settled]
        a_day = linear_regression([one.at for one in settled], values).slope * DAY
        grown[name] = a_day / mean(values)
        whole = a_day * RATE * DAY / max(gangs, 1)
        print(f"{name}: {mean(values):.0f}, {a_day:+.0f} in this day, {whole:+.0f} in one of {RATE * DAY:.0f} gangs")
    hours, each = (after.at - before.at) / HOUR, 1000 * spent / max(day.created, 1)
    share = f"share {SHARE} of {CLUSTERS}"
    print(f"{share}: {day.created} gangs in {hours:.2f} hours, {spent:.0f} s CPU, {each:.1f} ms each")
    print(f"ends: {dict(day.ends)}, late: {day.late[:3]}, left: {day.left}, open files {before.files} to {after.files}")
    assert (day.ends.total(), day.late, day.left) == (day.created, [], {})
    assert after.at - before.at >= DAY - EVERY
    assert after.files <= before.files and after.tasks <= before.tasks
    assert {name: part for name, part in grown.items() if part > MOST[name]} == {}
