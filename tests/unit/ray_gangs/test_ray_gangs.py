"""RayJobs and RayClusters without a queue start whole, or wait and say why."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.node_pools import NAME, NAMESPACE, PublishedPool
from shoal.api.ray_gang import condition_of, is_gang
from shoal.cli import why
from shoal.controllers.ray import RaySettings, view
from shoal.local.scheduler import Scheduler
from shoal.sdk import gangs
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster, running
from tests.patience import PATIENCE, patiently
from tests.unit.ray.builders import group, ray_cluster
from tests.unit.ray_gangs.stage import (
    OFF,
    clusters_of,
    job,
    operate,
    plan,
    stage_is,
    starts,
    template,
    until_cluster_of,
    waits,
)


@pytest.fixture
async def quiet() -> AsyncIterator[Cluster]:
    """Four cores, and nothing that decides."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="64Gi")
        yield cluster


@pytest.fixture
async def cluster(quiet: Cluster) -> Cluster:
    operate(quiet)
    plan(quiet)
    return quiet


async def test_of_two_jobs_the_second_waits_whole_until_the_first_is_gone(cluster):
    await cluster.create(kinds.RAY_JOB, job("first"))
    await until_cluster_of(cluster, "first")
    await cluster.create(kinds.RAY_JOB, job("second"))
    waiting = await cluster.until(kinds.RAY_JOB, "second", waits)
    await cluster.settled()
    assert await clusters_of(cluster, "second") == []
    assert not [name for name in await cluster.names(kinds.SERVICE) if name.startswith("second")]
    assert waiting["status"]["jobDeploymentStatus"] == "Initializing"
    assert waiting["status"].get("startTime")
    assert "cpu" in condition_of(waiting)["message"]
    await cluster.client.delete(kinds.RAY_JOB, "first", "default")
    await until_cluster_of(cluster, "second")


async def test_the_submitter_needs_room_too(cluster):
    """Head and worker alone would fit."""
    await cluster.create(kinds.RAY_JOB, job("tight", cpu="2"))
    waiting = await cluster.until(kinds.RAY_JOB, "tight", waits)
    assert "cpu" in condition_of(waiting)["message"]
    await cluster.create(kinds.RAY_JOB, job("by-http", cpu="2", mode="HTTPMode"))
    await until_cluster_of(cluster, "by-http")


async def test_pods_of_a_job_are_marked_as_its_gang(cluster):
    """So that they take the room that was kept for it."""
    await cluster.create(kinds.RAY_JOB, job("first"))
    started = await until_cluster_of(cluster, "first")
    name = started["status"]["rayClusterName"]
    head = await cluster.until(
        kinds.RAY_CLUSTER, name, lambda obj: (obj.get("status") or {}).get("head", {}).get("podName")
    )
    pod = await cluster.get(kinds.POD, head["status"]["head"]["podName"])
    marks = view.annotations_of(pod)
    assert marks["shoal.dev/gang-name"] == "RayJob/default/first"
    assert marks["shoal.dev/gang-uid"] == started["metadata"]["uid"]


async def test_a_cluster_waits_and_says_why(cluster):
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=2, template=template("1"))))
    await cluster.until(kinds.RAY_CLUSTER, "demo", starts)
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("large", group(replicas=3, template=template("1"))))
    held = await cluster.until(kinds.RAY_CLUSTER, "large", waits)
    await cluster.settled()
    assert not held["status"].get("state")
    assert not [name for name in await cluster.names(kinds.POD) if name.startswith("large")]
    assert not [name for name in await cluster.names(kinds.SERVICE) if name.startswith("large")]
    rows = {row["name"]: row for row in await rows_of(cluster.client, "default")}
    assert rows["large"]["state"] == "waiting"
    assert "cpu" in rows["large"]["reason"]
    told = await why.explain_to(cluster.client, gangs.KINDS, "large", "default", fresh=True)
    assert (told["state"], told["reason"]) == ("waiting for room", "Room")
    assert told["holders"] == ["RayCluster/default/demo"]
    await cluster.client.delete(kinds.RAY_CLUSTER, "demo", "default")
    await cluster.until(kinds.RAY_CLUSTER, "large", starts)


async def test_an_autoscaled_cluster_asks_for_its_floor(cluster):
    grows = group(replicas=8, minReplicas=1, template=template("1"))
    made = ray_cluster("grows", grows, enableInTreeAutoscaling=True)
    await cluster.create(kinds.RAY_CLUSTER, made)
    await cluster.until(kinds.RAY_CLUSTER, "grows", starts)
    await cluster.until(kinds.RAY_CLUSTER, "grows", lambda obj: obj["status"].get("desiredWorkerReplicas") == 8)


async def test_suspended_while_it_waits_and_resumed(cluster):
    await cluster.create(kinds.RAY_JOB, job("first"))
    await until_cluster_of(cluster, "first")
    await cluster.create(kinds.RAY_JOB, job("second"))
    await cluster.until(kinds.RAY_JOB, "second", waits)
    await cluster.client.patch(kinds.RAY_JOB, "second", "default", {"spec": {"suspend": True}})
    suspended = await cluster.until(kinds.RAY_JOB, "second", stage_is("Suspended"))
    assert condition_of(suspended) == {}
    await cluster.client.delete(kinds.RAY_JOB, "first", "default")
    await cluster.until_gone(kinds.RAY_JOB, "first")
    await cluster.settled()
    assert await clusters_of(cluster, "second") == []
    await cluster.client.patch(kinds.RAY_JOB, "second", "default", {"spec": {"suspend": False}})
    await until_cluster_of(cluster, "second")


async def test_a_suspended_job_gives_its_room_back_and_asks_again(cluster):
    await cluster.create(kinds.RAY_JOB, job("first"))
    await until_cluster_of(cluster, "first")
    await cluster.create(kinds.RAY_JOB, job("second"))
    await cluster.until(kinds.RAY_JOB, "second", waits)
    await cluster.client.patch(kinds.RAY_JOB, "first", "default", {"spec": {"suspend": True}})
    await until_cluster_of(cluster, "second")
    await cluster.client.patch(kinds.RAY_JOB, "first", "default", {"spec": {"suspend": False}})
    await cluster.until(kinds.RAY_JOB, "first", waits)
    await cluster.settled()
    assert await clusters_of(cluster, "first") == []


async def test_a_suspended_cluster_gives_its_room_back_and_asks_again(cluster):
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("first", group(replicas=2, template=template("1"))))
    await cluster.until(kinds.RAY_CLUSTER, "first", starts)
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("second", group(replicas=2, template=template("1"))))
    await cluster.until(kinds.RAY_CLUSTER, "second", waits)
    await cluster.client.patch(kinds.RAY_CLUSTER, "first", "default", {"spec": {"suspend": True}})
    await cluster.until(kinds.RAY_CLUSTER, "second", starts)
    await cluster.client.patch(kinds.RAY_CLUSTER, "first", "default", {"spec": {"suspend": False}})
    await cluster.until(kinds.RAY_CLUSTER, "first", waits)


async def test_a_deadline_passes_while_it_waits(cluster):
    """As in KubeRay for a job whose cluster is pending."""
    await cluster.create(kinds.RAY_JOB, job("late", cpu="8", activeDeadlineSeconds=1))
    ended = await cluster.until(kinds.RAY_JOB, "late", stage_is("Failed"))
    assert ended["status"]["reason"] == "DeadlineExceeded"
    assert condition_of(ended) == {}


async def test_deleted_while_it_waits(cluster):
    await cluster.create(kinds.RAY_JOB, job("large", cpu="8"))
    await cluster.until(kinds.RAY_JOB, "large", waits)
    await cluster.client.delete(kinds.RAY_JOB, "large", "default")
    await cluster.until_gone(kinds.RAY_JOB, "large")


async def test_an_invalid_cluster_never_stands_in_the_line(cluster):
    wrong = ray_cluster("wrong", group("same"), group("same"))
    await cluster.create(kinds.RAY_CLUSTER, wrong)
    refused = await cluster.until(kinds.RAY_CLUSTER, "wrong", lambda obj: (obj.get("status") or {}).get("reason"))
    await cluster.settled()
    assert condition_of(refused) == {}


@pytest.mark.parametrize("made", [
    {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}},
    {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    {"spec": {"clusterSelector": {"ray.io/cluster": "demo"}, "rayClusterSpec": None}},
])  # fmt: skip
async def test_what_others_start_is_no_gang_of_its_own(cluster, made):
    asked = job("other", cpu="8")
    asked["metadata"].update(made.get("metadata") or {})
    asked["spec"].update(made.get("spec") or {})
    await cluster.create(kinds.RAY_JOB, asked)
    await cluster.settled()
    assert condition_of(await cluster.get(kinds.RAY_JOB, "other")) == {}


async def test_a_job_of_an_app_wrapper_is_the_app_wrappers(cluster):
    wrapped = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "wrapped"},
        "spec": {"components": [{"template": job("inside")}]},
    }
    await cluster.create(kinds.APP_WRAPPER_V1BETA2, wrapped)
    inside = await cluster.until(kinds.RAY_JOB, "inside", stage_is("Initializing"))
    await cluster.until(kinds.RAY_CLUSTER, inside["status"]["rayClusterName"], lambda obj: True)
    await cluster.settled()
    assert condition_of(await cluster.get(kinds.RAY_JOB, "inside")) == {}
    await cluster.create(kinds.RAY_JOB, job("outside"))
    held = await cluster.until(kinds.RAY_JOB, "outside", waits)
    told = await why.explain_to(cluster.client, gangs.KINDS, "outside", "default", fresh=True)
    assert held["status"]["jobDeploymentStatus"] == "Initializing"
    assert told["holders"] == ["AppWrapper/default/wrapped"]


@pytest.mark.parametrize("owner, gang", [("RayCronJob", True), ("RayService", True), ("Ray", False)])
def test_of_those_that_have_an_owner_only_those_of_cron_jobs_and_services_are_gangs(owner, gang):
    made = job("nightly")
    made["metadata"]["ownerReferences"] = [{"kind": owner, "name": "one", "uid": "1", "controller": True}]
    assert is_gang(made) is gang


async def test_without_the_setting_everything_starts_at_once(quiet):
    operate(quiet, OFF)
    await quiet.create(kinds.RAY_JOB, job("large", cpu="8"))
    started = await quiet.until(kinds.RAY_JOB, "large", stage_is("Initializing"))
    await quiet.until(kinds.RAY_CLUSTER, started["status"]["rayClusterName"], lambda obj: True)


async def test_nodes_of_a_pool_are_requested_for_it(cluster):
    pool = PublishedPool(allocatable={"cpu": "16", "memory": "64Gi", "pods": "110"}, obtainable=2)
    await cluster.create(
        kinds.CONFIG_MAP,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": {"big": msgspec.json.encode(pool).decode()},
        },
    )
    made = await cluster.create(kinds.RAY_JOB, job("large", cpu="8"))
    await cluster.until(kinds.RAY_JOB, "large", waits)
    await cluster.settled()
    requests: list[Json] = await cluster.client.list(kinds.PROVISIONING_REQUEST, "default")
    owners = [owner["uid"] for one in requests for owner in one["metadata"]["ownerReferences"]]
    assert owners == [made["metadata"]["uid"]]


async def test_a_spec_that_shrinks_while_it_waits_starts(cluster):
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=9, template=template("1"))))
    await cluster.until(kinds.RAY_CLUSTER, "demo", waits)
    smaller = {"spec": {"workerGroupSpecs": [group(replicas=1, template=template("1"))]}}
    await cluster.client.patch(kinds.RAY_CLUSTER, "demo", "default", smaller)
    await cluster.until(kinds.RAY_CLUSTER, "demo", starts)


async def test_growth_that_finds_no_node_holds_up_no_other_gang(cluster):
    """A running cluster that asks for more than there is waits for that alone, as in KubeRay."""
    cluster.start(Scheduler(cluster.client).run())
    groups = [group("small", replicas=1, template=template("1")), group("big", replicas=0, template=template("3"))]
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("demo", *groups))
    await cluster.until(kinds.RAY_CLUSTER, "demo", starts)
    await until_bound(cluster, "demo", 2)
    groups[1]["replicas"] = 1
    await cluster.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"workerGroupSpecs": groups}})
    await cluster.until(kinds.RAY_CLUSTER, "demo", lambda obj: obj["status"].get("desiredWorkerReplicas") == 2)
    await cluster.settled()
    await cluster.create(kinds.RAY_CLUSTER, ray_cluster("other", group(replicas=1, template=template("1"))))
    await cluster.until(kinds.RAY_CLUSTER, "other", starts)
    await until_bound(cluster, "other", 2)


async def until_bound(cluster: Cluster, name: str, count: int) -> None:
    """Until so many pods of this RayCluster have a node."""
    async with patiently(PATIENCE):
        seen: set[str] = set()
        watch = cluster.client.watch(
            kinds.POD, "default", label_selector=f"ray.io/cluster={name}", send_initial_events=True
        )
        async for event in watch:
            pod = msgspec.json.decode(event.object)
            if event.type in ("ADDED", "MODIFIED") and pod["spec"].get("nodeName"):
                seen.add(pod["metadata"]["uid"])
            if len(seen) == count:
                return


async def test_many_clusters_that_come_together_are_started_without_a_pause(quiet):
    """The operator tells of mere progress late in a rush; what a start depends on it tells at once."""
    operate(quiet, RaySettings(gang="on", status_delay=3600.0))
    plan(quiet)
    for number in range(6):
        made = ray_cluster(f"many-{number}")
        made["spec"]["workerGroupSpecs"] = []
        await quiet.create(kinds.RAY_CLUSTER, made)
    for number in range(4):
        await quiet.until(kinds.RAY_CLUSTER, f"many-{number}", starts)
    for number in (4, 5):
        await quiet.until(kinds.RAY_CLUSTER, f"many-{number}", waits)
