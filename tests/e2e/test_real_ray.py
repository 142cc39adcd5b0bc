"""Real Ray as plain processes: clusters start, work, lose parts and go away without a trace."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from shoal.api.kinds import POD, RAY_CLUSTER
from tests.e2e.conftest import Whole, command, is_ready, living

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

TWO_NODES = """python -c "
import ray
ray.init()
@ray.remote(num_cpus=1)
class Here:
    def where(self): return ray.util.get_node_ip_address()
actors = [Here.remote() for _ in range(3)]
print('NODES', len(set(ray.get([actor.where.remote() for actor in actors]))))
" """

COUNT = """python -c "import ray; ray.init(); print('ALIVE', len([n for n in ray.nodes() if n['Alive']]))" """


async def test_a_cluster_becomes_ready_works_and_leaves_no_process(whole: Whole) -> None:
    await whole.ray_cluster("train", workers=2)
    pods = await whole.ready("train", 3)
    addresses = {pod["status"]["podIP"] for pod in pods}
    assert len(addresses) == 3
    job = await whole.job("train", TWO_NODES)
    assert job["status"] == "SUCCEEDED", job["message"]
    assert "NODES 3" in job["logs"]
    started = [pid for pod in pods for pid in whole.processes(pod)]
    assert len(started) > 20
    await whole.client.delete(RAY_CLUSTER, "train", "default")
    await whole.gone("train")
    assert living(started) == []


async def test_a_killed_worker_and_a_killed_head_come_back(whole: Whole) -> None:
    await whole.ray_cluster("hurt", workers=1)
    pods = await whole.ready("hurt", 2)
    for kind in ("worker", "head"):
        victim = next(pod for pod in await whole.pods("hurt") if pod["metadata"]["labels"]["ray.io/node-type"] == kind)
        raylets = [pid for pid in whole.processes(victim) if b"raylet/raylet" in command(pid)]
        assert raylets
        os.kill(raylets[0], signal.SIGKILL)
        restarts = victim["status"]["containerStatuses"][0]["restartCount"]

        async def noticed(
            name: str = victim["metadata"]["name"], uid: str = victim["metadata"]["uid"], before: int = restarts
        ) -> bool:
            found = [pod for pod in await whole.pods("hurt") if pod["metadata"]["name"] == name]
            if not found or found[0]["metadata"]["uid"] != uid:
                return True
            return found[0]["status"]["containerStatuses"][0]["restartCount"] > before or not is_ready(found[0])

        await whole.until(noticed, 10)
        await whole.ready("hurt", 2)
    assert len(pods) == 2


async def test_ray_stop_in_one_cluster_leaves_the_other_alone(whole: Whole) -> None:
    """Both manifests carry `ray stop` as preStop; one is deleted."""
    await asyncio.gather(whole.ray_cluster("one", workers=0, hook=True), whole.ray_cluster("two", workers=0, hook=True))
    (first,), (second,) = await asyncio.gather(whole.ready("one", 1), whole.ready("two", 1))
    before = whole.processes(second)
    await whole.client.delete(RAY_CLUSTER, "one", "default")
    await whole.gone("one")
    still = await whole.client.get(POD, second["metadata"]["name"], "default")
    assert is_ready(still) and still["status"]["containerStatuses"][0]["restartCount"] == 0
    assert living(before) == before
    assert (await whole.job("two", "echo alive"))["status"] == "SUCCEEDED"
    assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_three_clusters_run_side_by_side(whole: Whole) -> None:
    """Bound together, started through the gate; each is its own cluster with its own nodes."""
    names = ("red", "green", "blue")
    await asyncio.gather(*(whole.ray_cluster(name, workers=1) for name in names))
    await asyncio.gather(*(whole.ready(name, 2) for name in names))
    jobs = await asyncio.gather(*(whole.job(name, COUNT) for name in names))
    assert [job["status"] for job in jobs] == ["SUCCEEDED"] * 3
    assert all("ALIVE 2" in job["logs"] for job in jobs)
