"""Whether a gang may stand in its queue: gates of other controllers, queues that drain or go, what `Admitted` says."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.queues import QueueSettings, standing
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.reconciler import QueueReconciler
from tests.cluster import Cluster
from tests.conformance.kueue_stage import Stage
from tests.faults import proven
from tests.unit.queues.build import (
    cluster_queue,
    condition,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    provisioning_check,
    provisioning_config,
    said,
    template,
    true,
)
from tests.unit.queues.conftest import decide

GATES = "kueue.x-k8s.io/admission-gated-by"
NONE = ("False", "NoReservation", "The workload has no reservation")


async def test_a_gated_gang_waits_until_its_gate_is_taken_away(cluster: Cluster) -> None:
    gated = job("train")
    gated["metadata"]["annotations"] = {GATES: "lab.example/budget"}
    (made,) = await make(cluster, gated)
    held = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))
    assert said(held, "QuotaReserved") == ("False", "AdmissionGated", "Admission is gated by: lab.example/budget")
    assert said(held, "Admitted") == NONE
    await cluster.client.patch(kinds.JOB, "train", "default", {"metadata": {"annotations": {GATES: None}}})
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))


async def test_a_gang_that_waits_says_that_it_is_not_admitted(cluster: Cluster) -> None:
    (first,) = await make(cluster, job("first", 4))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (made,) = await make(cluster, job("second", 4))
    waiting = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "Admitted")))
    assert said(waiting, "Admitted") == NONE


async def test_explicit_status_tells_of_a_gang_before_it_was_looked_at() -> None:
    stage = Stage("2026-01-01T12:00:00Z", QueueSettings(explicit_status=True))
    queues = ((kinds.CLUSTER_QUEUE, cluster_queue()), (kinds.LOCAL_QUEUE, local_queue()))
    for kind, obj in ((kinds.RESOURCE_FLAVOR, flavor()), *queues):
        stage.give(kind, obj)
    spec = {"queueName": "user-queue", "podSets": [{"name": "main", "count": 1, "template": template(cpu="1")}]}
    stage.give(kinds.WORKLOAD, {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})
    stage.begin()
    await stage.look(Key("default", "train"))
    (told,) = stage.store.all(kinds.WORKLOAD)
    waits = "Workload is pending evaluation in the scheduling queue"
    assert said(told, "QuotaReserved") == ("False", "PendingEvaluation", waits)


async def reserved(cluster: Cluster) -> str:
    """A gang with quota whose check is not answered; returns the name of its Workload."""
    decide(cluster)
    await make(cluster, provisioning_config(), provisioning_check(), flavor(), cluster_queue(checks=["nodes"]))
    await make(cluster, local_queue())
    (made,) = await make(cluster, job("train"))
    await cluster.until(kinds.WORKLOAD, name_of(made), true("QuotaReserved"))
    return name_of(made)


def only_the_first_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def drained(draft, caches: QueueCaches, evict) -> bool:  # type: ignore[no-untyped-def]
        found = caches.stopped_queue(draft.workload)
        if found is not None and found[2] == "HoldAndDrain":
            evict(draft, f"{found[0]}Stopped", f"The {found[0]} is stopped")
        return found is not None

    monkeypatch.setattr(standing, "drain", drained)


@proven(without=only_the_first_queue)
async def test_f371_a_held_queue_hides_no_queue_that_drains(cluster: Cluster) -> None:
    """F371: of the two queues above a running gang one is held, and the other is to be drained. Holds: the gang leaves,
    whichever of the two it is."""
    (made,) = await make(cluster, job("train"))
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await cluster.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"stopPolicy": "Hold"}})
    await cluster.client.patch(kinds.LOCAL_QUEUE, "user-queue", "default", {"spec": {"stopPolicy": "HoldAndDrain"}})
    drained = await cluster.until(kinds.WORKLOAD, name_of(made), true("Evicted"))
    assert said(drained, "Evicted") == ("True", "LocalQueueStopped", "The LocalQueue is stopped")


async def test_quota_that_is_not_used_yet_goes_with_its_queue(quiet: Cluster) -> None:
    name = await reserved(quiet)
    await quiet.client.delete(kinds.LOCAL_QUEUE, "user-queue", "default")
    released = await quiet.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(released, "QuotaReserved")[1] == "Misconfigured"
    assert not released["status"].get("admission")


async def test_a_reservation_without_checks_stays_while_its_queue_is_missing(cluster: Cluster) -> None:
    """Whatever wrote it is about to admit it, as Kueue's own webhook tests do; here no node has room for it."""
    spec = {"queueName": "none", "podSets": [{"name": "main", "count": 1, "template": template(cpu="100")}]}
    metadata = {"name": "train", "namespace": "default"}
    made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "spec": spec}
    await cluster.create(kinds.WORKLOAD, made)
    assignment = {"name": "main", "count": 1, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": "100"}}
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "by hand"}
    status = {
        "admission": {"clusterQueue": "gone", "podSetAssignments": [assignment]},
        "conditions": [{**reserved, "lastTransitionTime": "2026-01-01T11:59:00Z"}],
    }
    await cluster.client.patch(kinds.WORKLOAD, "train", "default", {"status": status}, subresource="status")
    await cluster.settled()
    told = await cluster.get(kinds.WORKLOAD, "train")
    assert said(told, "QuotaReserved")[0] == "True"
    assert told["status"]["admission"]["clusterQueue"] == "gone"


async def test_a_deactivated_gang_without_quota_says_so(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue())
    (made,) = await make(quiet, job("train"))
    name = name_of(made)
    await quiet.until(kinds.WORKLOAD, name, lambda one: bool(condition(one, "QuotaReserved")))
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    off = await quiet.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[1] == "Deactivated")
    assert said(off, "Evicted")[:2] == ("True", "Deactivated") and not condition(off, "Requeued")
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
    await make(quiet, local_queue())
    await quiet.until(kinds.WORKLOAD, name, true("Admitted"))


def jobs_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def believed(reconciler: QueueReconciler, workload: object, found: object) -> bool:
        return True

    monkeypatch.setattr(QueueReconciler, "_is_confirmed", believed)


@proven(without=jobs_are_believed)
async def test_f279_quota_stays_while_the_server_says_that_the_job_runs() -> None:
    """F279: a running gang is evicted while the controller's view of Jobs is from before its start. Holds: its quota
    comes back once the server says that the job has stopped."""
    stage = Stage("2026-01-01T12:00:00Z", QueueSettings())
    stage.queues.reconciler._pods_left = lambda uid: 0
    for kind, obj in (
        (kinds.RESOURCE_FLAVOR, flavor()),
        (kinds.CLUSTER_QUEUE, cluster_queue()),
        (kinds.LOCAL_QUEUE, local_queue()),
    ):
        stage.give(kind, obj)
    body = job("train")
    known = stage.give(kinds.JOB, body)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": known["metadata"]["uid"]}
    metadata = {"name": name_of(known), "namespace": "default", "ownerReferences": [{**owner, "controller": True}]}
    assignment = {"name": "main", "count": 1, "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": "1"}}
    at = {"lastTransitionTime": "2026-01-01T11:59:00Z", "status": "True", "message": ""}
    conditions = [{"type": one, "reason": one, **at} for one in ("QuotaReserved", "Admitted")]
    conditions.append({"type": "Evicted", "reason": "Deactivated", **at})
    spec = {"queueName": "user-queue", "podSets": [{"name": "main", "count": 1, "template": body["spec"]["template"]}]}
    status = {
        "admission": {"clusterQueue": "cluster-queue", "podSetAssignments": [assignment]},
        "conditions": conditions,
    }
    stage.give(kinds.WORKLOAD, {"metadata": metadata, "spec": {**spec, "active": False}, "status": status})
    stage.begin()
    running = await stage.store.patch(kinds.JOB, "train", "default", {"spec": {"suspend": False}})
    await stage.look(Key("default", name_of(known)))
    (kept,) = stage.store.all(kinds.WORKLOAD)
    assert said(kept, "QuotaReserved")[0] == "True"
    stopped = await stage.store.patch(kinds.JOB, "train", "default", {"spec": {"suspend": True}})
    for seen in (running, stopped):
        stage.see(kinds.JOB, seen)
    await stage.look(Key("default", name_of(known)))
    (released,) = stage.store.all(kinds.WORKLOAD)
    assert said(released, "QuotaReserved")[0] == "False"
