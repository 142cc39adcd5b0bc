"""The operator with real Ray on the embedded cluster: jobs in every mode, growth, losses, the Ray kind."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine("operator", tmp_path_factory.mktemp("home"))
    found.up("--node", "name=node,cpu=6,memory=12Gi")
    yield found
    found.down()


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    yield
    machine.kubectl("delete", "rays,rayjobs,rayclusters", "--all", "--wait=true")
    machine.kubectl("wait", "pods", "--all", "--for=delete", "--timeout=60s")


def job(machine: Machine, name: str, stage: str) -> dict:
    machine.wait(f"rayjob/{name}", f"jsonpath={{.status.jobDeploymentStatus}}={stage}")
    return machine.get("rayjob", name)


def long_job() -> str:
    manifest = (SAMPLES / "rayjob-http.yaml").read_text()
    lines = ["  entrypoint: sleep 600" if "entrypoint:" in line else line for line in manifest.splitlines()]
    return "\n".join(lines)


@pytest.mark.parametrize("sample", ["rayjob", "rayjob-http", "rayjob-sidecar"])
def test_a_job_succeeds_and_its_log_can_be_read(machine, sample):
    machine.kubectl("create", "-f", str(SAMPLES / f"{sample}.yaml"))
    done = job(machine, sample, "Complete")
    assert done["status"]["jobStatus"] == "SUCCEEDED", done["status"]
    if sample == "rayjob":
        assert "it has 2 cpus" in machine.kubectl("logs", f"job/{sample}")
    if sample == "rayjob-sidecar":
        head = next(name for name in machine.names("pods") if "-head-" in name)
        assert "it has" in machine.kubectl("logs", head, "-c", "ray-job-submitter")


def test_a_failing_job_fails_with_what_ray_says(machine):
    manifest = (SAMPLES / "rayjob-http.yaml").read_text().splitlines()
    failing = "\n".join("  entrypoint: exit 3" if "entrypoint:" in line else line for line in manifest)
    machine.kubectl("create", "-f", "-", stdin=failing)
    failed = job(machine, "rayjob-http", "Failed")["status"]
    assert (failed["jobStatus"], failed["reason"]) == ("FAILED", "AppFailed")
    assert "exit code 3" in failed["message"]


def test_suspend_while_running_and_resume(machine):
    machine.kubectl("create", "-f", "-", stdin=long_job())
    machine.wait("rayjob/rayjob-http", "jsonpath={.status.jobStatus}=RUNNING")
    machine.kubectl("patch", "rayjob", "rayjob-http", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    job(machine, "rayjob-http", "Suspended")
    machine.kubectl("wait", "pods", "--all", "--for=delete", "--timeout=60s")
    machine.kubectl("patch", "rayjob", "rayjob-http", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    machine.wait("rayjob/rayjob-http", "jsonpath={.status.jobStatus}=RUNNING")


def test_a_deleted_head_ends_the_job(machine):
    machine.kubectl("create", "-f", "-", stdin=long_job())
    machine.wait("rayjob/rayjob-http", "jsonpath={.status.jobStatus}=RUNNING")
    began = time.monotonic()
    machine.kubectl("delete", "pod", next(name for name in machine.names("pods") if "-head-" in name), "--wait=false")
    lost = job(machine, "rayjob-http", "Failed")["status"]
    assert lost["reason"] == "ClusterLost"
    assert time.monotonic() - began < 60


def test_rays_autoscaler_grows_and_shrinks_the_cluster(machine):
    machine.kubectl("create", "-f", str(SAMPLES / "raycluster-autoscaled.yaml"))
    machine.wait("raycluster/tide", "jsonpath={.status.state}=ready")
    head = next(pod for pod in machine.get("pods")["items"] if "-head-" in pod["metadata"]["name"])
    assert len(head["status"]["containerStatuses"]) == 2
    grow = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "grow"},
        "spec": {
            "submissionMode": "HTTPMode",
            "clusterSelector": {"ray.io/cluster": "tide"},
            "entrypoint": 'python -c "import ray, time; ray.init(); f = ray.remote(num_cpus=1)(lambda: time.sleep(8)); '
            'ray.get([f.remote(), f.remote()])"',
        },
    }
    machine.kubectl("create", "-f", "-", stdin=json.dumps(grow))
    machine.wait("raycluster/tide", "jsonpath={.status.desiredWorkerReplicas}=2")
    assert job(machine, "grow", "Complete")["status"]["jobStatus"] == "SUCCEEDED"
    machine.wait("raycluster/tide", "jsonpath={.status.workerGroups[0].running}=0")
    assert machine.get("raycluster", "tide")["spec"]["workerGroupSpecs"][0]["replicas"] == 0


@pytest.mark.parametrize("name", ["typed", "text"])
def test_a_ray_object_launches(machine, name):
    machine.kubectl("create", "-f", str(SAMPLES / f"ray-{name}.yaml"))
    machine.wait(f"ray/{name}", "condition=SuccessfulLaunch")
    machine.wait(f"ray/{name}", "condition=Ready")
    launcher = machine.kubectl("logs", "-l", f"ray-launcher={name}")
    assert "the Ray cluster is up" in launcher
    status = machine.get("ray", name)["status"]
    assert status["launcher"]["conditions"][0]["lastProbeTime"] is None
    assert (status["head"]["availableReplicas"], status["worker"]["availableReplicas"]) == (1, 1)


def test_without_its_token_a_dashboard_takes_nothing(machine):
    """The job still succeeds: operator, submitter and nodes have the token. A stranger gets 401 on every write path."""
    manifest = (SAMPLES / "rayjob-http.yaml").read_text()
    version = '    rayVersion: "2.60.0"\n'
    locked = manifest.replace(version, version + "    authOptions: {mode: token}\n")
    machine.kubectl("create", "-f", "-", stdin=locked)
    assert job(machine, "rayjob-http", "Complete")["status"]["jobStatus"] == "SUCCEEDED"
    head = next(pod for pod in machine.get("pods")["items"] if "-head-" in pod["metadata"]["name"])
    dashboard = f"http://{head['status']['podIP']}:8265"
    for method, path in (
        ("POST", "/api/jobs/"),
        ("POST", "/api/jobs/x/stop"),
        ("DELETE", "/api/jobs/x"),
        ("PUT", "/api/serve/applications/"),
        ("PUT", "/api/packages/gcs/a.zip"),
    ):
        request = urllib.request.Request(dashboard + path, b"{}", {"content-type": "application/json"}, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 401, f"{method} {path}"
