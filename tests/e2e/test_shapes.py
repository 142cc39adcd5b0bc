"""RayJobs as KubeRay's samples shape them, without a queue, in each sandbox.

On a machine with room for one at a time: a script from a ConfigMap whose submitter is deleted while the job runs, and
an interactive job that waits for its turn and is submitted by hand. Side by side: plain, sidecar, HTTP, autoscaled.
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


COUNT = """python -c "
import ray
ray.init()
where = ray.get(ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id()).remote())
print('it ran', 'on a worker' if where != ray.get_runtime_context().get_node_id() else 'on the head')
" """


def container(name: str, memory: str = "2Gi") -> dict:
    size = {"cpu": "1", "memory": memory}
    return {"name": name, "image": "rayproject/ray:2.60.0", "resources": {"limits": size, "requests": size}}


def cluster(**head: object) -> dict:
    mounts = {"volumeMounts": [{"name": "code", "mountPath": "/home/ray/samples"}]} if "volumes" in head else {}
    return {"headGroupSpec": {"template": {"spec": {"containers": [{**container("ray-head"), **mounts}], **head}}}}


def with_worker(autoscaled: bool = False) -> dict:
    """Work is for the worker alone; an autoscaled cluster begins without it."""
    found = {**cluster(), **({"enableInTreeAutoscaling": True} if autoscaled else {})}
    found["headGroupSpec"]["rayStartParams"] = {"num-cpus": "0"}
    count = {"replicas": 0 if autoscaled else 1, "minReplicas": 0 if autoscaled else 1, "maxReplicas": 1}
    template = {"spec": {"containers": [container("ray-worker", "1Gi")]}}
    return {**found, "workerGroupSpecs": [{"groupName": "small", **count, "rayStartParams": {}, "template": template}]}


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


def of_mode(name: str, mode: str, rays: dict) -> dict:
    return ray_job(name, {"submissionMode": mode, "entrypoint": COUNT, "rayClusterSpec": rays})


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


@pytest.mark.parametrize("sandbox", ["netns", "loopback"])
def test_plain_sidecar_http_and_autoscaled_jobs_succeed(tmp_path: Path, sandbox: str) -> None:
    """Two at a time."""
    machine = Machine("modes", tmp_path)
    machine.up("--sandbox", sandbox, "--node", "name=node,cpu=12,memory=24Gi")
    try:
        create(machine, of_mode("plain", "K8sJobMode", with_worker()), of_mode("sidecar", "SidecarMode", cluster()))
        assert succeeded(machine, "plain") and "it ran on a worker" in machine.kubectl("logs", "job/plain")
        head = machine.names("pods", f"ray.io/cluster={succeeded(machine, 'sidecar')},ray.io/node-type=head")[0]
        assert "it ran on the head" in machine.kubectl("logs", head, "-c", "ray-job-submitter")
        machine.kubectl("delete", "rayjobs", "--all")
        grown = of_mode("autoscaled", "K8sJobMode", with_worker(autoscaled=True))
        create(machine, of_mode("http", "HTTPMode", cluster()), grown)
        assert succeeded(machine, "http")
        assert succeeded(machine, "autoscaled") and "it ran on a worker" in machine.kubectl("logs", "job/autoscaled")
    finally:
        machine.down()


def succeeded(machine: Machine, name: str) -> str:
    """The cluster on which this job succeeded."""
    machine.wait(f"rayjob/{name}", "jsonpath={.status.jobDeploymentStatus}=Complete", seconds=280)
    status = machine.get("rayjob", name)["status"]
    assert status["jobStatus"] == "SUCCEEDED"
    return str(status["rayClusterName"])
