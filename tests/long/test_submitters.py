"""A RayJob with real Ray, whose submitter is killed every twenty seconds, in each sandbox; also one beside the head."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from shoal.local.home import Home
from shoal.local.nodes.runtime.shim import kernel
from tests.e2e.life import wait_long
from tests.e2e.machine import Machine
from tests.e2e.test_shapes import cluster, ray_job

PAUSE = 20
MODES = ("K8sJobMode", "SidecarMode")
"""The others have no submitter of their own."""


@pytest.mark.ray
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "mode, sandbox, seconds",
    [
        *((mode, sandbox, 120) for mode in MODES for sandbox in ("netns", "mounts", "loopback")),
        ("K8sJobMode", "netns", 600),
        ("K8sJobMode", "loopback", 600),
    ],
)
def test_a_lost_submitter_is_no_lost_job(tmp_path: Path, mode: str, sandbox: str, seconds: int) -> None:
    """A submitter of its own is deleted, with its pod; one beside the head is killed, and is not started again."""
    machine = Machine("submitters", tmp_path)
    machine.up("--sandbox", sandbox, "--node", "name=node,cpu=4,memory=8Gi")
    try:
        slow = {"submissionMode": mode, "entrypoint": f"sleep {seconds}", "rayClusterSpec": cluster()}
        machine.kubectl("create", "-f", "-", stdin=json.dumps(ray_job("slow", slow)))
        wait_long(machine, "rayjob/slow", "jsonpath={.status.jobStatus}=RUNNING")
        killed, ends = 0, time.monotonic() + seconds - 2 * PAUSE
        while time.monotonic() < ends:
            killed += delete_submitter(machine) if mode == "K8sJobMode" else kill_sidecar(machine)
            assert machine.get("rayjob", "slow")["status"]["jobDeploymentStatus"] == "Running"
            time.sleep(PAUSE)
        assert killed >= (2 if mode == "K8sJobMode" else 1)
        machine.wait("rayjob/slow", "jsonpath={.status.jobDeploymentStatus}=Complete")
        assert machine.get("rayjob", "slow")["status"]["jobStatus"] == "SUCCEEDED"
    finally:
        machine.down()


def delete_submitter(machine: Machine) -> int:
    found = machine.names("pods", "job-name=slow")
    for pod in found:
        machine.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")
    return len(found)


def kill_sidecar(machine: Machine) -> int:
    """Everything that runs in the container beside the head."""
    killed = 0
    pods = Home(machine.name, machine.home / "shoal").runtime / "pods"
    for state in pods.glob("*/containers/ray-job-submitter/*/state.json"):
        for pid in kernel.descendants(int(json.loads(state.read_bytes())["inner"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed
