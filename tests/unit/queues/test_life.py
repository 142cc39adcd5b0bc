"""A queued job from its first day to its last."""

from __future__ import annotations

from shoal.api import kinds
from tests.cluster import Cluster
from tests.unit.queues.build import complete, condition, counts, job, make, name_of, said, true, usage


async def test_a_job_waits_suspended_and_starts_whole(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", 2, cpu="1"))
    workload = await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert said(workload, "QuotaReserved") == ("True", "QuotaReserved", "Quota reserved in ClusterQueue cluster-queue")
    assert said(workload, "Admitted") == ("True", "Admitted", "The workload is admitted")
    assert workload["status"]["admission"] == {
        "clusterQueue": "cluster-queue",
        "podSetAssignments": [
            {"name": "main", "count": 2, "flavors": {"cpu": "default-flavor"}, "resourceUsage": {"cpu": "2"}}
        ],
    }
    owner = workload["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", made["metadata"]["uid"], True)
    started = await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    labels = started["spec"]["template"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/podset"] == "main"
    assert labels["kueue.x-k8s.io/local-queue-name"] == "user-queue"


async def test_the_next_job_waits_for_quota_and_starts_when_it_comes_back(cluster: Cluster) -> None:
    (first,) = await make(cluster, job("one", 4))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (second,) = await make(cluster, job("two", 1))
    waiting = await cluster.until(kinds.WORKLOAD, name_of(second), lambda one: bool(condition(one, "QuotaReserved")))
    status, reason, message = said(waiting, "QuotaReserved")
    assert (status, reason) == ("False", "WaitingForQuota")
    assert "insufficient unused quota for cpu in flavor default-flavor, 1 more needed" in message
    queue = await cluster.until(
        kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (1, 1, 1) and bool(usage(one))
    )
    assert usage(queue) == {"cpu": "4", "memory": "0"}
    local = await cluster.until(kinds.LOCAL_QUEUE, "user-queue", lambda one: counts(one) == (1, 1, 1))
    assert said(local, "Active") == ("True", "Ready", "Can submit new workloads to localQueue")
    await complete(cluster, "one", 4)
    finished = await cluster.until(kinds.WORKLOAD, name_of(first), true("Finished"))
    assert said(finished, "Finished") == ("True", "Succeeded", "Reached expected number of succeeded pods")
    await cluster.until(kinds.WORKLOAD, name_of(second), true("Admitted"))
