"""Our verdict on a gang against what the real kube-scheduler does with its pods.

A gang that we call fitting is created with each pod pinned to its planned node: kube-scheduler must bind every one.
A gang that we call unfitting is created as it is: kube-scheduler should not manage to bind all of it.
SHOAL_FIT_WORLDS sets how many seeded worlds are judged (2000 takes some minutes).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.engine import Engine
from shoal.engine.facts import node_fact, pod_fact, pod_set
from shoal.engine.model import Gang
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from tests.controlplane.plane import ControlPlane
from tests.integration.conftest import judged
from tests.integration.engine.worlds import World, world

WORLDS = int(os.environ.get("SHOAL_FIT_WORLDS") or 120)
SEEDS = [int(seed) for seed in os.environ.get("SHOAL_FIT_SEEDS", "").split(",") if seed]
"""Judge these worlds only: to look again at a disagreement."""
BATCH = 40
QUIET = 16
"""Looks in a row, some milliseconds apart, that must find no change before kube-scheduler counts as done."""
SECOND_LOOK = 60.0
"""Seconds that kube-scheduler has for pods that we call fitting."""


@pytest.fixture(scope="module")
def scheduling_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from judged(ControlPlane(tmp_path_factory.mktemp("plane") / "state", scheduler=True, audit=True))


@pytest.fixture
async def client(scheduling_plane: ControlPlane) -> AsyncIterator[Client]:
    transport = load(Path(scheduling_plane.kubeconfig))
    yield Client(transport)
    await transport.close()


@pytest.mark.timeout(1800)
async def test_kube_scheduler_binds_what_we_call_fitting_and_not_what_we_call_unfitting(client: Client) -> None:
    fitting, wrongly_fitting, wrongly_unfitting = 0, [], []
    seeds = SEEDS or range(WORLDS)
    for first in range(0, len(seeds), BATCH):
        worlds = [world(seed) for seed in seeds[first : first + BATCH]]
        plans = {one.number: _verdict(one) for one in worlds}
        bound = await _tried(client, worlds, plans)
        for one in worlds:
            fitting += plans[one.number] is not None
            if plans[one.number] is not None and not bound[one.number]:
                wrongly_fitting.append(one.number)
            if plans[one.number] is None and bound[one.number]:
                wrongly_unfitting.append(one.number)
    print(f"{WORLDS} worlds, {fitting} fitting; wrong: {wrongly_fitting} fitting, {wrongly_unfitting} unfitting")
    assert SEEDS or WORLDS // 5 < fitting < WORLDS, "the worlds are too easy or too hard to tell anything"
    assert wrongly_fitting == []
    assert len(wrongly_unfitting) <= WORLDS // 100


def _verdict(one: World) -> dict[str, list[str]] | None:
    """Planned nodes by pod set, or None when the gang does not fit."""
    engine = Engine()
    for node in one.nodes:
        engine.update(node_fact(node))
    for number, pod in enumerate(one.there):
        metadata = {**pod["metadata"], "uid": f"there-{number}", "namespace": one.namespace}
        engine.update(pod_fact({**pod, "metadata": metadata, "status": {"phase": "Running"}}))
    sets = tuple(
        pod_set(part.name, part.count, {"metadata": {"labels": part.labels}, "spec": part.spec}) for part in one.gang
    )
    engine.update(Gang(key=f"Test/{one.namespace}/g", uid="g", namespace=one.namespace, name="g", pod_sets=sets))
    plan = engine.plan(0)
    if not plan.admits:
        return None
    return {
        entry.name: [node for node, count in entry.nodes.items() for _ in range(count)]
        for entry in plan.admits[0].assignment
    }


async def _tried(client: Client, worlds: list[World], plans: dict[int, dict[str, list[str]] | None]) -> dict[int, bool]:
    """Whether kube-scheduler bound every pod of each world's gang. Leaves the cluster empty."""
    await _all(_add_node(client, node) for one in worlds for node in one.nodes)
    await _all(client.create(kinds.NAMESPACE, {"metadata": {"name": one.namespace}}) for one in worlds)
    await _all(client.create(kinds.POD, pod, one.namespace) for one in worlds for pod in one.there)
    gang_pods = {one.number: _pods(one, plans[one.number]) for one in worlds}
    await _all(client.create(kinds.POD, pod, one.namespace) for one in worlds for pod in gang_pods[one.number])
    expected = {pod["metadata"]["name"] for number, pods in gang_pods.items() if plans[number] for pod in pods}
    listed = await _decided(client, expected)
    bound = {
        number: all(listed[pod["metadata"]["name"]]["spec"].get("nodeName") for pod in pods)
        for number, pods in gang_pods.items()
    }
    await _all(
        client.delete(kinds.POD, name, pod["metadata"]["namespace"], grace_seconds=0) for name, pod in listed.items()
    )
    await _all(client.delete(kinds.NODE, node["metadata"]["name"]) for one in worlds for node in one.nodes)
    return bound


async def _add_node(client: Client, node: Json) -> None:
    """The server taints every new node as not ready; without a node controller we take that away ourselves."""
    name = node["metadata"]["name"]
    await client.create(kinds.NODE, node)
    await client.patch(kinds.NODE, name, None, {"spec": node["spec"]})
    status = {**node["status"], "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(kinds.NODE, name, None, {"status": status}, subresource="status")


def _pods(one: World, plan: dict[str, list[str]] | None) -> list[Json]:
    made = []
    for part in one.gang:
        for index in range(part.count):
            spec = dict(part.spec)
            if plan is not None:
                spec["nodeSelector"] = {**spec["nodeSelector"], "kubernetes.io/hostname": plan[part.name][index]}
            metadata = {"name": f"w{one.number}-{part.name}-{index}", "labels": part.labels}
            made.append({"metadata": metadata, "spec": spec})
    return made


async def _decided(client: Client, expected: set[str]) -> dict[str, Json]:
    """All pods, once nothing has moved for a while. Pods that we expect to be bound get time for a second look.

    kube-scheduler leaves a refused pod alone for up to ten seconds even when its neighbour has arrived meanwhile.
    """
    quiet, last = 0, None
    patience = asyncio.get_running_loop().time() + SECOND_LOOK
    while True:
        pods = {pod["metadata"]["name"]: pod for pod in await client.list(kinds.POD)}
        state = {name: pod["metadata"]["resourceVersion"] for name, pod in pods.items()}
        open_pods = {name for name, pod in pods.items() if not pod["spec"].get("nodeName")}
        hoped = open_pods & expected and asyncio.get_running_loop().time() < patience
        undecided = hoped or any(not _refused(pods[name]) for name in open_pods)
        quiet = quiet + 1 if state == last and not undecided else 0
        last = state
        if quiet >= QUIET:
            return pods
        await asyncio.sleep(0.05)  # kube-scheduler does not tell that it has given up


def _refused(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


async def _all(calls: object) -> None:
    limit = asyncio.Semaphore(16)

    async def one(call: object) -> None:
        async with limit:
            await call  # type: ignore[misc]

    await asyncio.gather(*(one(call) for call in calls))  # type: ignore[attr-defined]
