"""A virtual day of churn on one machine, ten gangs a second: memory, database and open files stay flat.

A day is 864,000 gangs, and an hour of a quiet core has less than a tenth of them: the part stops after DAY_MINUTES (50)
and says how far it came. With DAY_STATE=DIRECTORY it keeps its state there, and the next run goes on with the same day.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.churn import RATE, Day, Held

MINUTES = float(os.environ.get("DAY_MINUTES", "50"))
STATE = os.environ.get("DAY_STATE", "")
DAY = 86_400.0
WARM = 3600.0
"""Virtual seconds until events are as many as are kept."""


@pytest.mark.timeout(3550)
def test_a_day_of_churn_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    place = Path(STATE or tmp_path)
    place.mkdir(parents=True, exist_ok=True)
    progress = place / "day.json"
    earlier = msgspec.json.decode(progress.read_bytes(), type=list[list[Held]]) if progress.exists() else []
    first = sum(part[-1].gangs for part in earlier)
    day = Day(place, DAY - first / RATE, 600.0, first=first, wall_limit=60 * MINUTES)
    held = day.run()
    progress.write_bytes(msgspec.json.encode([*earlier, held]))
    for one in held:
        print(one)
    print(f"{first + day.created} gangs, {(first + day.created) / RATE / 3600:.2f} hours of the day")
    assert (len(day.ends), day.late, day.left) == (day.created, [], {})
    before, after = held[0], held[-1]
    assert after.files <= before.files and after.tasks <= before.tasks
    settled = [one for one in held[1:-1] if one.at > WARM]
    third = len(settled) // 3
    if third:
        for name, most in (("memory", 1.05), ("objects", 1.05), ("stored", 1.05), ("database", 1.1), ("files", 1.1)):
            early, late = (max(getattr(one, name) for one in part) for part in (settled[:third], settled[-third:]))
            assert late <= early * most, f"{name} grows: {early} in the first third, {late} in the last"
