"""The operator with real Ray on the embedded cluster: jobs in every mode, growth, losses, the Ray kind."""

from __future__ import annotations

import base64
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
    found.up("--node", "name=node,cpu=12,memory=24Gi")
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


def http_job(name: str, entrypoint: str) -> str:
    """A job that the operator submits, on a cluster of its own."""
    manifest = (SAMPLES / "rayjob-http.yaml").read_text().replace("name: rayjob-http", f"name: {name}")
    lines = [f"  entrypoint: {entrypoint}" if "entrypoint:" in line else line for line in manifest.splitlines()]
    return "\n".join(lines)


def head_of(machine: Machine, cluster: str) -> dict:
    labels = f"ray.io/cluster={cluster},ray.io/node-type=head"
    return machine.get("pods", "-l", labels)["items"][0]


class Dashboard:
    """The job API of one cluster, asked with its token as a user would."""

    def __init__(self, machine: Machine, cluster: str) -> None:
        self.address = f"http://{head_of(machine, cluster)['status']['podIP']}:8265"
        secret = machine.get("secret", cluster)["data"]["auth_token"]
        self.headers = {"x-ray-authorization": f"Bearer {base64.b64decode(secret).decode()}"}

    def ask(self, method: str, path: str, body: dict | None = None) -> dict:
        data = json.dumps(body or {}).encode() if method != "GET" else None
        headers = {**self.headers, "content-type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))

    def run(self, entrypoint: str) -> str:
        """On a busy machine the dashboard may not have found its agents yet, and says so."""
        ends = time.monotonic() + 120
        while True:
            try:
                return str(self.ask("POST", "/api/jobs/", {"entrypoint": entrypoint})["submission_id"])
            except urllib.error.HTTPError as error:
                said = error.read().decode()
                assert "try again later" in said and time.monotonic() < ends, said
            time.sleep(0.3)

    def until(self, job_id: str, *states: str, seconds: float = 120) -> dict:
        ends = time.monotonic() + seconds
        while (found := self.ask("GET", f"/api/jobs/{job_id}"))["status"] not in states:
            assert time.monotonic() < ends, found
            time.sleep(0.3)
        return found


def test_jobs_of_every_mode_succeed_side_by_side_and_their_logs_can_be_read(machine):
    """Three clusters at once, each with a token of its own; the sidecar's by the manifest, the others' by default."""
    samples = ("rayjob", "rayjob-http", "rayjob-sidecar")
    for sample in samples:
        machine.kubectl("create", "-f", str(SAMPLES / f"{sample}.yaml"))
    for sample in samples:
        done = job(machine, sample, "Complete")["status"]
        assert done["jobStatus"] == "SUCCEEDED", done
    assert "it has 2 cpus" in machine.kubectl("logs", "job/rayjob")
    sidecar = head_of(machine, machine.get("rayjob", "rayjob-sidecar")["status"]["rayClusterName"])
    assert "it has" in machine.kubectl("logs", sidecar["metadata"]["name"], "-c", "ray-job-submitter")
    http = machine.get("rayjob", "rayjob-http")["status"]
    assert "it has" in Dashboard(machine, http["rayClusterName"]).ask("GET", f"/api/jobs/{http['jobId']}/logs")["logs"]


def test_failing_and_stopped_jobs_end_as_ray_says(machine):
    machine.kubectl("create", "-f", "-", stdin=http_job("fails", "exit 3"))
    machine.kubectl("create", "-f", "-", stdin=http_job("stops", "sleep 600"))
    failed = job(machine, "fails", "Failed")["status"]
    assert (failed["jobStatus"], failed["reason"]) == ("FAILED", "AppFailed")
    assert "exit code 3" in failed["message"]
    machine.wait("rayjob/stops", "jsonpath={.status.jobStatus}=RUNNING")
    running = machine.get("rayjob", "stops")["status"]
    Dashboard(machine, running["rayClusterName"]).ask("POST", f"/api/jobs/{running['jobId']}/stop")
    assert job(machine, "stops", "Complete")["status"]["jobStatus"] == "STOPPED"


def test_a_running_job_is_suspended_resumed_and_lost_with_its_head(machine):
    machine.kubectl("create", "-f", "-", stdin=http_job("long", "sleep 600"))
    machine.wait("rayjob/long", "jsonpath={.status.jobStatus}=RUNNING")
    first = machine.get("rayjob", "long")["status"]
    machine.kubectl("patch", "rayjob", "long", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    job(machine, "long", "Suspended")
    machine.kubectl("wait", "pods", "--all", "--for=delete", "--timeout=60s")
    machine.kubectl("patch", "rayjob", "long", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    machine.wait("rayjob/long", "jsonpath={.status.jobStatus}=RUNNING")
    second = machine.get("rayjob", "long")["status"]
    assert first["jobId"] != second["jobId"]
    machine.kubectl("delete", "pod", head_of(machine, second["rayClusterName"])["metadata"]["name"], "--wait=false")
    assert job(machine, "long", "Failed")["status"]["reason"] == "AppFailed"


ACTORS = """python -c "
import ray
ray.init(namespace='shared')
Holder = ray.remote(num_cpus=1)(type('Holder', (), {'here': lambda self: 1}))
actors = [Holder.options(name=name, lifetime='detached').remote() for name in ('one', 'two')]
print(ray.get([actor.here.remote() for actor in actors]))
" """

END_ACTORS = """python -c "
import ray
ray.init(namespace='shared')
for name in ('one', 'two'):
    ray.kill(ray.get_actor(name))
" """


def test_rays_autoscaler_follows_detached_actors_and_suspends_the_idle_cluster(machine):
    """0 to 2 for actors that outlive their driver, back to 0 when they end, and suspended when no job comes."""
    machine.kubectl("create", "-f", str(SAMPLES / "raycluster-autoscaled.yaml"))
    machine.wait("raycluster/tide", "jsonpath={.status.state}=ready")
    assert len(head_of(machine, "tide")["status"]["containerStatuses"]) == 2
    dashboard = Dashboard(machine, "tide")
    grown = dashboard.until(dashboard.run(ACTORS), "SUCCEEDED", "FAILED")
    assert grown["status"] == "SUCCEEDED", grown["message"]
    machine.wait("raycluster/tide", "jsonpath={.status.readyWorkerReplicas}=2")
    assert machine.get("raycluster", "tide")["spec"]["workerGroupSpecs"][0]["replicas"] == 2
    ended = dashboard.until(dashboard.run(END_ACTORS), "SUCCEEDED", "FAILED")
    assert ended["status"] == "SUCCEEDED", ended["message"]
    machine.wait("raycluster/tide", "jsonpath={.spec.workerGroupSpecs[0].replicas}=0")
    idle = '{"spec":{"idleTerminationOptions":{"timeoutSeconds":5}}}'
    machine.kubectl("patch", "raycluster", "tide", "--type=merge", "-p", idle)
    machine.wait("raycluster/tide", "jsonpath={.status.state}=suspended")
    assert machine.get("raycluster", "tide")["spec"]["idleSuspend"] is True


BUSY = """python -c "
import ray, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pinned
ray.init()
worker = next(node for node in ray.nodes() if node['Alive'] and 'node:__internal_head__' not in node['Resources'])
@ray.remote(num_cpus=1, max_retries=0, scheduling_strategy=Pinned(worker['NodeID'], soft=False))
def work():
    print('the task', 'began', flush=True)
    time.sleep(3)
    return 'the task ended'
print(ray.get(work.remote()))
" """


def test_a_typed_ray_object_from_create_to_delete(machine):
    """A worker that is scaled away in the middle of a task drains first: the task is not lost."""
    machine.kubectl("create", "-f", str(SAMPLES / "ray-typed.yaml"))
    launched(machine, "typed")
    dashboard = Dashboard(machine, "typed")
    busy = dashboard.run(BUSY)
    ends = time.monotonic() + 120
    while "the task began" not in dashboard.ask("GET", f"/api/jobs/{busy}/logs")["logs"]:
        assert time.monotonic() < ends
        time.sleep(0.2)
    machine.kubectl("patch", "ray", "typed", "--type=merge", "-p", '{"spec":{"minWorkers":0,"maxWorkers":0}}')
    done = dashboard.until(busy, "SUCCEEDED", "FAILED")
    assert done["status"] == "SUCCEEDED", done["message"]
    machine.wait("ray/typed", "jsonpath={.status.observedGeneration}=2")
    machine.kubectl("wait", "pods", "-l", "ray.io/node-type=worker", "--for=delete", "--timeout=60s")
    assert machine.get("ray", "typed")["status"]["head"]["availableReplicas"] == 1
    assert len(machine.names("pods")) == 2, "the head, and the launcher of the start"
    deleted_whole(machine, "typed")


def test_a_ray_object_with_a_configuration_from_create_to_delete(machine):
    machine.kubectl("create", "-f", str(SAMPLES / "ray-text.yaml"))
    launched(machine, "text")
    first = machine.get("pods", "-l", "ray-launcher=text")["items"][0]["metadata"]["name"]
    text = machine.get("ray", "text")["spec"]["configuration"].replace("- ray stop", "- echo swimming", 1)
    machine.kubectl("patch", "ray", "text", "--type=merge", "-p", json.dumps({"spec": {"configuration": text}}))
    machine.wait(f"pod/{first}", "delete")
    launched(machine, "text")
    assert "swimming" in machine.kubectl("logs", head_of(machine, "text")["metadata"]["name"])
    columns = machine.kubectl("get", "rays").splitlines()[0].split()
    assert columns == ["NAME", "LAUNCHER", "HEAD", "WORKERS", "READY", "AGE"]
    deleted_whole(machine, "text")


def launched(machine: Machine, name: str) -> None:
    """The proposal's status, from the launcher's end on."""
    machine.wait(f"ray/{name}", "condition=SuccessfulLaunch")
    machine.wait(f"ray/{name}", "condition=Ready")
    assert "the Ray cluster is up" in machine.kubectl("logs", "-l", f"ray-launcher={name}")
    status = machine.get("ray", name)["status"]
    condition = status["launcher"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["lastProbeTime"]) == ("SuccessfulLaunch", "True", None)
    assert (status["head"]["replicas"], status["head"]["availableReplicas"]) == (1, 1)
    assert (status["worker"]["replicas"], status["worker"]["availableReplicas"]) == (1, 1)


def deleted_whole(machine: Machine, name: str) -> None:
    machine.kubectl("delete", "ray", name)
    for left in ("pods", "rayclusters", f"configmap/{name}-config"):
        machine.kubectl("wait", left, *(() if "/" in left else ("--all",)), "--for=delete", "--timeout=60s")
