"""Two RayJobs with real Ray one after the other: nothing of the first is there when the second has gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.life import live
from tests.e2e.machine import Machine


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sandbox", ["auto", "loopback"])
def test_a_job_leaves_the_machine_as_it_was(tmp_path: Path, sandbox: str) -> None:
    machine = Machine("life", tmp_path)
    machine.up("--sandbox", sandbox, "--node", "name=node,cpu=2,memory=8Gi")
    try:
        found = live(machine, 0, least=1)
        assert found[-1].pods == 0
    finally:
        machine.down("--purge")
