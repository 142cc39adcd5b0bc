"""A hub with exactly the rights that are shipped: its own, and those of its credential in another cluster."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli.installation import NAME, NAMESPACE, lease_rules, member_rules, rules
from shoal.controllers.appwrapper import AppWrapperController
from shoal.controllers.multicluster import ClusterController, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.kube.client import Client
from shoal.kube.transport import Transport
from tests.cluster import Cluster
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.build import QUICK, is_on, sent_job, town
from tests.unit.clusters.test_app_wrappers import backs_off
from tests.unit.clusters.wrappers import SENDING, WRAPPER, gang, sending_town
from tests.unit.queues.build import complete, make, name_of, pods_of, ray_job, true

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"


async def grant(cluster: Cluster, user: str, granted: list[Json]) -> None:
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "hub"}, "rules": granted}
    await cluster.create(kinds.CLUSTER_ROLE, role)
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "hub"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "hub"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
    }
    await cluster.create(kinds.CLUSTER_ROLE_BINDING, binding)


async def test_a_hub_needs_no_more_than_its_shipped_rights() -> None:
    async with town("a") as t:
        await grant(t.hub, ACCOUNT, [*rules(clusters=True), *lease_rules()])
        await grant(t.members["a"], "hub", member_rules())
        there = t.members["a"].server.transport(user="hub", groups=("system:authenticated",))

        def connect(content: bytes, source: str) -> Transport:
            return there

        ours = Client(t.hub.server.transport(user=ACCOUNT, groups=("system:authenticated",)))
        t.run_hub(ClusterController(ours, QUICK, connect=connect).run())
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on("a"))
        await pods_of(t.members["a"], "train", 2)
        await complete(t.members["a"], "train", 2)
        await t.hub.until(kinds.WORKLOAD, name_of(made), true("Finished"))
        (ray,) = await make(t.hub, ray_job("tune", 2))
        await t.members["a"].until(kinds.RAY_JOB, "tune", lambda one: one["spec"]["suspend"] is False)
        await t.hub.client.delete(kinds.RAY_JOB, "tune", "default")
        await t.hub.until_gone(kinds.WORKLOAD, name_of(ray, "RayJob", "ray.io"))
        assert await t.where(kinds.RAY_JOB, "tune") == []


async def test_app_wrappers_are_sent_with_the_shipped_rights() -> None:
    async with sending_town("a") as t:
        await grant(t.hub, ACCOUNT, [*rules(clusters=True), *lease_rules()])
        wrapped = {
            "verbs": ["create"],
            "apiGroups": [""],
            "resources": ["pods"],
        }  # an administrator adds what is wrapped
        await grant(t.members["a"], "hub", [*member_rules(), wrapped])
        there = t.members["a"].server.transport(user="hub", groups=("system:authenticated",))
        ours = Client(t.hub.server.transport(user=ACCOUNT, groups=("system:authenticated",)))
        loop, places = PlanningLoop(ours, WRAPPER.planning), HubPlaces(SENDING)
        AppWrapperController(loop, WRAPPER, places.for_wrappers)
        t.run_hub(loop.run())
        t.run_hub(ClusterController(ours, SENDING, connect=lambda content, source: there, places=places).run())
        for name in ("one", "two"):
            await t.hub.create(kinds.APP_WRAPPER, gang(name))
        await t.hub.until(kinds.APP_WRAPPER, "one", dispatched)
        await t.hub.until(kinds.APP_WRAPPER, "two", backs_off)  # its nodes and pods are read
        await t.hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "one")
        await t.hub.until(kinds.APP_WRAPPER, "two", dispatched)
