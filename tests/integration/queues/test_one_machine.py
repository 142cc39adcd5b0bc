"""Queues on one machine, through kubectl alone: simulated pods, one CPU node, a GPU pool that begins at zero."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.machine import Machine
from tests.integration.local.conftest import ON_FAR, History, apply, revision, start_machine, true, until

SAMPLES = Path(__file__).parents[3] / "samples"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = start_machine("queues", tmp_path_factory)
    apply(found, *yaml.safe_load_all((SAMPLES / "kueue" / "provisioned-queue.yaml").read_text()))
    yield found
    found.down("--purge")


def create(machine: Machine, sample: str, name: str, **labels: str) -> None:
    body = yaml.safe_load((SAMPLES / "ray" / sample).read_text())
    body["metadata"] = {"name": name, "labels": {**body["metadata"]["labels"], **labels}}
    machine.kubectl("create", "-f", "-", stdin=json.dumps(body))


def workload_of(machine: Machine, name: str) -> Json:
    found = machine.get("workloads")["items"]
    return next((one for one in found if one["metadata"]["name"].startswith(f"rayjob-{name}-")), {})


def test_a_ray_job_waits_for_its_nodes_and_starts_whole(machine: Machine) -> None:
    watches = {kind: History(machine, kind) for kind in ("workloads", "rayjobs", "provisioningrequests", "pods")}
    create(machine, "rayjob-gpu.yaml", "train")
    machine.wait("rayjob/train", "jsonpath={.status.jobDeploymentStatus}=Complete", seconds=60)
    until(lambda: true(workload_of(machine, "train"), "Finished"))
    until(lambda: machine.get("provisioningrequests")["items"] == [])
    name = workload_of(machine, "train")["metadata"]["name"]
    stories = {kind: watch.seen() for kind, watch in watches.items()}
    states = []
    for one in stories["workloads"]:
        kinds = [kind for kind in ("QuotaReserved", "Admitted", "Finished") if true(one, kind)]
        if not states or states[-1] != kinds:
            states.append(kinds)
    assert states[-3:] == [["QuotaReserved"], ["QuotaReserved", "Admitted"], ["QuotaReserved", "Admitted", "Finished"]]
    requests = [one for one in stories["provisioningrequests"] if one["metadata"]["name"] == f"{name}-gpu-nodes-1"]
    assert [entry["podTemplateRef"]["name"] for entry in requests[0]["spec"]["podSets"]] == [
        f"ppt-{name}-gpu-nodes-1-gpu"
    ]
    accepted = [one for one in requests if true(one, "Accepted") and not true(one, "Provisioned")]
    provided = next(one for one in requests if true(one, "Provisioned"))
    started = next(one for one in stories["rayjobs"] if one["spec"]["suspend"] is False)
    assert accepted and revision(provided) < revision(started)
    assert all(revision(pod) > revision(started) for pod in stories["pods"])
    worker = started["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
    marks = worker["metadata"]["annotations"]
    assert marks["autoscaling.x-k8s.io/consume-provisioning-request"] == f"{name}-gpu-nodes-1"
    columns, line = machine.kubectl("get", "workload", name).splitlines()
    assert columns.split() == ["NAME", "QUEUE", "RESERVED", "IN", "ADMITTED", "FINISHED", "AGE"]
    assert line.split()[:-1] == [name, "user-queue", "shared", "True", "True"]
    wanted = {("RayJob", reason) for reason in ("CreatedWorkload", "Started", "FinishedWorkload")}
    wanted |= {("Workload", reason) for reason in ("QuotaReserved", "ProvisioningRequestCreated", "Admitted")}
    until(lambda: wanted <= {(one["involvedObject"]["kind"], one["reason"]) for one in machine.get("events")["items"]})
    machine.kubectl("delete", "rayjobs", "--all")


def test_why_tells_of_the_nodes_that_a_job_waits_for(machine: Machine) -> None:
    body = yaml.safe_load((SAMPLES / "ray" / "rayjob-one-gpu.yaml").read_text())
    body["metadata"] = {"name": "patient", "labels": body["metadata"]["labels"]}
    body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"].update(ON_FAR)
    apply(machine, body)
    until(lambda: true(workload_of(machine, "patient"), "QuotaReserved"))
    told = ("has been waiting with its quota reserved", "waits for gpu-nodes")
    until(lambda: all(one in machine.shoal("why", "rayjob/patient", "--name", "queues") for one in told))
    assert machine.get("rayjob", "patient")["spec"]["suspend"] is True
    assert machine.get("pods")["items"] == []
    machine.kubectl("delete", "rayjob", "patient")
    until(lambda: machine.get("workloads,provisioningrequests")["items"] == [])


def test_what_never_fits_never_has_a_pod(machine: Machine) -> None:
    """Five GPUs, four at most: the request fails, the job waits, and not one pod of it was ever there."""
    body = yaml.safe_load((SAMPLES / "ray" / "rayjob-gpu.yaml").read_text())
    body["metadata"] = {"name": "giant", "labels": body["metadata"]["labels"]}
    group = body["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    group.update(replicas=5, minReplicas=5, maxReplicas=5)
    pods = History(machine, "pods")
    machine.kubectl("create", "-f", "-", stdin=json.dumps(body))
    until(lambda: true(workload_of(machine, "giant"), "Evicted"))
    assert machine.get("rayjob", "giant")["spec"]["suspend"] is True

    def row() -> str:
        return next(line for line in machine.shoal("get", "--name", "queues").splitlines() if "giant" in line)

    until(lambda: "Queued" in row() and "no pool can hold these pods" in row())
    machine.kubectl("delete", "rayjob", "giant")
    until(lambda: machine.get("workloads")["items"] == [])
    assert [one for one in pods.seen() if one["metadata"]["name"].startswith("giant")] == []


def test_without_a_check_the_pool_grows_all_the_same(machine: Machine) -> None:
    """A queue without a check: the gang itself asks for the nodes it lacks, and starts when all of them are there."""
    plain = yaml.safe_load_all((SAMPLES / "kueue" / "provisioned-queue.yaml").read_text())
    queue = next(one for one in plain if one["kind"] == "ClusterQueue")
    del queue["spec"]["admissionChecks"]
    queue["metadata"]["name"] = "unchecked"
    local = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "unchecked", "namespace": "default"},
        "spec": {"clusterQueue": "unchecked"},
    }
    apply(machine, queue, local)
    create(machine, "rayjob-one-gpu.yaml", "grows", **{"kueue.x-k8s.io/queue-name": "unchecked"})
    machine.wait("rayjob/grows", "jsonpath={.status.jobDeploymentStatus}=Complete", seconds=60)
    until(lambda: true(workload_of(machine, "grows"), "Finished"))
    until(lambda: machine.get("provisioningrequests")["items"] == [])
    machine.kubectl("delete", "rayjob", "grows")


def test_a_ray_cluster_gives_way_to_a_more_important_job_and_comes_back(machine: Machine) -> None:
    quota = [{"name": "cpu", "nominalQuota": 3}, {"name": "memory", "nominalQuota": "64Gi"}]
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "small"},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "default-flavor", "resources": quota}]}
            ],
        },
    }
    local = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "small", "namespace": "default"},
        "spec": {"clusterQueue": "small"},
    }
    high = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
    apply(machine, queue, local, {**high, "value": 100})
    cluster = yaml.safe_load((SAMPLES / "ray" / "raycluster.yaml").read_text())
    cluster["metadata"] = {"name": "notebook", "labels": {"kueue.x-k8s.io/queue-name": "small"}}
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    head["resources"] = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    cluster["spec"]["workerGroupSpecs"] = []
    apply(machine, cluster)
    machine.wait("raycluster/notebook", "jsonpath={.status.state}=ready", seconds=60)
    body = yaml.safe_load((SAMPLES / "ray" / "rayjob-one-gpu.yaml").read_text())
    labels = {"kueue.x-k8s.io/queue-name": "small", "kueue.x-k8s.io/priority-class": "high"}
    body["metadata"] = {"name": "urgent", "labels": labels}
    container = body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["resources"] = head["resources"]
    apply(machine, body)
    machine.wait("raycluster/notebook", "jsonpath={.status.state}=suspended", seconds=60)
    machine.wait("rayjob/urgent", "jsonpath={.status.jobDeploymentStatus}=Complete", seconds=60)
    machine.wait("raycluster/notebook", "jsonpath={.status.state}=ready", seconds=60)
    told = machine.get("workloads")["items"]
    back = next(one for one in told if one["metadata"]["name"].startswith("raycluster-notebook-"))
    assert back["status"]["schedulingStats"]["evictions"] == [
        {"reason": "Preempted", "underlyingCause": "", "count": 1}
    ]
    machine.kubectl("delete", "raycluster/notebook", "rayjob/urgent")
    until(lambda: machine.get("workloads")["items"] == [])
