"""No gang keeps quota that cannot be stored, or that it will not use: others go on."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings, context, ownership, queue_status
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response, Stream, Transport
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import planned
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    counts,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    said,
    true,
)
from tests.unit.queues.conftest import decide
from tests.unit.queues.test_overtaken import PRIORITY, priority_class

FIRST = {PRIORITY: "p1"}


async def test_a_deleted_job_that_somebody_keeps_is_given_no_quota(cluster: Cluster) -> None:
    (first,) = await make(cluster, job("one", 4))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    await make(cluster, priority_class(1))
    kept = job("two", 4, labels=FIRST)
    kept["metadata"]["finalizers"] = ["example.com/kept"]
    (second,) = await make(cluster, kept)
    (third,) = await make(cluster, job("three", 4))
    for one in (second, third):
        await cluster.until(kinds.WORKLOAD, name_of(one), lambda one: said(one, "QuotaReserved")[0] == "False")
    await cluster.client.delete(kinds.JOB, "two", "default")
    await complete(cluster, "one", 4)
    await cluster.until(kinds.WORKLOAD, name_of(third), true("Admitted"))
    await cluster.client.patch(kinds.JOB, "two", "default", {"metadata": {"finalizers": None}})
    await cluster.until_gone(kinds.JOB, "two")


def kept_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "workload_key", lambda kind, job: None)
    monkeypatch.setattr(ownership, "key_of", lambda workload: None)


@proven(without=kept_by_any_name)
async def test_f770_a_second_workload_of_a_job_goes(cluster: Cluster) -> None:
    """F770: another client makes a second Workload that the same job owns. Holds: it goes, as in Kueue, and no quota is
    kept for pods that are nowhere; the job's own Workload stays."""
    (made,) = await make(cluster, job("train", 2))
    own = await cluster.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    second = {
        **own,
        "metadata": {
            "name": "second",
            "namespace": "default",
            "ownerReferences": own["metadata"]["ownerReferences"],
        },
    }
    await make(cluster, second)
    await cluster.until_gone(kinds.WORKLOAD, "second")
    await cluster.settled()
    assert (await cluster.get(kinds.WORKLOAD, name_of(made)))["metadata"]["uid"] == own["metadata"]["uid"]
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: counts(one) == (0, 1, 1))
    told = {one["reason"]: one["message"] for one in await cluster.client.list(kinds.EVENT, "default")}
    assert told["DeletedWorkload"] == "Deleted not matching Workload: default/second"


def never_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def owner_is(*_: object) -> str:
        return ""

    monkeypatch.setattr(ownership, "owner_is", owner_is)


@proven(without=never_gone)
async def test_f775_a_workload_whose_job_is_gone_waits_no_more() -> None:
    """F775: a job that waits is deleted, and the garbage collector takes its time. Holds: its Workload is finished and
    gets no quota, as in Kueue."""
    async with running(with_builtin=False) as bare:  # no garbage collector
        decide(bare)
        await make(bare, flavor(), cluster_queue(quota={"cpu": "1"}), local_queue())
        (made,) = await make(bare, job("large", 2, cpu="1"))
        name = name_of(made)
        await bare.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
        await bare.client.delete(kinds.JOB, "large", "default", propagation="Background")
        ended = await bare.until(kinds.WORKLOAD, name, true("Finished"))
        assert said(ended, "Finished")[1] == "OwnerNotFound"


class Refusing:
    """A server that refuses the status of one Workload, as a policy of the cluster may."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.refused = "nothing"
        self.times = 0

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method == "PATCH" and f"/{self.refused}/status" in request.path:
            self.times += 1
            answer = {"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": "not so"}
            return Response(422, {"content-type": "application/json"}, msgspec.json.encode(answer))
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


async def test_quota_that_the_server_refuses_to_store_is_given_to_others(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "RETRY_REFUSED", 1.0)
    refusing = Refusing(quiet.server.transport())
    client = Client(refusing)
    host = planned(client, AppWrapperSettings(trust_unstamped=True), queues=QueueSettings())
    quiet.start(host.run())
    await make(quiet, flavor(), cluster_queue(), local_queue(), priority_class(1))
    (first,) = await make(quiet, job("one", 4))
    await quiet.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (second,) = await make(quiet, job("two", 4, labels=FIRST))
    await quiet.until(kinds.WORKLOAD, name_of(second), lambda one: said(one, "QuotaReserved")[0] == "False")
    (third,) = await make(quiet, job("three", 4))
    await quiet.until(kinds.WORKLOAD, name_of(third), lambda one: said(one, "QuotaReserved")[0] == "False")
    refusing.refused = name_of(second)
    await complete(quiet, "one", 4)
    await quiet.until(kinds.WORKLOAD, name_of(third), true("Admitted"))
    assert refusing.times
    refusing.refused = "nothing"
    await complete(quiet, "three", 4)
    await quiet.until(kinds.WORKLOAD, name_of(second), true("Admitted"))


def waits_for_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_status, "may_be_left_behind", lambda workload: False)


@proven(without=waits_for_its_maker)
async def test_f831_a_queue_does_not_wait_for_a_workload_without_owner_that_is_switched_off(quiet: Cluster) -> None:
    """F831: a Workload without an owner is admitted, and switched off by a user or by its time limit; no client ends
    its eviction, and its ClusterQueue is deleted. Holds: the queue goes, as in Kueue; before, it waited for ever."""
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    pods = {"containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}
    template = {"spec": {**pods, "restartPolicy": "Never"}}
    spec = {"queueName": "user-queue", "podSets": [{"name": "main", "count": 1, "template": template}]}
    metadata = {"name": "alone", "namespace": "default"}
    await make(quiet, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "spec": spec})
    await quiet.until(kinds.WORKLOAD, "alone", true("Admitted"))
    await quiet.client.delete(kinds.CLUSTER_QUEUE, "cluster-queue", "")
    await quiet.settled()
    assert (await quiet.get(kinds.CLUSTER_QUEUE, "cluster-queue"))["metadata"]["deletionTimestamp"]
    await quiet.client.patch(kinds.WORKLOAD, "alone", "default", {"spec": {"active": False}})
    await quiet.until_gone(kinds.CLUSTER_QUEUE, "cluster-queue")
    off = await quiet.get(kinds.WORKLOAD, "alone")
    assert said(off, "Evicted")[1] == "Deactivated" and true("QuotaReserved")(off), "its maker gives it back"
