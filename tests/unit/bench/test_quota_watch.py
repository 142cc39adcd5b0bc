"""The watch beside Kueue's runner sees when more is held than the quota, and nothing else."""

from __future__ import annotations

import msgspec

from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_workload import Workload
from tests.controlplane.quota_watch import QuotaWatch


def queue(name: str, quota: str) -> ClusterQueue:
    resources = [{"name": "cpu", "nominalQuota": quota}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "rf", "resources": resources}]}]
    raw = {"metadata": {"name": name}, "spec": {"cohortName": "both", "resourceGroups": groups}}
    return msgspec.convert(raw, ClusterQueue)


def workload(name: str, cpu: str, *conditions: str) -> Workload:
    used = {"name": "main", "count": 1, "flavors": {"cpu": "rf"}, "resourceUsage": {"cpu": cpu}}
    told = [
        {"type": one, "status": "True", "reason": one, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for one in conditions
    ]
    status = {"admission": {"clusterQueue": "a", "podSetAssignments": [used]}, "conditions": told}
    metadata = {"name": name, "uid": name, "resourceVersion": "7"}
    return msgspec.convert({"metadata": metadata, "status": status}, Workload)


def watch(*queues: ClusterQueue) -> QuotaWatch:
    async def read() -> tuple[ClusterQueue, ...]:
        return queues

    return QuotaWatch(read)


async def test_what_is_held_beyond_the_quota_of_a_cohort_is_seen_at_the_revision_where_it_is() -> None:
    seen = watch(queue("a", "2"), queue("b", "1"))
    await seen.listed([], "1")
    await seen.changed(workload("one", "2", "QuotaReserved"))
    await seen.changed(workload("one", "2", "QuotaReserved", "Finished"))
    await seen.changed(workload("two", "1500m", "QuotaReserved"))
    assert (seen.record.excess, seen.record.peaks) == ([], {"both": 2000})
    await seen.changed(workload("three", "2", "QuotaReserved"))
    assert seen.record.excess == ["both: 3500 of 3000 with three at revision 7"]
    seen.deleted(workload("three", "2", "QuotaReserved"))
    await seen.changed(workload("four", "1500m", "QuotaReserved"))
    assert len(seen.record.excess) == 1
    assert (seen.record.workloads, seen.record.started, seen.record.finished) == (4, 4, 1)


async def test_a_list_is_one_step_whatever_the_order_of_its_items() -> None:
    """An item that starts may come before the one that made room for it."""
    seen = watch(queue("a", "2"))
    await seen.listed([workload("old", "2", "QuotaReserved")], "5")
    new, ended = workload("new", "2", "QuotaReserved"), workload("old", "2", "QuotaReserved", "Finished")
    await seen.listed([new, ended], "9")
    assert (seen.record.excess, seen.record.lists) == ([], 2)
    await seen.listed([new, workload("old", "1", "QuotaReserved")], "12")
    assert seen.record.excess == ["both: 3000 of 2000 with the list at revision 12"]
