"""ReplicaSets and Deployments: the right number of pods, exchanged without a gap."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.local.builtin.rollout import RolloutShare, next_scale, rescaled
from tests.unit.builtin.objects import container, pods_of, report_all, template, workload


async def test_a_replica_set_keeps_its_number(cluster):
    await cluster.create(kinds.REPLICA_SET, workload(kinds.REPLICA_SET, replicas=3))
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("replicas") == 3)
    victim = (await pods_of(cluster, app="x"))[0]
    await cluster.client.delete(kinds.POD, victim["metadata"]["name"], "default")
    await cluster.settled()
    names = [pod["metadata"]["name"] for pod in await pods_of(cluster, app="x")]
    assert len(names) == 3
    assert victim["metadata"]["name"] not in names
    await cluster.client.patch(kinds.REPLICA_SET, "x", "default", {"spec": {"replicas": 1}}, subresource="scale")
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("replicas") == 1)
    assert len(await pods_of(cluster, app="x")) == 1


async def test_a_replica_set_counts_what_is_ready(cluster):
    await cluster.create(kinds.REPLICA_SET, workload(kinds.REPLICA_SET, replicas=2))
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("replicas") == 2)
    await report_all(cluster, app="x")
    found = await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("availableReplicas") == 2)
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert found["status"]["fullyLabeledReplicas"] == 2


async def test_a_replica_set_adopts_what_fits_and_releases_what_does_not(cluster):
    await cluster.create(
        kinds.POD,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stray", "labels": {"app": "x"}},
            "spec": {"containers": [container()]},
        },
    )
    owner = await cluster.create(kinds.REPLICA_SET, workload(kinds.REPLICA_SET, replicas=1))
    stray = await cluster.until(kinds.POD, "stray", lambda o: o["metadata"].get("ownerReferences"))
    assert stray["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    await cluster.settled()
    assert len(await pods_of(cluster, app="x")) == 1
    await cluster.client.patch(kinds.POD, "stray", "default", {"metadata": {"labels": {"app": "y"}}})
    await cluster.until(kinds.POD, "stray", lambda o: not o["metadata"].get("ownerReferences"))
    await cluster.settled()
    assert len(await pods_of(cluster, app="x")) == 1


async def test_a_replication_controller_keeps_its_number(cluster):
    spec = {"replicas": 2, "selector": {"app": "x"}, "template": template()}
    body = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "x"}, "spec": spec}
    await cluster.create(kinds.REPLICATION_CONTROLLER, body)
    await cluster.until(kinds.REPLICATION_CONTROLLER, "x", lambda o: o["status"].get("replicas") == 2)
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in await pods_of(cluster, app="x")} == {
        "ReplicationController"
    }


async def test_a_set_says_that_its_pods_are_refused_until_they_are_not(cluster):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    await cluster.create(kinds.RESOURCE_QUOTA, quota)
    await cluster.until(kinds.RESOURCE_QUOTA, "q", lambda o: o.get("status", {}).get("used"))
    await cluster.create(kinds.REPLICA_SET, workload(kinds.REPLICA_SET, replicas=2))
    refused = await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("conditions"))
    [condition] = refused["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("ReplicaFailure", "True", "FailedCreate")
    assert "exceeded quota: q" in condition["message"]
    await cluster.client.patch(kinds.REPLICA_SET, "x", "default", {"spec": {"replicas": 1}})
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: not o["status"].get("conditions"))


async def test_a_refusal_is_said_once_whichever_pod_it_names(cluster):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    await cluster.create(kinds.RESOURCE_QUOTA, quota)
    await cluster.create(kinds.REPLICA_SET, workload(kinds.REPLICA_SET, replicas=2))
    await cluster.until(kinds.REPLICA_SET, "x", lambda o: o["status"].get("conditions"))
    await cluster.settled()
    before = await cluster.get(kinds.REPLICA_SET, "x")
    await cluster.settled(60)
    assert await cluster.get(kinds.REPLICA_SET, "x") == before


async def test_a_deployment_takes_in_a_set_that_fits(cluster):
    old = workload(kinds.REPLICA_SET, "old", replicas=1)
    old["metadata"]["labels"] = {"app": "x"}
    await cluster.create(kinds.REPLICA_SET, old)
    made = await cluster.create(kinds.DEPLOYMENT, workload(kinds.DEPLOYMENT, "x", replicas=1))
    taken = await cluster.until(kinds.REPLICA_SET, "old", lambda o: o["metadata"].get("ownerReferences"))
    assert taken["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


async def test_a_deployment_rolls_from_one_template_to_the_next(cluster):
    await cluster.create(kinds.DEPLOYMENT, workload(kinds.DEPLOYMENT, replicas=2))
    await cluster.until(kinds.DEPLOYMENT, "x", lambda o: o["status"].get("updatedReplicas") == 2)
    await report_all(cluster, app="x")
    first = await cluster.until(kinds.DEPLOYMENT, "x", lambda o: o["status"].get("availableReplicas") == 2)
    assert first["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert (first["metadata"]["generation"], first["status"]["observedGeneration"]) == (1, 1)  # no user changed it
    await cluster.client.patch(
        kinds.DEPLOYMENT,
        "x",
        "default",
        {"spec": {"template": template() | {"spec": {"containers": [container(image="i:2")]}}}},
    )
    for _ in range(4):
        await cluster.settled(8)
        running = [pod for pod in await pods_of(cluster, app="x") if pod["status"]["phase"] == "Running"]
        assert len(running) >= 2, "with a quarter of two rounded down, none may be missing"
        await report_all(cluster, app="x")
    done = await cluster.until(
        kinds.DEPLOYMENT,
        "x",
        lambda o: (
            any(c["reason"] == "NewReplicaSetAvailable" for c in o["status"]["conditions"])
            and o["status"].get("updatedReplicas") == 2 == o["status"].get("replicas")
        ),
    )
    images = {pod["spec"]["containers"][0]["image"] for pod in await pods_of(cluster, app="x")}
    assert images == {"i:2"}
    assert done["status"]["observedGeneration"] == done["metadata"]["generation"]
    assert len(await cluster.names(kinds.REPLICA_SET)) == 2
    await cluster.client.patch(kinds.DEPLOYMENT, "x", "default", {"spec": {"template": template()}})
    await cluster.until(
        kinds.DEPLOYMENT, "x", lambda o: o["metadata"]["annotations"].get("deployment.kubernetes.io/revision") == "3"
    )
    assert len(await cluster.names(kinds.REPLICA_SET)) == 2, "the first set is used again"


async def test_deleting_a_deployment_takes_sets_and_pods_along(cluster):
    await cluster.create(kinds.DEPLOYMENT, workload(kinds.DEPLOYMENT, replicas=2))
    await cluster.until(kinds.DEPLOYMENT, "x", lambda o: o["status"].get("updatedReplicas") == 2)
    await cluster.client.delete(kinds.DEPLOYMENT, "x", "default", propagation="Foreground")
    await cluster.until_gone(kinds.DEPLOYMENT, "x")
    assert await pods_of(cluster, app="x") == []
    assert await cluster.names(kinds.REPLICA_SET) == []


ROLLING = {"replicas": 4, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}}
SURGE = {"replicas": 4, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}
RECREATE = {"replicas": 4, "strategy": {"type": "Recreate"}}


@pytest.mark.parametrize(
    "spec, current, old, left, sizes",
    [
        (ROLLING, RolloutShare(0, 0), [], False, {None: 4}),
        (ROLLING, RolloutShare(0, 0), [RolloutShare(4, 4)], True, {None: 1, 0: 3}),
        (SURGE, RolloutShare(0, 0), [RolloutShare(4, 4)], True, {None: 1}),
        (SURGE, RolloutShare(1, 0), [RolloutShare(4, 4)], True, {}),
        (SURGE, RolloutShare(1, 1), [RolloutShare(4, 4)], True, {0: 3}),
        (SURGE, RolloutShare(4, 4), [RolloutShare(1, 1)], True, {0: 0}),
        (ROLLING, RolloutShare(1, 0), [RolloutShare(4, 2)], True, {0: 3}),  # what is not available goes first
        (ROLLING, RolloutShare(6, 6), [], False, {None: 4}),
        (RECREATE, RolloutShare(0, 0), [RolloutShare(4, 4)], True, {0: 0}),
        (RECREATE, RolloutShare(0, 0), [RolloutShare(0, 0)], True, {}),
        (RECREATE, RolloutShare(0, 0), [RolloutShare(0, 0)], False, {None: 4}),
    ],
)
def test_each_step_of_a_rollout(spec, current, old, left, sizes):
    assert next_scale(spec, current, old, left) == sizes


@pytest.mark.parametrize(
    "spec, current, old, sizes",
    [
        (ROLLING, RolloutShare(2, 2), [], {None: 4}),
        (ROLLING, None, [RolloutShare(0, 0), RolloutShare(2, 2)], {1: 4}),  # paused before the new set was made
        (ROLLING, None, [RolloutShare(0, 0), RolloutShare(0, 0)], {1: 4}),  # the newest of those that have nothing
        (ROLLING, RolloutShare(4, 4), [RolloutShare(2, 2)], {0: 0}),
        ({**ROLLING, "replicas": 9}, RolloutShare(2, 0, 5), [RolloutShare(3, 3, 5)], {None: 4, 0: 6}),
        ({**ROLLING, "replicas": 30}, RolloutShare(5, 0, 13), [RolloutShare(8, 8, 13)], {None: 12, 0: 19}),
        ({**ROLLING, "replicas": 1}, RolloutShare(2, 0, 5), [RolloutShare(3, 3, 5)], {None: 1, 0: 1}),
        ({**ROLLING, "replicas": 0}, RolloutShare(2, 0, 5), [RolloutShare(3, 3, 5)], {None: 0, 0: 0}),
        (RECREATE, RolloutShare(2, 0), [RolloutShare(3, 3)], {}),
    ],
)
def test_a_new_number_in_the_middle_of_a_rollout_is_shared_out(spec, current, old, sizes):
    assert rescaled(spec, current, old, 5) == sizes
