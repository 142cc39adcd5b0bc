"""The first thing a new user tries, on a real API server: two Ray clusters, one after the other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import yaml

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.quantity import amount
from shoal.sdk.asking import ask
from tests.cluster import RemoteCluster
from tests.controlplane.plane import ControlPlane
from tests.unit.appwrapper.build import dispatched, trail, waits

SAMPLES = Path(__file__).parents[3] / "samples" / "appwrapper"
MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def sample(name: str) -> Json:
    return yaml.safe_load((SAMPLES / name).read_text())


def ray_pods(pods: list[Json], cluster: str) -> list[Json]:
    return [one for one in pods if one["metadata"].get("labels", {}).get("ray.io/cluster") == cluster]


async def until_running(remote: RemoteCluster, cluster: str, number: int) -> None:
    async with asyncio.timeout(60):
        while True:
            pods = ray_pods(await remote.client.list(kinds.POD, "default"), cluster)
            if sum(one["status"].get("phase") == "Running" for one in pods) == number:
                return
            await asyncio.sleep(0.2)


async def test_two_ray_clusters_one_after_the_other(remote: RemoteCluster, plane: ControlPlane) -> None:
    first, second = sample("raycluster.yaml"), sample("raycluster-second.yaml")
    await remote.create(kinds.APP_WRAPPER, first)
    name = first["metadata"]["name"]
    wrapper = await remote.until(kinds.APP_WRAPPER, name, dispatched)
    check_dispatched(wrapper)
    await until_running(remote, name, 2)
    check_dispatched(await remote.get(kinds.APP_WRAPPER, name))

    await remote.create(kinds.APP_WRAPPER, second)
    late = second["metadata"]["name"]
    check_waiting(await remote.until(kinds.APP_WRAPPER, late, waits))
    assert await holders(remote, kinds.APP_WRAPPER, late) == [f"AppWrapper/default/{name}"]
    assert await remote.names(kinds.RAY_CLUSTER) == [name]
    assert ray_pods(await remote.client.list(kinds.POD, "default"), late) == []
    rows = plane.kubectl("describe", "node", "kind-control-plane")
    assert re.search(r"^  cpu +6050m \(75%\)", rows, re.M), rows
    memory = re.search(r"^  memory +(\S+) \(84%\)", rows, re.M)
    assert memory is not None and amount("memory", memory.group(1)) == amount("memory", "6824650Ki"), rows
    described = plane.kubectl("describe", "appwrappers.workload.codeflare.dev", late)
    assert re.search(r"^ +Reason: +AppWrapperNotRunnable\.$", described, re.M), described
    assert len(re.findall(r"^  Admission:", described, re.M)) <= 1

    await remote.client.delete(kinds.APP_WRAPPER, name, "default")
    check_dispatched(await remote.until(kinds.APP_WRAPPER, late, dispatched), again=True)
    await remote.until_gone(kinds.RAY_CLUSTER, name)
    await until_running(remote, late, 2)


async def test_the_legacy_group_with_an_autoscaler_beside_the_head(remote: RemoteCluster, plane: ControlPlane) -> None:
    """The older tutorial: head 2/2, worker 1/1; renamed, it waits and nothing is made; then it follows."""
    first = sample("legacy-autoscaler.yaml")
    name, wrapper = first["metadata"]["name"], kinds.APP_WRAPPER_LEGACY
    await remote.create(wrapper, first)
    check_dispatched(await remote.until(wrapper, name, dispatched))
    await until_running(remote, name, 2)
    pods = ray_pods(await remote.client.list(kinds.POD, "default"), name)
    assert sorted(len(one["spec"]["containers"]) for one in pods) == [1, 2]
    check_dispatched(await remote.get(wrapper, name))

    second = yaml.safe_load(
        (SAMPLES / "legacy-autoscaler.yaml").read_text().replace(f"name: {name}", f"name: {name}-1")
    )
    await remote.create(wrapper, second)
    check_waiting(await remote.until(wrapper, f"{name}-1", waits))
    assert await holders(remote, wrapper, f"{name}-1") == [f"AppWrapper.mcad/default/{name}"]
    assert await remote.names(kinds.RAY_CLUSTER) == [name]
    assert ray_pods(await remote.client.list(kinds.POD, "default"), f"{name}-1") == []
    described = plane.kubectl("describe", "appwrappers.mcad.ibm.com", f"{name}-1")
    assert re.search(r"^  Queuejobstate: +Backoff$", described, re.M), described

    await remote.client.delete(wrapper, name, "default")
    check_dispatched(await remote.until(wrapper, f"{name}-1", dispatched), again=True)


def check_dispatched(wrapper: Json, again: bool = False) -> None:
    """The published status, field by field; keys beyond those are ours to add."""
    status = wrapper["status"]
    assert {name: status.get(name) for name in ("canrun", "filterignore", "queuejobstate", "state", "sender")} == {
        "canrun": True,
        "filterignore": True,
        "queuejobstate": "Dispatched",
        "state": "Running",
        "sender": "before manageQueueJob - afterEtcdDispatching",
    }
    backoff = [("Backoff", "AppWrapperNotRunnable.", "Insufficient resources to dispatch AppWrapper.")]
    assert trail(wrapper) == [
        ("Init", "", ""),
        ("Queueing", "AwaitingHeadOfLine", ""),
        ("HeadOfLine", "FrontOfQueue.", ""),
        *(backoff if again else []),
        ("Dispatched", "AppWrapperRunnable", ""),
    ]
    check_times(status)


async def holders(remote: RemoteCluster, kind: Kind, name: str) -> list[str]:
    """Gangs in the way, as the controller answers."""
    answer = await ask(remote.client, kind, name, "default", fresh=True)
    return list(answer.get("holders") or ())


def check_waiting(wrapper: Json) -> None:
    status = wrapper["status"]
    assert "canrun" not in status
    assert {name: status.get(name) for name in ("filterignore", "queuejobstate", "state", "sender")} == {
        "filterignore": True,
        "queuejobstate": "Backoff",
        "state": "Pending",
        "sender": "before ScheduleNext - setHOL",
    }
    assert trail(wrapper) == [
        ("Init", "", ""),
        ("Queueing", "AwaitingHeadOfLine", ""),
        ("HeadOfLine", "FrontOfQueue.", ""),
        ("Backoff", "AppWrapperNotRunnable.", "Insufficient resources to dispatch AppWrapper."),
    ]
    assert "cpu" in status["message"]
    check_times(status)


def check_times(status: Json) -> None:
    times = [one["lastTransitionMicroTime"] for one in status["conditions"]]
    assert all(MICRO.fullmatch(time) for time in [*times, status["controllerfirsttimestamp"]])
    assert status["controllerfirsttimestamp"] <= times[0]
    assert all(one["status"] == "True" for one in status["conditions"])
    fresh = times if len(times) == 4 else times[:3]
    assert fresh == sorted(fresh)
