"""What a queued job is told: by the engine, through a Question, and never worked out by the command."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import why
from shoal.sdk import gangs
from tests.cluster import Cluster
from tests.unit.queues.build import job, local_queue, make, name_of, true


async def ask(cluster: Cluster, name: str, *, fresh: bool = False) -> Json:
    return await why.explain_to(cluster.client, (*gangs.KINDS, *gangs.QUEUED), name, "default", fresh=fresh)


async def waiting(cluster: Cluster, made: Json) -> tuple[str, str]:
    """Until it was told why; returns what orders it."""

    def looked_at(workload: Json) -> bool:
        return any(one["type"] == "QuotaReserved" for one in (workload.get("status") or {}).get("conditions") or ())

    workload = await cluster.until(kinds.WORKLOAD, name_of(made), looked_at)
    return workload["metadata"]["creationTimestamp"], workload["metadata"]["uid"]


async def test_a_queued_job_learns_who_holds_its_quota_what_would_help_and_both_its_positions(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await make(cluster, local_queue("other-queue"))
    (first,) = await make(cluster, job("first", cpu="3"))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    made = await make(cluster, job("theirs", cpu="2", queue="other-queue"), job("mine", cpu="2"))
    theirs, mine = [await waiting(cluster, one) for one in made]
    behind = 1 if theirs < mine else 0  # made in the same second: then the UID decides
    told = await ask(cluster, "mine")
    assert (told["state"], told["reason"]) == ("queued", "Quota")
    assert (told["clusterQueue"], told["position"], told["queueLength"]) == ("cluster-queue", 1 + behind, 2)
    assert (told["localQueue"], told["localPosition"], told["localQueueLength"]) == ("user-queue", 1, 1)
    assert told["holders"] == ["Job/default/first"] and told["holdersNotShown"] == 0
    assert told["leastIncrease"]["place"] == "cluster-queue/default-flavor"
    why._print(told)
    said = capsys.readouterr().out
    assert f"position {1 + behind} of 2 in ClusterQueue cluster-queue, 1 of 1 in LocalQueue user-queue" in said
    assert "held by Job/default/first" in said
