"""What a RayCluster survives."""

from __future__ import annotations

import uuid

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.times import seconds_text
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import backoff, cluster_pods, deletion, redis_cleanup, slots, workers
from shoal.controllers.ray.cluster import reconciler as cluster
from shoal.controllers.ray.pods import fault_tolerance, observed
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.cache import Cache
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.unit.ray.builders import group, ray_cluster
from tests.unit.ray.test_cluster import READY, all_ready, conditions, created, patch, pods
from tests.unit.ray.test_cluster import cluster as read


def blind_to_own_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "note_write", lambda self, obj: None)
    monkeypatch.setattr(slots.names, "suffix", lambda *parts: uuid.uuid4().hex[:5])


@proven(without=blind_to_own_writes)
async def test_f055_no_pod_is_doubled_when_the_cache_lags_behind_our_own_writes(stage):
    """F55: the watch of pods is silent while the same key is reconciled again. Holds: every place has one pod."""
    caches = stage.operator.caches
    for cache, task in zip(caches.all(), stage.tasks, strict=False):
        if cache is not caches.clusters:
            task.cancel()  # it hears nothing any more
    await stage.client.create(kinds.RAY_CLUSTER, ray_cluster(), "default")
    await stage._quiet_caches()
    for _ in range(4):
        stage.operator.clusters.enqueue(Key("default", "demo"))
        await stage.operator.clusters.until_idle()
    assert len(pods(stage)) == 3


def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_pods.ClusterPods, "_delete_pod", _ignore)


async def _ignore(*args: object) -> None:
    return None


@proven(without=no_choice)
async def test_f075_of_two_heads_the_ready_one_stays(stage):
    """F75: a second head pod appears. Holds: exactly one is kept, the ready one, and the cluster goes on."""
    await created(stage)
    await all_ready(stage)
    kept = view.name(pods(stage, names.HEAD_GROUP)[0])
    await stage.play({"do": "dupHead", "name": "demo"})
    second = next(pod for pod in pods(stage, names.HEAD_GROUP) if view.name(pod) != kept)
    await stage.client.patch(
        kinds.POD, view.name(second), "default", {"status": {"conditions": []}}, subresource="status"
    )
    await stage.settle()
    assert [view.name(pod) for pod in pods(stage, names.HEAD_GROUP)] == [kept]


def anyone_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "may_choose", lambda cluster, settings: True)


@proven(without=anyone_may_choose)
async def test_f076_an_autoscaled_group_loses_only_the_named_workers(stage):
    """F76: the autoscaler lowers replicas and names one worker. Holds: that one goes and no other."""
    await created(stage, group(replicas=3), enableInTreeAutoscaling=True)
    await all_ready(stage)
    before = {view.name(pod) for pod in pods(stage, "workers")}
    await patch(stage, workerGroupSpecs=[group(replicas=1)])  # lowered without a name: no worker may be chosen
    assert {view.name(pod) for pod in pods(stage, "workers")} == before
    await stage.play({"do": "workersToDelete", "name": "demo", "groupIndex": 0, "count": 1, "replicas": 2})
    named = (await read(stage))["spec"]["workerGroupSpecs"][0]["scaleStrategy"]["workersToDelete"]
    await stage.settle()
    assert before - {view.name(pod) for pod in pods(stage, "workers")} == set(named)


def never_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.observed, "is_dead", lambda pod: False)


@proven(without=never_dead)
async def test_f077_named_pods_that_failed_or_vanished_do_not_block_scaling(stage):
    """F77: the autoscaler names a pod that is gone, another failed. Holds: both count as done, wanted pods stand."""
    await created(stage, group(replicas=3), enableInTreeAutoscaling=True)
    await all_ready(stage)
    failed, vanished, _ = sorted(map(view.name, pods(stage, "workers")))
    await stage.client.delete(kinds.POD, vanished, "default")
    await stage.client.patch(kinds.POD, failed, "default", {"status": {"phase": "Failed"}}, subresource="status")
    listed = {"workersToDelete": [vanished, "never-existed"]}
    await patch(stage, workerGroupSpecs=[group(replicas=2, scaleStrategy=listed)])
    left = {view.name(pod) for pod in pods(stage, "workers")}
    assert len(left) == 2
    assert not left & {failed, vanished}


def no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "_time_left", lambda cluster, clock: 300.0)


@proven(without=no_deadline)
async def test_f080_a_clean_up_that_can_never_run_releases_the_cluster(stage):
    """F80: the Redis clean-up Job never ends. Holds: after the deadline the finalizer goes, with an event."""
    await created(stage, gcsFaultToleranceOptions={"redisAddress": "redis:6379"})
    await stage.client.delete(kinds.RAY_CLUSTER, "demo", "default")
    await stage.settle()
    assert len(stage.objects(kinds.RAY_CLUSTER)) == 1
    stage.clock.advance(301)
    await stage.settle()
    assert stage.objects(kinds.RAY_CLUSTER) == []
    assert any(event["reason"] == "ForceDeletedStuckCluster" for event in stage.objects(kinds.EVENT))


async def test_a_clean_up_job_that_is_refused_does_not_hold_the_cluster_either(stage):
    pod = {"restartPolicy": "Never", "containers": [{"name": "theirs", "image": "busybox"}]}
    theirs = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "demo-redis-cleanup"}}
    await stage.client.create(kinds.JOB, {**theirs, "spec": {"template": {"spec": pod}}}, "default")
    await created(stage, gcsFaultToleranceOptions={"redisAddress": "redis:6379"})
    await stage.client.delete(kinds.RAY_CLUSTER, "demo", "default")
    await stage.settle()
    stage.clock.advance(301)
    await stage.settle()
    assert stage.objects(kinds.RAY_CLUSTER) == []


def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_tolerance, "storage_namespace", view.name)


@proven(without=by_name)
def test_f081_a_new_cluster_of_an_old_name_has_storage_of_its_own():
    """F81: a cluster is deleted and recreated under its name. Holds: the Redis namespace is the UID, never the name."""
    options = {"redisAddress": "redis:6379"}
    first = ray_cluster(metadata={"uid": "one"}, gcsFaultToleranceOptions=options)
    second = ray_cluster(metadata={"uid": "two"}, gcsFaultToleranceOptions=options)
    spaces = []
    for made in (first, second):
        container = redis_cleanup.cleanup_job(made, RaySettings())["spec"]["template"]["spec"]["containers"][0]
        spaces.append(view.env_value(container, "RAY_external_storage_namespace"))
    assert spaces == ["one", "two"]


def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff.Replacements, "wait", lambda self, uid, group: 0.0)


@proven(without=no_pause)
async def test_f084_a_head_that_keeps_dying_is_told_and_not_made_again_at_once(stage):
    """F84: the head is killed for its memory again and again. Holds: the reason is shown, and tries pause."""
    killed = [{"name": "ray-head", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
    await created(stage)
    head = {names.NODE_TYPE: names.HEAD}
    await stage.play({"do": "setPods", "phase": "Failed", "match": head, "containerStatuses": killed})
    await stage.settle()
    assert len(pods(stage, names.HEAD_GROUP)) == 1  # the first time at once
    stage.clock.advance(5)
    await stage.play({"do": "setPods", "phase": "Failed", "match": head, "containerStatuses": killed})
    await stage.settle()
    assert pods(stage, names.HEAD_GROUP) == []
    assert any("OOMKilled, exit code 137" in event["message"] for event in stage.objects(kinds.EVENT))
    stage.clock.advance(11)
    await stage.settle()
    assert len(pods(stage, names.HEAD_GROUP)) == 1


async def test_a_small_head_is_warned_about(stage):
    small = ray_cluster()
    small["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"memory": "512Mi"}
    await stage.client.create(kinds.RAY_CLUSTER, small, "default")
    await stage.settle()
    assert any("512Mi" in event["message"] for event in stage.objects(kinds.EVENT) if event["type"] == "Warning")


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster, cluster_pods):
        monkeypatch.setattr(module, "PodTrouble", _Swallowed)


class _Swallowed(Exception):
    def __init__(self, reason: str, error: Exception) -> None:
        super().__init__(str(error))
        self.failure, self.error = None, error


@proven(without=silent)
async def test_f085_workers_beyond_the_quota_are_told_and_come_when_there_is_room(stage):
    """F85: the autoscaler asks for more than the quota. Holds: what runs stays, the refusal is shown, room helps."""
    await created(stage, group(replicas=1), enableInTreeAutoscaling=True)
    await all_ready(stage)
    await stage.play({"do": "quota", "deny": True})
    denied = await patch(stage, workerGroupSpecs=[group(replicas=4)])
    assert len(pods(stage, "workers")) == 1
    assert "exceeded quota" in conditions(denied)["ReplicaFailure"]["message"]
    await stage.play({"do": "quota", "deny": False})
    await stage.settle()
    assert len(pods(stage, "workers")) == 4
    assert "ReplicaFailure" not in conditions(await read(stage))


def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    build = cluster_pods.builder.worker_pod

    def without_gates(*arguments, **more):
        pod = build(*arguments, **more)
        pod["spec"].pop("schedulingGates", None)
        return pod

    monkeypatch.setattr(cluster_pods.builder, "worker_pod", without_gates)


@proven(without=ungated)
async def test_f085_growth_that_no_queue_admitted_is_gated_told_and_released(stage):
    """F85: the autoscaler asks for more than a queue has admitted. Holds: the new workers carry the queue's gate and
    take no room, the cluster says which gate holds them, and they count as soon as it is gone."""
    gate = {"name": "kueue.x-k8s.io/elastic-job"}
    grown = group(replicas=3)
    await created(stage, group(replicas=1), enableInTreeAutoscaling=True)
    await all_ready(stage)
    grown["template"]["spec"]["schedulingGates"] = [gate]  # as a queue writes it into the template
    await patch(stage, workerGroupSpecs=[grown])
    held = [pod for pod in pods(stage, "workers") if pod["spec"].get("schedulingGates")]
    assert len(held) == 2
    stage.clock.advance(61)
    await stage.settle()
    told = conditions(await read(stage))["Degraded"]["message"]
    assert "1 of 3 workers are ready" in told
    assert "scheduling gate kueue.x-k8s.io/elastic-job" in told
    for pod in held:
        await stage.client.patch(kinds.POD, view.name(pod), "default", {"spec": {"schedulingGates": None}})
    await all_ready(stage)
    assert "Degraded" not in conditions(await read(stage))
    assert len(pods(stage, "workers")) == 3


async def test_a_provisioned_cluster_that_lost_its_head_is_degraded_after_a_minute(stage):
    await created(stage)
    await all_ready(stage)
    await stage.play({**READY, "ready": False, "match": {names.NODE_TYPE: names.HEAD}})
    await stage.settle()
    assert "Degraded" not in conditions(await read(stage))
    stage.clock.advance(61)
    await stage.settle()
    assert "head is not ready" in conditions(await read(stage))["Degraded"]["message"]


def test_pods_of_an_earlier_cluster_of_the_same_name_are_not_ours(stage: Stage):
    old = ray_cluster(metadata={"uid": "old"})
    new = ray_cluster(metadata={"uid": "new"})
    pod = {
        "metadata": {
            "name": "demo-head-x", "namespace": "default", "uid": "p", "resourceVersion": "1",
            "labels": {names.CLUSTER: "demo", names.NODE_TYPE: names.HEAD},
            "ownerReferences": [view.owner_reference(old, "ray.io/v1", "RayCluster")],
            "creationTimestamp": seconds_text(stage.clock.now()),
        }
    }  # fmt: skip
    caches: Caches = stage.operator.caches
    caches.pods.note_write(pod)
    assert len(caches.pods_of(old)) == 1
    assert caches.pods_of(new) == []


def what_the_pod_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "ray_terminated", lambda pod: None)


@proven(without=what_the_pod_says_counts)
async def test_f352_a_worker_whose_ray_ended_for_good_is_replaced_though_its_pod_runs_on(stage):
    """F352: a worker that never restarts has lost its Ray container, a sidecar keeps its pod Running and Ready. Holds:
    another takes its place, and meanwhile it is not counted."""
    body = ray_cluster()
    for worker in body["spec"]["workerGroupSpecs"]:
        worker["template"]["spec"]["restartPolicy"] = "Never"
    await stage.client.create(kinds.RAY_CLUSTER, body, "default")
    await stage.settle()
    await stage.play({"do": "setPods", "phase": "Running", "ready": True})
    await stage.settle()
    workers = {names.NODE_TYPE: names.WORKER}
    before = {view.uid(pod) for pod in stage.objects(kinds.POD) if view.labels(pod)[names.NODE_TYPE] == names.WORKER}
    ray = stage.objects(kinds.POD)[-1]["spec"]["containers"][0]["name"]
    ended = [{"name": ray, "state": {"terminated": {"reason": "Error", "exitCode": 1}}}]
    await stage.play({"do": "setPods", "phase": "Running", "match": workers, "containerStatuses": ended})
    await stage.settle()
    after = {view.uid(pod) for pod in stage.objects(kinds.POD) if view.labels(pod)[names.NODE_TYPE] == names.WORKER}
    assert before and len(after) == len(before) and not before & after
    assert stage.objects(kinds.RAY_CLUSTER)[0]["status"].get("readyWorkerReplicas", 0) == 0


def stores_empty_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "stored_part", lambda status: status)


@proven(without=stores_empty_texts)
async def test_f783_a_cluster_without_a_state_has_no_such_field(stage):
    """F783: a client asks for a cluster that is not ready yet and takes `status.state` for one of KubeRay's words, as
    codeflare-sdk does. Holds: the field is not there until it has one, nor is an empty `reason`."""
    await created(stage)
    found = await read(stage)
    assert found["status"]["desiredWorkerReplicas"] == 2
    assert not {"state", "reason"} & set(found["status"])
    await all_ready(stage)
    assert (await read(stage))["status"]["state"] == "ready"
    resumed = await patch(stage, suspend=True), await patch(stage, suspend=False)
    assert [one["status"].get("state") for one in resumed] == ["suspended", None]
