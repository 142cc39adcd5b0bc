"""The published tutorial, as a user types it: two Ray clusters, room for one, on a node of the tutorial's size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
    cluster.wait("pods", "condition=Ready", "--all")
    status = cluster.get("appwrapper", "first")["status"]
    assert _conditions(status) == DISPATCHED
    told = {name: status[name] for name in ("canrun", "filterignore", "queuejobstate", "sender", "state")}
    assert told == {
        "canrun": True,
        "filterignore": True,
        "queuejobstate": "Dispatched",
        "sender": "before manageQueueJob - afterEtcdDispatching",
        "state": "Running",
    }
    assert status["controllerfirsttimestamp"] <= status["conditions"][0]["lastTransitionMicroTime"]
    pods = cluster.names("pods")
    assert [name.rpartition("-")[0] for name in pods] == ["first-head", "first-workers-worker"]

    cluster.kubectl("create", "-f", "samples/appwrapper/raycluster-second.yaml")
    cluster.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Backoff")
    status = cluster.get("appwrapper", "second")["status"]
    assert _conditions(status) == WAITING
    assert (status["state"], status["sender"]) == ("Pending", "before ScheduleNext - setHOL")
    assert "canrun" not in status
    assert cluster.names("rayclusters") == ["first"]
    assert cluster.names("pods") == pods

    allocated = _section(cluster.kubectl("describe", "node", "kind-control-plane"), "Allocated resources:")
    assert "cpu 6050m (75%) 5200m (65%)" in allocated
    assert "memory 6824650Ki (84%) 6927050Ki (85%)" in allocated

    cluster.kubectl("delete", "appwrapper", "first")
    cluster.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Dispatched")
    cluster.wait("raycluster/second", "create")
    assert cluster.names("rayclusters") == ["second"]


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
    assert "there is no AppWrapper third" in cluster.shoal("why", "third", "--name", cluster.name, fails=True)


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
