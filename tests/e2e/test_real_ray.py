"""Real Ray as plain processes: clusters start side by side, work, lose parts and go away without a trace."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from shoal.api.kinds import POD, RAY_CLUSTER
from shoal.api.meta import Json
from tests.e2e.conftest import Whole, command, is_ready, living

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

THREE_NODES = """python -c "
import ray
ray.init()
@ray.remote(num_cpus=1)
class Here:
    def where(self): return ray.util.get_node_ip_address()
actors = [Here.remote() for _ in range(3)]
print('NODES', len(set(ray.get([actor.where.remote() for actor in actors]))))
" """

COUNT = """python -c "import ray; ray.init(); print('ALIVE', len([n for n in ray.nodes() if n['Alive']]))" """


async def test_three_clusters_live_work_are_hurt_and_go(whole: Whole) -> None:
    """One of three has two workers; the others carry `ray stop` as their preStop hook, as published manifests do."""
    await asyncio.gather(
        whole.ray_cluster("train", workers=2),
        whole.ray_cluster("one", workers=0, hook=True),
        whole.ray_cluster("two", workers=0, hook=True),
    )
    train, (one,), (two,) = await asyncio.gather(whole.ready("train", 3), whole.ready("one", 1), whole.ready("two", 1))
    addresses = {pod["status"]["podIP"] for pod in [*train, one, two]}
    assert len(addresses) == 5

    jobs = await asyncio.gather(whole.job("train", THREE_NODES), whole.job("one", COUNT), whole.job("two", COUNT))
    assert [job["status"] for job in jobs] == ["SUCCEEDED"] * 3, [job["message"] for job in jobs]
    assert "NODES 3" in jobs[0]["logs"] and all("ALIVE 1" in job["logs"] for job in jobs[1:])

    await one_goes_and_the_others_live(whole, one, [two, *train])
    await hurt(whole, "train", "worker", signal.SIGTERM)  # as a `ray stop` by someone else: `ray start` stays
    await whole.ready("train", 3)
    await hurt(whole, "train", "head", signal.SIGKILL)
    await whole.ready("train", 3)

    started = [pid for pod in await whole.pods("train") for pid in whole.processes(pod)]
    assert len(started) > 20
    await whole.client.delete(RAY_CLUSTER, "train", "default")
    await whole.gone("train")
    assert living(started) == []
    assert is_ready(await whole.client.get(POD, two["metadata"]["name"], "default"))


async def one_goes_and_the_others_live(whole: Whole, victim: Json, others: list[Json]) -> None:
    """`ray stop` runs in the one that is deleted; it must not reach any other."""
    ending = whole.processes(victim)
    before = {pid for pod in others for pid in whole.processes(pod) if b"raylet/raylet" in command(pid)}
    await whole.client.delete(RAY_CLUSTER, victim["metadata"]["labels"]["ray.io/cluster"], "default")
    await whole.gone(victim["metadata"]["labels"]["ray.io/cluster"])
    assert living(ending) == []
    assert before and set(living(sorted(before))) == before
    for pod in others:
        still = await whole.client.get(POD, pod["metadata"]["name"], "default")
        assert is_ready(still) and still["status"]["containerStatuses"][0]["restartCount"] == 0


async def hurt(whole: Whole, cluster: str, kind: str, number: signal.Signals) -> None:
    """End the raylet of a node from outside: the loss is shown."""
    victim = next(p for p in await whole.pods(cluster) if p["metadata"]["labels"]["ray.io/node-type"] == kind)
    raylets = [pid for pid in whole.processes(victim) if b"raylet/raylet" in command(pid)]
    restarts = victim["status"]["containerStatuses"][0]["restartCount"]
    os.kill(raylets[0], number)

    async def shown() -> bool:
        found = [pod for pod in await whole.pods(cluster) if pod["metadata"]["uid"] == victim["metadata"]["uid"]]
        if not found:
            return True
        return found[0]["status"]["containerStatuses"][0]["restartCount"] > restarts or not is_ready(found[0])

    await whole.until(shown)
