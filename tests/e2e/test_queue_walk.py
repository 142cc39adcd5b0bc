"""The published walk with real Ray: a queued RayJob needs a GPU, the cluster has none, and one node comes for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.machine import Machine
from tests.integration.local.conftest import apply, true, until
from tests.integration.queues.test_one_machine import workload_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SAMPLES = Path(__file__).parents[2] / "samples"
POOL = (
    "name=gpu,cpu=4,memory=8Gi,nvidia.com/gpu=1,min=0,max=1,delay=200ms,"
    "labels=cloud.example/accelerator=l4,taints=nvidia.com/gpu=present:NoSchedule"
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine("queued-ray", tmp_path_factory.mktemp("home"))
    found.up("--node", "name=cpu-0,cpu=4,memory=8Gi", "--pool", POOL)
    yield found
    found.down("--purge")


def test_a_gpu_job_brings_its_node_runs_on_it_and_lets_it_go(machine: Machine) -> None:
    apply(machine, *yaml.safe_load_all((SAMPLES / "kueue" / "provisioned-queue.yaml").read_text()))
    assert machine.names("nodes") == ["cpu-0"]
    body = yaml.safe_load((SAMPLES / "ray" / "rayjob-one-gpu.yaml").read_text())
    body["metadata"] = {"name": "tune", "labels": body["metadata"]["labels"]}
    body["spec"]["entrypoint"] = (
        """python -c "import ray; ray.init(); print('GPUS', ray.cluster_resources()['GPU'])" """
    )
    apply(machine, body)
    until(lambda: true(workload_of(machine, "tune"), "QuotaReserved"))
    machine.wait("node/gpu-0", "create", seconds=60)
    machine.wait("rayjob/tune", "jsonpath={.status.jobDeploymentStatus}=Complete", seconds=180)
    job = machine.get("rayjob", "tune")
    assert job["status"]["jobStatus"] == "SUCCEEDED"
    said = machine.kubectl("logs", "-l", "job-name=tune", "--tail=-1")
    assert "GPUS 1.0" in said
    until(lambda: true(workload_of(machine, "tune"), "Finished"))
    until(lambda: machine.get("provisioningrequests")["items"] == [])
    counts = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")
    until(lambda: [machine.get("clusterqueue", "shared")["status"][count] for count in counts] == [0, 0, 0])
