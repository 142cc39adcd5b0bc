"""Several clusters over real connections: a kube-apiserver as the hub of an embedded cluster, and the other way round.

What only real servers judge: whether a Job's status may be copied, whether a copy is stored as it was sent, whether a
kubeconfig from a Secret leads there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.controllers.multicluster import ClusterController, ClusterSettings
from shoal.kube import kubeconfig
from shoal.kube.client import Client
from tests.cluster import Cluster, RemoteCluster, running
from tests.controlplane.plane import ControlPlane, await_kinds
from tests.integration.conftest import judged
from tests.unit.clusters.build import SYSTEM, check, config, decide, is_on, member_cluster, sent_job
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    pods_of,
    ray_job,
    said,
    true,
)

QUOTA = {"cpu": "8", "memory": "64Gi"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    fresh = ControlPlane(tmp_path_factory.mktemp("plane") / "state", controllers=True, audit=True)
    with contextmanager(judged)(fresh) as started:
        crds = {"apiVersion": "v1", "kind": "List", "items": load_crds()}
        started.kubectl("create", "-f", "-", stdin=json.dumps(crds))
        await_kinds(started.kubectl)
        started.restart_controllers()
        yield started


@asynccontextmanager
async def real(plane: ControlPlane) -> AsyncIterator[Cluster]:
    transport = kubeconfig.load(plane.kubeconfig)
    cluster = RemoteCluster(Client(transport))
    try:
        yield cluster
        await cluster.hold_at_rest()
    finally:
        await cluster.stop()
        await transport.close()


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[tuple[Cluster, Path]]:
    """With its kubeconfig: it is reached over the network like any other."""
    async with running() as cluster:
        await cluster.server.serve()
        cluster.server.write_kubeconfig(folder / "kubeconfig", context="embedded")
        yield cluster, folder / "kubeconfig"


async def become_hub(hub: Cluster, queue: str, member: str, credential: Path) -> None:
    content = kubeconfig.inlined(kubeconfig.resolve(credential))
    data = {"kubeconfig": base64.b64encode(content).decode()}
    await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
    await hub.create(kinds.SECRET, {"metadata": {"name": f"{member}-kubeconfig", "namespace": SYSTEM}, "data": data})
    await hub.create(kinds.MULTIKUEUE_CLUSTER, member_cluster(member))
    await hub.create(kinds.MULTIKUEUE_CONFIG, config(member, name=queue))
    await hub.create(kinds.ADMISSION_CHECK, check(queue, queue))
    await make_queue(hub, queue, checks=[queue])
    hub.start(ClusterController(hub.client, ClusterSettings(probe_seconds=1)).run())
    decide(hub)
    await hub.until(kinds.MULTIKUEUE_CLUSTER, member, true("Active"))


async def make_queue(cluster: Cluster, name: str, checks: list[str] | None = None) -> None:
    queue = cluster_queue(name, flavor=name, quota=QUOTA, checks=checks or [])
    await make(cluster, flavor(name), queue, local_queue(name, to=name))


async def test_a_real_server_gives_gangs_to_an_embedded_cluster(plane: ControlPlane, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(real(plane))
        there, credential = await stack.enter_async_context(embedded(tmp_path))
        await there.add_node("node-1", cpu="8", memory="64Gi")
        await make_queue(there, "away")
        decide(there)
        await become_hub(hub, "away", "small", credential)

        sent = sent_job("train", 2)
        sent["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "away"
        (made,) = await make(hub, sent)
        await hub.until(kinds.WORKLOAD, name_of(made), is_on("small"))
        await pods_of(there, "train", 2)
        await hub.until(kinds.JOB, "train", lambda one: (one.get("status") or {}).get("active") == 2)
        await complete(there, "train", 2)
        ended = await hub.until(kinds.WORKLOAD, name_of(made), true("Finished"))
        assert said(ended, "Finished")[1] == "Succeeded"
        await hub.until(kinds.JOB, "train", lambda one: one["status"].get("succeeded") == 2)

        (made,) = await make(hub, ray_job("tune", 2, queue="away"))
        name = name_of(made, "RayJob", "ray.io")
        await there.until(kinds.RAY_JOB, "tune", lambda one: one["spec"]["suspend"] is False)
        await hub.client.delete(kinds.RAY_JOB, "tune", "default")
        await hub.until_gone(kinds.WORKLOAD, name)
        await there.until_gone(kinds.RAY_JOB, "tune")

        (plain,) = await make(hub, job("local", 1, queue="away"))  # its spec does not say that it runs elsewhere
        refused = await hub.until(kinds.WORKLOAD, name_of(plain), lambda one: one["spec"].get("active") is False)
        assert "spec.managedBy" in json.dumps(refused["status"])


async def test_an_embedded_hub_gives_gangs_to_a_real_server(plane: ControlPlane, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(real(plane))
        hub, _ = await stack.enter_async_context(embedded(tmp_path))
        plane.add_node("node-1", cpu="8", memory="64Gi")
        await make_queue(there, "home")
        decide(there)
        await become_hub(hub, "home", "large", plane.kubeconfig)

        sent = sent_job("remote", 2)
        sent["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "home"
        (made,) = await make(hub, sent)
        await hub.until(kinds.WORKLOAD, name_of(made), is_on("large"))
        await pods_of(there, "remote", 2)
        await hub.until(kinds.JOB, "remote", lambda one: (one.get("status") or {}).get("active") == 2)
        await hub.client.delete(kinds.JOB, "remote", "default", propagation="Background")
        await hub.until_gone(kinds.WORKLOAD, name_of(made))
        await pods_of(there, "remote", 0)
        await there.until_gone(kinds.JOB, "remote")
        await there.until_gone(kinds.WORKLOAD, name_of(made))
