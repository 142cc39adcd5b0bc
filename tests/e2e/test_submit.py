"""From a script in a folder to its exit code in one line, with real Ray; then again, as it was written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.e2e.machine import SHOAL, Machine
from tests.patience import PATIENCE

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


LAB = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: lab}
spec:
  headGroupSpec:
    rayStartParams: {}
    template:
      spec:
        containers:
          - name: head
            image: rayproject/ray
            resources: {requests: {cpu: "1", memory: 2Gi}, limits: {cpu: "1", memory: 2Gi}}
"""
INSIDE = "import ray; ray.init(); print('cpus:', int(ray.cluster_resources()['CPU']))"


def test_a_session_has_the_dashboard_and_ray_clients_logged_in(machine: Machine, tmp_path: Path) -> None:
    manifest = tmp_path / "lab.yaml"
    manifest.write_text(LAB)
    machine.shoal("submit", "--no-wait", str(manifest), "--name", machine.name)
    inside = machine.shoal("session", "lab", "--name", machine.name, "--", sys.executable, "-c", INSIDE)
    assert "cpus: 1" in inside  # by ray://, with the cluster's token
    opened = subprocess.Popen(
        [SHOAL, "session", "lab", "--name", machine.name], env=machine.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert opened.stdout is not None
        lines = iter(opened.stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.startswith("dashboard:"))
        assert next(line.split()[2] for line in lines if line.startswith("Ray client:")).startswith("ray://127.0.0.1:")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address, timeout=PATIENCE) as page:
            assert "Ray Dashboard" in page.read().decode()
        with browser.open(urljoin(address, "/api/version"), timeout=PATIENCE) as answer:
            assert "ray_version" in json.loads(answer.read())
    finally:
        opened.send_signal(signal.SIGINT)
        opened.wait(timeout=PATIENCE)
    machine.shoal("stop", "lab", "--name", machine.name)
