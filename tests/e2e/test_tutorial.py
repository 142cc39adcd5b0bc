"""The published tutorial, as a user types it: two Ray clusters, room for one, on a node of the tutorial's size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.machine import Machine

NODE = ("--node", "name=kind-control-plane,cpu=8,memory=8118372Ki")
BASE_LOAD = ("--base-load", "cpu=3050m,memory=2918400Ki,limits.cpu=2200m,limits.memory=3020800Ki")

MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

DISPATCHED = [
    ("Init", "True", None, None),
    ("Queueing", "True", "AwaitingHeadOfLine", None),
    ("HeadOfLine", "True", "FrontOfQueue.", None),
    ("Dispatched", "True", "AppWrapperRunnable", None),
]
WAITING = [
    *DISPATCHED[:3],
    ("Backoff", "True", "AppWrapperNotRunnable.", "Insufficient resources to dispatch AppWrapper."),
]

ADDED = {
    "conditions",
    "controllerfirsttimestamp",
    "controllerfirstdispatchtimestamp",
    "admission",
    "explanation",
    "message",
    "pending",
    "running",
    "totalcpu",
    "totalmemory",
}
"""Keys compared apart, and keys that the tutorials' release did not write."""

ELSEWHERE = filter(None, [os.environ.get("SHOAL_SAMPLES", "")])
"""A folder with published manifests of the same shapes, where there is one."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """`machine("--node", …)` starts a cluster with these arguments; it is gone afterwards, whatever happened."""
    cluster = Machine(f"tutorial-{tmp_path.parent.name[-3:]}", tmp_path)

    def start(*arguments: str) -> Machine:
        cluster.up(*arguments)
        return cluster

    yield start
    cluster.down("--purge")


@pytest.mark.ray
def test_the_tutorial_word_for_word_with_real_ray(machine: Callable[..., Machine]) -> None:
    cluster = machine(*NODE, *BASE_LOAD)
    allocatable = _section(cluster.kubectl("describe", "node", "kind-control-plane"), "Allocatable:")
    for line in ("cpu: 8", "hugepages-1Gi: 0", "hugepages-2Mi: 0", "memory: 8118372Ki", "pods: 110"):
        assert line in allocatable

    cluster.kubectl("create", "-f", "samples/appwrapper/raycluster.yaml")
    cluster.wait("appwrapper/first", "jsonpath={.status.queuejobstate}=Dispatched")
    until_ready(cluster, "first")
    check_dispatched(cluster.get("appwrapper", "first")["status"])
    pods = cluster.names("pods")
    assert [name.rpartition("-")[0] for name in pods] == ["first-head", "first-workers-worker"]

    cluster.kubectl("create", "-f", "samples/appwrapper/raycluster-second.yaml")
    cluster.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Backoff")
    check_waiting(cluster.get("appwrapper", "second")["status"])
    assert cluster.names("rayclusters") == ["first"]
    assert cluster.names("pods") == pods

    allocated = _section(cluster.kubectl("describe", "node", "kind-control-plane"), "Allocated resources:")
    assert "cpu 6050m (75%) 5200m (65%)" in allocated
    assert "memory 6824650Ki (84%) 6927050Ki (85%)" in allocated

    cluster.kubectl("delete", "appwrapper", "first")
    cluster.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Dispatched")
    cluster.wait("raycluster/second", "create")
    assert cluster.names("rayclusters") == ["second"]


OLDER = Path("samples/appwrapper/legacy-autoscaler.yaml")


@pytest.mark.ray
@pytest.mark.parametrize("manifest", [OLDER, *(Path(folder) / "aw-raycluster-autoscaler.yaml" for folder in ELSEWHERE)])
def test_the_older_tutorial_with_an_autoscaler_beside_the_head(machine: Callable[..., Machine], manifest: Path) -> None:
    """The legacy group around a v1alpha1 RayCluster: head 2/2, worker 1/1; renamed, it waits and nothing is made."""
    text = manifest.read_text()
    name, wrappers = str(yaml.safe_load(text)["metadata"]["name"]), "appwrappers.mcad.ibm.com"
    cluster = machine(*NODE, *BASE_LOAD)
    cluster.kubectl("create", "-f", "-", stdin=text)
    cluster.wait(f"{wrappers}/{name}", "jsonpath={.status.queuejobstate}=Dispatched")
    until_ready(cluster, name)
    check_dispatched(cluster.get(wrappers, name)["status"])
    described = cluster.kubectl("describe", wrappers, name)
    for line in (r"^  Canrun: +true$", r"^  Queuejobstate: +Dispatched$", r"^  State: +Running$", r"^Events: +<none>$"):
        assert re.search(line, described, re.M), described
    pods = [line.split()[:3] for line in cluster.kubectl("get", "pods", "--no-headers").splitlines()]
    assert [(ready, phase) for _, ready, phase in pods] == [("2/2", "Running"), ("1/1", "Running")]
    assert pods[0][0].startswith(f"{name}-head-")

    cluster.kubectl("create", "-f", "-", stdin=text.replace(f"name: {name}", f"name: {name}-1"))
    cluster.wait(f"{wrappers}/{name}-1", "jsonpath={.status.queuejobstate}=Backoff")
    check_waiting(cluster.get(wrappers, f"{name}-1")["status"])
    assert cluster.names("rayclusters") == [name]
    assert cluster.names("pods") == [pod[0] for pod in pods]

    cluster.kubectl("delete", wrappers, name)
    cluster.wait(f"{wrappers}/{name}-1", "jsonpath={.status.queuejobstate}=Dispatched")
    cluster.wait(f"raycluster/{name}-1", "create")


def test_the_tutorial_quickly_with_simulated_pods(machine: Callable[..., Machine]) -> None:
    cluster = machine("--runtime", "simulated", *NODE, *BASE_LOAD)
    for sample in ("raycluster", "raycluster-second"):
        cluster.kubectl("create", "-f", f"samples/appwrapper/{sample}.yaml")
    cluster.wait("appwrapper/first", "jsonpath={.status.queuejobstate}=Dispatched")
    cluster.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Backoff")
    assert "held by AppWrapper/default/first" in cluster.shoal("why", "second", "--name", cluster.name)
    listed = cluster.shoal("get", "--name", cluster.name)
    assert re.search(r"AppWrapper +first +Running", listed)
    assert re.search(r"AppWrapper +second +Pending .*3 cpu needed, 1950m free", listed)
    cluster.kubectl("delete", "appwrapper", "first")
    cluster.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Dispatched")
    assert "there is no gang third" in cluster.shoal("why", "third", "--name", cluster.name, fails=True)


def until_ready(cluster: Machine, name: str) -> None:
    """Its pods are made after it, one by one: only then can they be waited for."""
    cluster.wait(f"raycluster/{name}", "create")
    cluster.wait(f"raycluster/{name}", "jsonpath={.status.state}=ready")
    cluster.wait("pods", "condition=Ready", "--all")


def check_dispatched(status: dict[str, Any]) -> None:
    """The published status, key by key; beside those there may be what we add, and nothing else."""
    assert _conditions(status) == DISPATCHED
    assert _published(status) == {
        "canrun": True,
        "filterignore": True,
        "queuejobstate": "Dispatched",
        "sender": "before manageQueueJob - afterEtcdDispatching",
        "state": "Running",
    }
    assert status["controllerfirsttimestamp"] <= status["conditions"][0]["lastTransitionMicroTime"]


def check_waiting(status: dict[str, Any]) -> None:
    assert _conditions(status) == WAITING
    assert _published(status) == {
        "filterignore": True,
        "queuejobstate": "Backoff",
        "sender": "before ScheduleNext - setHOL",
        "state": "Pending",
    }
    assert status["controllerfirsttimestamp"] <= status["conditions"][0]["lastTransitionMicroTime"]


def _published(status: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name not in ADDED}


def _conditions(status: dict[str, list[dict[str, str]]]) -> list[tuple[str, str, str | None, str | None]]:
    """Type, status, reason and message; every time must be written with six digits, and none may fall."""
    times = [one["lastTransitionMicroTime"] for one in status["conditions"]]
    assert all(MICRO_TIME.fullmatch(time) for time in times)
    assert times == sorted(times)
    return [(one["type"], one["status"], one.get("reason"), one.get("message")) for one in status["conditions"]]


def _section(described: str, heading: str) -> list[str]:
    """The lines below a heading of `kubectl describe`, blanks folded."""
    lines = described[described.index(heading) :].splitlines()[1:]
    inner = []
    for line in lines:
        if not line.startswith(" "):
            break
        inner.append(" ".join(line.split()))
    return inner
