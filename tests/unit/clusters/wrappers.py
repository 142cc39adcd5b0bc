"""A hub that sends AppWrappers of v1beta1 to its members, as MCAD's dispatcher does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, ClusterSettings, HubLeases, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.kube.client import Client
from shoal.kube.transport import Transport
from shoal.local.apiserver import Server
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.resting import rules_of
from tests.stocked import start_with
from tests.unit.appwrapper.build import app_wrapper, pod
from tests.unit.clusters.build import QUICK, SYSTEM, Town, config

SENDING = msgspec.structs.replace(QUICK, app_wrappers="everywhere", admit_seconds=60.0)
MOVING = msgspec.structs.replace(SENDING, app_wrapper_loss="move", lease_seconds=3.0, fence_seconds=1.0)
WRAPPER = AppWrapperSettings(trust_unstamped=True)


class SendingTown(Town):
    """`loop` is the hub's planning loop."""

    loop: PlanningLoop
    places: HubPlaces

    def send(self, settings: ClusterSettings = SENDING, transport: Transport | None = None) -> None:
        """Start the hub: its AppWrapper controller and the one of several clusters."""
        client = Client(transport or self.hub.server.transport())
        places = self.places = HubPlaces(settings)
        self.loop = PlanningLoop(client, WRAPPER.planning)
        AppWrapperController(self.loop, WRAPPER, places.for_wrappers)
        self.run_hub(self.loop.run())
        self.run_hub(ClusterController(client, settings, connect=self.connect, places=places).run())

    async def accept(self, *names: str) -> None:
        """Let the default namespace of these members take AppWrappers of the hub's."""
        uid = (await self.hub.get(kinds.NAMESPACE, "default"))["metadata"]["uid"]
        for name in names:
            change = {"metadata": {"annotations": {"shoal.dev/hub-namespace": uid}}}
            await self.members[name].client.patch(kinds.NAMESPACE, "default", None, change)


@asynccontextmanager
async def bare_cluster() -> AsyncIterator[Cluster]:
    """A cluster as Kubernetes brings it: nothing of ours, not even a definition."""
    from shoal.local import builtin

    server = Server(None)
    await start_with(server, [])
    cluster = Cluster(server)
    cluster.start(builtin.run_all(cluster.client))
    try:
        yield cluster
    finally:
        await cluster.stop()
        await server.stop()


@asynccontextmanager
async def sending_town(
    *names: str, cpu: str = "4", accepted: bool = True, bare: tuple[str, ...] = ()
) -> AsyncIterator[SendingTown]:
    """Members of one node each that run AppWrappers, but for those in `bare`; the hub has no node at all."""
    async with running() as hub:
        members: dict[str, Cluster] = {}
        async with AsyncExitStack() as stack:
            for name in names:
                members[name] = await stack.enter_async_context(bare_cluster() if name in bare else running())
                await members[name].add_node("node-1", cpu=cpu, memory="64Gi")
                if name not in bare:
                    members[name].rules = rules_of(WRAPPER)
                    members[name].start(planned(members[name].client, WRAPPER).run())
            await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
            town = SendingTown(hub, members)
            await hub.create(kinds.MULTIKUEUE_CONFIG, config(*names))
            for name in names:
                await town.add(name)
            if accepted:
                await town.accept(*names)
            try:
                yield town
            finally:
                await town.stop_hub()


def with_agents(t: Town, *names: str) -> None:
    """In these members what would move stops once the hub is not heard."""
    for name in names or t.members:
        member = t.members[name]
        member.start(HubLeases(member.client).run())


def gang(name: str, cpu: str = "3", **spec: object) -> Json:
    return app_wrapper(name, pod(name, cpu=cpu), **spec)
