"""A job created from what the server returned of an earlier one starts as if its user had written it."""

from __future__ import annotations

import copy

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli.cluster import preparers
from shoal.controllers.queues import admission
from shoal.controllers.queues.jobs import BY_NAME
from shoal.controllers.queues.reapplied import INJECTED, as_before
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, ray_job
from tests.unit.queues.conftest import decide

GPU = {"key": "gpu", "operator": "Exists"}


def kept_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "as_before", lambda kind, made: made)


@proven(without=kept_as_it_comes)
async def test_f350_a_failed_ray_job_starts_again_from_what_the_server_returns(quiet: Cluster) -> None:
    """F350: a RayJob that a queue started and that failed is deleted and created again from what the server returned.
    Holds: it starts once more, on whichever flavor has quota, with its own node selector and no old marks."""
    quiet.server.admission.preparers.update(preparers(quiet.client))
    decide(quiet)
    await make(
        quiet,
        flavor(nodeLabels={"pool": "spot"}, tolerations=[GPU]),
        cluster_queue(),
        local_queue(),
    )
    await quiet.add_node("node-2", cpu="16", memory="64Gi", labels={"pool": "spot", "disk": "fast"})
    written = ray_job("train", 1)
    written["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["nodeSelector"] = {"disk": "fast"}
    await make(quiet, written)
    first = await quiet.until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
    assert head(first)["nodeSelector"] == {"disk": "fast", "pool": "spot"}
    failed = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": "boom"}
    await quiet.client.patch(kinds.RAY_JOB, "train", "default", {"status": failed}, subresource="status")
    await quiet.client.delete(kinds.RAY_JOB, "train", "default")
    await quiet.until_gone(kinds.RAY_JOB, "train")

    returned = copy.deepcopy(first)
    returned["metadata"] = {key: first["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    (again,) = await make(quiet, returned)
    assert again["spec"]["suspend"] is True and head(again)["nodeSelector"] == {"disk": "fast"}
    assert "kueue.x-k8s.io/workload" not in str(again["spec"]) and "tolerations" not in head(again)
    started = await quiet.until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
    assert head(started) == head(first)


def head(found: Json) -> Json:
    spec: Json = found["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    return spec


async def test_a_job_that_no_queue_started_stays_as_it_is() -> None:
    plain = job("train")
    kind = next(one for one in BY_NAME.values() if one.kind == kinds.JOB)
    assert as_before(kind, plain) is plain
    odd = {**plain, "metadata": {**plain["metadata"], "annotations": {INJECTED: "{broken"}}}
    assert as_before(kind, odd) is odd


async def test_a_job_that_cannot_start_says_why(cluster: Cluster) -> None:
    await make(cluster, flavor("labelled", nodeLabels={"pool": "spot"}))
    contradicting = job("train")
    contradicting["spec"]["template"].setdefault("metadata", {})["labels"] = {"kueue.x-k8s.io/podset": "another"}
    await make(cluster, contradicting)

    async def told() -> bool:
        events = await cluster.client.list(kinds.EVENT, "default")
        return any(one["reason"] == "FailedToStart" and "podset" in one["message"] for one in events)

    await cluster.settled()
    assert await told()
