"""A ProvisioningRequest from the first kubectl apply to pods on nodes that were not there before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.integration.local.conftest import History, apply, gpu_pod, until

pytestmark = pytest.mark.usefixtures("at_zero")

CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS = "autoscaling.x-k8s.io/provisioning-class-name"


def request(name: str, count: int, kind: str, version: str = "v1", **parameters: str) -> list[dict[str, Any]]:
    pod = gpu_pod(name)
    template = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name},
        "template": {"spec": pod["spec"]},
    }
    spec: dict[str, Any] = {
        "provisioningClassName": kind,
        "podSets": [{"podTemplateRef": {"name": name}, "count": count}],
    }
    if parameters:
        spec["parameters"] = parameters
    body = {
        "apiVersion": f"autoscaling.x-k8s.io/{version}",
        "kind": "ProvisioningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }
    return [template, body]


def row(machine: Machine, name: str) -> list[str]:
    """The line that kubectl prints, without the age."""
    header, line = machine.kubectl("get", "provisioningrequest", name).splitlines()
    assert header.split() == ["NAME", "ACCEPTED", "PROVISIONED", "FAILED", "AGE"]
    return line.split()[:-1]


@pytest.mark.parametrize(
    ("kind", "version"),
    [("queued-provisioning.gke.io", "v1"), ("best-effort-atomic-scale-up.autoscaling.x-k8s.io", "v1beta1")],
)
def test_a_request_is_accepted_then_provisioned_and_its_pods_land_there(
    machine: Machine, kind: str, version: str
) -> None:
    assert machine.names("nodes") == ["cpu-0"]
    story = History(machine, "provisioningrequests")
    apply(machine, *request("train", 2, kind, version))
    machine.wait("provisioningrequest/train", "condition=Provisioned", seconds=60)
    first = next(one for one in story.seen() if (one.get("status") or {}).get("conditions"))
    told = {one["type"]: one["status"] for one in first["status"]["conditions"]}
    assert told == {"Accepted": "True", "Provisioned": "False", "Failed": "False"}  # all three at once
    assert row(machine, "train") == ["train", "True", "True", "False"]
    new = machine.get("nodes", "-l", "cloud.example/accelerator=l4")["items"]
    assert len(new) == 2
    assert all(node["spec"]["taints"][0]["key"] == "nvidia.com/gpu" for node in new)
    marks = {CONSUME: "train", CLASS: kind}
    apply(machine, gpu_pod("a", annotations=marks), gpu_pod("b", annotations=marks))
    machine.wait("pods", "condition=Ready", "--all", seconds=60)
    where = {pod["spec"]["nodeName"] for pod in machine.get("pods")["items"]}
    assert where == {node["metadata"]["name"] for node in new}


def test_capacity_is_only_checked_and_then_kept(machine: Machine) -> None:
    """check-capacity adds no node: it waits for room, and holds it; with noRetry it fails at once."""
    checks = "check-capacity.autoscaling.x-k8s.io"
    apply(machine, *request("look", 1, checks), *request("once", 1, checks, noRetry="true"))
    machine.wait("provisioningrequest/once", "condition=Failed", seconds=60)
    until(lambda: row(machine, "look") == ["look", "True", "False", "False"])
    apply(machine, *request("node", 1, "queued-provisioning.gke.io"))
    machine.wait("provisioningrequest/node", "condition=Provisioned", seconds=60)
    machine.kubectl("delete", "provisioningrequest", "node")
    machine.wait("provisioningrequest/look", "condition=Provisioned", seconds=60)
    apply(machine, gpu_pod("stranger"))  # has to wait for a node of its own
    machine.wait("pod/stranger", "condition=Ready", seconds=60)
    assert len(machine.names("nodes")) == 3


def test_what_no_pool_can_hold_fails_with_the_reason(machine: Machine) -> None:
    apply(machine, *request("giant", 5, "queued-provisioning.gke.io"))
    machine.wait("provisioningrequest/giant", "condition=Failed", seconds=60)
    assert row(machine, "giant") == ["giant", "True", "False", "True"]
    failed = [c for c in machine.get("provisioningrequest", "giant")["status"]["conditions"] if c["type"] == "Failed"]
    assert "no pool can hold these pods" in failed[0]["message"]
    assert machine.names("nodes") == ["cpu-0"]


def test_a_node_of_a_pool_is_described_as_any_other(machine: Machine) -> None:
    apply(machine, gpu_pod("one"))
    machine.wait("pod/one", "condition=Ready", seconds=60)
    told = " ".join(machine.kubectl("describe", "node", "gpu-0").split())
    for line in (
        "Taints: nvidia.com/gpu=present:NoSchedule",
        "HolderIdentity: gpu-0",
        "KubeletReady",
        "Capacity: cpu: 4 ephemeral-storage: 100Gi hugepages-1Gi: 0",
        "memory: 16Gi nvidia.com/gpu: 1 pods: 110 Allocatable: cpu: 4",
        "Non-terminated Pods: (1 in total)",
        "default one 1 (25%) 1 (25%)",
        "nvidia.com/gpu 1 1",
    ):
        assert line in told, f"{line!r} is missing in {told}"
    other = machine.get("node", "cpu-0")["status"]["addresses"]
    assert machine.get("node", "gpu-0")["status"]["addresses"][0] == other[0]
