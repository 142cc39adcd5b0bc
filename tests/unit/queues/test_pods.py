"""Plain pods in a queue, and Deployments and StatefulSets through their pods."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import cluster as composition
from shoal.controllers.queues.jobs.pod import Pods
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster
from tests.unit.queues.build import (
    QUEUE,
    cluster_queue,
    condition,
    flavor,
    local_queue,
    make,
    name_of,
    pod,
    provisioning_check,
    provisioning_config,
    said,
    template,
    true,
)
from tests.unit.queues.conftest import decide

GATE = [{"name": "kueue.x-k8s.io/admission"}]
MANAGED = "kueue.x-k8s.io/managed"


@pytest.fixture
async def held(quiet: Cluster) -> Cluster:
    """Admission and controller; a queue of four cores on nodes of one tier."""
    quiet.server.admission.preparers.update(composition.preparers(quiet.client))
    quiet.server.admission.judges.update(composition.judges(quiet.client))
    decide(quiet)
    await quiet.client.patch(kinds.NODE, "node-1", None, {"metadata": {"labels": {"tier": "fast"}}})
    await make(quiet, flavor(nodeLabels={"tier": "fast"}), cluster_queue(), local_queue())
    return quiet


def gates(one: Json) -> list[Json]:
    return one["spec"].get("schedulingGates") or []


async def test_a_pod_is_gated_and_starts_when_it_has_quota(held: Cluster) -> None:
    (made,) = await make(held, pod("train", cpu="3"))
    assert gates(made) == GATE and made["metadata"]["labels"][MANAGED] == "true"
    name = name_of(made, "Pod", "")
    workload = await held.until(kinds.WORKLOAD, name, true("Admitted"))
    assert workload["spec"]["podSets"][0]["count"] == 1
    started = await held.until(kinds.POD, "train", lambda one: not gates(one))
    assert started["spec"]["nodeSelector"] == {"tier": "fast"}
    (second,) = await make(held, pod("second", cpu="3"))
    waiting = name_of(second, "Pod", "")
    await held.until(kinds.WORKLOAD, waiting, lambda one: said(one, "QuotaReserved")[1] == "WaitingForQuota")
    over = {"status": {"phase": "Succeeded"}}
    await held.client.patch(kinds.POD, "train", "default", over, subresource="status")
    await held.until(kinds.WORKLOAD, name, true("Finished"))
    await held.until(kinds.WORKLOAD, waiting, true("Admitted"))


def test_a_pod_in_a_topology_names_the_label_of_its_index() -> None:
    asks = pod("train")
    asks["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    (made,) = Pods().pod_sets(asks)
    assert made["topologyRequest"] == {"required": "rack", "podIndexLabel": "kueue.x-k8s.io/pod-group-pod-index"}


async def test_a_pod_that_has_to_leave_is_deleted(held: Cluster) -> None:
    (made,) = await make(held, pod("train"))
    name = name_of(made, "Pod", "")
    await held.until(kinds.POD, "train", lambda one: not gates(one))
    await held.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    await held.until_gone(kinds.POD, "train")


async def test_a_pod_that_is_stopped_says_why(held: Cluster) -> None:
    """What made it can tell an eviction from a failure. Other conditions stay."""
    await make(held, {**pod("train"), "metadata": {**pod("train")["metadata"], "finalizers": ["example.test/look"]}})
    await held.until(kinds.POD, "train", lambda one: not gates(one))
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await held.client.patch(kinds.POD, "train", "default", ready, subresource="status")
    (workload,) = await held.client.list(kinds.WORKLOAD, "default")
    await held.client.patch(kinds.WORKLOAD, workload["metadata"]["name"], "default", {"spec": {"active": False}})
    leaving = await held.until(kinds.POD, "train", lambda one: bool(one["metadata"].get("deletionTimestamp")))
    told = {one["type"]: one for one in leaving["status"]["conditions"]}
    assert told["TerminationTarget"]["reason"] == "WorkloadEvictedDueToDeactivated"
    assert told["TerminationTarget"]["message"] == "The workload is deactivated"
    assert told["Ready"]["status"] == "True"


async def test_a_pod_that_never_started_gives_its_quota_back(quiet: Cluster) -> None:
    """It stays gated, and does not run: its quota is not kept for it."""
    quiet.server.admission.preparers.update(composition.preparers(quiet.client))
    decide(quiet)
    queue = cluster_queue(checks=["nodes"])
    await make(quiet, flavor(), provisioning_check(), provisioning_config(), queue, local_queue())
    (made,) = await make(quiet, pod("train"))
    name = name_of(made, "Pod", "")
    await quiet.until(kinds.WORKLOAD, name, true("QuotaReserved"))
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    await quiet.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert gates(await quiet.client.get(kinds.POD, "train", "default")) == GATE


async def test_a_pod_without_a_queue_is_left_alone(held: Cluster) -> None:
    plain = pod("plain")
    del plain["metadata"]["labels"]
    (made,) = await make(held, plain)
    assert not gates(made)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_pods_of_a_deployment_wait_for_their_queue_one_by_one(held: Cluster, kind: str) -> None:
    labels = {"app": "web"}
    body = template(cpu="3")
    body["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": {**body, "metadata": {"labels": labels}}}
    if kind == "StatefulSet":
        spec |= {"serviceName": "web", "podManagementPolicy": "Parallel"}
    metadata = {"name": "web", "namespace": "default", "labels": {QUEUE: "user-queue"}}
    (made,) = await make(held, {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec})
    assert made["spec"]["template"]["metadata"]["labels"] == {**labels, QUEUE: "user-queue"}
    await held.settled()
    pods = await held.client.list(kinds.POD, "default", label_selector="app=web")
    assert sorted(bool(gates(one)) for one in pods) == [False, True], "one has quota, the other waits"
    workloads = await held.client.list(kinds.WORKLOAD, "default")
    assert sorted(condition(one, "QuotaReserved").get("status", "") for one in workloads) == ["False", "True"]
    rows = await rows_of(held.client, "default")
    assert sorted((one["kind"], one["state"]) for one in rows) == [("Pod", "Queued"), ("Pod", "Running")]
