"""The operator on a server that checks what it is given: the embedded one, and a real control plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.kind import Kind
from shoal.controllers.ray import Operator, RaySettings, names, view
from shoal.controllers.ray.job.dashboard import DashboardTarget
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, KubeError, NotFound
from shoal.kube.kubeconfig import load
from shoal.local.apiserver import Server
from tests.conformance.kuberay_doubles import ScriptedDashboard
from tests.patience import PATIENCE
from tests.resting import hold_remote, rules_of

Json = dict[str, Any]
GROUPS = ("ray.io", "ray.k8s.io")


class WaitableDashboard(ScriptedDashboard):
    """Tells when a job was handed over."""

    def __init__(self) -> None:
        super().__init__()
        self.received = asyncio.Event()

    async def submit(self, target: DashboardTarget) -> None:
        await super().submit(target)
        self.received.set()


class Site:
    """A server with the operator at work on it. Pods do what the test says."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.dashboard = WaitableDashboard()
        self.operator = Operator(
            client, RaySettings(status_delay=0.1, cluster_lost_grace=0.1), dashboard=self.dashboard
        )

    async def until(self, kind: Kind, name: str, holds: Callable[[Json], bool], seconds: float = PATIENCE) -> Json:
        """Watch one object until it is as wanted; fails with its last state."""
        last: Json = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        last = await self.client.get(kind, name, "default")
                        if holds(last):
                            return last
                    except NotFound:
                        pass
                    version = view.metadata(last).get("resourceVersion", "")
                    async for _ in self._changes(kind, name, version):
                        break
        except TimeoutError:
            pytest.fail(f"{kind.kind} {name} never got there; last: {last.get('status')}")

    async def gone(self, kind: Kind, name: str, seconds: float = PATIENCE) -> None:
        """Deleted, or on its way out where no controller collects garbage."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if view.deleting(await self.client.get(kind, name, "default")):
                        return
                except NotFound:
                    return
                await asyncio.sleep(0.05)

    async def _changes(self, kind: Kind, name: str, version: str) -> AsyncIterator[None]:
        try:
            events = self.client.watch(
                kind, "default", resource_version=version, field_selector=f"metadata.name={name}", timeout_seconds=2
            )
            async for event in events:
                if event.type != "BOOKMARK":
                    yield None
                    return
        except KubeError:
            yield None

    async def pods(self, cluster: str, wanted: int, seconds: float = PATIENCE) -> list[Json]:
        async with asyncio.timeout(seconds):
            while True:
                found = await self.client.list(kinds.POD, "default", label_selector=f"{names.CLUSTER}={cluster}")
                alive = [pod for pod in found if not view.deleting(pod)]
                if len(alive) == wanted:
                    return alive
                await asyncio.sleep(0.05)

    async def end_pods(self, cluster: str) -> None:
        """No kubelet ends terminating pods here."""
        for pod in await self.client.list(kinds.POD, "default", label_selector=f"{names.CLUSTER}={cluster}"):
            if view.deleting(pod):
                try:
                    await self.client.delete(kinds.POD, view.name(pod), "default", grace_seconds=0)
                except NotFound:
                    continue

    async def make_ready(self, cluster: str, wanted: int) -> list[Json]:
        pods = await self.pods(cluster, wanted)
        status = {"phase": "Running", "podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}]}
        for pod in pods:
            await self.client.patch(kinds.POD, view.name(pod), "default", {"status": status}, subresource="status")
        return pods


async def _installed(client: Client) -> None:
    for crd in load_crds():
        if crd["spec"]["group"] in GROUPS:
            try:
                await client.create(kinds.CRD, crd)
            except AlreadyExists:
                continue
    async with asyncio.timeout(PATIENCE):
        for crd in load_crds():
            while crd["spec"]["group"] in GROUPS:
                held = await client.get(kinds.CRD, view.name(crd))
                conditions = (held.get("status") or {}).get("conditions") or []
                if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                    break
                await asyncio.sleep(0.05)


async def _running(client: Client) -> AsyncIterator[Site]:
    await _installed(client)
    site = Site(client)
    task = asyncio.create_task(site.operator.run())
    await site.operator.caches.synced()
    yield site
    await hold_remote(client, rules_of(ray=True, jobs=False))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for recorder in site.operator.recorders.values():
        await recorder.close()


@pytest.fixture(params=["embedded", pytest.param("kubernetes", marks=pytest.mark.controlplane)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    if request.param == "embedded":
        server = Server(None)
        await server.start()
        async for running in _running(Client(server.transport())):
            yield running
        await server.stop()
        return
    plane = request.getfixturevalue("control_plane")
    transport = load(plane.kubeconfig)
    client = Client(transport, timeout=60)
    async for running in _running(client):
        yield running
    for kind in (kinds.RAY, kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.JOB, kinds.SERVICE, kinds.POD):
        for left in await client.list(kind, "default"):
            if view.metadata(left).get("finalizers"):
                await client.patch(kind, view.name(left), "default", {"metadata": {"finalizers": None}})
            if view.name(left) != "kubernetes":
                try:
                    await client.delete(kind, view.name(left), "default", grace_seconds=0)
                except NotFound:
                    continue
    await transport.close()
