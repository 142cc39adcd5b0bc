"""`shoal up` with simulated pods and a GPU pool at zero, seen through kubectl; one cluster for all tests here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.machine import Machine

POOL = (
    "name=gpu,cpu=4,memory=16Gi,nvidia.com/gpu=1,min=0,max=4,delay=1500ms,"
    "labels=cloud.example/accelerator=l4,taints=nvidia.com/gpu=present:NoSchedule"
)
FAR = (
    "name=far,cpu=4,memory=16Gi,nvidia.com/gpu=1,min=0,max=1,delay=60m,"
    "labels=cloud.example/accelerator=far,taints=example.com/far=yes:NoSchedule"
)
"""A pod that waits for its node waits for as long as the test looks at that."""
ON_FAR: dict[str, Any] = {
    "nodeSelector": {"cloud.example/accelerator": "far"},
    "tolerations": [{"operator": "Exists"}],
}


def start_machine(name: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    found = Machine(name, tmp_path_factory.mktemp("home"))
    config = tmp_path_factory.mktemp("config") / "shoal.yaml"
    config.write_text("idleSeconds: 1\n")
    node = "name=cpu-0,cpu=4,memory=16Gi"
    found.up("--config", str(config), "--runtime", "simulated", "--node", node, "--pool", POOL, "--pool", FAR)
    return found


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = start_machine("pools", tmp_path_factory)
    yield found
    found.down("--purge")


@pytest.fixture
def at_zero(machine: Machine) -> Iterator[None]:
    """Every test leaves nothing behind and finds the pool empty."""
    yield
    for kinds in ("appwrappers", "rayjobs,rayclusters", "provisioningrequests", "pods,podtemplates"):
        machine.kubectl("delete", kinds, "--all", "--wait=true", "--timeout=60s")
    machine.kubectl("wait", "node", "-l", "shoal.dev/pool=gpu", "--for=delete", "--timeout=60s")


def gpu_pod(name: str, gpus: int = 1, seconds: int = 600, **metadata: Any) -> dict[str, Any]:
    amounts = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", str(seconds)],
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def apply(machine: Machine, *objects: dict[str, Any]) -> None:
    machine.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def until(look: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


PATHS = {
    "appwrappers": "/apis/workload.codeflare.dev/v1beta1",
    "pods": "/api/v1",
    "provisioningrequests": "/apis/autoscaling.x-k8s.io/v1",
    "rayjobs": "/apis/ray.io/v1",
    "workloads": "/apis/kueue.x-k8s.io/v1beta2",
}


class History:
    """Every revision of every object of a kind from now on, as the server remembers them: what came and went between
    two looks is there, however slow the looks are."""

    def __init__(self, machine: Machine, kind: str) -> None:
        self._machine = machine
        self._path = f"{PATHS[kind]}/namespaces/default/{kind}"
        listed = json.loads(machine.kubectl("get", "--raw", self._path))
        self._since = listed["metadata"]["resourceVersion"]

    def seen(self) -> list[dict[str, Any]]:
        path = f"{self._path}?watch=1&resourceVersion={self._since}&timeoutSeconds=2"
        lines = self._machine.kubectl("get", "--raw", path).splitlines()
        return [event["object"] for event in map(json.loads, lines)]


def true(obj: dict[str, Any], kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def revision(obj: dict[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])
