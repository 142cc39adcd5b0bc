"""The watch beside Kueue's runner sees when more is held than the quota, and nothing else."""

from __future__ import annotations

import msgspec

from shoal.api.kind import Key
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_workload import Workload
from shoal.kube.cache import Change
from tests.controlplane.quota_watch import QuotaWatch


def queue(name: str, quota: str) -> Change:
    resources = [{"name": "cpu", "nominalQuota": quota}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "rf", "resources": resources}]}]
    raw = {"metadata": {"name": name}, "spec": {"cohortName": "both", "resourceGroups": groups}}
    return Change("added", Key("", name), None, msgspec.convert(raw, ClusterQueue))


def workload(name: str, cpu: str, *conditions: str) -> Workload:
    used = {"name": "main", "count": 1, "flavors": {"cpu": "rf"}, "resourceUsage": {"cpu": cpu}}
    told = [
        {"type": one, "status": "True", "reason": one, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for one in conditions
    ]
    status = {"admission": {"clusterQueue": "a", "podSetAssignments": [used]}, "conditions": told}
    return msgspec.convert({"metadata": {"name": name, "uid": name}, "status": status}, Workload)


def test_what_is_held_beyond_the_quota_of_a_cohort_is_seen_at_the_revision_where_it_is() -> None:
    watch = QuotaWatch()
    watch.queue_changed(queue("a", "2"))
    watch.queue_changed(queue("b", "1"))
    one, two = workload("one", "2", "QuotaReserved"), workload("two", "1500m", "QuotaReserved")
    watch.workload_changed(Change("added", Key("", "one"), None, one))
    ended = workload("one", "2", "QuotaReserved", "Finished")
    watch.workload_changed(Change("changed", Key("", "one"), one, ended))
    watch.workload_changed(Change("added", Key("", "two"), None, two))
    assert (watch.record.excess, watch.record.peaks) == ([], {"both": 2000})
    watch.workload_changed(Change("added", Key("", "three"), None, workload("three", "2", "QuotaReserved")))
    assert watch.record.excess == ["both: 3500 of 3000 with three"]
    assert (watch.record.workloads, watch.record.started, watch.record.finished) == (3, 3, 1)
