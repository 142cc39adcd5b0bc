"""Resources of which a queue has no quota: Kueue's `quotaCheckStrategy`."""

from __future__ import annotations

from shoal.api import kinds
from shoal.controllers.queues import QueueSettings
from tests.cluster import Cluster
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, said, true
from tests.unit.queues.conftest import decide


async def test_a_resource_without_quota_keeps_a_gang_waiting(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "4"}), local_queue())
    (made,) = await make(quiet, job("train", cpu="1", memory="1Gi"))
    held = await quiet.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert "memory" in said(held, "QuotaReserved")[2]


async def test_a_resource_without_quota_is_not_counted_where_the_installation_says_so(quiet: Cluster) -> None:
    decide(quiet, QueueSettings(quota_check_strategy="IgnoreUndeclared"))
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "4"}), local_queue())
    (made,) = await make(quiet, job("train", cpu="1", memory="1Gi"))
    started = await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    (given,) = started["status"]["admission"]["podSetAssignments"]
    assert [*given["flavors"]] == ["cpu"]
