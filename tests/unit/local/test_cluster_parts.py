"""Scheduler, node agent and autoscaler against the embedded API server, with simulated pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shoal.api import gang as marks
from shoal.api.crds import load_crds
from shoal.api.kinds import CRD, EVENT, NODE, POD, POD_TEMPLATE, PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound
from shoal.local.agent import Agent, NodeKeeper, NodeShape
from shoal.local.agent import agent as agent_module
from shoal.local.apiserver import Server
from shoal.local.autoscaler import Autoscaler
from shoal.local.runtime.simulated import EXIT_CODE, RUN_SECONDS, SimulatedRuntime
from shoal.local.scheduler import Scheduler
from shoal.local.settings import Pool, Settings
from tests.faults import proven


class Cluster:
    """The parts that a test chose to start, and short ways to use them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = Client(server.transport())
        self.clock = SystemClock()
        self.runtime = SimulatedRuntime(self.clock)
        self.keeper = NodeKeeper(self.client, "test", "127.0.0.1", self.clock)
        self.agent = Agent(self.client, "test", {"simulated": self.runtime}, self.keeper)
        self.scheduler = Scheduler(self.client)
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, *parts: Any) -> None:
        for part in parts:
            self.tasks.append(asyncio.create_task(part.run()))
            if hasattr(part, "ready"):
                await part.ready.wait()

    async def nodes(self, *sizes: str, **options: Any) -> None:
        await self.keeper.register(
            NodeShape(name=f"node-{i}", capacity={"cpu": size, "memory": "64Gi"}, runtime="simulated", **options)
            for i, size in enumerate(sizes)
        )

    async def pod(self, name: str, cpu: str = "1", gang: tuple[str, int] | None = None, **more: Any) -> Json:
        annotations = dict(more.pop("annotations", {}))
        if gang:
            annotations |= {marks.GANG_UID: gang[0], marks.GANG_SIZE: str(gang[1]), marks.GANG_NAME: gang[0]}
        container = {
            "name": "c",
            "image": "busybox",
            "command": ["sleep", "infinity"],
            "resources": {"requests": {"cpu": cpu}},
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations, "labels": more.pop("labels", {})},
            "spec": {"containers": [container], "restartPolicy": "Never", **more},
        }
        return await self.client.create(POD, body, "default")

    async def see(
        self, kind: Any, name: str, namespace: str | None, good: Callable[[Json], bool], seconds: float = 15
    ) -> Json:
        """The object as soon as it is as wanted."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    found = await self.client.get(kind, name, namespace)
                    if good(found):
                        return found
                except NotFound:
                    pass
                await asyncio.sleep(0.02)

    async def bound(self, name: str) -> str:
        return str(
            (await self.see(POD, name, "default", lambda pod: bool(pod["spec"].get("nodeName"))))["spec"]["nodeName"]
        )

    async def waits(self, name: str, text: str) -> Json:
        def said(pod: Json) -> bool:
            return text in str((pod.get("status") or {}).get("conditions"))

        return await self.see(POD, name, "default", said)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    server = Server(None)
    await server.start()
    found = Cluster(server)
    for definition in load_crds():
        if definition["spec"]["names"]["kind"] in ("ProvisioningRequest", "PodGroup"):
            await found.client.create(CRD, definition)
    yield found
    for task in found.tasks:
        task.cancel()
    await asyncio.gather(*found.tasks, return_exceptions=True)
    await server.stop()


def phase(wanted: str) -> Callable[[Json], bool]:
    return lambda pod: (pod.get("status") or {}).get("phase") == wanted


def condition(kind: str, status: str) -> Callable[[Json], bool]:
    return lambda obj: any(
        c["type"] == kind and c["status"] == status for c in (obj.get("status") or {}).get("conditions") or ()
    )


async def test_a_pod_is_bound_runs_and_is_deleted(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.agent, cluster.scheduler)
    await cluster.pod("one")
    running = await cluster.see(POD, "one", "default", phase("Running"))
    assert running["spec"]["nodeName"] == "node-0" and running["status"]["podIP"]
    assert condition("Ready", "True")(running) and condition("PodScheduled", "True")(running)
    await cluster.client.delete(POD, "one", "default")
    async with asyncio.timeout(10):
        while cluster.agent.running("default", "one"):  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.02)
    with pytest.raises(NotFound):
        await cluster.client.get(POD, "one", "default")


async def test_a_gang_is_bound_whole_or_not_at_all(cluster: Cluster) -> None:
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("a", gang=("g", 3))
    await cluster.waits("a", "waiting for 2 more")
    await cluster.pod("b", gang=("g", 3))
    await cluster.pod("c", gang=("g", 3))
    await cluster.waits("a", "start together or not at all")
    assert not any(pod["spec"].get("nodeName") for pod in await cluster.client.list(POD, "default"))
    await cluster.keeper.register([NodeShape(name="more", capacity={"cpu": "1", "memory": "1Gi"})])
    assert sorted([await cluster.bound(name) for name in "abc"]) == ["more", "node-0", "node-0"]


async def test_a_running_gang_takes_a_replacement_alone(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler)
    for name in "ab":
        await cluster.pod(name, gang=("g", 2))
    for name in "ab":
        await cluster.bound(name)
    await cluster.pod("c", gang=("g", 2))
    assert await cluster.bound("c") == "node-0"


async def test_a_pod_group_is_co_scheduled(cluster: Cluster) -> None:
    from shoal.api.kinds import POD_GROUP

    group = {
        "apiVersion": POD_GROUP.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "team"},
        "spec": {"minMember": 2},
    }
    await cluster.client.create(POD_GROUP, group, "default")
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler)
    async with asyncio.timeout(10):
        while not cluster.scheduler._pod_groups.list():  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.02)
    await cluster.pod("a", labels={"scheduling.x-k8s.io/pod-group": "team"})
    await cluster.waits("a", "waiting for 1 more")
    await cluster.pod("b", labels={"scheduling.x-k8s.io/pod-group": "team"})
    assert await cluster.bound("a") == await cluster.bound("b") == "node-0"


async def test_a_pod_too_large_says_why_in_the_schedulers_words(cluster: Cluster) -> None:
    await cluster.nodes("4", "2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("huge", cpu="64")
    found = await cluster.waits("huge", "Unschedulable")
    assert "0/2 nodes are available: 2 Insufficient cpu." in str(found["status"]["conditions"])
    async with asyncio.timeout(10):
        while not [e for e in await cluster.client.list(EVENT, "default") if e["reason"] == "FailedScheduling"]:  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {"disk": "fast"}}, "node-0"),
        (
            {
                "tolerations": [{"key": "only", "operator": "Exists"}],
                "nodeSelector": {"kubernetes.io/hostname": "node-1"},
            },
            "node-1",
        ),
    ],
)
async def test_selectors_and_taints_decide(cluster: Cluster, spec: Json, expected: str) -> None:
    await cluster.keeper.register(
        [
            NodeShape(name="node-0", capacity={"cpu": "4", "memory": "1Gi"}, labels={"disk": "fast"}),
            NodeShape(
                name="node-1", capacity={"cpu": "4", "memory": "1Gi"}, taints=({"key": "only", "effect": "NoSchedule"},)
            ),
        ]
    )
    await cluster.begin(cluster.scheduler)
    await cluster.pod("choosy", **spec)
    assert await cluster.bound("choosy") == expected


async def test_what_pods_request_never_exceeds_a_node(cluster: Cluster) -> None:
    """More pods than fit, created at once: bound requests stay within allocatable; a freed place is used."""
    await cluster.nodes("3", "2")
    await cluster.begin(cluster.agent, cluster.scheduler)
    await asyncio.gather(*(cluster.pod(f"p{n}") for n in range(8)))
    async with asyncio.timeout(10):
        while sum(bool(pod["spec"].get("nodeName")) for pod in await cluster.client.list(POD, "default")) < 5:  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.02)
    nodes = [pod["spec"].get("nodeName") for pod in await cluster.client.list(POD, "default")]
    assert (nodes.count("node-0"), nodes.count("node-1"), nodes.count(None)) == (3, 2, 3)
    gone = next(pod for pod in await cluster.client.list(POD, "default") if pod["spec"].get("nodeName"))
    await cluster.client.delete(POD, gone["metadata"]["name"], "default")
    async with asyncio.timeout(10):
        while sum(bool(p["spec"].get("nodeName")) for p in await cluster.client.list(POD, "default")) < 5:  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("annotations", "command", "wanted"),
    [
        ({RUN_SECONDS: "0.1"}, ["whatever"], "Succeeded"),
        ({RUN_SECONDS: "0.1", EXIT_CODE: "2"}, ["whatever"], "Failed"),
        ({}, ["sh", "-c", "sleep 0.1"], "Succeeded"),
    ],
)
async def test_simulated_pods_end_as_told(
    cluster: Cluster, annotations: dict[str, str], command: list[str], wanted: str
) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.agent, cluster.scheduler)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "timed", "annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x", "command": command}]},
    }
    await cluster.client.create(POD, body, "default")
    await cluster.see(POD, "timed", "default", phase(wanted))


def starts_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "TERMINAL", ())


@proven(without=starts_anything)
async def test_f108_a_pod_that_ended_is_never_started_again(cluster: Cluster) -> None:
    """F108: the agent starts and finds a pod that ended long ago. Holds: it is left as it is."""
    await cluster.nodes("4")
    await cluster.pod("done", nodeName="node-0", annotations={RUN_SECONDS: "0"})
    await cluster.client.patch(POD, "done", "default", {"status": {"phase": "Succeeded"}}, subresource="status")
    await cluster.begin(cluster.agent)
    await cluster.pod("fresh", nodeName="node-0")
    await cluster.see(POD, "fresh", "default", phase("Running"))
    assert cluster.agent.running("default", "done") is None


# --- autoscaler


GPU = Pool(
    name="gpu",
    capacity={"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
    labels={"kind": "gpu"},
    most=3,
    delay=0.05,
    runtime="simulated",
)


async def ask(cluster: Cluster, name: str, count: int, kind: str = "queued-provisioning.gke.io") -> None:
    limits = {"nvidia.com/gpu": "1"}
    template = {
        "spec": {
            "containers": [
                {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1", **limits}, "limits": limits}}
            ]
        }
    }
    await cluster.client.create(
        POD_TEMPLATE,
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template},
        "default",
    )
    spec = {"provisioningClassName": kind, "podSets": [{"podTemplateRef": {"name": name}, "count": count}]}
    body = {
        "apiVersion": PROVISIONING_REQUEST.api_version,
        "kind": "ProvisioningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }
    await cluster.client.create(PROVISIONING_REQUEST, body, "default")


@pytest.fixture
async def scaled(cluster: Cluster) -> Cluster:
    await cluster.nodes("2")
    settings = Settings(pools=(GPU,), idle_seconds=0.3)
    await cluster.begin(cluster.agent, cluster.scheduler, Autoscaler(cluster.client, settings, "test"))
    return cluster


async def test_a_request_is_accepted_provisioned_and_its_pods_land_there(scaled: Cluster) -> None:
    await ask(scaled, "job", 2)
    accepted = await scaled.see(PROVISIONING_REQUEST, "job", "default", condition("Accepted", "True"))
    assert condition("Failed", "False")(accepted)
    await scaled.see(PROVISIONING_REQUEST, "job", "default", condition("Provisioned", "True"))
    nodes = [node for node in await scaled.client.list(NODE) if node["metadata"]["labels"].get("kind") == "gpu"]
    assert len(nodes) == 2
    limits = {"nvidia.com/gpu": "1"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "consumer", "annotations": {"autoscaling.x-k8s.io/consume-provisioning-request": "job"}},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": limits, "limits": limits}}]},
    }
    await scaled.client.create(POD, body, "default")
    assert await scaled.bound("consumer") in {node["metadata"]["name"] for node in nodes}


async def test_held_room_is_for_its_request_only(scaled: Cluster) -> None:
    await ask(scaled, "job", 3)
    await scaled.see(PROVISIONING_REQUEST, "job", "default", condition("Provisioned", "True"))
    limits = {"nvidia.com/gpu": "1"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "other"},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": limits, "limits": limits}}]},
    }
    await scaled.client.create(POD, body, "default")
    await scaled.waits("other", "Insufficient nvidia.com/gpu")
    await scaled.client.delete(PROVISIONING_REQUEST, "job", "default")
    assert (await scaled.bound("other")).startswith("gpu-")


async def test_a_request_that_no_pool_can_ever_hold_fails(scaled: Cluster) -> None:
    await ask(scaled, "impossible", 4)
    found = await scaled.see(PROVISIONING_REQUEST, "impossible", "default", condition("Failed", "True"))
    assert "no pool can hold these pods" in str(found["status"]["conditions"])
    assert not condition("Provisioned", "True")(found)


async def test_a_request_waits_while_the_pool_is_at_its_maximum(scaled: Cluster) -> None:
    await ask(scaled, "first", 3)
    await scaled.see(PROVISIONING_REQUEST, "first", "default", condition("Provisioned", "True"))
    await ask(scaled, "second", 1)
    await scaled.see(PROVISIONING_REQUEST, "second", "default", lambda found: "at most 3" in str(found.get("status")))
    await scaled.client.delete(PROVISIONING_REQUEST, "first", "default")
    await scaled.see(PROVISIONING_REQUEST, "second", "default", condition("Provisioned", "True"))


async def test_pending_pods_make_a_pool_grow_and_idle_nodes_go(scaled: Cluster) -> None:
    await scaled.pod("large", cpu="3", annotations={RUN_SECONDS: "0.2"})
    assert (await scaled.bound("large")).startswith("gpu-")
    await scaled.see(POD, "large", "default", phase("Succeeded"))
    async with asyncio.timeout(20):
        while len(await scaled.client.list(NODE)) > 1:  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.05)
