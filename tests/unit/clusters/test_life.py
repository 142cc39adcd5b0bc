"""A gang that is submitted at the hub and runs in one other cluster, from its first day to its last."""

from __future__ import annotations

from shoal.api import kinds
from tests.unit.clusters.build import is_on, is_placed, sent_job, town
from tests.unit.queues.build import complete, make, name_of, pods_of, said, true


async def test_a_job_goes_whole_to_one_cluster_and_its_end_comes_back() -> None:
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 3, cpu="2"))
        workload = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        home = workload["status"]["clusterName"]
        await t.hub.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
        there = t.members[home]
        await there.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
        await pods_of(there, "train", 3)
        await t.hub.until(kinds.JOB, "train", lambda one: (one.get("status") or {}).get("active") == 3)
        assert await t.where(kinds.JOB, "train") == [home]
        assert (await t.hub.get(kinds.JOB, "train"))["spec"]["suspend"] is True
        assert await t.hub.names(kinds.POD) == []
        await complete(there, "train", 3)
        ended = await t.hub.until(kinds.WORKLOAD, name_of(made), true("Finished"))
        assert said(ended, "Finished")[1] == "Succeeded"
        assert is_on(home)(ended)
        await there.until_gone(kinds.JOB, "train")
        assert await t.where(kinds.WORKLOAD, name_of(made)) == []
