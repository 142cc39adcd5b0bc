"""Kinds of jobs beside Job and Ray: JobSet, and kinds that an administrator describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import choices
from shoal.contracts import missing_from_job
from shoal.controllers.queues import jobs
from shoal.controllers.queues.jobs.batch import Jobs
from shoal.controllers.queues.jobs.configured import ConfiguredJobs, configured
from shoal.controllers.queues.jobs.job_set import JobSets
from shoal.errors import BadInput
from tests.cluster import Cluster
from tests.unit.queues.build import (
    QUEUE,
    cluster_queue,
    flavor,
    job_set,
    local_queue,
    make,
    name_of,
    said,
    template,
    true,
)
from tests.unit.queues.conftest import decide

MPI = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "plural": "mpijobs",
    "suspend": "spec.runPolicy.suspend",
    "podSets": [{"template": "spec.mpiReplicaSpecs.*.template", "count": ["spec.mpiReplicaSpecs.*.replicas"]}],
    "ready": "Running",
    "active": "status.replicaStatuses.Worker.active",
}
TRAIN = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "plural": "trainjobs",
    "podSets": [
        {"name": "node", "template": "spec.trainer.template", "count": ["spec.trainer.numNodes"]},
        {"template": "spec.initializers.*.template"},
    ],
}


def mpi_job(title: str, workers: int = 2) -> Json:
    replicas = {
        "Launcher": {"template": template(cpu="1")},
        "Worker": {"replicas": workers, "template": template(cpu="1")},
    }
    spec = {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": replicas}
    metadata = {"name": title, "namespace": "default", "labels": {QUEUE: "user-queue"}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata, "spec": spec}


def train_job(title: str) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": title},
        "spec": {
            "trainer": {"numNodes": 4, "template": template(cpu="1")},
            "initializers": [{"name": "dataset", "template": template(cpu="1")}],
        },
    }


def definition(kind: Kind) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture
def described() -> Iterator[ConfiguredJobs]:
    """MPIJobs as a kind of job, for this test alone."""
    (made,) = configured([MPI])
    jobs.use([made])
    yield made
    jobs.ALL.remove(made)
    del jobs.BY_KIND[made.kind], jobs.BY_NAME[made.kind.group, made.kind.kind]


@pytest.mark.parametrize("kind, example", [(MPI, mpi_job("train")), (TRAIN, train_job("train"))])
def test_described_kinds_keep_the_contract(kind: Any, example: Json) -> None:
    (made,) = configured([kind])
    assert missing_from_job(made, example) == []


def test_pod_sets_are_named_by_their_map_or_list() -> None:
    (train,) = configured([TRAIN])
    assert [(one["name"], one["count"]) for one in train.pod_sets(train_job("train"))] == [("node", 4), ("dataset", 1)]
    (mpi,) = configured([MPI])
    found = [(one["name"], one["count"]) for one in mpi.pod_sets(mpi_job("train", 3))]
    assert found == [("launcher", 1), ("worker", 3)]
    assert mpi.template_paths(mpi_job("train")) == [
        "spec.mpiReplicaSpecs.Launcher.template",
        "spec.mpiReplicaSpecs.Worker.template",
    ]


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"suspend": "spec..x"}, "suspend"),
        ({"apiVersion": "v1"}, "apiVersion must be GROUP/VERSION"),
        ({"podSets": []}, "podSets must name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused(wrong: Json, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        configured([{**MPI, **wrong}])


def test_a_kind_is_described_once(described: ConfiguredJobs) -> None:
    with pytest.raises(BadInput, match=r"MPIJob.kubeflow.org is known already"):
        jobs.use([described])


def test_descriptions_come_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "kinds.yaml"
    file.write_text("- {apiVersion: lab.example/v1, kind: Run, plural: runs, podSets: [{template: spec.template}]}\n")
    found = choices.read([f"queues.job_kinds=@{file}"])
    (kind,) = choices.queue_settings({}, found).job_kinds
    assert (kind.kind, kind.suspend) == ("Run", "spec.suspend")
    with pytest.raises(BadInput, match="No such file"):
        choices.read(["queues.job_kinds=@nowhere.yaml"])


async def test_a_described_job_is_held_started_and_ended(quiet: Cluster, described: ConfiguredJobs) -> None:
    kind = described.kind
    await quiet.create(kinds.CRD, definition(kind))
    decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    made = await quiet.create(kind, mpi_job("first", 3))
    started = await quiet.until(kind, "first", lambda one: one["spec"]["runPolicy"]["suspend"] is False)
    labels = started["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/podset"] == "worker"
    other = await quiet.create(kind, mpi_job("second", 3))
    waiting = name_of(other, "MPIJob", "kubeflow.org")
    await quiet.until(kinds.WORKLOAD, waiting, lambda one: said(one, "QuotaReserved")[1] == "WaitingForQuota")
    over = {"status": {"conditions": [{"type": "Succeeded", "status": "True", "message": "all done"}]}}
    await quiet.client.patch(kind, "first", "default", over, subresource="status")
    finished = await quiet.until(kinds.WORKLOAD, name_of(made, "MPIJob", "kubeflow.org"), true("Finished"))
    assert said(finished, "Finished") == ("True", "Succeeded", "all done")
    await quiet.until(kinds.WORKLOAD, waiting, true("Admitted"))


async def test_a_job_set_is_held_started_and_stopped(quiet: Cluster) -> None:
    kind = kinds.JOB_SET
    await quiet.create(kinds.CRD, definition(kind))
    decide(quiet)
    await make(quiet, flavor(nodeLabels={"tier": "fast"}), cluster_queue(), local_queue())
    await quiet.client.patch(kinds.NODE, "node-1", None, {"metadata": {"labels": {"tier": "fast"}}})
    (made,) = await make(quiet, job_set("train", leader=1, workers=2))
    started = await quiet.until(kind, "train", lambda one: one["spec"]["suspend"] is False)
    pods = [one["template"]["spec"]["template"]["spec"] for one in started["spec"]["replicatedJobs"]]
    assert [one["nodeSelector"] for one in pods] == [{"tier": "fast"}, {"tier": "fast"}]
    name = name_of(made, "JobSet", "jobset.x-k8s.io")
    workload = await quiet.until(kinds.WORKLOAD, name, true("Admitted"))
    assert [(one["name"], one["count"]) for one in workload["spec"]["podSets"]] == [("leader", 1), ("workers", 2)]
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    stopped = await quiet.until(kind, "train", lambda one: one["spec"]["suspend"] is True)
    assert "nodeSelector" not in stopped["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_pods_of_a_job_set_that_are_done_need_no_quota() -> None:
    one = job_set("train", workers=3)
    one["status"] = {"replicatedJobsStatus": [{"name": "workers", "succeeded": 2, "ready": 1, "active": 1}]}
    kind = JobSets()
    assert kind.reclaimable(one) == {"workers": 2} and kind.is_active(one) and kind.are_pods_ready(one, {})


def test_pods_of_a_job_are_known_by_the_jobs_name_where_affinity_asks_for_it() -> None:
    added = {"batch.kubernetes.io/controller-uid": "u", "controller-uid": "u", "job-name": "train"}
    labels = {**added, "batch.kubernetes.io/job-name": "train", "app": "mine"}
    made = {"spec": {"template": {"metadata": {"labels": labels}, **template(cpu="1")}}}
    (main,) = Jobs().pod_sets(made)
    assert main["template"]["metadata"]["labels"] == {"batch.kubernetes.io/job-name": "train", "app": "mine"}
