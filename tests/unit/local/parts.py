"""Scheduler, node agent and autoscaler against the embedded API server in memory, with simulated pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shoal.api import gang as marks
from shoal.api.kind import Kind
from shoal.api.kinds import JOB, NODE, POD, POD_TEMPLATE, PROVISIONING_REQUEST, WORKLOAD
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound
from shoal.local.apiserver import Server
from shoal.local.nodes.agent import Agent, NodeKeeper, NodeShape
from shoal.local.nodes.runtime.simulated import SimulatedRuntime
from shoal.local.scheduler import Scheduler
from shoal.local.settings import Pool
from tests.e2e.invariants import within_room

QUEUED = "queued-provisioning.gke.io"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CHECK = "check-capacity.autoscaling.x-k8s.io"
CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"

GPU = Pool(
    name="gpu",
    capacity={"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
    labels={"kind": "gpu"},
    most=3,
    delay=0.05,
    runtime="simulated",
)


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

    async def end(self, *tasks: asyncio.Task[None]) -> None:
        """As a crash: nothing is said to anybody."""
        for task in tasks or self.tasks:
            task.cancel()
        await asyncio.gather(*(tasks or self.tasks), return_exceptions=True)

    async def nodes(self, *sizes: str, **options: Any) -> None:
        await self.keeper.register(
            NodeShape(name=f"node-{i}", capacity={"cpu": size, "memory": "64Gi"}, runtime="simulated", **options)
            for i, size in enumerate(sizes)
        )

    async def node(self, name: str, **options: Any) -> None:
        shape = {"capacity": {"cpu": "4", "memory": "8Gi"}, "runtime": "simulated", **options}
        await self.keeper.register([NodeShape(name=name, **shape)])

    async def pod(
        self, name: str, cpu: str = "1", gang: tuple[str, int] | None = None, gpus: int = 0, **more: Any
    ) -> Json:
        annotations = dict(more.pop("annotations", {}))
        owner = more.pop("owner", None)
        if gang:
            owner = owner or {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": gang[0], "uid": gang[0]}
            annotations |= {marks.GANG_UID: gang[0], marks.GANG_SIZE: str(gang[1]), marks.GANG_NAME: gang[0]}
        devices = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        container = {
            "name": "c",
            "image": "busybox",
            "command": ["sleep", "infinity"],
            "resources": {"requests": {"cpu": cpu, **devices}, "limits": devices},
            **more.pop("container", {}),
        }
        metadata: Json = {"name": name, "annotations": annotations, "labels": more.pop("labels", {})}
        if owner:
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        namespace = more.pop("namespace", "default")
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [container], "restartPolicy": "Never", **more},
        }
        made: Json = await self.client.create(POD, body, namespace)
        return made

    async def workload(self, name: str) -> dict[str, Any]:
        """A Job that a queue has started, with its Workload: what pods that it made have."""
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}
        body = {"metadata": {"name": name}, "spec": {"suspend": True, "template": template}}
        job = await self.client.create(JOB, body, "default")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        metadata = {"name": name, "ownerReferences": [{**owner, "controller": True}]}
        sets = [{"name": "main", "count": 1, "template": template}]
        made = {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "metadata": metadata, "spec": {"podSets": sets}}
        await self.client.create(WORKLOAD, made, "default")
        return {"owner": owner, "annotations": {"kueue.x-k8s.io/workload": name}}

    async def ask(self, name: str, count: int, kind: str = QUEUED, *, template: bool = True, **parameters: str) -> None:
        """A ProvisioningRequest for so many pods of one GPU each."""
        if template:
            await self.template(name)
        spec: Json = {"provisioningClassName": kind, "podSets": [{"podTemplateRef": {"name": name}, "count": count}]}
        body = {
            "apiVersion": PROVISIONING_REQUEST.api_version,
            "kind": "ProvisioningRequest",
            "metadata": {"name": name},
            "spec": {**spec, **({"parameters": parameters} if parameters else {})},
        }
        await self.client.create(PROVISIONING_REQUEST, body, "default")

    async def template(self, name: str) -> None:
        limits = {"nvidia.com/gpu": "1"}
        resources = {"requests": {"cpu": "1", **limits}, "limits": limits}
        spec = {"containers": [{"name": "c", "image": "x", "resources": resources}]}
        body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": {"spec": spec}}
        await self.client.create(POD_TEMPLATE, body, "default")

    async def see(
        self, kind: Kind, name: str, namespace: str | None, good: Callable[[Json], bool], seconds: float = 30
    ) -> Json:
        """The object as soon as it is as wanted."""
        last: Json | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        last = await self.client.get(kind, name, namespace)
                        if good(last):
                            return last
                    except NotFound:
                        pass
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{kind.kind} {name} never got there; it was last seen as {last}") from None

    async def request(self, name: str, kind: str, status: str = "True") -> Json:
        return await self.see(PROVISIONING_REQUEST, name, "default", condition(kind, status))

    async def until(self, look: Callable[[], Any], seconds: float = 30) -> None:
        """Until an awaited look says yes: for things that have no event of their own."""
        async with asyncio.timeout(seconds):
            while not await look():  # noqa: ASYNC110 - the other side has no event
                await asyncio.sleep(0.02)

    async def node_names(self) -> list[str]:
        return sorted(node["metadata"]["name"] for node in await self.client.list(NODE))

    async def where(self) -> dict[str, str | None]:
        pods = await self.client.list(POD, "default")
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}

    async def bound(self, name: str) -> str:
        found = await self.see(POD, name, "default", lambda pod: bool(pod["spec"].get("nodeName")))
        return str(found["spec"]["nodeName"])

    async def waits(self, name: str, text: str) -> Json:
        return await self.see(POD, name, "default", lambda pod: text in waiting_message(pod))

    async def assert_no_node_is_overfull(self) -> None:
        """Requests of bound pods that have not ended stay within what their node offers."""
        within_room(await self.client.list(POD), await self.client.list(NODE))


def phase(wanted: str) -> Callable[[Json], bool]:
    return lambda pod: (pod.get("status") or {}).get("phase") == wanted


def condition(kind: str, status: str) -> Callable[[Json], bool]:
    return lambda obj: any(
        c["type"] == kind and c["status"] == status for c in (obj.get("status") or {}).get("conditions") or ()
    )


def message(obj: Json, kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((str(one.get("message")) for one in conditions if one["type"] == kind), "")


def waiting_message(pod: Json) -> str:
    return message(pod, "PodScheduled")
