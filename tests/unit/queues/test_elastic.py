"""Elastic Ray clusters in queues: admitted with their floor, they grow into free quota and give it back."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings, admission
from shoal.controllers.queues.jobs import BY_NAME
from shoal.engine.kueue.kueue import Kueue
from shoal.engine.kueue.surplus import SurplusLedger
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.queues.build import (
    cluster_queue,
    condition,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    ray_job,
    true,
    usage,
)
from tests.unit.queues.conftest import decide
from tests.unit.queues.elastic_build import GATE, is_gated, is_open, pod, ray_cluster, running, started, told


async def test_it_is_admitted_with_its_floor_whatever_it_bids(cluster: Cluster) -> None:
    of = await started(cluster, ray_cluster("ray", 1, replicas=6))
    workload = await cluster.until(kinds.WORKLOAD, name_of(of, "RayCluster", "ray.io"), true("Admitted"))
    given = {one["name"]: one["count"] for one in workload["status"]["admission"]["podSetAssignments"]}
    assert given == {"head": 1, "small": 1}
    assert workload["metadata"]["annotations"][GATE] == "true"
    for holder in (of["spec"]["headGroupSpec"], of["spec"]["workerGroupSpecs"][0]):
        assert holder["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
        marks = holder["template"]["metadata"]["annotations"]
        assert marks["kueue.x-k8s.io/workload-slice-name"] == workload["metadata"]["name"]
    assert of["spec"]["workerGroupSpecs"][0]["replicas"] == 6, "what the user, or Ray, has written stays"


async def test_workers_come_as_far_as_quota_goes_and_the_queue_shows_them(cluster: Cluster) -> None:
    of = await running(cluster)
    for index in range(3):
        await pod(cluster, of, f"more-{index:02}")
    opened = [await cluster.until(kinds.POD, f"more-{index:02}", is_open) for index in range(2)]
    await cluster.settled()
    last = await cluster.get(kinds.POD, "more-02")
    assert len(opened) == 2 and is_gated(last) and not last["spec"].get("nodeName")
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: usage(one).get("cpu") == "4")
    assert (
        "more-02 is more than was admitted and waits: insufficient unused quota"
        in (await told(cluster, "GrowthWaits"))[0]
    )
    await cluster.client.delete(kinds.POD, "more-00", "default")
    await cluster.until(kinds.POD, "more-02", is_open)


def everything_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kueue, "growth", lambda self, key, pod_set: ({}, ()))


@proven(without=everything_comes)
async def test_f500_bids_beyond_quota_stay_behind_their_gate(cluster: Cluster) -> None:
    """F500: Ray's autoscaler asks for more workers than the queue has quota for. Holds: those stay gated and uncharged,
    and the cluster's spec is as it was written."""
    of = await running(cluster)
    wider = {**of["spec"]["workerGroupSpecs"][0], "replicas": 6}
    await cluster.client.patch(kinds.RAY_CLUSTER, "ray", "default", {"spec": {"workerGroupSpecs": [wider]}})
    for index in range(5):
        await pod(cluster, of, f"more-{index:02}")
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: usage(one).get("cpu") == "4")
    await cluster.settled()
    pods = [await cluster.get(kinds.POD, f"more-{index:02}") for index in range(5)]
    assert sum(map(is_open, pods)) == 2
    stored = await cluster.get(kinds.RAY_CLUSTER, "ray")
    assert stored["spec"]["suspend"] is False and stored["spec"]["workerGroupSpecs"][0]["replicas"] == 6


def as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SurplusLedger, "in_the_way", lambda self, node, wanted, records: (False, []))


@proven(without=as_if_it_were_not_there)
async def test_f501_a_gang_that_needs_the_quota_gets_it_from_surplus(cluster: Cluster) -> None:
    """F501: a gang waits for quota that an elastic cluster has beyond its floor. Holds: the surplus leaves, the floor
    stays, no gang is preempted, and the gang starts only once the quota is free."""
    of = await running(cluster)
    for index in range(2):
        await pod(cluster, of, f"more-{index:02}")
        await cluster.until(kinds.POD, f"more-{index:02}", is_open)
    (next_one,) = await make(cluster, job("next", 2))
    await cluster.until(kinds.WORKLOAD, name_of(next_one), true("Admitted"))
    names = await cluster.names(kinds.POD)
    assert {"ray-head", "ray-floor-0"} <= set(names) and not {"more-00", "more-01"} & set(names)
    ray = await cluster.get(kinds.WORKLOAD, name_of(of, "RayCluster", "ray.io"))
    assert condition(ray, "Evicted") == {} and true("Admitted")(ray)
    assert len(await told(cluster, "Shrunk")) == 2
    await pod(cluster, of, "again")
    await cluster.settled()
    assert is_gated(await cluster.get(kinds.POD, "again"))
    await cluster.client.delete(kinds.JOB, "next", "default", propagation="Background")
    await cluster.until(kinds.POD, "again", is_open)


async def test_a_gang_that_needs_only_room_gets_it_from_surplus(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "100", "memory": "900Gi"}), local_queue())
    of = await running(quiet)
    for index in range(15):
        await pod(quiet, of, f"more-{index:02}")
    for index in range(14):
        await quiet.until(kinds.POD, f"more-{index:02}", is_open)
    await quiet.settled()
    assert is_gated(await quiet.get(kinds.POD, "more-14")), "the node has sixteen cores"
    (next_one,) = await make(quiet, job("next", 4))
    await quiet.until(kinds.WORKLOAD, name_of(next_one), true("Admitted"))
    left = [name for name in await quiet.names(kinds.POD) if name.startswith("more-")]
    assert len(left) == 11, "four of those that ran are gone, and no more"


async def test_after_a_restart_what_was_granted_is_charged(quiet: Cluster) -> None:

    first = quiet.start(planned(quiet.client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings()).run())
    await make(quiet, flavor(), cluster_queue(), local_queue())
    of = await running(quiet)
    for index in range(2):
        await pod(quiet, of, f"more-{index:02}")
        await quiet.until(kinds.POD, f"more-{index:02}", is_open)
    first.cancel()
    made = planned(quiet.client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    quiet.start(made.run())
    await pod(quiet, of, "third")
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: usage(one).get("cpu") == "4")
    await quiet.settled()
    assert is_gated(await quiet.get(kinds.POD, "third"))


async def test_why_says_what_it_would_like_and_lacks(quiet: Cluster) -> None:
    queues = decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    of = await running(quiet)
    for index in range(3):
        await pod(quiet, of, f"more-{index:02}")
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: usage(one).get("cpu") == "4")
    await quiet.settled()
    asked = queues.subject("ray.io", "RayCluster", Key("default", "ray"))
    assert asked is not None and asked.reason == "Running"
    assert asked.message.startswith("it has 2 pod(s) beyond its admission")
    assert "it would like 1 more pod(s): insufficient unused quota for cpu in flavor default-flavor" in asked.message


async def test_replicas_that_a_user_raises_by_hand_grow_too(cluster: Cluster) -> None:
    by_hand = ray_cluster("ray", 1)
    by_hand["spec"]["enableInTreeAutoscaling"] = False
    of = await started(cluster, by_hand)
    await pod(cluster, of, "ray-head", "head")
    await pod(cluster, of, "ray-floor-0")
    group = {**of["spec"]["workerGroupSpecs"][0], "replicas": 2}
    of = await cluster.client.patch(kinds.RAY_CLUSTER, "ray", "default", {"spec": {"workerGroupSpecs": [group]}})
    await pod(cluster, of, "more-00")
    await cluster.until(kinds.POD, "more-00", is_open)
    await cluster.settled()
    assert (await cluster.get(kinds.RAY_CLUSTER, "ray"))["spec"]["suspend"] is False


async def test_a_ray_job_is_admitted_with_its_floor_and_its_submitter_is_not_gated(cluster: Cluster) -> None:
    made = ray_job("train", 1)
    made["metadata"]["annotations"] = {GATE: "true"}
    rays = made["spec"]["rayClusterSpec"]
    rays["enableInTreeAutoscaling"] = True
    rays["autoscalerOptions"] = ray_cluster("ray")["spec"]["autoscalerOptions"]
    rays["workerGroupSpecs"][0] |= {"replicas": 3, "maxReplicas": 5}
    (stored,) = await make(cluster, made)
    started_job = await cluster.until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
    workload = await cluster.get(kinds.WORKLOAD, name_of(stored, "RayJob", "ray.io"))
    given = {one["name"]: one["count"] for one in workload["status"]["admission"]["podSetAssignments"]}
    assert given == {"head": 1, "small": 1, "submitter": 1}
    spec = started_job["spec"]
    for holder in (spec["rayClusterSpec"]["headGroupSpec"], spec["rayClusterSpec"]["workerGroupSpecs"][0]):
        assert holder["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
    assert "schedulingGates" not in spec["submitterPodTemplate"]["spec"]
    assert spec["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 3


def review(made: Json, old: Json | None = None) -> AdmissionRequest:
    kind = GroupVersionKind(group="ray.io", version="v1", kind=made["kind"])
    operation = "CREATE" if old is None else "UPDATE"
    return AdmissionRequest(
        uid="1", kind=kind, operation=operation, name=made["metadata"]["name"], namespace="default", object=made,
        old_object=old,
    )  # fmt: skip


def test_admission_marks_a_cluster_that_ray_scales() -> None:
    made = ray_cluster("ray")
    del made["metadata"]["annotations"]
    changed = admission.prepare(review(made)).changed
    assert changed is not None and changed["metadata"]["annotations"] == {GATE: "true"}
    assert admission.validate(review(changed)).allowed
    refused = admission.validate(review(made))
    assert not refused.allowed and "only as an elastic job" in refused.message
    made["metadata"]["annotations"] = {GATE: "false"}
    assert (admission.prepare(review(made)).changed or made)["metadata"]["annotations"] == {GATE: "false"}


@pytest.mark.parametrize(
    "head, ready, is_ready",
    [("True", 1, True), ("True", 0, False), ("False", 1, False)],
)
def test_an_elastic_cluster_is_ready_with_its_floor(head: str, ready: int, is_ready: bool) -> None:
    made = ray_cluster("ray", 1, replicas=5)
    made["status"] = {"readyWorkerReplicas": ready, "conditions": [{"type": "HeadPodReady", "status": head}]}
    assert BY_NAME["ray.io", "RayCluster"].are_pods_ready(made, {"head": 1, "small": 1}) is is_ready
