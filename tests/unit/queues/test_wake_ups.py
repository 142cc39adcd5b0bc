"""What depends on a stored fact hears of its change: queues, flavors and checks that leave, classes with overhead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.queues.caches import QUEUE_KINDS, SHARED_KINDS
from shoal.controllers.queues.checks import steps
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.queue_changes import QueueChanges
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import (
    QUEUE,
    cluster_queue,
    complete,
    counts,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    pods_of,
    provisioning_check,
    provisioning_config,
    said,
    true,
    usage,
)
from tests.unit.queues.conftest import decide
from tests.unit.queues.test_leaving import priority_class

IN_USE = "kueue.x-k8s.io/resource-in-use"


def held(made: Json) -> Json:
    """As Kueue's webhook leaves it: it stays until nothing uses it."""
    made["metadata"]["finalizers"] = [IN_USE]
    return made


async def test_a_queue_whose_last_workload_has_finished_can_be_deleted(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), held(cluster_queue()), local_queue())
    (made,) = await make(quiet, job("train"))
    await complete(quiet, "train", 1)
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Finished"))
    await quiet.client.delete(kinds.CLUSTER_QUEUE, "cluster-queue", None)
    await quiet.until_gone(kinds.CLUSTER_QUEUE, "cluster-queue", "")


async def test_a_queue_that_is_deleted_while_in_use_goes_with_its_last_workload(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), held(cluster_queue()), local_queue())
    (made,) = await make(quiet, job("train"))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.client.delete(kinds.CLUSTER_QUEUE, "cluster-queue", None)
    leaving = await quiet.until(
        kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: said(one, "Active")[1] == "Terminating"
    )
    assert leaving["metadata"]["finalizers"] == [IN_USE]
    await complete(quiet, "train", 1)
    await quiet.until_gone(kinds.CLUSTER_QUEUE, "cluster-queue", "")


def wakes_nothing_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueChanges, "_note_what_it_names", lambda self, change: None)


@proven(without=wakes_nothing_it_names)
@pytest.mark.parametrize(
    "kind, name", [(kinds.RESOURCE_FLAVOR, "default-flavor"), (kinds.ADMISSION_CHECK, "nodes")], ids=["flavor", "check"]
)
@pytest.mark.parametrize("leaves", ["deleted", "changed"])
async def test_f152_what_was_deleted_while_in_use_goes_with_its_last_queue(
    quiet: Cluster, kind: Kind, name: str, leaves: str
) -> None:
    """F152: a ResourceFlavor or AdmissionCheck is deleted while a queue names it, and that queue goes or changes later.
    Holds: it stays as long as it is in use, and its finalizer goes with the last use."""
    decide(quiet)
    await make(quiet, held(flavor()), flavor("other"), provisioning_config(), provisioning_check())
    await make(quiet, cluster_queue(checks=["nodes"]))
    await quiet.until(kind, name, lambda one: one["metadata"].get("finalizers") == [IN_USE], "")
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", true("Active"), "")
    await quiet.client.delete(kind, name, None)
    await quiet.settled()
    assert (await quiet.get(kind, name, ""))["metadata"]["deletionTimestamp"]
    if leaves == "deleted":
        await quiet.client.delete(kinds.CLUSTER_QUEUE, "cluster-queue", None)
    else:
        spec = cluster_queue(flavor="other")["spec"]
        change = {"spec": {**spec, "admissionChecksStrategy": None}}
        await quiet.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, change)
    await quiet.until_gone(kind, name, "")


async def test_what_no_queue_uses_goes_at_once(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, held(flavor()), provisioning_config(), provisioning_check())
    await quiet.until(kinds.ADMISSION_CHECK, "nodes", lambda one: one["metadata"].get("finalizers") == [IN_USE], "")
    for kind, name in ((kinds.RESOURCE_FLAVOR, "default-flavor"), (kinds.ADMISSION_CHECK, "nodes")):
        await quiet.client.delete(kind, name, None)
        await quiet.until_gone(kind, name, "")


async def test_queues_and_flavors_that_were_made_without_a_webhook_are_kept_while_in_use(cluster: Cluster) -> None:
    for kind, name in ((kinds.RESOURCE_FLAVOR, "default-flavor"), (kinds.CLUSTER_QUEUE, "cluster-queue")):
        await cluster.until(kind, name, lambda one: one["metadata"].get("finalizers") == [IN_USE], "")


# --- classes that pods name


async def test_the_overhead_of_a_runtime_class_counts_from_when_it_changes(cluster: Cluster) -> None:
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "boxed"},
        "handler": "boxed",
        "overhead": {"podFixed": {"cpu": "8"}},
    }
    await cluster.create(kinds.RUNTIME_CLASS, runtime)
    wanted = job("train")
    wanted["spec"]["template"]["spec"]["runtimeClassName"] = "boxed"
    (made,) = await make(cluster, wanted)
    waiting = await cluster.until(
        kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[1] == "ExceedsMaxQuota"
    )
    assert "maximum capacity (4)" in said(waiting, "QuotaReserved")[2]
    change = {"overhead": {"podFixed": {"cpu": "1"}}}
    await cluster.client.patch(kinds.RUNTIME_CLASS, "boxed", None, change)
    await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    queue = await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (0, 1, 1))
    assert usage(queue)["cpu"] == "2"


# --- pods that are done


async def test_pods_that_are_done_need_no_quota_after_an_eviction_either(cluster: Cluster) -> None:
    """Three of four are done: the Job comes back for one pod, and asks quota for one."""
    (made,) = await make(cluster, job("train", 4))
    name = name_of(made)
    for pod in (await pods_of(cluster, "train", 4))[:3]:
        done = {"status": {"phase": "Succeeded"}}
        await cluster.client.patch(kinds.POD, pod["metadata"]["name"], "default", done, subresource="status")
    await cluster.until(kinds.WORKLOAD, name, lambda one: _reclaimable(one) == {"main": 3})
    await cluster.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    off = await cluster.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert _reclaimable(off) == {"main": 3}
    await make(cluster, job("other", 3))
    await cluster.until(kinds.JOB, "other", lambda one: one["spec"]["suspend"] is False)
    await cluster.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
    await cluster.until(kinds.WORKLOAD, name, true("Admitted"))
    await complete_the_rest(cluster)
    await cluster.until(kinds.WORKLOAD, name, true("Finished"))


async def complete_the_rest(cluster: Cluster) -> None:
    while True:
        left = [
            pod
            for pod in await cluster.client.list(
                kinds.POD, "default", label_selector="batch.kubernetes.io/job-name=train"
            )
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            and not pod["metadata"].get("deletionTimestamp")
        ]
        if left:
            break
        await asyncio.sleep(0.01)
    for pod in left:
        done = {"status": {"phase": "Succeeded"}}
        await cluster.client.patch(kinds.POD, pod["metadata"]["name"], "default", done, subresource="status")


def _reclaimable(workload: Json) -> dict[str, int]:
    return {one["name"]: one["count"] for one in (workload.get("status") or {}).get("reclaimablePods") or ()}


# --- Workloads that others make


def foreign(name: str = "theirs", **owner: str) -> Json:
    metadata: Json = {"name": name, "namespace": "default"}
    if owner:
        metadata["ownerReferences"] = [{"name": "their-set", "uid": "1-2-3", "controller": True, **owner}]
    pods = {"name": "main", "count": 2, "template": {"spec": {"containers": [_container()], "restartPolicy": "Never"}}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": metadata,
        "spec": {"queueName": "user-queue", "podSets": [pods]},
    }


def _container() -> Json:
    return {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}


@pytest.mark.parametrize(
    "owner", [{}, {"apiVersion": "example.com/v1", "kind": "TrainingSet"}], ids=["bare", "foreign"]
)
async def test_a_workload_of_another_owner_keeps_its_quota_until_that_owner_gives_it_back(
    cluster: Cluster, owner: dict[str, str]
) -> None:
    await make(cluster, foreign(**owner))
    await cluster.until(kinds.WORKLOAD, "theirs", true("Admitted"))
    await cluster.client.patch(kinds.WORKLOAD, "theirs", "default", {"spec": {"active": False}})
    await cluster.until(kinds.WORKLOAD, "theirs", true("Evicted"))
    await cluster.settled()
    stored = await cluster.get(kinds.WORKLOAD, "theirs")
    assert true("QuotaReserved")(stored)  # whether its pods have ended is known to its own controller
    draft = Draft(stored, 0)
    steps.give_back(draft)  # as that controller does when they have
    await cluster.client.patch(kinds.WORKLOAD, "theirs", "default", {"status": draft.change}, subresource="status")
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (0, 0, 0))


async def test_a_job_that_leaves_its_queue_leaves_no_quota_behind(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "64"}), local_queue())
    (made,) = await make(quiet, job("train", 32))  # quota, and no room
    await quiet.until(kinds.WORKLOAD, name_of(made), true("QuotaReserved"))
    await quiet.client.patch(kinds.JOB, "train", "default", {"metadata": {"labels": {QUEUE: None}}})
    await quiet.until_gone(kinds.WORKLOAD, name_of(made))
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (0, 0, 0))
    assert (await quiet.get(kinds.JOB, "train"))["spec"]["suspend"] is True


# --- who hears of what

WAITING, QUEUE_NAME = "workload", "cluster-queue"
CHANGES: dict[Kind, tuple[str, Json, set[str]]] = {
    kinds.CLUSTER_QUEUE: (
        QUEUE_NAME,
        {"spec": {"stopPolicy": "Hold"}},
        {"ClusterQueue", WAITING, "status of LocalQueue", "status of ResourceFlavor", "status of AdmissionCheck"},
    ),
    kinds.COHORT: ("all", {"spec": {"fairSharing": {"weight": "2"}}}, {"Cohort"}),
    kinds.RESOURCE_FLAVOR: (
        "default-flavor",
        {"spec": {"nodeLabels": {"zone": "a"}}},
        {"Flavor", "status of ClusterQueue", "status of LocalQueue"},
    ),
    kinds.TOPOLOGY: (
        "racks",
        {"metadata": {"labels": {"a": "change"}}},  # levels never change
        {"TopologyFact", "status of ClusterQueue", "status of LocalQueue", "status of Topology"},
    ),
    kinds.LOCAL_QUEUE: (
        "user-queue",
        {"spec": {"stopPolicy": "Hold"}},
        {"LocalQueue", WAITING, "status of ClusterQueue"},
    ),
    kinds.ADMISSION_CHECK: (
        "nodes",
        {"spec": {"parameters": {"name": "other"}}},
        {"ClusterQueue", WAITING, "status of ClusterQueue", "status of AdmissionCheck"},
    ),
    kinds.PROVISIONING_REQUEST_CONFIG: (
        "nodes-config",
        {"spec": {"provisioningClassName": "other.example"}},
        {WAITING, "status of AdmissionCheck"},
    ),
    kinds.WORKLOAD_PRIORITY_CLASS: ("high", {"value": 5}, {WAITING}),
    kinds.PRIORITY_CLASS: ("usual", {"globalDefault": True}, {"job without a class"}),
    kinds.NAMESPACE: ("default", {"metadata": {"labels": {"team": "a"}}}, {"Namespace"}),
    kinds.LIMIT_RANGE: ("small", {"spec": {"limits": [{"type": "Container", "max": {"cpu": "9"}}]}}, {"Gang", WAITING}),
    kinds.RUNTIME_CLASS: ("boxed", {"overhead": {"podFixed": {"cpu": "2"}}}, {"Gang", WAITING}),
}
"""What the controller watches beside jobs and Workloads: a change of it, and which facts and loops hear of it."""


def test_every_kind_that_is_watched_wakes_something() -> None:
    assert set(CHANGES) == {*QUEUE_KINDS, *SHARED_KINDS}


@pytest.mark.parametrize("kind", list(CHANGES), ids=lambda kind: kind.kind)
async def test_a_change_is_heard_by_all_that_depend_on_it(
    quiet: Cluster, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = decide(quiet)
    await make(quiet, flavor(), provisioning_config(), provisioning_check(), priority_class("high", 1))
    await make(quiet, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "all"}})
    await make(quiet, cluster_queue(quota={"cpu": "1"}, checks=["nodes"]), local_queue())
    for other, body in (
        (kinds.PRIORITY_CLASS, {"metadata": {"name": "usual"}, "value": 0}),
        (kinds.LIMIT_RANGE, {"metadata": {"name": "small"}, "spec": {"limits": []}}),
        (kinds.RUNTIME_CLASS, {"metadata": {"name": "boxed"}, "handler": "boxed"}),
        (
            kinds.TOPOLOGY,
            {"metadata": {"name": "racks"}, "spec": {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}},
        ),
    ):
        if other == kind:
            await quiet.create(other, {"apiVersion": other.api_version, "kind": other.kind, **body})
    classed = job("train", 9, labels={"kueue.x-k8s.io/priority-class": "high"})
    made, plain = await make(quiet, classed, job("plain", 9))
    for one in (made, plain):
        await quiet.until(kinds.WORKLOAD, name_of(one), lambda stored: said(stored, "QuotaReserved")[0] == "False")
    await quiet.settled()
    heard: set[str] = set()
    named = {name_of(made): WAITING, name_of(plain): "job without a class"}
    engine = controller.planning.engine
    look, publish, update = controller.queue.enqueue, controller.publishing.statuses.enqueue, engine.update

    def looked(key: Key, after: float = 0.0) -> None:
        heard.add(named.get(key.name, ""))
        look(key, after)

    def published(at: tuple[Kind, Key], after: float = 0.0) -> None:
        heard.add(f"status of {at[0].kind}")
        publish(at, after)

    def updated(fact: Any) -> None:
        heard.add(type(fact).__name__)
        update(fact)

    monkeypatch.setattr(controller.queue, "enqueue", looked)
    monkeypatch.setattr(controller.publishing.statuses, "enqueue", published)
    monkeypatch.setattr(engine, "update", updated)
    name, change, wanted = CHANGES[kind]
    await quiet.client.patch(kind, name, "default" if kind.namespaced else None, change)
    await quiet.settled()
    assert wanted <= heard


async def test_a_workload_without_a_job_follows_its_priority_class(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "0"}), local_queue(), priority_class("high", 200))
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    named = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    spec = {"queueName": "user-queue", "priority": 200, "priorityClassRef": named}
    spec["podSets"] = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    made = {"apiVersion": kinds.WORKLOAD.api_version, "kind": "Workload", "metadata": {"name": "alone"}, "spec": spec}
    await quiet.create(kinds.WORKLOAD, made)
    await quiet.until(kinds.WORKLOAD, "alone", lambda one: said(one, "QuotaReserved")[0] == "False")
    await quiet.client.patch(kinds.WORKLOAD_PRIORITY_CLASS, "high", None, {"value": 150})
    await quiet.until(kinds.WORKLOAD, "alone", lambda one: one["spec"]["priority"] == 150)
