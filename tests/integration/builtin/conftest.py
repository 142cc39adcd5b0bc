"""The built-in controllers' own tests, run against a real kube-apiserver with the real kube-controller-manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.api import kinds
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, NotFound
from shoal.kube.kubeconfig import load
from tests.cluster import RemoteCluster
from tests.controlplane.plane import ControlPlane
from tests.integration.conftest import judged

_MADE = (kinds.DEPLOYMENT, kinds.REPLICA_SET, kinds.REPLICATION_CONTROLLER, kinds.STATEFUL_SET, kinds.DAEMON_SET,
         kinds.JOB, kinds.SERVICE, kinds.POD, kinds.CONFIG_MAP, kinds.PERSISTENT_VOLUME_CLAIM,
         kinds.RESOURCE_QUOTA, kinds.POD_DISRUPTION_BUDGET)  # fmt: skip


@pytest.fixture(scope="module")
def managed_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """API server and controller-manager; no scheduler and no kubelets, for the tests play those."""
    yield from judged(ControlPlane(tmp_path_factory.mktemp("plane") / "state", controllers=True, audit=True))


@pytest.fixture
async def cluster(managed_plane: ControlPlane) -> AsyncIterator[RemoteCluster]:
    transport = load(managed_plane.kubeconfig)
    cluster = RemoteCluster(Client(transport, headers={"User-Agent": "kubelet"}))  # the tests play it
    await cluster.until(kinds.SERVICE_ACCOUNT, "default", lambda o: True)
    try:
        yield cluster
    finally:
        await _clear(cluster)
        await transport.close()


async def _clear(cluster: RemoteCluster) -> None:
    for kind in _MADE:
        for obj in await cluster.client.list(kind, "default"):
            name = obj["metadata"]["name"]
            if name in ("kubernetes", "kube-root-ca.crt"):
                continue
            try:
                await cluster.client.delete(kind, name, "default", propagation="Background", grace_seconds=0)
            except NotFound:
                continue
    for node in await cluster.client.list(kinds.NODE):
        await cluster.client.delete(kinds.NODE, node["metadata"]["name"])
    for _ in range(100):
        pods = await cluster.client.list(kinds.POD, "default")
        if not pods:
            return
        for pod in pods:
            try:
                await cluster.client.delete(kinds.POD, pod["metadata"]["name"], "default", grace_seconds=0)
            except ApiError:
                continue
        await asyncio.sleep(0.1)
