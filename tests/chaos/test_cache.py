"""The cache under everything at once that can happen to a watch: in the end it equals the server."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from tests.embedded import Embedded
from tests.faulty import FaultyTransport, Rates
from tests.unit.kube.samples import config_map


@pytest.mark.parametrize("seed", range(25))
async def test_whatever_happens_to_events_the_cache_ends_equal_to_the_server(
    seed: int,
) -> None:
    random, clock = Random(seed), VirtualClock()
    server = await Embedded(clock).start("team")
    client = Client(server.transport())
    server.streaming_lists = random.random() < 0.5
    rates = Rates(
        unsent=0.05, throttled=0.05, server_error=0.05, lost_answer=0.02, slow=0.1, cut=0.05, cut_in_line=0.03,
        delayed=0.1, doubled=0.1, swapped=0.1, dropped=0.05, silence=0.01, gone=0.05,
    )  # fmt: skip
    transport = FaultyTransport(server.transport(), rates, seed=seed, clock=clock)
    cache: Cache[Any] = Cache(
        Client(transport),
        CONFIG_MAP,
        clock=clock,
        random=Random(seed),
        indexes={"parity": lambda obj: obj["data"].values()},
    )
    told: dict[Key, str] = {}

    def follow(change: Change) -> None:
        if change.new is None:
            del told[change.key]
        else:
            assert (change.kind == "added") == (change.key not in told)
            told[change.key] = change.new["metadata"]["resourceVersion"]

    cache.subscribe(follow)
    running = asyncio.ensure_future(cache.run())
    there: set[str] = set()
    for _ in range(300):
        name = f"c{random.randrange(30)}"
        if name not in there:
            await client.create(CONFIG_MAP, config_map(name, n="new"), "team")
            there.add(name)
        elif random.random() < 0.4:
            await client.delete(CONFIG_MAP, name, "team")
            there.remove(name)
        else:
            await client.patch(CONFIG_MAP, name, "team", {"data": {"n": str(random.randrange(2))}})
        if random.random() < 0.02:
            server.compact()
        if random.random() < 0.1:
            await clock.advance(random.uniform(0, 5))
    transport.calm()
    await clock.advance(3000)
    truth = {Key(*key): obj["metadata"]["resourceVersion"] for key, obj in server.snapshot(CONFIG_MAP).items()}
    assert {key: cache.get(key)["metadata"]["resourceVersion"] for key in cache} == truth
    assert told == truth
    for value in ("0", "1", "new"):
        indexed = sorted(obj["metadata"]["name"] for obj in cache.by_index("parity", value))
        assert indexed == sorted(key.name for key in cache if cache.get(key)["data"]["n"] == value)
    assert msgspec.json.encode(cache.list())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.stop()
