"""From a script in a folder to its exit code in one line, with real Ray; then again, as it was written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import SHOAL, Machine

pytestmark = pytest.mark.ray

SCRIPT = """
import sys, ray, helper
ray.init()
print("sum:", sum(ray.get([ray.remote(helper.square).remote(i) for i in range(10)])), flush=True)
sys.exit(int(sys.argv[1]))
"""
QUEUE = Path(__file__).parents[2] / "samples" / "start" / "queue.yaml"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    cluster = Machine(f"submit-{tmp_path.parent.name[-3:]}", tmp_path / "home")
    (tmp_path / "home").mkdir()
    cluster.up("--node", "cpu=4,memory=8Gi")
    yield cluster
    cluster.down("--purge")


def test_a_script_is_queued_logged_and_ends_with_its_exit_code(machine: Machine, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (code / "helper.py").write_text("def square(x):\n    return x * x\n")
    machine.kubectl("apply", "-f", str(QUEUE))
    words = ["submit", "--name", machine.name, "--queue", "jobs", "--job-name", "train"]
    done = subprocess.run(
        [SHOAL, *words, "--", "python", "train.py", "7"],
        cwd=code,
        env=machine.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert "sum: 285\n" in done.stdout
    assert "RayJob train: Failed: Job entrypoint command failed with exit code 7" in done.stderr
    assert "sum: 285\n" in machine.shoal("logs", "train", "--name", machine.name)
    failed = machine.shoal("rerun", "train", "--name", machine.name, "--job-name", "again", fails=True)
    assert "RayJob again: Failed: Job entrypoint command failed with exit code 7" in failed
    machine.shoal("stop", "train", "again", "--name", machine.name)
    assert machine.names("secrets", "shoal.dev/code-of") == []
