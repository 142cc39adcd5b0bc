"""RayJobs with real Ray for fifty minutes, one after the other: memory and database stay flat, nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.life import live
from tests.e2e.machine import Machine

MINUTES = float(os.environ.get("LIFE_MINUTES", "50"))
WARM = 5
"""Jobs until caches, pools and the allocator have their size."""


@pytest.mark.ray
@pytest.mark.timeout(3550)
def test_jobs_for_an_hour_leave_the_machine_as_it_was(tmp_path: Path) -> None:
    machine = Machine("life", tmp_path)
    machine.up("--sandbox", os.environ.get("LIFE_SANDBOX", "auto"), "--node", "name=node,cpu=2,memory=8Gi")
    try:
        found = live(machine, 60 * MINUTES, least=WARM + 2)
        settled = found[WARM:]
        assert len({one.own() for one in found}) == 1
        half = len(settled) // 2
        for name, most in (("memory", 1.05), ("database", 1.5), ("files", 1.1)):
            early, late = (max(getattr(one, name) for one in part) for part in (settled[:half], settled[half:]))
            assert late <= early * most, f"{name} grows: {early} in the first half, {late} in the second"
    finally:
        machine.down("--purge")
