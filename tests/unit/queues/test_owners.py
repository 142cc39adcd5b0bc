"""A job that says another one made it: that exempts it from its queue where it is true, and that one is held."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import cluster as composition
from shoal.controllers.queues import owners
from shoal.controllers.queues.owners import Owners, claims_owner
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import QUEUE, cluster_queue, flavor, job, local_queue, make, name_of, ray_job
from tests.unit.queues.conftest import decide


async def believes(self: Owners, job: Json, namespace: str = "") -> bool:
    return claims_owner(job)


def every_claim_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owners, "hold", believes)


def made_by(owner: Json, title: str, /, **reference: Any) -> Json:
    """A labelled Job that is not suspended, and says that it has this owner."""
    made = job(title)
    made["spec"]["suspend"] = False
    stated = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    stated |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], **reference}
    made["metadata"]["ownerReferences"] = [stated]
    return made


async def owner_without_queue(cluster: Cluster) -> Json:
    plain = ray_job("plain")
    del plain["metadata"]["labels"][QUEUE]
    plain["spec"]["suspend"] = True
    made: Json = await cluster.client.create(kinds.RAY_JOB, plain, "default")
    return made


@proven(without=every_claim_counts)
async def test_f207_an_owner_that_is_not_what_it_seems_exempts_no_job(quiet: Cluster) -> None:
    """F207: a job with a queue label names an owner that does not exist, has another UID, lives elsewhere, or is in no
    queue. Holds: the job begins suspended like any other; the child of a queued job does not."""
    quiet.server.admission.preparers.update(composition.preparers(quiet.client))
    (queued,) = await make(quiet, ray_job("queued"))
    plain = await owner_without_queue(quiet)
    forged = [
        made_by(queued, "no-such-owner", name="gone"),
        made_by(queued, "another-uid", uid="00000000-0000-0000-0000-000000000000"),
        made_by(queued, "another-kind", kind="RayCluster"),
        made_by(plain, "owner-in-no-queue"),
    ]
    for one in forged:
        stored = await quiet.client.create(kinds.JOB, one, "default")
        assert stored["spec"]["suspend"] is True, one["metadata"]["name"]
    child = await quiet.client.create(kinds.JOB, made_by(queued, "child"), "default")
    assert child["spec"]["suspend"] is False
    (cluster_of_it,) = await make(quiet, below(queued))
    grandchild = await quiet.client.create(kinds.JOB, made_by(cluster_of_it, "grandchild"), "default")
    assert grandchild["spec"]["suspend"] is False


def below(owner: Json) -> Json:
    """A RayCluster without a label that a RayJob made."""
    metadata = made_by(owner, "below")["metadata"]
    metadata.pop("labels")
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": owner["spec"]["rayClusterSpec"],
    }


@proven(without=every_claim_counts)
async def test_f207_a_job_that_slipped_past_admission_waits_in_its_queue(quiet: Cluster) -> None:
    """F207: no webhook answered while a job with a queue label and a made-up owner was stored. Holds: the controller
    gives it a Workload and stops it; a true child is left alone."""
    await make(quiet, flavor(), cluster_queue(quota={"cpu": "0"}), local_queue())
    decide(quiet)
    (queued,) = await make(quiet, ray_job("queued"))
    child = await quiet.client.create(kinds.JOB, made_by(queued, "child"), "default")
    forged = await quiet.client.create(kinds.JOB, made_by(queued, "forged", name="gone"), "default")
    await quiet.settled()
    assert (await quiet.get(kinds.JOB, "forged"))["spec"]["suspend"] is True
    assert name_of(forged) in await quiet.names(kinds.WORKLOAD)
    assert name_of(child) not in await quiet.names(kinds.WORKLOAD)
    assert (await quiet.get(kinds.JOB, "child"))["spec"]["suspend"] is False
    await quiet.client.delete(kinds.JOB, "child", "default", propagation="Foreground")
    await quiet.until_gone(kinds.JOB, "child")


async def test_an_owner_that_cannot_be_read_in_time_lets_the_job_in(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller judges it then."""

    async def late(self: Owners, job: Json, namespace: str) -> bool:
        raise TimeoutError

    monkeypatch.setattr(owners.Owners, "_hold", late)
    quiet.server.admission.preparers.update(composition.preparers(quiet.client))
    (queued,) = await make(quiet, ray_job("queued"))
    child = await quiet.client.create(kinds.JOB, made_by(queued, "child"), "default")
    assert child["spec"]["suspend"] is False
