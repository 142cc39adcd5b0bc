"""Two members with nothing of ours, each a real server with its own scheduler and KWOK nodes: some five minutes.

What an AppWrapper wraps runs in one, in the other, and waits with nothing anywhere; the hub is an embedded API server.
`CLUSTERS_ROUNDS` says how often a gang is deleted and the next one starts in its place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from tests.cluster import Cluster
from tests.controlplane.plane import ControlPlane
from tests.integration.clusters.test_app_wrappers import become_hub
from tests.integration.clusters.test_real_server import embedded, real
from tests.integration.conftest import judged
from tests.long.test_clusters import LIMIT, MEMBERS, Replaced, shown
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, job
from tests.unit.clusters.test_app_wrappers import backs_off, is_sent

pytestmark = pytest.mark.timeout(1800)
ROUNDS = int(os.environ.get("CLUSTERS_ROUNDS", "100"))
SECONDS = 120.0


@pytest.fixture
def planes(tmp_path: Path) -> Iterator[dict[str, ControlPlane]]:
    made = {
        name: ControlPlane(
            tmp_path / name / "state", controllers=True, scheduler=True, kwok=True, jobs_go_on=True, audit=True
        )
        for name in MEMBERS
    }
    with contextmanager(judged)(made["a"]), contextmanager(judged)(made["b"]):
        for plane in made.values():
            plane.add_node("node-1", cpu="4", memory="64Gi")
        yield made


def whole(name: str) -> Json:
    wrapped = job(name, cpu="3")
    wrapped["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    return app_wrapper(name, wrapped, config_map(name))


def is_released(found: Json) -> bool:
    return found["spec"].get("suspend") is not True


def runs(found: Json) -> bool:
    return (found.get("status") or {}).get("active") == 1


async def replace(hub: Cluster, member: Cluster, first: str, third: str) -> Replaced:
    """How long after the first gang's deletion, and after its pod's end, the next one was released."""
    pods = await member.client.list_raw(kinds.POD, "default")
    began = time.monotonic()

    async def ended() -> float:
        async for event in member.client.watch(kinds.POD, "default", resource_version=pods.metadata.resource_version):
            found = msgspec.json.decode(event.object)
            if event.type == "DELETED" and found["metadata"]["name"].startswith(f"{first}-"):
                return time.monotonic()
        raise AssertionError("the watch ended")

    async with asyncio.timeout(SECONDS):
        end = asyncio.ensure_future(ended())
        await hub.client.delete(kinds.APP_WRAPPER, first, "default")
        await member.until(kinds.JOB, third, is_released)
        released = time.monotonic()
        return Replaced(released - began, released - await end)


@pytest.mark.not_at_rest("the hub has no nodes; what is where is asserted")
async def test_members_without_shoal_run_what_app_wrappers_wrap_and_the_third_waits(
    planes: dict[str, ControlPlane], tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        hub, _ = await stack.enter_async_context(embedded(tmp_path))
        members = {name: await stack.enter_async_context(real(plane)) for name, plane in planes.items()}
        await become_hub(hub, **{name: plane.kubeconfig for name, plane in planes.items()})
        running = {"a": "g0-x", "b": "g1-x"}
        for home, name in running.items():
            began = time.monotonic()
            await hub.create(kinds.APP_WRAPPER, whole(name))
            started = await members[home].until(kinds.JOB, name, is_released)
            print(f"\n{name}: in cluster {home} after {(time.monotonic() - began) * 1000:.0f} ms")
            assert is_sent(await hub.until(kinds.APP_WRAPPER, name, dispatched))
            assert started["metadata"]["labels"]["shoal.dev/hub"]
            await members[home].until(kinds.JOB, name, runs)
            await hub.until(kinds.APP_WRAPPER, name, lambda one: (one.get("status") or {}).get("running") == 1)
            assert name in await members[home].names(kinds.CONFIG_MAP)
        took: list[Replaced] = []
        for at in range(ROUNDS):
            home, third = MEMBERS[at % 2], f"g{at + 2}-x"
            first = running[home]
            await hub.create(kinds.APP_WRAPPER, whole(third))
            await hub.until(kinds.APP_WRAPPER, third, backs_off)
            for cluster in (hub, *members.values()):
                assert third not in [*await cluster.names(kinds.JOB), *await cluster.names(kinds.CONFIG_MAP)]
            took.append(await replace(hub, members[home], first, third))
            await members[home].until(kinds.JOB, third, runs)
            assert first not in [*await members[home].names(kinds.JOB), *await members[home].names(kinds.CONFIG_MAP)]
            running[home] = third
        print("\n" + shown("from the deletion to the next gang's release", [one.from_deletion for one in took]))
        print(shown("from the pod's end to the next gang's release", [one.from_end for one in took]))
        assert await hub.names(kinds.JOB) == []
        for home, name in running.items():
            await hub.client.delete(kinds.APP_WRAPPER, name, "default")
            await hub.until_gone(kinds.APP_WRAPPER, name)
            await members[home].until_gone(kinds.JOB, name)
        waits = sorted(one.from_end for one in took)
        assert waits[int(len(waits) * 0.99)] < LIMIT
