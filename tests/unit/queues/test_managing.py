"""Which jobs are a queue's: by label, by default, or all of them, in the namespaces that take part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import choices
from shoal.cli import cluster as composition
from shoal.cli.admission import configurations
from shoal.controllers.queues import QueueSettings, jobs
from shoal.errors import BadInput
from shoal.kube.errors import Forbidden
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import (
    QUEUE,
    cluster_queue,
    condition,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    ray_job,
    said,
    true,
)
from tests.unit.queues.conftest import decide
from tests.unit.queues.test_owners import made_by

PRIORITY = "kueue.x-k8s.io/priority-class"


def watched(cluster: Cluster, **settings: Any) -> None:
    """Admission and controller with these settings."""
    chosen = QueueSettings(**settings)
    cluster.server.admission.preparers.update(composition.preparers(cluster.client, chosen))
    cluster.server.admission.judges.update(composition.judges(cluster.client, in_queues=chosen))
    decide(cluster, chosen)


def unlabelled(title: str, **requests: str) -> Json:
    made = job(title, **requests)
    made["metadata"].pop("labels")
    made["spec"]["suspend"] = False
    return made


def default_class(value: int = 7) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": "default"},
        "value": value,
    }


async def test_a_job_without_a_queue_goes_to_the_default_queue_of_its_namespace(quiet: Cluster) -> None:
    watched(quiet)
    await make(quiet, flavor(), cluster_queue(), default_class())
    (free,) = await make(quiet, unlabelled("free"))
    assert free["spec"]["suspend"] is False and QUEUE not in free["metadata"]["labels"]
    await make(quiet, local_queue("default"))
    (made,) = await make(quiet, unlabelled("train"))
    labels = made["metadata"]["labels"]
    assert (labels[QUEUE], labels[PRIORITY], made["spec"]["suspend"]) == ("default", "default", True)
    workload = await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert (workload["spec"]["queueName"], workload["spec"]["priority"]) == ("default", 7)
    (child,) = await make(quiet, {**unlabelled("child"), "metadata": made_by(made, "child")["metadata"]})
    assert child["spec"]["suspend"] is False, "what a held job makes is its part"


async def test_the_default_queue_cannot_be_left(quiet: Cluster) -> None:
    watched(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue("default"), job("train", queue="default"))
    with pytest.raises(Forbidden, match="may not be removed where a LocalQueue is named default"):
        await quiet.client.patch(kinds.JOB, "train", "default", {"metadata": {"labels": {QUEUE: None}}})


async def test_a_job_may_wait_until_it_names_a_queue(quiet: Cluster) -> None:
    watched(quiet, manage_jobs_without_queue_name=True)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made,) = await make(quiet, unlabelled("train"))
    assert made["spec"]["suspend"] is True and QUEUE not in made["metadata"]["labels"]
    waiting = await quiet.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))
    assert said(waiting, "QuotaReserved")[0] == "False"
    (child,) = await make(quiet, {**unlabelled("child"), "metadata": made_by(made, "child")["metadata"]})
    assert child["spec"]["suspend"] is False
    await quiet.client.patch(kinds.JOB, "train", "default", {"metadata": {"labels": {QUEUE: "user-queue"}}})
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)


async def test_a_ray_job_without_a_queue_is_held_too(quiet: Cluster) -> None:
    watched(quiet, manage_jobs_without_queue_name=True)
    plain = ray_job("plain")
    plain["metadata"].pop("labels")
    plain["spec"]["suspend"] = False
    (made,) = await make(quiet, plain)
    assert made["spec"]["suspend"] is True
    await quiet.until(kinds.WORKLOAD, name_of(made, "RayJob", "ray.io"), lambda one: one["spec"]["podSets"])


def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.queues.managing.Managing.has_part", lambda *_, **__: True)


@proven(without=everywhere)
async def test_f370_namespaces_outside_the_selector_have_no_part_in_queues(quiet: Cluster) -> None:
    """F370: all jobs are to be held, and a namespace that the selector leaves out creates Jobs, with and without a
    queue label. Holds: they start as they are; those of a selected namespace wait; a namespace that is selected later
    has part from then on."""
    watched(quiet, manage_jobs_without_queue_name=True, managed_namespaces="team in (a, b)")
    await quiet.client.create(kinds.NAMESPACE, {"metadata": {"name": "ours", "labels": {"team": "a"}}})
    await quiet.client.create(kinds.NAMESPACE, {"metadata": {"name": "theirs"}})
    made = {}
    for namespace in ("ours", "theirs"):
        for one in (unlabelled("plain"), {**job("named"), "spec": unlabelled("named")["spec"]}):
            one["metadata"]["namespace"] = namespace
            stored = await quiet.client.create(kinds.JOB, one, namespace)
            made[namespace, stored["metadata"]["name"]] = stored
    assert {key: one["spec"]["suspend"] for key, one in made.items()} == {
        ("ours", "plain"): True,
        ("ours", "named"): True,
        ("theirs", "plain"): False,
        ("theirs", "named"): False,
    }
    await quiet.until(kinds.WORKLOAD, name_of(made["ours", "named"]), bool, namespace="ours")
    assert await quiet.client.list(kinds.WORKLOAD, "theirs") == []
    await quiet.client.patch(kinds.NAMESPACE, "theirs", None, {"metadata": {"labels": {"team": "b"}}})
    await quiet.until(kinds.JOB, "named", lambda one: one["spec"]["suspend"] is True, namespace="theirs")


@pytest.fixture
def every_kind() -> Iterator[None]:
    """The kinds of jobs are the process's: what a test leaves out comes back."""
    before = list(jobs.ALL)
    yield
    for known in (jobs.ALL, jobs.BY_KIND, jobs.BY_NAME):
        known.clear()
    jobs.use(before)  # in their order


async def test_kinds_of_jobs_that_are_not_named_are_let_pass(quiet: Cluster, every_kind: None) -> None:
    choices.use_frameworks(QueueSettings(frameworks=("ray.io/rayjob", "statefulset")))
    watched(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (free,) = await make(quiet, {**job("free"), "spec": unlabelled("free")["spec"]})
    assert free["spec"]["suspend"] is False
    (held,) = await make(quiet, ray_job("held"))
    await quiet.until(kinds.WORKLOAD, name_of(held, "RayJob", "ray.io"), true("Admitted"))
    assert len(await quiet.client.list(kinds.WORKLOAD, "default")) == 1
    assert kinds.POD in jobs.BY_KIND  # of a StatefulSet the pods are queued
    with pytest.raises(BadInput, match=r"there is no kind of job kubeflow.org/mpijob"):
        choices.use_frameworks(QueueSettings(frameworks=("kubeflow.org/mpijob",)))


def test_a_selector_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="managed_namespaces: unable to parse"):
        msgspec.convert({"managed_namespaces": "team in a"}, QueueSettings)


def test_webhooks_are_shown_jobs_without_a_queue_only_where_those_are_held() -> None:
    for unnamed in (False, True):
        _, validating = configurations("shoal-system", unnamed=unnamed)
        (of_jobs,) = (one for one in validating["webhooks"] if one["name"] == "jobs.shoal.dev")
        names = [one["name"] for one in of_jobs["matchConditions"]]
        assert ("names-a-queue" in names) is not unnamed
