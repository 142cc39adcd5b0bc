"""A cluster that Ray's autoscaler found idle: suspended, resumed by hand, deleted much later."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.controllers.ray import RaySettings, view
from shoal.controllers.ray.pods import builder
from shoal.kube.errors import NotFound
from tests.unit.ray.builders import group, ray_cluster
from tests.unit.ray.test_cluster import all_ready, cluster, created, patch

IDLE = {"timeoutSeconds": 60}
WEEK = 7 * 24 * 3600


async def idle_cluster(stage, **more):
    await created(stage, enableInTreeAutoscaling=True, idleTerminationOptions=IDLE, **more)
    await all_ready(stage)
    return await patch(stage, idleSuspend=True)  # as the autoscaler writes it


def told(stage) -> set[str]:
    return {event["reason"] for event in stage.objects(kinds.EVENT)}


async def test_an_idle_cluster_is_suspended_and_resumes_like_any_other(stage):
    found = await idle_cluster(stage)
    assert found["status"]["state"] == "suspended"
    assert stage.objects(kinds.POD) == []
    assert "SuspendedIdleCluster" in told(stage)
    resumed = await patch(stage, suspend=False)
    assert "idleSuspend" not in resumed["spec"]
    assert len(stage.objects(kinds.POD)) == 3
    assert (await all_ready(stage))["status"]["state"] == "ready"


async def test_a_queues_word_on_suspension_is_left_to_the_queue(stage):
    queued = {"labels": {"kueue.x-k8s.io/queue-name": "team"}}
    found = await idle_cluster(stage, metadata=queued)
    assert found["status"]["state"] == "suspended"
    assert found["spec"].get("suspend") is not True
    await patch(stage, idleSuspend=False)
    assert len(stage.objects(kinds.POD)) == 3


async def test_an_idle_cluster_is_deleted_a_week_later_and_not_before(stage):
    await idle_cluster(stage)
    stage.clock.advance(WEEK - 60)
    await stage.settle()
    assert (await cluster(stage))["status"]["state"] == "suspended"
    stage.clock.advance(120)
    await stage.settle()
    with pytest.raises(NotFound):
        await cluster(stage)
    assert "DeletedIdleCluster" in told(stage)


async def test_a_cluster_that_a_person_suspended_is_never_deleted(stage):
    await created(stage, enableInTreeAutoscaling=True, idleTerminationOptions=IDLE)
    await all_ready(stage)
    await patch(stage, suspend=True)
    stage.clock.advance(10 * WEEK)
    await stage.settle()
    assert (await cluster(stage))["status"]["state"] == "suspended"


async def test_the_autoscaler_may_delete_its_cluster_once_that_is_asked_for(stage):
    await created(stage, enableInTreeAutoscaling=True)
    verbs = stage.objects(kinds.ROLE)[0]["rules"][2]["verbs"]
    assert "delete" not in verbs
    await patch(stage, idleTerminationOptions={"timeoutSeconds": 60, "policy": "Delete"})
    assert "delete" in stage.objects(kinds.ROLE)[0]["rules"][2]["verbs"]


@pytest.mark.parametrize(
    "version, grace, deadline",
    [("2.60.0", None, None), ("2.60.1", 60, "55"), ("2.60.0", 3, "0"), ("2.52.0", 60, None)],
)
def test_a_worker_drains_before_its_grace_period_ends(version, grace, deadline):
    workers = group()
    if grace is not None:
        workers["template"]["spec"]["terminationGracePeriodSeconds"] = grace
    body = ray_cluster("demo", workers, metadata={"uid": "u"})
    body["spec"]["rayVersion"] = version
    ray = builder.worker_pod(body, workers, RaySettings())["spec"]["containers"][0]
    assert view.env_value(ray, builder.DRAIN_VARIABLE) == deadline
