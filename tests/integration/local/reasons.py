"""Situations in which a pod waits, and what a scheduler says about it there: ours is held against kube-scheduler.

What kube-scheduler adds about preemption is left out: ours says that in an event of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from shoal.api.kinds import NODE, POD, SERVICE_ACCOUNT
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists
from shoal.kube.writes import would_change
from shoal.local.apiserver import Server
from shoal.local.scheduler import Scheduler
from tests.patience import PATIENCE


def node(name: str, *, taints: list[Json] | None = None, labels: dict[str, str] | None = None, **capacity: str) -> Json:
    size = {"cpu": "2", "memory": "4Gi", "pods": "10", "ephemeral-storage": "10Gi", **capacity}
    spec: Json = {"taints": taints or []}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": None}
    status = {"capacity": size, "allocatable": size, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def cordoned(name: str) -> Json:
    made = node(name, taints=[taint("node.kubernetes.io/unschedulable")])
    made["spec"]["unschedulable"] = True
    return made


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Json:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def pod(name: str, ports: list[Json] | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    requests = {key.replace("_", "-"): spec.pop(key) for key in ("cpu", "memory", "ephemeral_storage") if key in spec}
    gpus = spec.pop("gpus", None)
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    resources = {"requests": {**requests, **limits}, "limits": limits}
    container = {"name": "c", "image": "busybox", "resources": resources, "ports": ports or []}
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def near(kind: str, name: str) -> Json:
    term = {"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": "kubernetes.io/hostname"}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def in_zone(zone: str) -> Json:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


PORT = [{"containerPort": 80, "hostPort": 8080}]
SITUATIONS: dict[str, tuple[list[Json], list[Json], Json]] = {
    "too much cpu": ([node("a")], [], pod("waits", cpu="8")),
    "too much of two": ([node("a")], [], pod("waits", cpu="8", memory="64Gi")),
    "a node lacks this, another that": (
        [node("a", memory="64Gi"), node("b", cpu="16")],
        [],
        pod("waits", cpu="8", memory="32Gi"),
    ),
    "taken by another": ([node("a"), node("b")], [pod("there", cpu="1500m", nodeName="a")], pod("waits", cpu="3")),
    "no devices": ([node("a")], [], pod("waits", gpus="1")),
    "too few devices": ([node("a", **{"nvidia.com/gpu": "1"}), node("b")], [], pod("waits", gpus="2")),
    "no room on disk": ([node("a")], [], pod("waits", ephemeral_storage="20Gi")),
    "another disk": ([node("a"), node("b")], [], pod("waits", nodeSelector={"disk": "fast"})),
    "another zone": ([node("a", labels={"zone": "x"})], [], pod("waits", affinity=in_zone("y"))),
    "a taint": ([node("a", taints=[taint("kind", "gpu")])], [], pod("waits")),
    "a taint without a value": ([node("a", taints=[taint("kind", effect="NoExecute")])], [], pod("waits")),
    "two taints": (
        [node("a", taints=[taint("kind", "gpu"), taint("team", "x")]), node("b", taints=[taint("team", "x")])],
        [],
        pod("waits"),
    ),
    "of everything": (
        [node("a"), node("b", taints=[taint("kind", "gpu")]), node("c", labels={"disk": "fast"}), cordoned("d")],
        [],
        pod("waits", cpu="8", nodeSelector={"disk": "fast"}),
    ),
    "cordoned": ([cordoned("a")], [], pod("waits")),
    "as many pods as it takes": ([node("a", pods="1")], [pod("there", nodeName="a")], pod("waits")),
    "a port": ([node("a")], [pod("there", ports=PORT, nodeName="a")], pod("waits", ports=PORT)),
    "no pod to be near": ([node("a")], [], pod("waits", affinity=near("podAffinity", "base"))),
    "someone to be away from": (
        [node("a")],
        [pod("there", labels={"app": "base"}, nodeName="a")],
        pod("waits", affinity=near("podAntiAffinity", "base")),
    ),
    "someone who keeps away": (
        [node("a")],
        [pod("there", affinity=near("podAntiAffinity", "new"), nodeName="a")],
        pod("waits", labels={"app": "new"}),
    ),
    "no nodes": ([], [], pod("waits")),
    "a gate": ([node("a")], [], pod("waits", schedulingGates=[{"name": "example.com/wait"}])),
}


@asynccontextmanager
async def our_cluster() -> AsyncIterator[Client]:
    """The embedded server with our scheduler and nothing else."""
    server = Server(None)
    await server.start()
    client = Client(server.transport())
    scheduler = Scheduler(client)
    task = asyncio.create_task(scheduler.run())
    await scheduler.ready.wait()
    yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop()


async def can_take_pods(client: Client) -> None:
    """Without a service account no client creates a pod; the controller that makes it may not have come to that."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    try:
        await client.create(SERVICE_ACCOUNT, account, "default")
    except AlreadyExists:
        pass


async def said(client: Client, situation: str, expected: str = "") -> str:
    """Why the pod waits. A scheduler that has not heard of all of it yet may say something else than `expected`, and is
    asked again."""
    nodes, there, waits = SITUATIONS[situation]
    async with laid(client, nodes, there):
        loop = asyncio.get_running_loop()
        limit = loop.time() + PATIENCE
        while True:
            found = await _reason(client, waits)
            if not expected or found == expected or loop.time() > limit:
                return found
            await asyncio.sleep(0.05)


@asynccontextmanager
async def laid(client: Client, nodes: list[Json], there: list[Json]) -> AsyncIterator[None]:
    """The nodes and the pods on them; the cluster is as empty afterwards as before."""
    for one in nodes:
        name = one["metadata"]["name"]
        found = await client.create(NODE, one)
        if would_change(found, {"spec": one["spec"]}):  # new ones are tainted as not ready
            await client.patch(NODE, name, None, {"spec": one["spec"]})
    for one in there:
        await client.create(POD, one, "default")
    yield
    for one in there:
        await client.delete(POD, one["metadata"]["name"], "default", grace_seconds=0)
    for one in nodes:
        await client.delete(NODE, one["metadata"]["name"])


async def _reason(client: Client, waits: Json) -> str:
    """Reason and words of the condition of a pod that is there for that alone."""
    await client.create(POD, waits, "default")
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await client.get(POD, "waits", "default")
                if found["spec"].get("nodeName"):
                    return f"bound to {found['spec']['nodeName']}"
                for one in (found.get("status") or {}).get("conditions") or ():
                    if one["type"] == "PodScheduled" and one.get("message"):
                        return f"{one['reason']}: {_core(one['message'])}"
                await asyncio.sleep(0.02)
    finally:
        await client.delete(POD, "waits", "default", grace_seconds=0)


def _core(message: str) -> str:
    for more in (" preemption:", " no new claims"):
        message = message.partition(more)[0]
    return message.rstrip(".")
