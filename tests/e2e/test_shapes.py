"""RayJobs as KubeRay's samples shape them, without a queue, on a machine with room for one at a time: in each sandbox.

A script from a ConfigMap whose submitter is deleted while the job runs, and an interactive job that waits for its turn
and is submitted by hand. Plain, sidecar, HTTP and autoscaled shapes are in `tests/integration/ray/test_real_ray.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.machine import Machine

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SCRIPT = """
import time
import ray

ray.init()

@ray.remote
def square(number):
    return number * number

print("the sum is", sum(ray.get([square.remote(number) for number in range(10)])), flush=True)
time.sleep(8)
print("the script ended", flush=True)
"""
IN_THE_HEAD = "ray job submit --address http://127.0.0.1:8265 --submission-id by-hand --no-wait -- echo said by hand"


def cluster(**head: object) -> dict:
    size = {"cpu": "1", "memory": "2Gi"}
    container = {"name": "ray-head", "image": "rayproject/ray:2.60.0", "resources": {"limits": size, "requests": size}}
    mounts = {"volumeMounts": [{"name": "code", "mountPath": "/home/ray/samples"}]} if "volumes" in head else {}
    return {"headGroupSpec": {"template": {"spec": {"containers": [{**container, **mounts}], **head}}}}


def ray_job(name: str, spec: dict) -> dict:
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}


def script() -> tuple[dict, dict]:
    """As KubeRay's first sample: the entrypoint names a file that only the head's pod has."""
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"sample_code.py": SCRIPT}}
    volume = {"name": "code", "configMap": {"name": "code"}}
    spec = {
        "entrypoint": "python /home/ray/samples/sample_code.py",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster(volumes=[volume]),
    }
    return code, ray_job("script", spec)


def interactive() -> dict:
    spec = {"submissionMode": "InteractiveMode", "rayClusterSpec": cluster()}
    return ray_job("by-hand", spec)


def create(machine: Machine, *objects: dict) -> None:
    for one in objects:
        machine.kubectl("create", "-f", "-", stdin=json.dumps(one))


def condition(machine: Machine, name: str) -> dict:
    listed = machine.get("rayjob", name)["status"].get("conditions") or []
    return next((one for one in listed if one["type"] == "shoal.dev/Admitted"), {})


@pytest.mark.parametrize("sandbox", ["netns", "loopback"])
def test_a_script_and_an_interactive_job_run_one_after_the_other(tmp_path: Path, sandbox: str) -> None:
    machine = Machine("shapes", tmp_path)
    machine.up("--sandbox", sandbox, "--node", "name=node,cpu=2,memory=8Gi")
    try:
        create(machine, *script())
        machine.wait("rayjob/script", "jsonpath={.status.jobDeploymentStatus}=Initializing")
        machine.wait("rayjob/script", "jsonpath={.status.conditions[0].status}=True")
        create(machine, interactive())
        machine.wait("rayjob/by-hand", "jsonpath={.status.conditions[0].reason}=WaitingForRoom")
        assert len(machine.names("rayclusters")) == 1, "nothing of the second exists"
        assert "cpu" in machine.shoal("why", "rayjob/by-hand", "--name", "shapes")
        machine.wait("rayjob/script", "jsonpath={.status.jobStatus}=RUNNING")
        machine.kubectl("delete", "pods", "-l", "job-name=script", "--wait=false")
        machine.wait("rayjob/script", "jsonpath={.status.jobDeploymentStatus}=Complete")
        assert machine.get("rayjob", "script")["status"]["jobStatus"] == "SUCCEEDED"
        assert "the script ended" in machine.kubectl("logs", "job/script")
        machine.wait("rayjob/by-hand", "jsonpath={.status.jobDeploymentStatus}=Waiting")
        assert condition(machine, "by-hand")["reason"] == "RoomFound"
        head = machine.names("pods", "ray.io/node-type=head")[-1]
        machine.kubectl("exec", head, "-c", "ray-head", "--", "sh", "-c", IN_THE_HEAD)
        machine.kubectl("patch", "rayjob", "by-hand", "--type=merge", "-p", '{"spec":{"jobId":"by-hand"}}')
        machine.wait("rayjob/by-hand", "jsonpath={.status.jobStatus}=SUCCEEDED")
    finally:
        machine.down()
