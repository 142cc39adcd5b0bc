"""Kueue's visibility API: which gangs wait, in which order, for users that may know."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli.local_visibility import LocalVisibility
from shoal.controllers.queues.visibility import GROUP, PendingWorkloads
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound, ServerError
from tests.cluster import Cluster
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of, true
from tests.unit.queues.conftest import decide

OF_QUEUE = f"/apis/{GROUP}/v1beta2/clusterqueues/cluster-queue/pendingworkloads"


async def asked(cluster: Cluster, path: str, **query: str) -> Json:
    answer = await cluster.client.request("GET", path, query=query)
    found: Json = msgspec.json.decode(answer.body)
    return found


async def crowded(cluster: Cluster) -> None:
    """A gang that runs, and three that wait in two LocalQueues."""
    visible = LocalVisibility()
    cluster.server.own_groups[GROUP] = visible.answer
    queued = decide(cluster)
    visible.follow(PendingWorkloads(queued.caches, queued.planning.engine))
    await make(cluster, flavor(), cluster_queue(), local_queue(), local_queue("other"))
    (first,) = await make(cluster, job("runs", 4))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    for title, queue in (("one", "user-queue"), ("two", "other"), ("three", "user-queue")):
        (made,) = await make(cluster, job(title, 4, queue=queue))
        await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))


def places(found: Json) -> list[tuple[str, str, int, int]]:
    return [
        (
            one["metadata"]["ownerReferences"][0]["name"],
            one["localQueueName"],
            one["positionInClusterQueue"],
            one["positionInLocalQueue"],
        )
        for one in found["items"]
    ]


async def test_gangs_that_wait_are_listed_in_their_order(quiet: Cluster) -> None:
    await crowded(quiet)
    every = await asked(quiet, OF_QUEUE)
    assert (every["kind"], every["apiVersion"]) == ("PendingWorkloadsSummary", f"{GROUP}/v1beta2")
    assert {(name, queue) for name, queue, _, _ in places(every)} == {
        ("one", "user-queue"),
        ("two", "other"),
        ("three", "user-queue"),
    }
    assert [position for _, _, position, _ in places(every)] == [0, 1, 2]
    assert places(await asked(quiet, OF_QUEUE, limit="1", offset="1")) == places(every)[1:2]
    assert places(await asked(quiet, OF_QUEUE, limit="-1")) == []
    of_one = f"/apis/{GROUP}/v1beta1/namespaces/default/localqueues/other/pendingworkloads"
    assert [(name, local) for name, _, _, local in places(await asked(quiet, of_one))] == [("two", 0)]


async def test_an_unknown_queue_is_not_found_and_rights_count(quiet: Cluster) -> None:
    await crowded(quiet)
    with pytest.raises(NotFound):
        await asked(quiet, OF_QUEUE.replace("cluster-queue", "nowhere"))
    stranger = Client(quiet.server.transport(user="eve", groups=("system:authenticated",)))
    with pytest.raises(Forbidden):
        await stranger.request("GET", OF_QUEUE)


async def test_versions_are_discovered_and_nothing_is_made_up_before_the_start(quiet: Cluster) -> None:
    quiet.server.own_groups[GROUP] = LocalVisibility().answer
    group = await asked(quiet, f"/apis/{GROUP}")
    assert [one["version"] for one in group["versions"]] == ["v1beta2", "v1beta1"]
    version = await asked(quiet, f"/apis/{GROUP}/v1beta2")
    assert [one["name"] for one in version["resources"]] == [
        "clusterqueues/pendingworkloads",
        "localqueues/pendingworkloads",
    ]
    with pytest.raises(ServerError, match="the queue controller is being started"):
        await asked(quiet, OF_QUEUE)
