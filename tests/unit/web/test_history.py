"""The last day as the page tells it: rounds of gangs that are gone too, under the visitor's rights."""

from __future__ import annotations

from shoal.api import kinds
from shoal.controllers.planning import PlanningLoop
from tests.cluster import Cluster
from tests.unit.cli.test_people import bind
from tests.unit.history.test_logs import ENDED, Pods, a_ray_job, kept, tell
from tests.unit.history.test_recorded import remembering
from tests.unit.queues.build import job, make, name_of, true
from tests.unit.queues.conftest import cluster, quiet
from tests.unit.web.visiting import served, tab

__all__ = ["cluster", "quiet", "remembering"]


async def test_a_gang_that_is_gone_is_still_in_the_last_day(remembering: tuple[Cluster, PlanningLoop]) -> None:
    cluster, loop = remembering
    (made,) = await make(cluster, job("short", cpu="1"))
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await cluster.client.delete(kinds.JOB, "short", "default", propagation="Background")
    await cluster.until_gone(kinds.WORKLOAD, name_of(made))
    assert loop.history is not None
    await loop.history.written()
    async with served() as page, tab(page, cluster.client) as browser:
        status, told = await browser.get("/data/history")
        assert status == 200, told
        (run,) = told["runs"]
        assert (run["kind"], run["name"], run["outcome"]) == ("Job", "short", "Deleted")
        assert run["queuedAt"] <= run["startedAt"] <= run["endedAt"]
        asked = len(await cluster.client.list(kinds.QUESTION))
        assert (await browser.get("/data/history"))[1] == told
        assert len(await cluster.client.list(kinds.QUESTION)) == asked


async def test_a_visitor_that_may_not_ask_is_told_so(cluster: Cluster) -> None:
    vera = await bind(cluster, "vera", "shoal-view", "default")
    async with served() as page, tab(page, vera) as browser:
        status, told = await browser.get("/data/history?namespace=default")
        assert status == 200 and told["runs"] == []
        assert "you may not create questions.shoal.dev" in told["notAnswered"]


async def test_the_log_of_a_gang_that_is_gone_is_kept_for_its_page(remembering: tuple[Cluster, PlanningLoop]) -> None:
    cluster, loop = remembering
    Pods(cluster, train_submit=b"epoch 1\n", train_head=b"ray begins\n")
    await a_ray_job(cluster)
    await tell(cluster, "train-submit", ENDED)
    assert await kept(cluster, loop)
    await cluster.client.delete(kinds.RAY_JOB, "train", "default", propagation="Background")
    vera = await bind(cluster, "vera", "shoal-view", "default")
    asked = "/data/kept-log?kind=rayjob.ray.io&namespace=default&name=train"
    async with served() as page, tab(page, cluster.client) as browser, tab(page, vera) as other:
        assert [one["text"] for one in (await browser.get(asked))[1]["logs"]] == ["epoch 1\n"]
        assert "you may not create questions.shoal.dev" in (await other.get(asked))[1]["notAnswered"]
