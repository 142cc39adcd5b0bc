"""AppWrappers that a real server, as the hub, sends to two other clusters."""

from __future__ import annotations

import base64
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, ClusterSettings, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.kube import kubeconfig
from tests.cluster import Cluster
from tests.controlplane.plane import ControlPlane
from tests.integration.clusters.test_real_server import embedded, plane, real
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, dispatched, pod
from tests.unit.clusters.build import SYSTEM, config, is_true, member_cluster
from tests.unit.clusters.test_app_wrappers import backs_off, is_sent

__all__ = ["plane"]
WRAPPER = AppWrapperSettings(trust_unstamped=True)
SETTINGS = ClusterSettings(
    probe_seconds=1, app_wrappers="everywhere", app_wrapper_namespaces="any", trust_unstamped=True
)


async def become_hub(hub: Cluster, **members: Path) -> None:
    """Its members by name, with their kubeconfigs; the hub sends AppWrappers to them."""
    await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
    await hub.create(kinds.MULTIKUEUE_CONFIG, config(*members))
    for name, credential in members.items():
        content = kubeconfig.inlined(kubeconfig.resolve(credential))
        data = {"kubeconfig": base64.b64encode(content).decode()}
        await hub.create(kinds.SECRET, {"metadata": {"name": f"{name}-kubeconfig", "namespace": SYSTEM}, "data": data})
        await hub.create(kinds.MULTIKUEUE_CLUSTER, member_cluster(name))
    places, loop = HubPlaces(SETTINGS), PlanningLoop(hub.client, WRAPPER.planning)
    AppWrapperController(loop, WRAPPER, places.for_wrappers)
    hub.start(loop.run())
    hub.start(ClusterController(hub.client, SETTINGS, places=places).run())
    for name in members:
        await hub.until(kinds.MULTIKUEUE_CLUSTER, name, is_true("Active"))


def whole(name: str, cpu: str = "3") -> Json:
    return app_wrapper(name, pod(name, cpu=cpu))


@pytest.mark.not_at_rest("the hub has no nodes; what is where is asserted")
async def test_a_real_server_gives_app_wrappers_to_two_clusters_and_the_third_waits(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(real(plane))
        members: dict[str, Cluster] = {}
        credentials: dict[str, Path] = {}
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            members[name], credentials[name] = await stack.enter_async_context(embedded(tmp_path / name))
            await members[name].add_node("node-1", cpu="4", memory="64Gi")
            members[name].start(planned(members[name].client, WRAPPER).run())
        await become_hub(hub, **credentials)
        for name, home in (("one", "a"), ("two", "b")):
            await hub.create(kinds.APP_WRAPPER, whole(name))
            assert is_sent(await hub.until(kinds.APP_WRAPPER, name, dispatched))
            assert await members[home].names(kinds.POD) == [name]
        await hub.create(kinds.APP_WRAPPER, whole("three"))
        await hub.until(kinds.APP_WRAPPER, "three", backs_off)
        for member in members.values():
            assert "three" not in await member.names(kinds.APP_WRAPPER)
        began = time.monotonic()
        await hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await members["a"].until(kinds.POD, "three", lambda one: True)
        print(f"\nfrom the first's deletion to the third's pod: {(time.monotonic() - began) * 1000:.0f} ms")
        await hub.until(kinds.APP_WRAPPER, "three", dispatched)
        assert await hub.names(kinds.POD) == []
        for name in ("two", "three"):
            await hub.client.delete(kinds.APP_WRAPPER, name, "default")
            await hub.until_gone(kinds.APP_WRAPPER, name)
