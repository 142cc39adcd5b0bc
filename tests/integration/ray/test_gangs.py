"""RayJobs without a queue on a real API server, by a controller that was asked to start them whole."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.ray_gang import condition_of
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.ray import Operator, RaySettings
from shoal.controllers.ray_gangs import RayGangController
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from tests.cluster import RemoteCluster
from tests.conformance.kuberay_doubles import ScriptedDashboard
from tests.controlplane.plane import ControlPlane
from tests.integration.ray.conftest import _installed
from tests.resting import hold_remote, rules_of
from tests.unit.ray_gangs.stage import clusters_of, job, until_cluster_of, waits


async def test_the_second_job_waits_whole_until_the_first_is_gone(control_plane: ControlPlane) -> None:
    transport = load(control_plane.kubeconfig)
    client = Client(transport, timeout=60)
    await _installed(client)
    cluster = RemoteCluster(client)
    await cluster.add_node("node-1", cpu="4", memory="64Gi")
    await client.patch(kinds.NODE, "node-1", None, {"spec": {"taints": None}})  # a new one counts as not ready
    settings = RaySettings(gang="on", status_delay=0.1)
    loop = PlanningLoop(client)
    RayGangController(loop, settings.sidecars)
    cluster.start(loop.run())
    operator = Operator(client, settings, dashboard=ScriptedDashboard())
    cluster.start(operator.run_until_cancelled())
    try:
        await cluster.create(kinds.RAY_JOB, job("first"))
        await until_cluster_of(cluster, "first")
        await cluster.create(kinds.RAY_JOB, job("second"))
        held = await cluster.until(kinds.RAY_JOB, "second", waits)
        assert held["status"]["jobDeploymentStatus"] == "Initializing"
        assert condition_of(held)["reason"] == "WaitingForRoom"
        assert await clusters_of(cluster, "second") == []
        await cluster.client.delete(kinds.RAY_JOB, "first", "default")
        await cluster.until_gone(kinds.RAY_JOB, "first")
        for name in await clusters_of(cluster, "first"):  # nothing collects garbage here
            await cluster.client.delete(kinds.RAY_CLUSTER, name, "default")
        for pod in await client.list(kinds.POD, "default"):
            await client.delete(kinds.POD, pod["metadata"]["name"], "default", grace_seconds=0)
        await until_cluster_of(cluster, "second")
        await hold_remote(client, rules_of(ray=True, jobs=False))
    finally:
        await cluster.stop()
        await transport.close()
