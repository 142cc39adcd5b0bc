"""With the upstream scheduling stack: Shoal decides, kube-scheduler packs GPUs, and a PodGroup makes the start atomic.

kube-scheduler with docs/scheduler/packing.yaml, and with Kubernetes' own PodGroups; tests/long/test_coscheduling.py
has the scheduler of scheduler-plugins. Nodes are KWOK's, everything else is real.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.plane import ControlPlane, free_ports
from tests.faults import proven
from tests.patience import PATIENCE

SHOAL = str(Path(sys.executable).with_name("shoal"))
CONFIGURATIONS = Path(__file__).parents[3] / "docs" / "scheduler"
GPU = "nvidia.com/gpu"
NATIVE, PLUGINS = "scheduling.k8s.io", "scheduling.x-k8s.io"
Json = dict[str, Any]


def configuration(name: str) -> Json:
    found: Json = yaml.safe_load((CONFIGURATIONS / name).read_text())
    return found


@contextmanager
def controlled(folder: Path, *options: str, **plane: Any) -> Iterator[ControlPlane]:
    """A control plane, and `shoal controller` on it with its own options."""
    made = ControlPlane(folder / "state", controllers=True, scheduler=True, kwok=True, audit=True, **plane)
    made.start()
    try:
        subprocess.run([SHOAL, "install", "--crds-only", "--kubeconfig", made.kubeconfig], check=True, timeout=120)
        (port,) = free_ports(1)
        command = [SHOAL, "controller", f"--kubeconfig={made.kubeconfig}", f"--health-port={port}", *options]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--only=appwrapper", "--trust-unstamped", "--open-metrics"], stdout=log, stderr=log
            )
        try:
            until(lambda: is_ready(port), "the controller is not ready")
            yield made
            assert process.poll() is None, (folder / "log").read_text()
        finally:
            process.terminate()
            process.wait(60)
    finally:
        made.stop()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
            return True
    except OSError:
        return False


def until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def pod(name: str, gpus: int) -> Json:
    amounts = {"cpu": "100m", GPU: str(gpus)}
    container = {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def submit(plane: ControlPlane, name: str, pods: int, gpus: int) -> None:
    items = [{"generictemplate": pod(f"{name}-{number}", gpus)} for number in range(pods)]
    wrapper = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingSpec": {"minAvailable": pods}, "resources": {"GenericItems": items}},
    }
    plane.kubectl("create", "-f", "-", stdin=json.dumps(wrapper))


def pods_of(plane: ControlPlane, name: str) -> dict[str, str]:
    """Pods of a gang to their nodes; empty while they have none."""
    found = json.loads(plane.kubectl("get", "pods", "-n", "default", "-o", "json"))["items"]
    return {
        one["metadata"]["name"]: one["spec"].get("nodeName", "")
        for one in found
        if one["metadata"]["name"].startswith(f"{name}-")
    }


def bound(plane: ControlPlane, name: str) -> list[str]:
    return [node for node in pods_of(plane, name).values() if node]


def test_gpus_of_partly_used_nodes_are_filled_first(tmp_path: Path) -> None:
    with controlled(tmp_path, scheduler_configuration=configuration("packing.yaml")) as plane:
        for number in range(3):
            plane.add_node(f"gpu-{number}", **{GPU: "8"})
        begun = pod("begun", 4)
        plane.kubectl("create", "-f", "-", stdin=json.dumps({**begun, "spec": {**begun["spec"], "nodeName": "gpu-1"}}))
        submit(plane, "first", pods=2, gpus=2)
        until(lambda: len(bound(plane, "first")) == 2, "the first gang is not bound")
        assert set(bound(plane, "first")) == {"gpu-1"}
        submit(plane, "whole", pods=2, gpus=8)  # and so two whole nodes are left
        until(lambda: len(bound(plane, "whole")) == 2, "the gang of two whole nodes is not bound")
        assert sorted(bound(plane, "whole")) == ["gpu-0", "gpu-2"]


def _without_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules[__name__], "GROUPS", "pod_groups=false")


GROUPS = "pod_groups=true"


@proven(without=_without_groups)
def test_f444_two_gangs_that_each_fit_half_never_hold_half(tmp_path: Path) -> None:
    """F444: two gangs are admitted by sums (`--supply aggregate`), and the nodes can take one of them and a part of the
    other. Holds: their PodGroups let one start whole and keep every pod of the other from being bound; it starts whole
    once the first is gone."""
    assert_no_half_is_held(tmp_path, NATIVE, native_groups=True, scheduler_configuration=configuration("packing.yaml"))


def assert_no_half_is_held(folder: Path, api: str, **plane_options: Any) -> None:
    options = ("--supply=aggregate", f"--set={GROUPS}", f"--set=pod_group_api={api}", "--set=bind_seconds=600")
    with controlled(folder, *options, **plane_options) as plane:
        for number in range(4):
            plane.add_node(f"gpu-{number}", **{GPU: "3"})
        gangs = ("red", "blue")
        for name in gangs:
            submit(plane, name, pods=3, gpus=2)  # twelve GPUs, of which four nodes with three give eight
        until(lambda: all(len(pods_of(plane, name)) == 3 for name in gangs), "a gang was not dispatched")
        until(lambda: any(len(bound(plane, name)) == 3 for name in gangs), "no gang is bound whole")
        (first,) = (name for name in gangs if bound(plane, name))
        other = next(name for name in gangs if name != first)
        until(lambda: is_unschedulable(plane, other), "the scheduler has not looked at the other one")
        assert bindings(plane) == {first: 3}
        plane.kubectl("delete", "appwrapper", first, "-n", "default", "--wait=true")
        until(lambda: len(bound(plane, other)) == 3, "the other one did not start")
        assert bindings(plane) == {first: 3, other: 3}


def is_unschedulable(plane: ControlPlane, name: str) -> bool:
    """The scheduler has said of one pod at least that it does not fit, or was sent back to wait for its group."""
    found = json.loads(plane.kubectl("get", "pods", "-n", "default", "-o", "json"))["items"]
    conditions = [
        one
        for made in found
        if made["metadata"]["name"].startswith(f"{name}-")
        for one in made["status"].get("conditions") or ()
    ]
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def bindings(plane: ControlPlane) -> Counter[str]:
    """How many pods of each gang were ever bound, from the server's own audit log."""
    found: Counter[str] = Counter()
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef") or {}
        done = entry["stage"] == "ResponseComplete" and entry["responseStatus"]["code"] == 201
        if done and reference.get("subresource") == "binding" and reference.get("namespace") == "default":
            found[str(reference["name"]).rpartition("-")[0]] += 1
    return found
