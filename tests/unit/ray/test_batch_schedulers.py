"""Clusters that Volcano, YuniKorn or KAI start: their group objects and the marks on pods."""

from __future__ import annotations

import json

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.ray import from_environment, view
from shoal.controllers.ray.cluster.pod_group import warnings_of_scheduler
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.job_rules import problems_of_job
from shoal.errors import BadInput
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import group, ray_cluster, ray_job

VOLCANO_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def staged(settings: RaySettings, kind: kinds.Kind, body: Json) -> Stage:
    stage = Stage(settings)
    await stage.start()
    if settings.batch_scheduler == "volcano":
        await stage.client.create(kinds.CRD, VOLCANO_CRD)
    await stage.client.create(kind, body, "default")
    await stage.settle()
    return stage


async def test_volcano_has_a_pod_group_whose_numbers_follow_the_cluster():
    labels = {"volcano.sh/queue-name": "team", "ray.io/priority-class-name": "high"}
    body = ray_cluster("demo", group("small", replicas=2), metadata={"labels": labels})
    stage = await staged(RaySettings(batch_scheduler="volcano"), kinds.RAY_CLUSTER, body)
    found = await stage.client.get(kinds.VOLCANO_POD_GROUP, "ray-demo-pg", "default")
    pods = stage.objects(kinds.POD)
    await stage.client.patch(
        kinds.RAY_CLUSTER, "demo", "default", {"spec": {"workerGroupSpecs": [group("small", replicas=3)]}}
    )
    await stage.settle()
    grown = await stage.client.get(kinds.VOLCANO_POD_GROUP, "ray-demo-pg", "default")
    await stage.stop()
    assert found["spec"]["minMember"] == 3 and grown["spec"]["minMember"] == 4
    assert (found["spec"]["queue"], found["spec"]["priorityClassName"]) == ("team", "high")
    assert found["metadata"]["ownerReferences"][0]["kind"] == "RayCluster"
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
    assert {view.annotations_of(pod)["scheduling.k8s.io/group-name"] for pod in pods} == {"ray-demo-pg"}
    assert {view.annotations_of(pod)["volcano.sh/task-spec"] for pod in pods} == {"headgroup", "small"}
    assert {view.labels(pod)["volcano.sh/queue-name"] for pod in pods} == {"team"}


async def test_a_submitter_is_volcanos_too_and_the_group_has_the_jobs_name():
    stage = await staged(RaySettings(batch_scheduler="volcano"), kinds.RAY_JOB, ray_job("train"))
    await stage.play({"do": "setPods", "phase": "Running", "ready": True})
    await stage.settle()
    template = stage.objects(kinds.JOB)[0]["spec"]["template"]
    assert await stage.client.get(kinds.VOLCANO_POD_GROUP, "ray-train-pg", "default")
    await stage.stop()
    assert template["spec"]["schedulerName"] == "volcano"
    assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "ray-train-pg"


async def test_yunikorn_reads_task_groups_from_the_pods():
    labels = {"yunikorn.apache.org/app-id": "a1", "yunikorn.apache.org/queue": "root.team"}
    asked = {**labels, "ray.io/gang-scheduling-enabled": "true"}
    body = ray_cluster("demo", group("small", replicas=2), metadata={"labels": asked})
    stage = await staged(RaySettings(batch_scheduler="yunikorn"), kinds.RAY_CLUSTER, body)
    pods = stage.objects(kinds.POD)
    await stage.stop()
    assert {(view.labels(pod)["applicationId"], view.labels(pod)["queue"]) for pod in pods} == {("a1", "root.team")}
    groups = json.loads(view.annotations_of(pods[0])["yunikorn.apache.org/task-groups"])
    assert [(one["name"], one["minMember"]) for one in groups] == [("headgroup", 1), ("small", 2)]
    assert {view.annotations_of(pod)["yunikorn.apache.org/task-group-name"] for pod in pods} == {"headgroup", "small"}
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"yunikorn"}


async def test_kai_gets_the_queue_and_a_job_that_it_cannot_start_whole_is_refused():
    settings = RaySettings(batch_scheduler="kai-scheduler")
    body = ray_cluster("demo", metadata={"labels": {"kai.scheduler/queue": "team"}})
    stage = await staged(settings, kinds.RAY_CLUSTER, body)
    pods = stage.objects(kinds.POD)
    await stage.stop()
    assert {(view.labels(pod)["kai.scheduler/queue"], pod["spec"]["schedulerName"]) for pod in pods} == {
        ("team", "kai-scheduler")
    }
    assert warnings_of_scheduler(body, settings) == []
    assert "kai.scheduler/queue is missing" in warnings_of_scheduler(ray_cluster(), settings)[0]
    assert "use HTTPMode or SidecarMode" in problems_of_job(ray_job(), settings)[0]
    assert problems_of_job(ray_job(mode="HTTPMode"), settings) == []


def test_a_scheduler_that_there_is_not_is_refused():
    assert from_environment({"SHOAL_RAY_BATCH_SCHEDULER": "volcano"}).batch_scheduler == "volcano"
    with pytest.raises(BadInput, match="use one of scheduler-plugins, volcano, yunikorn, kai-scheduler"):
        from_environment({"SHOAL_RAY_BATCH_SCHEDULER": "slurm"})
