"""Several clusters in one process: a hub and its members, each an API server in memory with queues of its own, and
wires between them that a test can cut."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, ClusterSettings, HubPlaces
from shoal.controllers.multicluster.settings import ALL_AT_ONCE, ENGINE
from shoal.controllers.planning.history.log_keeper import LogKeeper
from shoal.controllers.planning.history.store import HistoryStore
from shoal.controllers.queues import QueueSettings
from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.errors import Unsent
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.local.apiserver import Server
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, ray_job

SYSTEM = "shoal-system"
MANAGED = "kueue.x-k8s.io/multikueue"
QUICK = ClusterSettings(
    probe_seconds=0.05,
    silent_seconds=0.1,
    lost_seconds=1.0,
    refused_seconds=0.3,
    request_seconds=2,
    dispatcher=ALL_AT_ONCE,
)
"""As MultiKueue does it: every member is asked."""
CHOOSING = msgspec.structs.replace(QUICK, dispatcher=ENGINE)
"""The engine chooses the one that is asked."""


class Wire:
    """The way from the hub to one member. `cut` and `mend` it, let it `reject` us, or `hang`, or `swallow` packets."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rejects = False
        self.hangs = False
        self.sent: list[str] = []
        self.swallowed = 0
        """How often it swallowed packets: a stream from before hears nothing more."""
        self._cut = asyncio.Event()

    def swallow(self) -> None:
        self.hangs = True
        self.swallowed += 1

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        self.hangs = False
        self._cut = asyncio.Event()

    @property
    def is_cut(self) -> bool:
        return self._cut.is_set()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.sleep(timeout or 60)
            raise Unsent("no answer (injected)")
        if self.is_cut:
            raise Unsent("connection refused (injected)")
        if self.rejects:
            status = {"kind": "Status", "status": "Failure", "code": 401, "reason": "Unauthorized", "message": "no"}
            return Response(401, {}, msgspec.json.encode(status))
        if request.method != "GET":
            self.sent.append(f"{request.method} {request.path}")
        return await self.server.transport().send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        await asyncio.sleep(0)
        if self.is_cut or self.rejects or self.hangs:
            raise Unsent("connection refused (injected)")
        async with self.server.transport().stream(request) as stream:
            yield _Cuttable(stream, self._cut, self)

    async def close(self) -> None:
        return None


class _Cuttable:
    def __init__(self, inner: Stream, cut: asyncio.Event, wire: Wire) -> None:
        self._inner, self._cut, self._wire, self._swallowed = inner, cut, wire, wire.swallowed
        self.status, self.headers = inner.status, inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks, cut = aiter(self._inner), asyncio.ensure_future(self._cut.wait())
        try:
            while (chunk := await self._next(chunks, cut)) is not None:
                yield chunk
        finally:
            cut.cancel()

    async def _next(self, chunks: AsyncIterator[bytes], cut: asyncio.Future[bool]) -> bytes | None:
        chunk = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.wait({chunk, cut}, return_when=asyncio.FIRST_COMPLETED)
            if self._wire.swallowed != self._swallowed:
                await asyncio.wait({cut})
            if cut.done():
                raise Unsent("the connection was cut (injected)")
            return chunk.result()
        finally:
            if not chunk.done():
                chunk.cancel()
                await asyncio.wait({chunk})

    async def read(self) -> bytes:
        return await self._inner.read()


class Town:
    """A hub and its members by name."""

    def __init__(self, hub: Cluster, members: dict[str, Cluster]) -> None:
        self.hub = hub
        self.members = members
        self.wires = {name: Wire(member.server) for name, member in members.items()}
        self.logs: LogKeeper | None = None
        self._hubs: list[asyncio.Task[Any]] = []

    def connect(self, content: bytes, source: str) -> Transport:
        name = content.decode().partition("#")[0]
        if name not in self.wires:
            raise BadInput(f"{source}: cannot be read")
        return self.wires[name]

    def start_hub(self, settings: ClusterSettings = QUICK, transport: Transport | None = None) -> ClusterController:
        client = Client(transport or self.hub.server.transport())
        controller = ClusterController(client, settings, connect=self.connect)
        self.run_hub(controller.run())
        return controller

    def start_choosing_hub(
        self,
        settings: ClusterSettings = CHOOSING,
        transport: Transport | None = None,
        history: HistoryStore | None = None,
    ) -> ClusterController:
        """The hub's queues and the controller of several clusters, in one process: the engine chooses."""
        client = Client(transport or self.hub.server.transport())
        places = HubPlaces(settings)
        queues, wrapper = QueueSettings(check_seconds=1.0), AppWrapperSettings(trust_unstamped=True)
        self.hub.rules = rules_of(wrapper, queues)
        made = planned(client, wrapper, queues=queues, places=places, history=history)
        self.logs = made.loop.logs
        self.hub.start(made.run())
        controller = ClusterController(client, settings, connect=self.connect, places=places)
        self.run_hub(controller.run())
        return controller

    def run_hub(self, running: Awaitable[Any]) -> None:
        """Until `stop_hub`, and in any case no longer than the members' servers."""
        self._hubs.append(self.hub.start(running))

    async def stop_hub(self) -> None:
        for task in self._hubs:
            task.cancel()
        await asyncio.gather(*self._hubs, return_exceptions=True)
        self._hubs.clear()

    async def add(self, name: str, content: str = "") -> None:
        """Tell the hub of a member: Secret and MultiKueueCluster."""
        await self.hub.create(kinds.SECRET, secret(name, content or name))
        await self.hub.create(kinds.MULTIKUEUE_CLUSTER, member_cluster(name))

    async def connected(self, *names: str) -> None:
        for name in names or self.members:
            await self.hub.until(kinds.MULTIKUEUE_CLUSTER, name, is_true("Active"))

    async def where(self, kind: Kind, name: str) -> list[str]:
        """Names of the members that have such an object."""
        found = []
        for at, member in self.members.items():
            if name in await member.names(kind):
                found.append(at)
        return found

    async def settled(self) -> None:
        for cluster in (self.hub, *self.members.values()):
            await cluster.settled()


def decide(cluster: Cluster) -> None:
    queues, settings = QueueSettings(check_seconds=1.0), AppWrapperSettings(trust_unstamped=True)
    cluster.rules = rules_of(settings, queues)
    cluster.start(planned(cluster.client, settings, queues=queues).run())


@asynccontextmanager
async def town(
    *names: str, deciding: bool = True, hub_decides: bool = True, quota: str = "16", cpu: str = "8"
) -> AsyncIterator[Town]:
    """Members of 8 cores each, with a queue of 8; the hub's quota is 16 and its checks are MultiKueue's. Without
    `hub_decides` the test starts the hub's queues, too."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running())
        members = {name: await stack.enter_async_context(running()) for name in names}
        await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
        built = Town(hub, members)
        stack.push_async_callback(built.stop_hub)
        await make_queues(hub, quota=quota, checks=["elsewhere"])
        await hub.create(kinds.ADMISSION_CHECK, check())
        await hub.create(kinds.MULTIKUEUE_CONFIG, config(*names))
        for member in members.values():
            await member.add_node("node-1", cpu=cpu, memory="64Gi")
            await make_queues(member, quota=cpu)
        if deciding:
            if hub_decides:
                decide(hub)
            for member in members.values():
                decide(member)
        for name in names:
            await built.add(name)
        yield built


async def make_queues(cluster: Cluster, quota: str, checks: list[str] | None = None) -> None:
    amounts = {"cpu": quota, "memory": "64Gi"}
    await make(cluster, flavor(), cluster_queue(quota=amounts, checks=checks or []), local_queue())


def check(name: str = "elsewhere", config: str = "everywhere") -> Json:
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": config}
    spec = {"controllerName": MANAGED, "parameters": parameters}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": spec,
    }


def config(*clusters: str, name: str = "everywhere") -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "MultiKueueConfig",
        "metadata": {"name": name},
        "spec": {"clusters": list(clusters)},
    }


def member_cluster(name: str) -> Json:
    source = {"kubeConfig": {"location": f"{name}-kubeconfig", "locationType": "Secret"}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "MultiKueueCluster",
        "metadata": {"name": name},
        "spec": {"clusterSource": source},
    }


def secret(name: str, content: str) -> Json:
    data = {"kubeconfig": base64.b64encode(content.encode()).decode()}
    return {"metadata": {"name": f"{name}-kubeconfig", "namespace": SYSTEM}, "data": data}


def sent_job(name: str, pods: int = 1, **requests: str) -> Json:
    """A Job that says from the start that it runs in another cluster."""
    made = job(name, pods, **requests)
    made["spec"]["managedBy"] = MANAGED
    return made


def sent_ray_job(name: str, workers: int = 2, **requests: str) -> Json:
    return ray_job(name, workers, **requests)


def is_true(kind: str) -> Any:
    return lambda obj: condition(obj, kind).get("status") == "True"


def condition(obj: Json, kind: str) -> Json:
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind), {})


def is_on(cluster: str) -> Any:
    return lambda obj: (obj.get("status") or {}).get("clusterName") == cluster


def is_placed(obj: Json) -> bool:
    return bool((obj.get("status") or {}).get("clusterName"))


def our_check(obj: Json, name: str = "elsewhere") -> Json:
    entries = (obj.get("status") or {}).get("admissionChecks") or ()
    return next((one for one in entries if one["name"] == name), {})
