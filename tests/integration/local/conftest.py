"""`shoal up` with simulated pods and a GPU pool at zero, seen through kubectl; one cluster for all tests here."""

from __future__ import annotations

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


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine("pools", tmp_path_factory.mktemp("home"))
    config = tmp_path_factory.mktemp("config") / "shoal.yaml"
    config.write_text("idleSeconds: 1\n")
    found.up(
        "--config", str(config), "--runtime", "simulated", "--node", "name=cpu-0,cpu=4,memory=16Gi", "--pool", POOL
    )
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
