"""A server that refuses, loses and cuts, from a seed: gangs stay whole or absent, and in calm everyone is served."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.api import kinds
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.kube.client import Client
from tests.chaos.walks import brief_pod
from tests.checker.gang_history import Watched, violations
from tests.cluster import running
from tests.faulty import FaultyTransport, Rates
from tests.patience import PATIENCE
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched

STORM = Rates(
    unsent=0.02,
    conflict=0.03,
    throttled=0.02,
    server_error=0.03,
    lost_answer=0.04,
    lost_request=0.03,
    cut=0.02,
    cut_in_line=0.01,
    delayed=0.05,
    doubled=0.03,
    gone=0.05,
)
GANGS = 14


class FastClock:
    """A hundred seconds in one, so that time-outs and back-offs do not make the test slow."""

    def now(self) -> int:
        return int(time.time() * 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic() * 100

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


@pytest.mark.parametrize("seed", range(1, 9))
async def test_gangs_survive_a_storm(seed: int) -> None:
    async with running(judged=True) as cluster:
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        clock = FastClock()
        watched = Watched(cluster.server.transport())
        faulty = FaultyTransport(watched, STORM, seed=seed, clock=clock)
        settings = AppWrapperSettings(bind_seconds=0, create_seconds=1e6)
        controller = planned(Client(faulty), settings, clock)
        cluster.start(controller.run())
        cluster.rules = rules_of(settings)
        for number in range(GANGS):
            gang = app_wrapper(f"g{number:02}", brief_pod(f"p{number:02}", cpu="2"), config_map(f"c{number:02}"))
            await cluster.create(kinds.APP_WRAPPER, gang)
        ended = 0
        async with asyncio.timeout(2 * PATIENCE):
            while ended < GANGS:
                for wrapper in await cluster.client.list(kinds.APP_WRAPPER, "default"):
                    if dispatched(wrapper):
                        await check_whole(cluster.client, wrapper["metadata"]["name"][1:])
                        await cluster.client.delete(kinds.APP_WRAPPER, wrapper["metadata"]["name"], "default")
                        ended += 1
                if ended == GANGS - 4:
                    faulty.calm()
                pods = await cluster.client.list(kinds.POD, "default")
                assert len(pods) <= 2, "never more than fit"
                await asyncio.sleep(0.01)
            await cluster.settled()
        assert faulty.happened, "no storm"
        assert await cluster.names(kinds.POD) == []
        assert violations(watched.writes) == []


async def check_whole(client: Client, number: str) -> None:
    await client.get(kinds.POD, f"p{number}", "default")
    await client.get(kinds.CONFIG_MAP, f"c{number}", "default")
