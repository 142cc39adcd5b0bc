"""Two replicas share a lease over a bad network: whatever is lost on the way, every promise of a history holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import KubeError
from shoal.kube.history import History, RecordingTransport, read
from shoal.kube.lease import Leadership, Term
from shoal.kube.writes import Writes
from tests.checker import check
from tests.embedded import Embedded
from tests.faulty import FaultyTransport, Rates


async def follow(history: History, asked: History, server: Embedded, name: str, seed: int, clock: VirtualClock) -> None:
    """A replica that leads when it can and counts up ConfigMaps, over a bad network.

    Recorded twice: at the server's door, and on our side of the network, where outcomes can be unknown.
    """
    terms: list[Term] = []

    def term_number() -> int:
        return terms[-1].number if terms else 0

    recorded = RecordingTransport(server.transport(), history, replica=name, clock=clock, term=term_number)
    rates = Rates(
        throttled=0.05,
        server_error=0.05,
        lost_answer=0.05,
        lost_request=0.05,
        conflict=0.02,
        slow=0.1,
        cut=0.1,
        unsent=0.05,
    )
    network = FaultyTransport(recorded, rates, seed=seed, clock=clock)
    client = Client(RecordingTransport(network, asked, replica=name, clock=clock, term=term_number), timeout=2.0)
    leadership = Leadership(client, "shoal", "kube-system", name, clock=clock, random=Random(seed))
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock, random=Random(seed))

    async def lead(term: Term) -> None:
        terms.append(term)
        writer = Writes(leadership.fenced(term), clock=clock, random=Random(seed)).writer(name)
        await cache.synced.wait()
        history.note("synced", name, clock, term=str(term.number))
        try:
            for number in range(10_000):
                await clock.sleep(0.5)
                try:
                    await count_up(writer, f"c{number % 5}")
                except KubeError:
                    continue
        finally:
            history.note("stop", name, clock, term=str(term.number))

    async def count_up(writer: Any, key: str) -> None:
        obj = next((obj for obj in cache.list() if obj["metadata"]["name"] == key), None)
        if obj is None:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": key, "namespace": "team"}}
            cache.note_write(await writer.create(CONFIG_MAP, {**body, "data": {"n": "0"}}))
        else:
            n = str(int(obj["data"]["n"]) + 1)
            cache.note_write(await writer.patch(CONFIG_MAP, obj, {"data": {"n": n}}))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cache.run())
        tasks.create_task(leadership.run(lead))


@pytest.mark.parametrize("seed", range(5))
async def test_two_replicas_over_a_bad_network_keep_every_promise(seed: int, tmp_path: Path) -> None:
    clock = VirtualClock()
    server = await Embedded(clock).start("team")
    history, asked = History(path=tmp_path / "history.jsonl"), History()
    tasks = [
        asyncio.ensure_future(follow(history, asked, server, name, seed * 10 + number, clock))
        for number, name in enumerate(["first", "second"])
    ]
    await clock.advance(400)
    for task in tasks:
        task.cancel()
    await clock.advance(60)
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()
    history.close()
    writes = [entry for entry in history.entries if entry.verb == "patch" and entry.outcome == "done"]
    assert len(writes) > 50
    assert sum(entry.outcome == "unknown" for entry in asked.entries) > 20
    assert check(asked.entries) == []
    assert check(history.entries) == []
    assert check(read(tmp_path / "history.jsonl")) == []
