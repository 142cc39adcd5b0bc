"""RayJobs of every submission mode on simulated pods, through kubectl: no process runs, every job ends as annotated."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.integration.local.conftest import apply, until

pytestmark = pytest.mark.usefixtures("at_zero")

SECONDS, STATUS = "simulation.shoal.dev/job-seconds", "simulation.shoal.dev/job-status"


def ray_job(name: str, mode: str, status: str = "SUCCEEDED", seconds: float = 0.3, **spec: Any) -> dict[str, Any]:
    def container(role: str) -> dict[str, Any]:
        amounts = {"cpu": "500m", "memory": "1Gi"}
        return {
            "name": role,
            "image": "rayproject/ray:2.60.0",
            "resources": {"limits": amounts, "requests": amounts},
        }

    marks = {SECONDS: str(seconds), STATUS: status}
    cluster = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"metadata": {"annotations": marks}, "spec": {"containers": [container("ray-head")]}},
        },
        "workerGroupSpecs": [
            {
                "groupName": "fish",
                "replicas": 2,
                "minReplicas": 2,
                "maxReplicas": 2,
                "rayStartParams": {},
                "template": {"spec": {"containers": [container("ray-worker")]}},
            }
        ],
    }
    spec = {"submissionMode": mode, "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster, **spec}
    if mode != "InteractiveMode":
        spec["entrypoint"] = "python train.py"
    if mode == "K8sJobMode":
        spec["submitterConfig"] = {"backoffLimit": 0}  # a failed submitter is not tried again
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}


def ends(machine: Machine, name: str, stage: str) -> dict[str, Any]:
    machine.wait(f"rayjob/{name}", f"jsonpath={{.status.jobDeploymentStatus}}={stage}", seconds=60)
    return dict(machine.get("rayjob", name)["status"])


@pytest.mark.parametrize("mode", ["K8sJobMode", "HTTPMode", "SidecarMode"])
def test_a_job_of_each_mode_completes_or_fails_as_annotated(machine: Machine, mode: str) -> None:
    name = mode.lower()
    apply(
        machine,
        ray_job(f"{name}-good", mode, "SUCCEEDED"),
        ray_job(f"{name}-bad", mode, "FAILED"),
    )
    assert ends(machine, f"{name}-good", "Complete")["jobStatus"] == "SUCCEEDED"
    bad = ends(machine, f"{name}-bad", "Failed")
    assert (bad["jobStatus"], bad["reason"]) == ("FAILED", "AppFailed")


def test_an_interactive_job_waits_for_its_user_and_then_completes(machine: Machine) -> None:
    apply(machine, ray_job("hand", "InteractiveMode"))
    machine.wait("rayjob/hand", "jsonpath={.status.jobDeploymentStatus}=Waiting", seconds=60)
    pods = machine.get("pods", "-l", "ray.io/node-type=head")["items"]
    body = json.dumps({"entrypoint": "python notebook.py", "submission_id": "by-hand"}).encode()
    url = f"http://{pods[0]['status']['podIP']}:8265/api/jobs/"
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert json.load(answer)["submission_id"] == "by-hand"
    machine.kubectl("patch", "rayjob", "hand", "--type=merge", "-p", '{"spec":{"jobId":"by-hand"}}')
    assert ends(machine, "hand", "Complete")["jobStatus"] == "SUCCEEDED"


def test_a_running_job_has_logs_and_can_be_stopped(machine: Machine) -> None:
    apply(machine, ray_job("long", "HTTPMode", seconds=600))
    machine.wait("rayjob/long", "jsonpath={.status.jobStatus}=RUNNING", seconds=60)
    status = machine.get("rayjob", "long")["status"]
    head = machine.get("pods", "-l", "ray.io/node-type=head")["items"][0]["status"]["podIP"]
    job = f"http://{head}:8265/api/jobs/{status['jobId']}"
    with urllib.request.urlopen(f"{job}/logs", timeout=60) as answer:
        assert "simulated" in json.load(answer)["logs"]
    with urllib.request.urlopen(urllib.request.Request(f"{job}/stop", b"", method="POST"), timeout=60) as answer:
        assert json.load(answer) == {"stopped": True}
    until(lambda: machine.get("rayjob", "long")["status"].get("jobStatus") == "STOPPED")
