"""A RayJob of ten minutes with real Ray, whose submitter is deleted every twenty seconds, in each sandbox."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.machine import Machine
from tests.e2e.test_shapes import cluster, ray_job

SECONDS, PAUSE = 600, 20


@pytest.mark.ray
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("sandbox", ["netns", "loopback"])
def test_a_lost_submitter_is_no_lost_job(tmp_path: Path, sandbox: str) -> None:
    machine = Machine("submitters", tmp_path)
    machine.up("--sandbox", sandbox, "--node", "name=node,cpu=2,memory=8Gi")
    try:
        slow = {"entrypoint": f"sleep {SECONDS}", "rayClusterSpec": cluster()}
        machine.kubectl("create", "-f", "-", stdin=json.dumps(ray_job("slow", slow)))
        machine.wait("rayjob/slow", "jsonpath={.status.jobStatus}=RUNNING")
        killed, ends = 0, time.monotonic() + SECONDS - 2 * PAUSE
        while time.monotonic() < ends:
            for pod in machine.names("pods", "job-name=slow"):
                machine.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")
                killed += 1
            assert machine.get("rayjob", "slow")["status"]["jobDeploymentStatus"] == "Running"
            time.sleep(PAUSE)
        assert killed >= 2
        machine.wait("rayjob/slow", "jsonpath={.status.jobDeploymentStatus}=Complete")
        assert machine.get("rayjob", "slow")["status"]["jobStatus"] == "SUCCEEDED"
    finally:
        machine.down()
