"""How an admitted gang gives way: evicted, stopped, switched off, timed out. Its pods go before its quota does."""

from __future__ import annotations

import asyncio

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.queues import PodsReady, QueueSettings, reconciler
from shoal.controllers.queues.controller import QueueController
from shoal.controllers.queues.jobs.ray import RayJobs
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.local.scheduler import Scheduler
from tests.cluster import Cluster
from tests.faults import proven
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
)
from tests.unit.queues.conftest import decide


def priority_class(name: str, value: int) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


HIGH = {"kueue.x-k8s.io/priority-class": "high"}


@pytest.fixture
async def ranked(quiet: Cluster) -> Cluster:
    """A queue in which the higher priority evicts the lower."""
    decide(quiet)
    queue = cluster_queue(preemption={"withinClusterQueue": "LowerPriority"})
    await make(quiet, flavor(), priority_class("high", 100), queue, local_queue())
    return quiet


async def let_go(cluster: Cluster, name: str, count: int) -> None:
    """As a node agent: pods that were told to end have ended."""
    for pod in await pods_of(cluster, name, count):
        await cluster.client.delete(kinds.POD, pod["metadata"]["name"], "default", grace_seconds=0)


def forgets_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler.QueueReconciler, "_has_stopped", lambda self, workload, found: True)


@proven(without=forgets_pods)
async def test_f031_quota_comes_back_only_when_the_last_pod_is_gone(ranked: Cluster) -> None:
    """F31: room is given back while pods still terminate. Holds: I11, the preemptor waits for the last pod."""
    (low,) = await make(ranked, job("low", 4))
    await ranked.until(kinds.JOB, "low", lambda one: one["spec"]["suspend"] is False)
    ranked.start(Scheduler(ranked.client).run())  # a bound pod takes its time to end: no kubelet runs it here
    for pod in await pods_of(ranked, "low", 4):
        await ranked.until(kinds.POD, pod["metadata"]["name"], lambda one: bool(one["spec"].get("nodeName")))
    (high,) = await make(ranked, job("high", 4, labels=HIGH))
    victim = await ranked.until(kinds.WORKLOAD, name_of(low), true("Evicted"))
    assert said(victim, "Preempted")[:2] == ("True", "InClusterQueue")
    assert said(victim, "Evicted")[1] == "Preempted"
    assert high["metadata"]["uid"] in said(victim, "Evicted")[2]  # the job's UID, for people
    waiting = await ranked.until(
        kinds.WORKLOAD, name_of(high), lambda one: said(one, "QuotaReserved")[1] == "WaitingForPreemptedWorkloads"
    )
    assert said(waiting, "QuotaReserved")[2].endswith("Pending the preemption of 1 workload(s)")
    await ranked.until(kinds.JOB, "low", lambda one: one["spec"]["suspend"] is True)
    await ranked.settled()
    assert true("QuotaReserved")(await ranked.get(kinds.WORKLOAD, name_of(low)))
    assert not true("QuotaReserved")(await ranked.get(kinds.WORKLOAD, name_of(high)))
    await let_go(ranked, "low", 4)
    await ranked.until(kinds.WORKLOAD, name_of(high), true("Admitted"))
    victim = await ranked.get(kinds.WORKLOAD, name_of(low))
    assert said(victim, "Requeued")[:2] == ("True", "Preempted")
    template = (await ranked.get(kinds.JOB, "low"))["spec"]["template"]
    assert "kueue.x-k8s.io/podset" not in template["metadata"]["labels"]


async def test_what_happened_is_counted(quiet: Cluster) -> None:
    metrics = decide(quiet).metrics
    queue = cluster_queue(preemption={"withinClusterQueue": "LowerPriority"})
    await make(quiet, flavor(), priority_class("high", 100), queue, local_queue())
    (low,) = await make(quiet, job("low", 4))
    await quiet.until(kinds.WORKLOAD, name_of(low), true("Admitted"))
    (high,) = await make(quiet, job("high", 4, labels=HIGH))
    await quiet.until(kinds.WORKLOAD, name_of(high), true("Admitted"))
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (1, 1, 1))
    await quiet.settled()
    told = {
        (sample.name, *(value for name, value in sample.labels.items() if name != "replica_role")): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }
    for named in ("", "high"):
        assert told["kueue_admitted_workloads_total", "cluster-queue", named] == 1
        assert told["kueue_admission_wait_time_seconds_count", "cluster-queue", named] == 1
    assert told["kueue_evicted_workloads_total", "cluster-queue", "Preempted", "", ""] == 1
    assert told["kueue_preempted_workloads_total", "cluster-queue", "InClusterQueue"] == 1
    waiting = [told["kueue_pending_workloads", "cluster-queue", one] for one in ("active", "inadmissible")]
    unadmitted = [value for key, value in told.items() if key[:2] == ("kueue_unadmitted_workloads", "cluster-queue")]
    assert sum(waiting) == sum(unadmitted) == 1
    assert told["kueue_admission_attempts_total", "success"] >= 2
    assert told["kueue_cluster_queue_status", "cluster-queue", "active"] == 1
    mine = ("user-queue", "default")
    assert told["kueue_local_queue_admitted_workloads_total", *mine, ""] == 1
    assert told["kueue_local_queue_admitted_workloads_total", *mine, "high"] == 1
    assert told["kueue_local_queue_evicted_workloads_total", *mine, "Preempted", "", ""] == 1
    assert told["kueue_evicted_workloads_once_total", "cluster-queue", "Preempted", "", ""] == 1
    assert told["kueue_workload_eviction_latency_seconds_count", "cluster-queue", "Preempted"] == 1
    assert told["kueue_admission_checks_wait_time_seconds_count", "cluster-queue", "high"] == 1
    assert told["kueue_local_queue_admission_wait_time_seconds_count", *mine, "high"] == 1
    assert told["kueue_cluster_queue_info", "cluster-queue", "", ""] == 1
    assert told["kueue_local_queue_status", *mine, "True"] == 1
    await complete(quiet, "high", 4)
    await quiet.until(kinds.WORKLOAD, name_of(high), true("Finished"))
    ended = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    assert ended["kueue_execution_time_seconds_count"] == 1
    assert ended["kueue_local_queue_finished_workloads_total"] == 1
    kept = ("kueue_finished_workloads", "kueue_local_queue_finished_workloads")
    assert [ended[name] for name in kept] == [1, 1], "it is still there"


async def test_a_victim_comes_back_when_its_preemptor_ends(ranked: Cluster) -> None:
    (low,) = await make(ranked, job("low", 4))
    await ranked.until(kinds.JOB, "low", lambda one: one["spec"]["suspend"] is False)
    await make(ranked, job("high", 4, labels=HIGH))
    await ranked.until(kinds.JOB, "high", lambda one: one["spec"]["suspend"] is False)
    await complete(ranked, "high", 4)
    back = await ranked.until(kinds.WORKLOAD, name_of(low), true("Admitted"))
    assert said(back, "Evicted")[0] == "False"
    for kind in ("Evicted", "Preempted"):
        assert said(back, kind)[:2] == ("False", "QuotaReserved")
        assert said(back, kind)[2].startswith("Previously: Preempted to accommodate a workload")
    assert said(back, "Preempted")[0] == "False"
    assert back["status"]["schedulingStats"]["evictions"] == [
        {"reason": "Preempted", "underlyingCause": "", "count": 1}
    ]
    await ranked.until(kinds.JOB, "low", lambda one: one["spec"]["suspend"] is False)


async def test_a_gang_that_is_switched_off_stops_and_returns_when_switched_on(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", 2))
    name = name_of(made)
    await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await cluster.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    off = await cluster.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(off, "Evicted") == ("True", "Deactivated", "The workload is deactivated")
    assert said(off, "Requeued")[:2] == ("False", "Deactivated")
    assert said(off, "Admitted") == ("False", "NoReservation", "The workload has no reservation")
    await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is True)
    await cluster.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
    on = await cluster.until(kinds.WORKLOAD, name, true("Admitted"))
    assert said(on, "Requeued") == ("True", "Reactivated", "The workload was reactivated")
    await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)


async def test_a_held_queue_admits_no_gang_and_a_drained_one_lets_no_gang_stay(cluster: Cluster) -> None:
    (first,) = await make(cluster, job("one", 1))
    await cluster.until(kinds.JOB, "one", lambda one: one["spec"]["suspend"] is False)
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"stopPolicy": "Hold"}})
    queue = await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: said(one, "Active")[0] == "False")
    assert said(queue, "Active") == ("False", "Stopped", "Can't admit new workloads: is stopped.")
    (second,) = await make(cluster, job("two", 1))
    held = await cluster.until(kinds.WORKLOAD, name_of(second), lambda one: bool(condition(one, "QuotaReserved")))
    assert said(held, "QuotaReserved") == (
        "False",
        "Suspended",
        "ClusterQueue cluster-queue is inactive: it is stopped",
    )
    assert true("Admitted")(await cluster.get(kinds.WORKLOAD, name_of(first)))
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"stopPolicy": "HoldAndDrain"}})
    drained = await cluster.until(kinds.WORKLOAD, name_of(first), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(drained, "Evicted") == ("True", "ClusterQueueStopped", "The ClusterQueue is stopped")
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"stopPolicy": "None"}})
    for one in (first, second):
        await cluster.until(kinds.WORKLOAD, name_of(one), true("Admitted"))
    back = await cluster.get(kinds.WORKLOAD, name_of(first))
    assert said(back, "Requeued")[:2] == ("True", "ClusterQueueRestarted")


async def test_a_stopped_local_queue_concerns_its_own_jobs_only(cluster: Cluster) -> None:
    await make(cluster, local_queue("other"))
    first, second = await make(cluster, job("one", 1), job("two", 1, queue="other"))
    for one in (first, second):
        await cluster.until(kinds.WORKLOAD, name_of(one), true("Admitted"))
    await cluster.client.patch(kinds.LOCAL_QUEUE, "other", "default", {"spec": {"stopPolicy": "HoldAndDrain"}})
    drained = await cluster.until(kinds.WORKLOAD, name_of(second), true("Evicted"))
    assert said(drained, "Evicted") == ("True", "LocalQueueStopped", "The LocalQueue is stopped")
    assert true("Admitted")(await cluster.get(kinds.WORKLOAD, name_of(first)))
    queue = await cluster.until(kinds.LOCAL_QUEUE, "other", lambda one: said(one, "Active")[0] == "False")
    assert said(queue, "Active") == ("False", "Stopped", "LocalQueue is stopped")


async def test_a_job_that_its_queue_switched_off_is_deleted_in_time(quiet: Cluster) -> None:
    decide(quiet, QueueSettings(keep_deactivated_seconds=0.5))
    await make(quiet, flavor(), cluster_queue(), local_queue())
    late, off = job("late", labels={"kueue.x-k8s.io/max-exec-time-seconds": "1"}), job("off")
    _, kept = await make(quiet, late, off)
    await quiet.until(kinds.WORKLOAD, name_of(kept), true("Admitted"))
    await quiet.client.patch(kinds.WORKLOAD, name_of(kept), "default", {"spec": {"active": False}})
    await quiet.until_gone(kinds.JOB, "late")
    assert (await quiet.get(kinds.JOB, "off"))["spec"]["suspend"] is True, "a user switched it off"


async def test_a_job_that_runs_too_long_is_ended(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", labels={"kueue.x-k8s.io/max-exec-time-seconds": "1"}))
    ended = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(ended, "Evicted") == (
        "True",
        "DeactivatedDueToMaximumExecutionTimeExceeded",
        "The workload is deactivated due to exceeding the maximum execution time",
    )
    assert ended["spec"]["active"] is False
    assert (await cluster.get(kinds.JOB, "train"))["spec"]["suspend"] is True


async def test_a_gang_that_does_not_come_up_goes_back_and_is_given_up_in_the_end(quiet: Cluster) -> None:
    rules = PodsReady(timeout=1.0, backoff_base=1.0, backoff_limit=1)
    decided = decide(quiet, QueueSettings(pods_ready=rules))
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made,) = await make(quiet, job("train", 2))  # no kubelet runs pods here
    name = name_of(made)
    out = await quiet.until(kinds.WORKLOAD, name, true("Evicted"))
    assert said(out, "Evicted") == ("True", "PodsReadyTimeout", f"Exceeded the PodsReady timeout default/{name}")
    assert out["status"]["requeueState"]["count"] == 1
    assert said(out, "PodsReady")[:2] == ("False", "WaitForStart")
    ended = await quiet.until(kinds.WORKLOAD, name, lambda one: one["spec"]["active"] is False)
    ended = await quiet.until(
        kinds.WORKLOAD, name, lambda one: said(one, "Evicted")[1] == "DeactivatedDueToRequeuingLimitExceeded"
    )
    assert "requeueState" not in ended["status"]
    await quiet.settled()
    told = {
        (sample.name, *(sample.labels.get(one) for one in ("cluster_queue", "reason", "underlying_cause")))
        for family in decided.metrics.collect()
        for sample in family.samples
        if sample.value
    }
    for kind in ("evicted_workloads", "evicted_workloads_once"):  # each reason with what lies under it, as Kueue
        assert (f"kueue_{kind}_total", "cluster-queue", "PodsReadyTimeout", "WaitForStart") in told
        assert (f"kueue_{kind}_total", "cluster-queue", "Deactivated", "RequeuingLimitExceeded") in told


async def test_pods_that_become_ready_are_told(quiet: Cluster) -> None:
    decide(quiet, QueueSettings(pods_ready=PodsReady()))
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made,) = await make(quiet, job("train", 1))
    (pod,) = await pods_of(quiet, "train", 1)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await quiet.client.patch(kinds.POD, pod["metadata"]["name"], "default", {"status": ready}, subresource="status")
    up = await quiet.until(kinds.WORKLOAD, name_of(made), true("PodsReady"))
    assert said(up, "PodsReady")[1:] == ("Started", "All pods reached readiness and the workload is running")


async def test_what_is_deleted_stops_and_leaves_nothing(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", 2))
    await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await cluster.client.delete(kinds.JOB, "train", "default", propagation="Background")
    await cluster.until_gone(kinds.WORKLOAD, name_of(made))
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (0, 0, 0))
    queue = await cluster.get(kinds.CLUSTER_QUEUE, "cluster-queue")
    assert usage(queue) == {"cpu": "0", "memory": "0"}


async def test_a_workload_whose_job_was_orphaned_away_is_finished(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", 2))
    await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await cluster.client.delete(kinds.JOB, "train", "default", propagation="Orphan")
    ended = await cluster.until(kinds.WORKLOAD, name_of(made), true("Finished"))
    assert said(ended, "Finished")[1] == "OwnerNotFound"
    await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: not one["metadata"].get("finalizers"))


async def test_a_deleted_workload_stops_its_job_and_is_made_again(cluster: Cluster) -> None:
    (made,) = await make(cluster, job("train", 2))
    workload = await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await cluster.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await cluster.client.delete(kinds.WORKLOAD, name_of(made), "default")
    again = await cluster.until(
        kinds.WORKLOAD,
        name_of(made),
        lambda one: one["metadata"]["uid"] != workload["metadata"]["uid"] and true("Admitted")(one),
    )
    assert again["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


def no_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: QueueController) -> None:
        return None

    monkeypatch.setattr(QueueController, "_check_now_and_then", never)


@proven(without=no_self_check)
async def test_f014_an_admitted_gang_that_stays_suspended_is_found(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14: admitted, and the job stays suspended. Holds: a look now and then finds it, whatever was heard."""
    decide(quiet, QueueSettings(check_seconds=0.4))
    await make(quiet, flavor(), cluster_queue(), local_queue())
    started = reconciler.QueueReconciler._start
    clock = asyncio.get_running_loop()
    begun: list[float] = []

    async def loses(self: reconciler.QueueReconciler, workload: object, kind: object, found: Json) -> None:
        begun.append(clock.time())
        if clock.time() > begun[0] + 1.0:  # until then as if the controller had not come back to it
            await started(self, workload, kind, found)  # type: ignore[arg-type]

    monkeypatch.setattr(reconciler.QueueReconciler, "_start", loses)
    (made,) = await make(quiet, job("train"))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)


def counted_as_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayJobs, "is_on_hold", lambda self, found: False)


@proven(without=counted_as_active)
async def test_f032_a_ray_job_that_can_have_no_pods_holds_no_quota(cluster: Cluster) -> None:
    """F32: a RayJob stays in ValidationFailed. Holds: its quota goes to others, and it is not given any again until
    somebody corrects it."""
    (made,) = await make(cluster, ray_job("broken", 1))
    name = name_of(made, "RayJob", "ray.io")
    await cluster.until(kinds.RAY_JOB, "broken", lambda one: one["spec"]["suspend"] is False)
    broken = {"status": {"jobDeploymentStatus": "ValidationFailed"}}
    await cluster.client.patch(kinds.RAY_JOB, "broken", "default", broken, subresource="status")
    released = await cluster.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(released, "QuotaReserved")[1:] == ("OnHold", "Job is on hold")
    (other,) = await make(cluster, job("other", 4))
    await cluster.until(kinds.WORKLOAD, name_of(other), true("Admitted"))


async def test_a_start_that_is_refused_goes_back_with_the_refusal(cluster: Cluster) -> None:
    def refuses(request: AdmissionRequest) -> AdmissionVerdict:
        starts = request.object is not None and request.object["spec"].get("suspend") is False
        return AdmissionVerdict(not starts, "not on a Sunday")

    cluster.server.admission.judges[("batch", "jobs")] = refuses
    (made,) = await make(cluster, job("train", 4))
    back = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "Requeued")[0] == "False")
    assert said(back, "Evicted")[1] == "StartRefused"
    assert "not on a Sunday" in said(back, "Evicted")[2]
    assert said(back, "QuotaReserved")[0] == "False"
    assert "requeueAt" in back["status"]["requeueState"]
