"""After an uninstall nothing hangs on a finalizer that no controller would remove."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import releasing
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, flavor, make, ray_job

IN_USE, OF_JOBS, THEIRS = "kueue.x-k8s.io/resource-in-use", "ray.io/rayjob-finalizer", "example.test/kept"
WRAPPER: Json = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {"name": "gang", "namespace": "default", "finalizers": ["workload.codeflare.dev/finalizer"]},
    "spec": {"components": []},
}


def held(obj: Json, *finalizers: str) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "finalizers": list(finalizers)}}


async def finalizers(cluster: Cluster, kind: Kind, name: str) -> list[str]:
    return list((await cluster.get(kind, name))["metadata"].get("finalizers") or [])


def _releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "_OURS", {part: set[str]() for part in releasing._OURS})
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=_releases_nothing)
async def test_f277_after_an_uninstall_nothing_hangs_on_a_finalizer_of_ours(quiet: Cluster) -> None:
    """F277: Shoal is uninstalled while its finalizers are on users' objects, some of which are being deleted. Holds:
    deletions end, the kinds can be deleted, everything else stays, finalizers of others included."""
    await make(quiet, held(flavor(), IN_USE), held(cluster_queue(), IN_USE, THEIRS))
    await quiet.create(kinds.APP_WRAPPER_V1BETA2, WRAPPER)
    await quiet.create(kinds.RAY_JOB, held(ray_job("train"), OF_JOBS))
    await quiet.client.delete(kinds.APP_WRAPPER_V1BETA2, "gang", "default")
    assert await releasing.release(quiet.client, ("appwrapper", "queues", "ray")) == 4
    await quiet.until_gone(kinds.APP_WRAPPER_V1BETA2, "gang")
    assert await finalizers(quiet, kinds.CLUSTER_QUEUE, "cluster-queue") == [THEIRS]
    assert await finalizers(quiet, kinds.RAY_JOB, "train") == []
    await quiet.client.delete(kinds.CRD, "resourceflavors.kueue.x-k8s.io")
    await quiet.until_gone(kinds.CRD, "resourceflavors.kueue.x-k8s.io")


async def test_finalizers_of_parts_that_were_not_installed_stay(quiet: Cluster) -> None:
    await make(quiet, held(flavor(), IN_USE))
    await quiet.create(kinds.RAY_JOB, held(ray_job("train"), OF_JOBS))
    assert await releasing.release(quiet.client, ("ray",)) == 1
    assert await finalizers(quiet, kinds.RESOURCE_FLAVOR, "default-flavor") == [IN_USE]
    assert await finalizers(quiet, kinds.RAY_JOB, "train") == []
