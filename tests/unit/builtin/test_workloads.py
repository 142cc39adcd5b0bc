"""ReplicaSets and Deployments: the right number of pods, exchanged without a gap."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.local.builtin.rollout import Share, next_scale
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


async def test_a_deployment_rolls_from_one_template_to_the_next(cluster):
    await cluster.create(kinds.DEPLOYMENT, workload(kinds.DEPLOYMENT, replicas=2))
    await cluster.until(kinds.DEPLOYMENT, "x", lambda o: o["status"].get("updatedReplicas") == 2)
    await report_all(cluster, app="x")
    first = await cluster.until(kinds.DEPLOYMENT, "x", lambda o: o["status"].get("availableReplicas") == 2)
    assert first["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert (first["metadata"]["generation"], first["status"]["observedGeneration"]) == (1, 1)  # nobody changed it
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
        (ROLLING, Share(0, 0), [], False, {None: 4}),
        (ROLLING, Share(0, 0), [Share(4, 4)], True, {None: 1, 0: 3}),
        (SURGE, Share(0, 0), [Share(4, 4)], True, {None: 1}),
        (SURGE, Share(1, 0), [Share(4, 4)], True, {}),
        (SURGE, Share(1, 1), [Share(4, 4)], True, {0: 3}),
        (SURGE, Share(4, 4), [Share(1, 1)], True, {0: 0}),
        (ROLLING, Share(1, 0), [Share(4, 2)], True, {0: 3}),  # what is not available goes first
        (ROLLING, Share(6, 6), [], False, {None: 4}),
        (RECREATE, Share(0, 0), [Share(4, 4)], True, {0: 0}),
        (RECREATE, Share(0, 0), [Share(0, 0)], True, {}),
        (RECREATE, Share(0, 0), [Share(0, 0)], False, {None: 4}),
        ({**ROLLING, "paused": True}, Share(0, 0), [Share(4, 4)], True, {}),
        ({**ROLLING, "paused": True}, Share(2, 2), [], False, {None: 4}),
    ],
)
def test_each_step_of_a_rollout(spec, current, old, left, sizes):
    assert next_scale(spec, current, old, left) == sizes
