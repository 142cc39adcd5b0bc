"""A job that is started by hand, past its queue: stopped to the last pod, whatever kind it is of."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.ray import RaySettings
from shoal.controllers.ray.cluster.cluster_pods import ClusterPods
from shoal.controllers.ray.cluster.status import starts_suspending
from shoal.controllers.ray.operator import Operator
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import QUEUE, cluster_queue, flavor, job, local_queue, make, name_of, ray_job, said, true
from tests.unit.queues.conftest import decide


def ray_cluster(name: str, workers: int) -> Json:
    made = ray_job(name, workers)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": made["metadata"],
        "spec": {"suspend": True, **made["spec"]["rayClusterSpec"]},
    }


def app_wrapper(name: str, pods: int) -> Json:
    wrapped = job("wrapped", pods)
    wrapped["metadata"]["labels"] = {}
    wrapped["spec"]["suspend"] = False
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default", "labels": {QUEUE: "user-queue"}},
        "spec": {"suspend": True, "components": [{"template": wrapped}]},
    }


KINDS: dict[str, Kind] = {
    "RayCluster": kinds.RAY_CLUSTER,
    "RayJob": kinds.RAY_JOB,
    "Job": kinds.JOB,
    "AppWrapper": kinds.APP_WRAPPER_V1BETA2,
}


@pytest.fixture
async def small(quiet: Cluster) -> Cluster:
    """A queue of two cores with our Ray operator beside it: nothing here can be admitted."""
    decide(quiet)
    operator = Operator(quiet.client, RaySettings())
    quiet.start(operator.run_until_cancelled())
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "2", "memory": "64Gi"}), local_queue())
    return quiet


async def waits_without_a_pod(cluster: Cluster, made: Json) -> None:
    """Unsuspended by hand, again and again: each time it stands still again, without a pod."""
    kind = KINDS[made["kind"]]
    stored = await cluster.create(kind, made)
    name = name_of(stored, kind.kind, kind.group)
    await cluster.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    for _ in range(3):
        await cluster.client.patch(kind, "train", "default", {"spec": {"suspend": False}})
        await cluster.until(kind, "train", lambda one: one["spec"]["suspend"] is True)
        await cluster.settled()
        for pod in await cluster.names(kinds.POD):
            await cluster.until_gone(kinds.POD, pod)
    assert await cluster.names(kinds.POD) == []
    assert said(await cluster.get(kinds.WORKLOAD, name), "QuotaReserved")[0] == "False"


def believes_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterPods, "_is_suspending", lambda self, cluster, members: starts_suspending(cluster))


@proven(without=believes_its_status)
async def test_f151_a_cluster_that_is_started_past_its_queue_is_stopped_to_the_last_pod(small: Cluster) -> None:
    """F151: a user unsuspends a RayCluster that waits for quota. Holds: I5, it is suspended again and no pod of it is
    left, though its status never said that it ran."""
    await waits_without_a_pod(small, ray_cluster("train", 4))


@pytest.mark.parametrize(
    "made", [ray_job("train", 4), job("train", 5), app_wrapper("train", 5)], ids=["RayJob", "Job", "AppWrapper"]
)
async def test_what_is_started_past_its_queue_is_stopped_to_the_last_pod(small: Cluster, made: Json) -> None:
    await waits_without_a_pod(small, made)


def goes_by_the_phase_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.queues.jobs.app_wrapper._has_resources", lambda status: False)


@proven(without=goes_by_the_phase_alone)
async def test_f835_an_app_wrapper_keeps_its_quota_while_its_controller_says_that_something_of_it_is_there(
    quiet: Cluster,
) -> None:
    """F835: a queue takes back an AppWrapper whose controller says by the condition `QuotaReserved` that resources are
    there, and whose phase does not. Holds: its quota is free once that condition says so, as in Kueue, no sooner."""
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    made = await quiet.create(kinds.APP_WRAPPER_V1BETA2, app_wrapper("wrapped", 1))
    name = name_of(made, "AppWrapper", "workload.codeflare.dev")

    async def tell(there: str) -> None:
        change = {"status": {"phase": "Suspended", "conditions": [{"type": "QuotaReserved", "status": there}]}}
        await quiet.client.patch(kinds.APP_WRAPPER_V1BETA2, "wrapped", "default", change, subresource="status")

    await quiet.until(kinds.APP_WRAPPER_V1BETA2, "wrapped", lambda one: one["spec"]["suspend"] is False)
    await tell("True")
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    await quiet.until(kinds.APP_WRAPPER_V1BETA2, "wrapped", lambda one: one["spec"]["suspend"] is True)
    await quiet.settled(turns=100)
    assert true("QuotaReserved")(await quiet.get(kinds.WORKLOAD, name))
    await tell("False")
    await quiet.until(kinds.WORKLOAD, name, lambda one: not true("QuotaReserved")(one))
