"""At a hub, admission writes into a new job that it runs in another cluster: manifests stay as they are."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.cli import cluster as composition
from shoal.controllers.queues import elsewhere
from shoal.controllers.queues.elsewhere import Elsewhere
from shoal.controllers.queues.jobs import BY_KIND
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.clusters.build import MANAGED, Wire, is_placed, make_queues, member_cluster, town
from tests.unit.queues.build import QUEUE, job, name_of, pods_of, ray_job


def writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "KINDS", ())


def admit(cluster: Cluster) -> None:
    cluster.server.admission.preparers.update(composition.preparers(cluster.client))


@proven(without=writes_nothing)
async def test_f221_a_plain_job_at_a_hub_goes_to_a_member() -> None:
    """F221: a Job's `managedBy` cannot be set once it exists, so a manifest without it is refused at a hub. Holds:
    admission sets it where the job's queue gives its gangs to other clusters, and the job runs there."""
    async with town("a") as t:
        admit(t.hub)
        t.start_hub()
        await t.connected()
        made = await t.hub.client.create(kinds.JOB, job("train", 2), "default")
        assert made["spec"]["managedBy"] == MANAGED
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        await pods_of(t.members["a"], "train", 2)
        assert "managedBy" not in (await t.members["a"].get(kinds.JOB, "train"))["spec"]


async def test_a_job_that_stays_at_home_or_names_its_manager_is_left_as_it_is() -> None:
    async with running() as hub:
        admit(hub)
        await hub.create(kinds.MULTIKUEUE_CLUSTER, member_cluster("a"))
        await make_queues(hub, quota="8")
        plain = await hub.client.create(kinds.JOB, job("plain"), "default")
        assert plain["spec"]["suspend"] is True and "managedBy" not in plain["spec"]
        lost = job("lost")
        lost["metadata"]["labels"][QUEUE] = "no-such-queue"
        assert "managedBy" not in (await hub.client.create(kinds.JOB, lost, "default"))["spec"]


async def test_another_manager_is_never_overwritten() -> None:
    async with town("a", deciding=False) as t:
        admit(t.hub)
        named = job("named")
        named["spec"]["managedBy"] = "example.com/other"
        assert (await t.hub.client.create(kinds.JOB, named, "default"))["spec"]["managedBy"] == "example.com/other"
        own = ray_job("own")
        own["spec"]["managedBy"] = "ray.io/kuberay-operator"
        assert (await t.hub.client.create(kinds.RAY_JOB, own, "default"))["spec"]["managedBy"] == MANAGED


class Counting(Wire):
    """Remembers what is read."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.server)
        self.read: list[str] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        self.read.append(request.path)
        return await super().send(request, timeout=timeout)


async def test_without_other_clusters_no_queue_is_read() -> None:
    async with running(with_builtin=False) as alone:
        wire = Counting(alone)
        asked = Elsewhere(Client(wire))
        for name in ("one", "two", "three"):
            assert not await asked.takes(BY_KIND[kinds.JOB], job(name), "default")
        assert {path.rpartition("/")[2] for path in wire.read} == {"multikueueclusters"}
