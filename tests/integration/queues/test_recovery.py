"""Queued Jobs that lost their nodes, bound by the real kube-scheduler, which knows no gangs: one is whole again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from tests.cluster import RemoteCluster
from tests.controlplane.plane import ControlPlane, await_kinds
from tests.integration.conftest import judged
from tests.integration.test_install import apply
from tests.patience import PATIENCE, patiently
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make

RECOVERY = 4.0
PODS = 4


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With a scheduler, and simulated nodes on which the pods of Jobs run on."""
    folder = tmp_path_factory.mktemp("plane") / "state"
    fresh = ControlPlane(folder, controllers=True, scheduler=True, kwok=True, audit=True, jobs_go_on=True)
    with contextmanager(judged)(fresh) as started:
        apply(started, {"apiVersion": "v1", "kind": "List", "items": load_crds()})
        await_kinds(started.kubectl)
        yield started


@pytest.fixture
async def remote(plane: ControlPlane) -> AsyncIterator[RemoteCluster]:
    own, transport = load(plane.kubeconfig), load(plane.kubeconfig)
    cluster = RemoteCluster(Client(transport))
    wrappers, queues = AppWrapperSettings(trust_unstamped=True), QueueSettings(recovery_seconds=RECOVERY)
    cluster.start(planned(Client(own), wrappers, queues=queues).run())
    cluster.rules = rules_of(wrappers, queues)
    try:
        yield cluster
        await cluster.hold_at_rest()
    finally:
        await cluster.stop()
        await own.close()
        await transport.close()


def tolerant(name: str) -> Json:
    """A Job whose pods alone may be on nodes kept for `name`."""
    made = job(name, PODS)
    made["spec"]["template"]["spec"]["tolerations"] = [{"key": "kept-for", "value": name, "effect": "NoSchedule"}]
    return made


async def bound(cluster: RemoteCluster) -> dict[str, int]:
    """How many living pods of each Job have a node."""
    found: dict[str, int] = {}
    for pod in await cluster.client.list(kinds.POD, "default"):
        if pod["spec"].get("nodeName") and pod["status"].get("phase") in ("Pending", "Running"):
            owner = pod["metadata"]["ownerReferences"][0]["name"]
            found[owner] = found.get(owner, 0) + 1
    return found


async def until_bound(cluster: RemoteCluster, **expected: int) -> None:
    last: dict[str, int] = {}
    try:
        async with patiently(PATIENCE):
            while last != expected:
                last = await bound(cluster)
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{expected} pods should be bound; {last} are") from None


async def test_two_jobs_that_hold_parts_of_the_nodes_left_do_not_stay_so(
    plane: ControlPlane, remote: RemoteCluster
) -> None:
    """Each loses a node with one of its pods, and each could have the room of the other. The younger goes back to the
    queue whole, and starts whole when there is room for it."""
    await make(remote, flavor(), cluster_queue(quota={"cpu": "8"}), local_queue())
    for name in ("elder", "younger"):
        plane.add_node(f"large-{name}", {"kept-for": name}, cpu=str(PODS - 1))
        plane.add_node(f"small-{name}", {"kept-for": name}, cpu="1")
        await make(remote, tolerant(name))
    await until_bound(remote, elder=PODS, younger=PODS)
    plane.kubectl("taint", "node", "--all", "kept-for-")
    await lose(plane, remote, "small-elder", "small-younger")
    await until_bound(remote, elder=PODS - 1, younger=PODS - 1)
    await until_bound(remote, elder=PODS)
    younger = await remote.get(kinds.JOB, "younger", "default")
    assert younger["spec"]["suspend"] is True
    workload = await workload_of(remote, younger)
    assert condition(workload, "QuotaReserved").get("status") == "False"
    assert condition(workload, "Evicted").get("reason") == "NodeFailures"
    plane.add_node("new", cpu=str(PODS))
    await until_bound(remote, elder=PODS, younger=PODS)


async def lose(plane: ControlPlane, cluster: RemoteCluster, *nodes: str) -> None:
    """As the control plane leaves things behind when nodes are gone: their pods have failed."""
    plane.kubectl("cordon", *nodes)
    for pod in await cluster.client.list(kinds.POD, "default"):
        if pod["spec"]["nodeName"] in nodes:
            failed = {"status": {"phase": "Failed"}}
            await cluster.client.patch(kinds.POD, pod["metadata"]["name"], "default", failed, subresource="status")
    plane.kubectl("delete", "node", *nodes)


async def workload_of(cluster: RemoteCluster, made: Json) -> Json:
    found = await cluster.client.list(kinds.WORKLOAD, "default")
    return next(one for one in found if one["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"])
