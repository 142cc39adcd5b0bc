"""What a RayCluster becomes: pods, Services, status. Read through the API server, as a user would."""

from __future__ import annotations

import pytest

from shoal.api import gang, kinds
from shoal.controllers.ray import RaySettings, names, view
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import container, group, ray_cluster

READY = {"do": "setPods", "phase": "Running", "ready": True}


async def created(stage: Stage, *groups, **more):
    await stage.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", *groups, **more), "default")
    await stage.settle()
    return await cluster(stage)


async def cluster(stage: Stage, name: str = "demo"):
    return await stage.client.get(kinds.RAY_CLUSTER, name, "default")


async def all_ready(stage: Stage):
    await stage.play(READY)
    await stage.settle()
    return await cluster(stage)


async def patch(stage: Stage, **spec):
    await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": spec})
    await stage.settle()
    return await cluster(stage)


def pods(stage: Stage, group_name: str | None = None):
    return [pod for pod in stage.objects(kinds.POD) if group_name in (None, view.labels(pod).get(names.GROUP))]


def conditions(obj):
    return {one["type"]: one for one in obj["status"]["conditions"]}


async def test_the_straight_path_costs_the_fewest_writes():
    """Three pods, one Service, two status writes; events aside nothing else."""
    stage = Stage(RaySettings(), status_delay=2.0)
    await stage.start()
    await created(stage)
    await all_ready(stage)
    found = await cluster(stage)
    stage.clock.advance(2)
    await stage.settle()
    await stage.stop()
    assert found["status"]["state"] == "ready"
    ours = {write: count for write, count in stage.transport.writes.items() if "events" not in write}
    statuses = ours.pop("PATCH status") - 3  # the test itself set three pods ready
    assert ours == {"POST rayclusters": 1, "POST pods": 3, "POST services": 1}
    assert statuses == 2


async def test_a_cluster_alone_is_told_of_at_once():
    stage = Stage(RaySettings(), status_delay=2.0)
    await stage.start()
    await created(stage)
    found = await cluster(stage)
    await stage.stop()
    assert found["status"]["desiredWorkerReplicas"] == 2
    assert conditions(found)["HeadPodReady"]["status"] == "False"


async def test_while_others_wait_for_their_pods_progress_is_told_later():
    stage = Stage(RaySettings(), status_delay=2.0)
    await stage.start()
    for number in range(20):
        await stage.client.create(kinds.RAY_CLUSTER, ray_cluster(f"demo-{number}"), "default")
    told = []
    for seconds in (0, 3, 2):
        stage.clock.advance(seconds)
        await stage.settle()
        told.append(sum("status" in found for found in stage.objects(kinds.RAY_CLUSTER)))
    await stage.stop()
    assert told[0] == told[1] < 20  # at first only clusters that no other waited behind
    assert told[2] == 20


@pytest.mark.parametrize(
    "spec, kind, value",
    [
        ({"suspend": True}, "RayClusterSuspended", "True"),
        ({"rayVersion": "2.60.0", "workerGroupSpecs": [group(minReplicas=3, maxReplicas=2)]}, "Valid", "False"),
    ],
)
async def test_a_first_status_that_someone_may_wait_for_is_written_at_once(spec, kind, value):
    stage = Stage(RaySettings(), status_delay=2.0)
    await stage.start()
    await stage.client.create(kinds.RAY_CLUSTER, ray_cluster(**spec), "default")
    await stage.settle()
    found = await cluster(stage)
    await stage.stop()
    assert conditions(found)[kind]["status"] == value


async def test_a_refused_pod_is_told_at_once():
    stage = Stage(RaySettings(), status_delay=2.0)
    await stage.start()
    await stage.play({"do": "quota", "deny": True})
    await created(stage)
    found = await cluster(stage)
    await stage.stop()
    assert "exceeded quota" in conditions(found)["ReplicaFailure"]["message"]


async def test_progress_on_the_way_up_is_merged_into_one_write():
    """Workers that become ready one by one cost one status write after two seconds, not one each."""
    stage = Stage(RaySettings(), status_delay=2.0)
    await stage.start()
    await created(stage, group(replicas=5))
    before = stage.transport.writes["PATCH status"]
    for index in range(4):
        await stage.play({**READY, "match": {names.REPLICA_INDEX: str(index)}})
        await stage.settle()
    ours = stage.transport.writes["PATCH status"] - before - 4
    stage.clock.advance(2)
    await stage.settle()
    later = stage.transport.writes["PATCH status"] - before - 4
    status = (await cluster(stage))["status"]
    await stage.stop()
    assert (ours, later) == (0, 1)
    assert status["readyWorkerReplicas"] == 4


def with_head_image(image: str):
    return {"template": {"spec": {"containers": [container("ray-head", image=image)]}}}


async def test_a_strategy_that_comes_later_than_the_pods_holds_from_then_on(stage):
    """Recreate replaces what differs already; pods that are as the spec says stay until it changes."""
    await created(stage)
    first = {view.uid(pod) for pod in pods(stage)}
    await patch(stage, upgradeStrategy={"type": "Recreate"})
    assert {view.uid(pod) for pod in pods(stage)} == first
    await patch(stage, headGroupSpec=with_head_image("rayproject/ray:9"))
    second = {view.uid(pod) for pod in pods(stage)}
    assert len(second) == 3 and not second & first
    await patch(stage, upgradeStrategy=None, headGroupSpec=with_head_image("rayproject/ray:10"))
    assert {view.uid(pod) for pod in pods(stage)} == second


async def test_a_cluster_that_drifted_is_replaced_when_its_strategy_becomes_recreate(stage):
    await created(stage)
    first = {view.uid(pod) for pod in pods(stage)}
    found = await patch(stage, headGroupSpec=with_head_image("rayproject/ray:9"))
    assert "use upgradeStrategy Recreate" in conditions(found)["SpecDrift"]["message"]
    found = await patch(stage, upgradeStrategy={"type": "Recreate"})
    assert not {view.uid(pod) for pod in pods(stage)} & first
    assert len(pods(stage)) == 3
    assert "SpecDrift" not in conditions(found)


async def test_a_cluster_at_rest_writes_nothing(stage):
    await created(stage)
    await all_ready(stage)
    before = stage.transport.writes.total()
    await stage.settle()
    stage.clock.advance(600)
    await stage.settle()
    assert stage.transport.writes.total() == before


async def test_the_head_is_created_first_and_the_workers_in_the_same_pass(stage):
    """On a full cluster workers must not take the head's place."""
    await created(stage, group(replicas=5))
    order = sorted(pods(stage), key=lambda pod: int(pod["metadata"]["resourceVersion"]))
    assert view.labels(order[0])[names.NODE_TYPE] == names.HEAD
    assert len(order) == 6


async def test_status_names_endpoints_and_the_head(stage):
    await created(stage)
    await stage.play({**READY, "podIP": "10.0.0.7"})
    await stage.settle()
    status = (await cluster(stage))["status"]
    assert status["endpoints"]["dashboard"] == "8265"
    assert status["head"]["podIP"] == status["head"]["serviceIP"] == "10.0.0.7"
    assert status["workerGroups"] == [
        {"name": "workers", "desired": 2, "running": 2, "ready": 2, "pending": 0, "failed": 0}
    ]


@pytest.mark.parametrize(
    "ready, container, reason, message",
    [
        ({"reason": "ContainersNotReady"}, {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
         "ImagePullBackOff", "ray-head: no such image"),
        ({"reason": "ContainersNotReady"}, {"terminated": {"reason": "OOMKilled"}}, "OOMKilled", "ray-head"),
        ({"reason": "PodCompleted", "message": "x"}, {"terminated": {"reason": "Completed"}}, "PodCompleted", "x"),
    ],
)  # fmt: skip
async def test_the_head_says_why_it_is_not_ready(stage, ready, container, reason, message):
    await created(stage)
    states = [{"name": "ray-head", "ready": False, "state": container}]
    condition = [{"type": "Ready", "status": "False", **ready}]
    head = {names.NODE_TYPE: names.HEAD}
    await stage.play({**READY, "match": head, "containerStatuses": states, "conditions": condition})
    await stage.settle()
    found = conditions(await cluster(stage))["HeadPodReady"]
    assert (found["status"], found["reason"], found["message"]) == ("False", reason, message)


async def test_pods_of_a_cluster_are_a_gang_of_their_own(stage):
    found = await created(stage)
    for pod in pods(stage):
        assert view.annotations_of(pod)[gang.GANG_UID] == view.uid(found)
        assert view.annotations_of(pod)[gang.GANG_SIZE] == "3"


async def test_a_wrapped_cluster_belongs_to_the_wrappers_gang(stage):
    owner = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "w", "uid": "w-1"}
    marks = {gang.GANG_NAME: "AppWrapper/default/w", gang.GANG_UID: "w-1", gang.GANG_SIZE: "7"}
    await created(stage, metadata={"ownerReferences": [owner], "annotations": marks})
    assert {view.annotations_of(pod)[gang.GANG_UID] for pod in pods(stage)} == {"w-1"}
    assert {view.annotations_of(pod)[gang.GANG_SIZE] for pod in pods(stage)} == {"7"}


@pytest.mark.parametrize("autoscaled, held", [(True, {"2", "3"}), (False, set())])
async def test_what_a_wrapped_cluster_grows_by_waits_for_the_wrappers_word(stage, autoscaled, held):
    """Workers of the start were admitted with the wrapper; those that Ray's autoscaler asks for later were not."""
    owner = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "w", "uid": "w-1"}
    marks = {gang.GANG_NAME: "AppWrapper/default/w", gang.GANG_UID: "w-1", gang.GANG_SIZE: "3"}
    metadata = {"ownerReferences": [owner], "annotations": marks}
    await created(stage, metadata=metadata, enableInTreeAutoscaling=autoscaled)
    assert not any(pod["spec"].get("schedulingGates") for pod in pods(stage))
    await all_ready(stage)
    await patch(stage, workerGroupSpecs=[group(replicas=4)])
    gated = [pod for pod in pods(stage) if pod["spec"].get("schedulingGates") == [{"name": gang.GROWTH}]]
    assert {view.labels(pod)[names.REPLICA_INDEX] for pod in gated} == held
    assert all(view.annotations_of(pod)[gang.GROWTH] == "true" for pod in gated)


async def test_gang_marks_that_no_wrapper_backs_are_not_believed(stage):
    """A user who writes another gang's uid on his cluster or template does not get into that gang."""
    marks = {gang.GANG_UID: "someone-else", gang.GANG_SIZE: "1"}
    head = {"template": {"metadata": {"annotations": marks}, "spec": {"containers": [container("ray-head")]}}}
    found = await created(stage, head=head, metadata={"annotations": marks})
    assert {view.annotations_of(pod)[gang.GANG_UID] for pod in pods(stage)} == {view.uid(found)}


async def test_scaling_down_takes_the_least_useful_first(stage):
    await created(stage, group(replicas=3))
    await stage.play({**READY, "match": {names.REPLICA_INDEX: "1"}})
    await patch(stage, workerGroupSpecs=[group(replicas=1)])
    assert [view.labels(pod)[names.REPLICA_INDEX] for pod in pods(stage, "workers")] == ["1"]


async def test_a_removed_group_loses_its_pods(stage):
    await created(stage, group("a"), group("b"))
    await patch(stage, workerGroupSpecs=[group("a")])
    assert pods(stage, "b") == []
    assert len(pods(stage, "a")) == 2


async def test_hosts_of_a_replica_live_and_die_together(stage):
    await created(stage, group(replicas=2, numOfHosts=2))
    members = pods(stage, "workers")
    assert sorted((view.labels(pod)[names.REPLICA_INDEX], view.labels(pod)[names.HOST_INDEX]) for pod in members) == [
        ("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"),
    ]  # fmt: skip
    lost = view.labels(members[0])[names.REPLICA_NAME]
    await stage.play({"do": "setPods", "phase": "Failed", "match": {names.REPLICA_NAME: lost}, "count": 1})
    await stage.settle()
    left = pods(stage, "workers")
    assert len(left) == 4
    assert not {view.name(pod) for pod in members if view.labels(pod)[names.REPLICA_NAME] == lost} & set(
        map(view.name, left)
    )
    assert any(service["metadata"]["name"] == "demo-headless" for service in stage.objects(kinds.SERVICE))


async def test_suspend_removes_pods_keeps_services_and_resumes(stage):
    await created(stage)
    await all_ready(stage)
    suspended = await patch(stage, suspend=True)
    assert suspended["status"]["state"] == "suspended"
    assert pods(stage) == []
    assert len(stage.objects(kinds.SERVICE)) == 1
    resumed = await patch(stage, suspend=None)  # removing the field is as good as false
    assert "state" not in resumed["status"]
    assert len(pods(stage)) == 3


async def test_ray_may_suspend_an_idle_cluster(stage):
    await created(stage, idleTerminationOptions={"timeoutSeconds": 60}, enableInTreeAutoscaling=True)
    suspended = await patch(stage, idleSuspend=True)
    assert suspended["status"]["state"] == "suspended"
    role = stage.objects(kinds.ROLE)[0]
    assert "delete" in next(rule for rule in role["rules"] if rule["resources"] == ["rayclusters"])["verbs"]


async def test_a_new_pods_name_is_never_one_that_was_deleted(stage):
    """Ray's autoscaler names pods to delete; a fresh pod of that name would be deleted with the old list."""
    found = await created(stage, group(replicas=1), enableInTreeAutoscaling=True)
    await all_ready(stage)
    gone = {view.name(pod) for pod in pods(stage, "workers")}
    for _ in range(3):
        await stage.play({"do": "workersToDelete", "name": "demo", "groupIndex": 0, "count": 1})
        await stage.settle()
        now = {view.name(pod) for pod in pods(stage, "workers")}
        assert len(now) == 1 and not now & gone
        gone |= now
    assert found["metadata"]["generation"] == 1


async def test_drift_is_shown_when_nothing_is_recreated(stage):
    await created(stage)
    await all_ready(stage)
    edited = group(template={"spec": {"containers": [container("ray-worker", image="rayproject/ray:9")]}})
    found = await patch(stage, workerGroupSpecs=[edited])
    assert "workers" in conditions(found)["SpecDrift"]["message"]
    assert len(pods(stage)) == 3


async def test_the_head_service_follows_its_spec(stage):
    await created(stage)
    await patch(stage, headServiceAnnotations={"team": "a"})
    service = stage.objects(kinds.SERVICE)[0]
    assert service["metadata"]["annotations"] == {"team": "a"}
    ports = [{"name": "dashboard", "containerPort": 9999}]
    await patch(stage, headGroupSpec={"template": {"spec": {"containers": [container("ray-head", ports=ports)]}}})
    assert {port["name"]: port["port"] for port in stage.objects(kinds.SERVICE)[0]["spec"]["ports"]} == {
        "dashboard": 9999,
        "metrics": 8080,
    }


@pytest.mark.parametrize(
    "spec, word",
    [
        ({"workerGroupSpecs": [group(minReplicas=3, maxReplicas=1)]}, "minReplicas 3 is above maxReplicas 1"),
        ({"workerGroupSpecs": [group("a"), group("a")]}, "groupName is used twice"),
        ({"workerGroupSpecs": [group("headgroup")]}, "groupName"),
        ({"workerGroupSpecs": [group(numOfHosts=0)]}, "numOfHosts"),
        ({"workerGroupSpecs": [group(resources={"CPU": "lots"})]}, "resources.CPU"),
        ({"tlsOptions": {"enabled": True}}, "tlsOptions"),
        ({"upgradeStrategy": {"type": "Rolling"}}, "Recreate or None"),
    ],
)
async def test_a_bad_spec_says_what_to_change_and_recovers_when_changed(stage, spec, word):
    await stage.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", **{}), "default")
    await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": spec})
    await stage.settle()
    found = await cluster(stage)
    assert conditions(found)["Valid"]["status"] == "False"
    assert word in conditions(found)["Valid"]["message"]
    assert pods(stage) == []
    cured = {"workerGroupSpecs": [group()], "tlsOptions": None, "upgradeStrategy": None}
    recovered = await patch(stage, **cured)
    assert conditions(recovered)["Valid"]["status"] == "True"
    assert len(pods(stage)) == 3


async def test_a_stranger_of_the_same_name_is_left_alone(stage):
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-head-svc"}}
    made = await stage.client.create(kinds.SERVICE, {**theirs, "spec": {"ports": [{"port": 80}]}}, "default")
    found = await created(stage)
    assert "belongs to another owner" in conditions(found)["Degraded"]["message"]
    assert made in stage.objects(kinds.SERVICE)
