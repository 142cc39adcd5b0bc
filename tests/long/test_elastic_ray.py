"""Real Ray in a queue: a cluster that Ray's autoscaler sizes grows into free quota, shrinks to its floor when a gang
needs that, with Ray told before, and grows again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.machine import Machine

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

GATE = "kueue.x-k8s.io/elastic-job"
QUEUE = {"kueue.x-k8s.io/queue-name": "jobs"}
ASK = "import ray; from ray.autoscaler import sdk; ray.init(); sdk.request_resources(bundles=[{'CPU': 1}] * 3)"
PATIENCE = 240


def queue() -> list[dict]:
    api = "kueue.x-k8s.io/v1beta2"
    amounts = [{"name": "cpu", "nominalQuota": "5"}, {"name": "memory", "nominalQuota": "20Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "main", "resources": amounts}]}
    annotations = {"shoal.dev/drain-seconds": "20"}
    return [
        {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "main"}},
        {
            "apiVersion": api,
            "kind": "ClusterQueue",
            "metadata": {"name": "all", "annotations": annotations},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "jobs"}, "spec": {"clusterQueue": "all"}},
    ]


def container(name: str, cpu: str, memory: str) -> dict:
    size = {"cpu": cpu, "memory": memory}
    return {"name": name, "image": "rayproject/ray:2.60.0", "resources": {"limits": size, "requests": size}}


def elastic() -> dict:
    """A floor of one worker; without the annotation, which admission sets."""
    group = {
        "groupName": "small",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 4,
        "rayStartParams": {},
        "template": {"spec": {"containers": [container("ray-worker", "1", "1Gi")]}},
    }
    head = {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": {"containers": [container("head", "1", "2Gi")]}}}
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": head, "workerGroupSpecs": [group]}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray", "labels": QUEUE}, "spec": spec}


def other() -> dict:
    """Two pods that need more quota than is left."""
    box = {"name": "main", "image": "busybox", "command": ["sleep", "15"], "resources": {"requests": {"cpu": "1"}}}
    spec = {
        "parallelism": 2,
        "completions": 2,
        "suspend": True,
        "template": {"spec": {"containers": [box], "restartPolicy": "Never"}},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "other", "labels": QUEUE}, "spec": spec}


def workers(machine: Machine) -> tuple[int, int]:
    """How many run, and how many wait behind the gate."""
    pods = machine.get("pods", "-l", "ray.io/node-type=worker")["items"]
    live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    gated = sum(bool(pod["spec"].get("schedulingGates")) for pod in live)
    return sum(pod["status"].get("phase") == "Running" for pod in live), gated


def until(what: str, holds: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + PATIENCE, what
        time.sleep(0.5)
    return time.monotonic() - began


def test_an_autoscaled_cluster_grows_shrinks_to_its_floor_and_grows_again(tmp_path: Path) -> None:
    machine = Machine("elastic", tmp_path)
    machine.up("--node", "name=node,cpu=10,memory=24Gi")
    try:
        for one in (*queue(), elastic()):
            machine.kubectl("create", "-f", "-", stdin=json.dumps(one))
        until("the floor runs", lambda: workers(machine) == (1, 0))
        machine.wait("raycluster/ray", "jsonpath={.status.state}=ready", seconds=PATIENCE)
        head = machine.names("pods", "ray.io/node-type=head")[0]
        machine.kubectl("exec", head, "-c", "head", "--", "python", "-c", ASK)
        print("grew after", until("it grows into free quota", lambda: workers(machine) == (3, 0)))
        usage = machine.get("clusterqueue", "all")["status"]["flavorsUsage"][0]["resources"]
        assert {one["name"]: one["total"] for one in usage}["cpu"] == "4500m"

        machine.kubectl("create", "-f", "-", stdin=json.dumps(other()))
        took = until("the job starts", lambda: machine.get("job", "other")["spec"]["suspend"] is False)
        print("made way after", took)
        assert workers(machine)[0] == 1, "it has its floor"
        stored = machine.get("raycluster", "ray")["spec"]
        assert stored["suspend"] is False
        assert stored["workerGroupSpecs"][0]["replicas"] >= 3, (
            "only Ray's autoscaler changes it: it asks for substitutes"
        )
        until("the next workers are bids", lambda: workers(machine)[1] >= 2)
        said = machine.shoal("why", "raycluster/ray", "--name", "elastic")
        assert "it would like" in said and "insufficient unused quota for cpu" in said, said
        jobs = ("ray", "job", "list", "--address", "http://127.0.0.1:8265")
        assert "shoal-drain-" in machine.kubectl("exec", head, "-c", "head", "--", *jobs), "Ray was told"

        machine.wait("job/other", "condition=complete", seconds=PATIENCE)
        print("grew again after", until("it grows again", lambda: workers(machine)[0] == 3))
        machine.kubectl("delete", "raycluster", "ray")
    finally:
        machine.down()
