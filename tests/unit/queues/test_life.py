"""A queued job from its first day to its last."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.cli.cluster import judges, preparers
from shoal.kube.errors import Forbidden
from tests.cluster import Cluster
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    condition,
    counts,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    pods_of,
    ray_job,
    said,
    true,
    usage,
    warning,
)
from tests.unit.queues.conftest import decide


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


async def test_describing_a_job_that_waits_says_why(cluster: Cluster) -> None:
    (first,) = await make(cluster, job("one", 4))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (second,) = await make(cluster, job("two", 1))
    said_of_job = await warning(cluster, second, "WaitingForQuota")
    assert "insufficient unused quota for cpu in flavor default-flavor, 1 more needed" in said_of_job


async def test_quota_is_charged_for_what_the_server_adds_to_the_pods(cluster: Cluster) -> None:
    """As Kueue: defaults of the namespace's LimitRanges, and the overhead of the RuntimeClass that pods name."""
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults"}}
    limits["spec"] = {"limits": [{"type": "Container", "defaultRequest": {"memory": "1Gi"}}]}
    kata = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}
    await cluster.create(kinds.LIMIT_RANGE, limits)
    await cluster.create(kinds.RUNTIME_CLASS, {**kata, "overhead": {"podFixed": {"cpu": "250m"}}})
    boxed = job("train", 2, cpu="1")
    boxed["spec"]["template"]["spec"]["runtimeClassName"] = "kata"
    (made,) = await make(cluster, boxed)
    workload = await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    given = workload["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
    assert given == {"cpu": "2500m", "memory": "2Gi"}


async def test_pods_that_are_done_give_their_quota_to_others(cluster: Cluster) -> None:
    (first,) = await make(cluster, job("one", 4))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (second,) = await make(cluster, job("two", 1))
    await cluster.until(kinds.WORKLOAD, name_of(second), lambda one: said(one, "QuotaReserved")[0] == "False")
    pods = await pods_of(cluster, "one", 4)
    await cluster.client.patch(
        kinds.POD, pods[0]["metadata"]["name"], "default", {"status": {"phase": "Succeeded"}}, subresource="status"
    )
    await cluster.until(kinds.WORKLOAD, name_of(second), true("Admitted"))
    given = await cluster.get(kinds.WORKLOAD, name_of(first))
    assert given["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: usage(one).get("cpu") == "4")


@pytest.mark.parametrize(
    ("queue", "reason", "message"),
    [
        ("nowhere", "Misconfigured", "LocalQueue nowhere doesn't exist"),
        ("lost", "Misconfigured", "ClusterQueue gone doesn't exist"),
    ],
)
async def test_a_job_without_a_queue_to_go_to_is_told(cluster: Cluster, queue: str, reason: str, message: str) -> None:
    await make(cluster, local_queue("lost", to="gone"))
    (made,) = await make(cluster, job("train", queue=queue))
    waiting = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))
    assert said(waiting, "QuotaReserved") == ("False", reason, message)
    if queue == "nowhere":
        await make(cluster, local_queue("nowhere"))
        await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))


async def test_a_queue_whose_flavor_is_missing_waits_for_it(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, cluster_queue(), local_queue())
    (made,) = await make(quiet, job("train"))
    queue = await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: bool(condition(one, "Active")))
    assert said(queue, "Active") == (
        "False",
        "FlavorNotFound",
        "Can't admit new workloads: references missing ResourceFlavor(s): default-flavor.",
    )
    waiting = await quiet.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))
    assert said(waiting, "QuotaReserved")[2].startswith("ClusterQueue cluster-queue is inactive")
    await make(quiet, flavor())
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))


async def test_what_a_flavor_says_of_its_nodes_is_written_into_the_pods(quiet: Cluster) -> None:
    await quiet.add_node("spot-1", labels={"tier": "spot"}, cpu="8")
    decide(quiet)
    taint = {"key": "spot", "operator": "Exists"}
    await make(quiet, flavor(nodeLabels={"tier": "spot"}, tolerations=[taint]), cluster_queue(), local_queue())
    (made,) = await make(quiet, job("train", 2))
    started = await quiet.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    assert started["spec"]["template"]["spec"]["nodeSelector"] == {"tier": "spot"}
    assert started["spec"]["template"]["spec"]["tolerations"] == [taint]
    await quiet.client.patch(kinds.WORKLOAD, name_of(made), "default", {"spec": {"active": False}})
    await quiet.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    template = (await quiet.get(kinds.JOB, "train"))["spec"]["template"]["spec"]
    assert "nodeSelector" not in template and "tolerations" not in template


async def test_a_waiting_job_that_is_edited_is_judged_again(cluster: Cluster) -> None:
    (made,) = await make(cluster, ray_job("train", 9))  # 9 workers, a head and a submitter: more than the quota
    name = name_of(made, "RayJob", "ray.io")
    waiting = await cluster.until(kinds.WORKLOAD, name, lambda one: bool(condition(one, "QuotaReserved")))
    assert said(waiting, "QuotaReserved")[1] == "ExceedsMaxQuota"
    groups = made["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    groups[0].update(replicas=1, minReplicas=1, maxReplicas=1)
    change = {"spec": {"rayClusterSpec": {"workerGroupSpecs": groups}}}
    await cluster.client.patch(kinds.RAY_JOB, "train", "default", change)
    admitted = await cluster.until(kinds.WORKLOAD, name, true("Admitted"))
    assert admitted["metadata"]["uid"] == waiting["metadata"]["uid"]
    assert [one["count"] for one in admitted["spec"]["podSets"]] == [1, 1, 1]


async def test_a_gate_holds_a_job_until_it_is_taken_away(cluster: Cluster) -> None:
    held = job("train")
    held["metadata"]["annotations"] = {"kueue.x-k8s.io/admission-gated-by": "example.com/later"}
    (made,) = await make(cluster, held)
    waiting = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))
    assert said(waiting, "QuotaReserved")[1:] == ("AdmissionGated", "Admission is gated by: example.com/later")
    gone = {"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": None}}}
    await cluster.client.patch(kinds.JOB, "train", "default", gone)
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))


async def test_a_job_that_slipped_past_admission_is_stopped_and_queued(cluster: Cluster) -> None:
    await make(cluster, job("one", 4))
    loose = job("two", 2)
    loose["spec"]["suspend"] = False
    (made,) = await make(cluster, loose)
    stopped = await cluster.until(kinds.JOB, "two", lambda one: one["spec"]["suspend"] is True)
    assert stopped["metadata"]["uid"] == made["metadata"]["uid"]
    await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))


async def test_an_unknown_priority_class_is_said_and_waited_for(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", labels={"kueue.x-k8s.io/priority-class": "high"}))
    await cluster.settled()
    assert await cluster.names(kinds.WORKLOAD) == []
    events = await cluster.client.list(kinds.EVENT, "default")
    assert "WorkloadPriorityClassNotFound" in {one["reason"] for one in events}
    high = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
    await make(cluster, {**high, "value": 7})
    found = await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert found["spec"]["priority"] == 7
    assert found["spec"]["priorityClassRef"]["kind"] == "WorkloadPriorityClass"


async def test_on_one_machine_the_server_itself_holds_a_labelled_job_and_refuses_what_cannot_be_held(
    cluster: Cluster,
) -> None:
    cluster.server.admission.preparers.update(preparers(cluster.client))
    cluster.server.admission.judges.update(judges(cluster.client))
    loose = ray_job("train", 1)
    del loose["spec"]["suspend"]
    (made,) = await make(cluster, loose)
    assert made["spec"]["suspend"] is True
    await cluster.until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
    kept = ray_job("kept", 1)
    del kept["spec"]["suspend"]
    kept["spec"]["shutdownAfterJobFinishes"] = False
    with pytest.raises(Forbidden, match="a queue gets its quota back when the job ends"):
        await make(cluster, kept)
    moved = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "another"}}}
    with pytest.raises(Forbidden, match="immutable while the job is not suspended"):
        await cluster.client.patch(kinds.RAY_JOB, "train", "default", moved)
    (queue,) = await make(cluster, cluster_queue("second"))
    assert queue["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    await cluster.client.delete(kinds.CLUSTER_QUEUE, "second", None)
    await cluster.until_gone(kinds.CLUSTER_QUEUE, "second")
