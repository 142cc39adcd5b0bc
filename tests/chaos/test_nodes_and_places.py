"""The scheduler and the autoscaler of one machine die in the middle of their work; their successors finish it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from shoal.api.kinds import POD
from shoal.kube.client import Client
from shoal.local.autoscaler import Autoscaler
from shoal.local.scheduler import Scheduler
from tests.chaos.mortal import MortalTransport
from tests.unit.local.conftest import in_memory
from tests.unit.local.parts import Cluster, waiting_message
from tests.unit.local.test_autoscaler import SETTINGS, gpu_nodes
from tests.unit.local.test_scheduler import Mortal


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with in_memory() as found:
        yield found


@pytest.mark.parametrize("at", range(1, 8))
async def test_killed_after_any_write_the_next_one_finishes_with_no_node_too_many(cluster: Cluster, at: int) -> None:
    await cluster.nodes("2")
    mortal = MortalTransport(cluster.server.transport(), at)
    await cluster.begin(cluster.scheduler, Autoscaler(Client(mortal), SETTINGS, "test"))
    await cluster.ask("job", 2)
    finished = asyncio.create_task(cluster.request("job", "Provisioned"))  # with fewer writes than the last of these
    died = asyncio.create_task(mortal.died.wait())
    await asyncio.wait({died, finished}, return_when=asyncio.FIRST_COMPLETED)
    await cluster.end(died, finished)
    await cluster.end(cluster.tasks.pop())
    await cluster.begin(Autoscaler(cluster.client, SETTINGS, "test"))
    await cluster.request("job", "Provisioned")
    assert await gpu_nodes(cluster) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("seed", range(4))
async def test_a_storm_with_crashes_leaves_no_gang_half_bound_and_no_node_overfull(cluster: Cluster, seed: int) -> None:
    """Gangs and single pods come and go while schedulers die after a few bindings each. Seeded: a failure can be had
    again."""
    random = Random(seed)
    await cluster.nodes(*(str(random.randint(2, 6)) for _ in range(4)))
    sizes = {f"g{index}": random.randint(2, 5) for index in range(8)}

    async def come() -> None:
        members = [(gang, index) for gang, size in sizes.items() for index in range(size)]
        random.shuffle(members)
        for gang, index in members:
            await cluster.pod(f"{gang}-{index}", cpu=random.choice(["500m", "1"]), gang=(gang, sizes[gang]))
            if random.random() < 0.2:
                await cluster.pod(f"single-{gang}-{index}")

    coming = asyncio.create_task(come())
    for _ in range(5):
        mortal = Mortal(cluster.server.transport(), random.randint(0, 5), failing=random.randint(0, 2))
        await cluster.begin(Scheduler(Client(mortal)))
        await asyncio.sleep(random.random() * 0.1)
        await cluster.end(cluster.tasks.pop())
    await coming
    await cluster.begin(cluster.scheduler)
    gone = random.sample(sorted(sizes), 3)
    for pod in await cluster.client.list(POD, "default"):
        if pod["metadata"]["name"].split("-")[0] in gone:
            await cluster.client.delete(POD, pod["metadata"]["name"], "default", grace_seconds=0)

    async def settled() -> bool:
        pods = await cluster.client.list(POD, "default")
        return all(pod["spec"].get("nodeName") or waiting_message(pod) for pod in pods)

    async def whole() -> bool:
        """A gang that waited may be bound just now, pod by pod."""
        where = await cluster.where()
        bound = {gang: sum(where.get(f"{gang}-{i}") is not None for i in range(size)) for gang, size in sizes.items()}
        return all(bound[gang] in (0, size) for gang, size in sizes.items())

    await cluster.until(settled)
    await cluster.until(whole)
    await cluster.assert_no_node_is_overfull()
