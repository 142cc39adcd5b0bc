"""Admission checks: our own asks a node autoscaler, its controller answers any other. The test plays both."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.checks import provisioning, requests, steps
from shoal.kube.clock import SystemClock
from shoal.local.scheduler import Scheduler
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    condition,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    pods_of,
    provisioning_check,
    provisioning_config,
    ray_job,
    said,
    true,
)
from tests.unit.queues.conftest import decide

REQUEST = kinds.PROVISIONING_REQUEST


@pytest.fixture
async def checked(quiet: Cluster) -> Cluster:
    """A queue whose jobs need nodes to be provided; retries come fast."""
    decide(quiet)
    retry = {"backoffBaseSeconds": 1, "backoffLimitCount": 1}
    await make(
        quiet,
        flavor(),
        provisioning_check(),
        provisioning_config(retryStrategy=retry),
        cluster_queue(checks=["nodes"]),
        local_queue(),
    )
    return quiet


async def answer(cluster: Cluster, name: str, **conditions: str) -> None:
    """As the autoscaler: these conditions, True, with a message each."""
    now = seconds_text(SystemClock().now())
    made = [
        {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": now}
        for kind, message in conditions.items()
    ]
    await cluster.client.patch(REQUEST, name, "default", {"status": {"conditions": made}}, subresource="status")


def check_of(workload: Json) -> Json:
    return (workload.get("status", {}).get("admissionChecks") or [{}])[0]


async def test_a_job_starts_only_when_its_nodes_are_provided(checked: Cluster) -> None:
    (made,) = await make(checked, ray_job("train", 2))
    name = name_of(made, "RayJob", "ray.io")
    reserved = await checked.until(kinds.WORKLOAD, name, true("QuotaReserved"))
    assert check_of(reserved)["state"] == "Pending"
    request = await checked.until(REQUEST, f"{name}-nodes-1", lambda one: True)
    assert request["metadata"]["labels"] == {"kueue.x-k8s.io/managed": "true"}
    assert request["spec"]["provisioningClassName"] == "queued-provisioning.gke.io"
    assert [(one["podTemplateRef"]["name"], one["count"]) for one in request["spec"]["podSets"]] == [
        (f"ppt-{name}-nodes-1-head", 1),
        (f"ppt-{name}-nodes-1-small", 2),
        (f"ppt-{name}-nodes-1-submitter", 1),
    ]
    await answer(checked, f"{name}-nodes-1", Accepted="taken up")
    await checked.settled()
    assert (await checked.get(kinds.RAY_JOB, "train"))["spec"]["suspend"] is True
    await answer(checked, f"{name}-nodes-1", Accepted="taken up", Provisioned="all there")
    admitted = await checked.until(kinds.WORKLOAD, name, true("Admitted"))
    assert (check_of(admitted)["state"], check_of(admitted)["message"]) == ("Ready", "all there")
    started = await checked.until(kinds.RAY_JOB, "train", lambda one: one["spec"]["suspend"] is False)
    cluster = started["spec"]["rayClusterSpec"]
    for template in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
        marks = template["template"]["metadata"]["annotations"]
        assert marks["autoscaling.x-k8s.io/consume-provisioning-request"] == f"{name}-nodes-1"
        assert marks["autoscaling.x-k8s.io/provisioning-class-name"] == "queued-provisioning.gke.io"


async def test_a_request_that_failed_is_tried_again_and_then_given_up(checked: Cluster) -> None:
    (made,) = await make(checked, job("train"))
    name = name_of(made)
    await checked.until(REQUEST, f"{name}-nodes-1", lambda one: True)
    await answer(checked, f"{name}-nodes-1", Failed="no such machine")
    evicted = await checked.until(kinds.WORKLOAD, name, lambda one: condition(one, "Requeued").get("status") == "False")
    assert said(evicted, "Evicted")[1:] == (
        "AdmissionCheck",
        'Evicted due to AdmissionCheck in Retry state: "nodes" (Retrying after failure: no such machine)',
    )
    assert (check_of(evicted)["state"], check_of(evicted)["retryCount"]) == ("Pending", 1)
    assert "requeueAt" in evicted["status"]["requeueState"]
    await checked.until_gone(REQUEST, f"{name}-nodes-1")
    await checked.until(REQUEST, f"{name}-nodes-2", lambda one: True)  # after a second
    again = await checked.get(kinds.WORKLOAD, name)
    assert said(again, "Requeued") == ("True", "BackoffFinished", "The workload backoff was finished")
    assert said(again, "Evicted")[0] == "False"
    await answer(checked, f"{name}-nodes-2", Failed="still none")
    ended = await checked.until(kinds.WORKLOAD, name, lambda one: one["spec"]["active"] is False)
    ended = await checked.until(kinds.WORKLOAD, name, true("Evicted"))
    assert said(ended, "Evicted")[1] == "DeactivatedDueToAdmissionCheck"
    await checked.until_gone(REQUEST, f"{name}-nodes-2")
    assert (await checked.get(kinds.JOB, "train"))["spec"]["suspend"] is True


async def test_what_needs_no_managed_resource_needs_no_request(quiet: Cluster) -> None:
    decide(quiet)
    config = provisioning_config(managedResources=["nvidia.com/gpu"])
    await make(quiet, flavor(), provisioning_check(), config, cluster_queue(checks=["nodes"]), local_queue())
    (made,) = await make(quiet, job("train"))
    admitted = await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert check_of(admitted)["message"] == "the provisioning request is not needed"
    assert await quiet.names(REQUEST) == []


def budget_check() -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "budget"},
        "spec": {"controllerName": "example.com/budget"},
    }


async def budget_works(cluster: Cluster) -> None:
    """As the owner of that check, who has started."""
    active = {"type": "Active", "status": "True", "reason": "Ready", "message": ""}
    change = {"status": {"conditions": [{**active, "lastTransitionTime": seconds_text(0)}]}}
    await cluster.client.patch(kinds.ADMISSION_CHECK, "budget", None, change, subresource="status")


async def budget_says(cluster: Cluster, name: str, state: str, **more: object) -> None:
    """As the owner of that check, about one Workload."""
    stored = await cluster.get(kinds.WORKLOAD, name)
    change = {"status": {"admissionChecks": [{**check_of(stored), "state": state, **more}]}}
    await cluster.client.patch(kinds.WORKLOAD, name, "default", change, subresource="status")


async def test_somebody_elses_check_holds_the_job_until_it_is_ready(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), budget_check(), cluster_queue(checks=["budget"]), local_queue())
    queue = await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: bool(condition(one, "Active")))
    assert said(queue, "Active") == (
        "False",
        "AdmissionCheckInactive",
        "Can't admit new workloads: references inactive AdmissionCheck(s): budget.",
    )
    await budget_works(quiet)
    (made,) = await make(quiet, job("train"))
    reserved = await quiet.until(kinds.WORKLOAD, name_of(made), true("QuotaReserved"))
    assert not true("Admitted")(reserved)
    updates = [{"name": "main", "nodeSelector": {"paid": "yes"}}]
    await budget_says(quiet, name_of(made), "Ready", message="granted", podSetUpdates=updates)
    started = await quiet.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    assert started["spec"]["template"]["spec"]["nodeSelector"] == {"paid": "yes"}


def remembers_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "forget_answers", lambda draft: None)
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


@proven(without=remembers_answers)
@pytest.mark.parametrize("late", ["Retry", "Ready"])
async def test_f026_what_a_check_says_while_the_gang_leaves_is_not_about_its_next_attempt(
    quiet: Cluster, late: str
) -> None:
    """F26: a check asks for Retry, or says Ready, while the gang is being evicted for something else. Holds: at its
    next attempt the check is asked again; it is not evicted for the old answer, nor started by it."""
    decide(quiet)
    quiet.start(Scheduler(quiet.client).run())  # a bound pod takes its time to end: no kubelet runs it here
    await make(quiet, flavor(), budget_check(), cluster_queue(checks=["budget"]), local_queue())
    await budget_works(quiet)
    (made,) = await make(quiet, job("train"))
    name = name_of(made)
    await quiet.until(kinds.WORKLOAD, name, true("QuotaReserved"))
    await budget_says(quiet, name, "Ready")
    (pod,) = await pods_of(quiet, "train", 1)
    await quiet.until(kinds.POD, pod["metadata"]["name"], lambda one: bool(one["spec"].get("nodeName")))
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    leaving = await quiet.until(kinds.WORKLOAD, name, true("Evicted"))
    assert true("QuotaReserved")(leaving)
    await budget_says(quiet, name, late)
    await quiet.client.delete(kinds.POD, pod["metadata"]["name"], "default", grace_seconds=0)
    await quiet.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    await quiet.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
    again = await quiet.until(kinds.WORKLOAD, name, true("QuotaReserved"))
    assert check_of(again)["state"] == "Pending"
    assert sum(one["count"] for one in again["status"]["schedulingStats"]["evictions"]) == 1
    await budget_says(quiet, name, "Ready")
    admitted = await quiet.until(kinds.WORKLOAD, name, true("Admitted"))
    assert sum(one["count"] for one in admitted["status"]["schedulingStats"]["evictions"]) == 1


async def test_a_check_without_its_config_makes_the_queue_inactive(quiet: Cluster) -> None:
    decide(quiet)
    await make(quiet, flavor(), provisioning_check(), cluster_queue(checks=["nodes", "other"]), local_queue())
    check = await quiet.until(kinds.ADMISSION_CHECK, "nodes", lambda one: bool(condition(one, "Active")))
    assert said(check, "Active") == (
        "False", "BadParametersRef", 'ProvisioningRequestConfig.kueue.x-k8s.io "nodes-config" not found',
    )  # fmt: skip
    both = (
        "Can't admit new workloads: references missing AdmissionCheck(s): other,"
        " references inactive AdmissionCheck(s): nodes."
    )
    await quiet.until(
        kinds.CLUSTER_QUEUE,
        "cluster-queue",
        lambda one: said(one, "Active") == ("False", "AdmissionCheckNotFound", both),
    )
    await quiet.until(kinds.LOCAL_QUEUE, "user-queue", lambda one: said(one, "Active")[1] == "ClusterQueueIsInactive")
    await make(quiet, provisioning_config())
    await quiet.until(kinds.ADMISSION_CHECK, "nodes", true("Active"))


def kept_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(self: object, found: list[Json]) -> None:
        return None

    monkeypatch.setattr(provisioning.Provisioning, "_drop", keep)


@proven(without=kept_requests)
async def test_f090_no_request_is_left_after_the_end(checked: Cluster) -> None:
    """F90: a request kept after the end blocks others. Holds: I39, none after the end of what it was made for."""
    (made,) = await make(checked, job("train"))
    name = name_of(made)
    await checked.until(REQUEST, f"{name}-nodes-1", lambda one: True)
    await answer(checked, f"{name}-nodes-1", Accepted="", Provisioned="there")
    await checked.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await complete(checked, "train", 1)
    await checked.until(kinds.WORKLOAD, name, true("Finished"))
    await checked.settled()
    assert await checked.names(REQUEST) == []


def templates_later(monkeypatch: pytest.MonkeyPatch) -> None:
    made = provisioning.Provisioning._make

    async def make_one(self: provisioning.Provisioning, kind: Kind, body: Json, workload: Workload) -> Json:
        return body if kind == kinds.POD_TEMPLATE else await made(self, kind, body, workload)

    monkeypatch.setattr(provisioning.Provisioning, "_make", make_one)


@proven(without=templates_later)
async def test_f086_a_request_never_names_a_template_that_does_not_exist(checked: Cluster) -> None:
    """F86: the request exists before its templates. Holds: templates first, then the request."""
    missing: list[str] = []
    resource = checked.server.registry.find(REQUEST.group, REQUEST.plural)
    templates = checked.server.registry.find("", "podtemplates")
    assert resource is not None and templates is not None

    def look(event: object) -> None:
        stored = msgspec.json.decode(event.record.raw)  # type: ignore[attr-defined]
        for one in stored.get("spec", {}).get("podSets", ()):
            if templates.collection.head("default", one["podTemplateRef"]["name"]) is None:
                missing.append(one["podTemplateRef"]["name"])

    resource.collection.listeners.append(look)
    (made,) = await make(checked, job("train"))
    await checked.until(REQUEST, f"{name_of(made)}-nodes-1", lambda one: True)
    assert missing == []


def templates_left_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(self: provisioning.Provisioning, found: list[Json]) -> None:
        return None

    monkeypatch.setattr(provisioning.Provisioning, "_drop_templates", leave)


@proven(without=templates_left_to_the_collector)
async def test_f771_a_changed_config_is_followed_before_the_collector_came() -> None:
    """F771: a ProvisioningRequestConfig changes, and the templates of the request that goes are there yet when the next
    one of its name is made. Holds: they go with it, and the check asks by the new config."""
    async with running(with_builtin=False) as bare:  # no garbage collector
        decide(bare)
        await make(bare, flavor(), provisioning_check(), provisioning_config(), cluster_queue(checks=["nodes"]))
        await make(bare, local_queue())
        (made,) = await make(bare, job("train"))
        name = f"{name_of(made)}-nodes-1"
        first = await bare.until(REQUEST, name, lambda one: True)
        (template,) = (one["podTemplateRef"]["name"] for one in first["spec"]["podSets"])
        await bare.until(kinds.POD_TEMPLATE, template, owned_by(first))
        other = {"spec": {"provisioningClassName": "another.class"}}
        await bare.client.patch(kinds.PROVISIONING_REQUEST_CONFIG, "nodes-config", "", other)
        asked = await bare.until(REQUEST, name, lambda one: one["metadata"]["uid"] != first["metadata"]["uid"])
        assert asked["spec"]["provisioningClassName"] == "another.class"
        await bare.until(kinds.POD_TEMPLATE, template, owned_by(asked))


def owned_by(request: Json) -> Callable[[Json], bool]:
    uid = request["metadata"]["uid"]
    return lambda one: [owner["uid"] for owner in one["metadata"]["ownerReferences"]] == [uid]


def never_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = requests.answer
    monkeypatch.setattr(
        provisioning.requests,
        "answer",
        lambda request, *rest, **named: (
            requests.RequestAnswer(state="Ready", message="")
            if requests.holds(request, "CapacityRevoked")
            else given(request, *rest, **named)
        ),
    )


@proven(without=never_evicts)
async def test_f089_nodes_that_are_taken_back_end_the_whole_gang(checked: Cluster) -> None:
    """F89: revoked after admission. Holds: one whole eviction; the job stops and is switched off with the reason."""
    (made,) = await make(checked, job("train", 2))
    name = name_of(made)
    await checked.until(REQUEST, f"{name}-nodes-1", lambda one: True)
    await answer(checked, f"{name}-nodes-1", Accepted="", Provisioned="there")
    await checked.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    await answer(checked, f"{name}-nodes-1", Accepted="", Provisioned="there", CapacityRevoked="the nodes are gone")
    ended = await checked.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert said(ended, "Evicted")[1] == "DeactivatedDueToAdmissionCheck"
    assert "the nodes are gone" in said(ended, "Evicted")[2]
    assert (await checked.get(kinds.JOB, "train"))["spec"]["suspend"] is True
    counted = ended["status"]["schedulingStats"]["evictions"]
    assert [tuple(one.values()) for one in counted] == [("Deactivated", "AdmissionCheck", 1)]


async def test_a_vanished_request_of_a_running_job_is_not_made_again(checked: Cluster) -> None:
    (made,) = await make(checked, job("train"))
    name = name_of(made)
    await checked.until(REQUEST, f"{name}-nodes-1", lambda one: True)
    await answer(checked, f"{name}-nodes-1", Accepted="", Provisioned="there")
    await checked.until(kinds.WORKLOAD, name, true("Admitted"))
    await checked.client.delete(REQUEST, f"{name}-nodes-1", "default")
    await checked.settled()
    assert await checked.names(REQUEST) == []
    assert true("Admitted")(await checked.get(kinds.WORKLOAD, name))


async def test_a_request_without_an_answer_is_given_up_after_a_while(quiet: Cluster) -> None:
    decide(quiet, QueueSettings(provisioning_seconds=1.0))
    config = provisioning_config(retryStrategy={"backoffBaseSeconds": 1})
    await make(quiet, flavor(), provisioning_check(), config, cluster_queue(checks=["nodes"]), local_queue())
    (made,) = await make(quiet, job("train"))
    evicted = await quiet.until(kinds.WORKLOAD, name_of(made), true("Evicted"))
    assert "Retrying after delay: nothing was provided within 1 s" in said(evicted, "Evicted")[2]
    await quiet.until(REQUEST, f"{name_of(made)}-nodes-2", lambda one: True)


def sends(name: str) -> Json:
    """A check that sends gangs to other clusters."""
    made = provisioning_check(name)
    made["spec"] = {"controllerName": "kueue.x-k8s.io/multikueue"}
    return made


@pytest.mark.parametrize(
    ("named", "reason", "text"),
    [
        (
            [{"name": "east"}, {"name": "west"}],
            "MultipleMultiKueueAdmissionChecks",
            "Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: east,west",
        ),
        (
            [{"name": "east", "onFlavors": ["default-flavor"]}],
            "MultiKueueAdmissionCheckAppliedPerFlavor",
            "Cannot specify MultiKueue AdmissionCheck per flavor, found: east",
        ),
        (
            [{"name": "east"}, {"name": "nodes"}],
            "MultiKueueWithProvisioningRequest",
            "Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, found: east, nodes",
        ),
    ],
)
async def test_checks_that_contradict_each_other_make_the_queue_inactive(
    quiet: Cluster, named: list[Json], reason: str, text: str
) -> None:
    decide(quiet)
    checks = [sends("east"), sends("west"), provisioning_check()]
    await make(quiet, flavor(), flavor("other"), provisioning_config(), *checks)
    for check in checks:
        active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
        status = {"status": {"conditions": [{**active, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
        await quiet.client.patch(kinds.ADMISSION_CHECK, check["metadata"]["name"], None, status, subresource="status")
    queue = cluster_queue(admissionChecksStrategy={"admissionChecks": named})
    (group,) = queue["spec"]["resourceGroups"]
    group["flavors"].append({**group["flavors"][0], "name": "other"})
    await make(quiet, queue)
    found = await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: said(one, "Active")[1] == reason)
    assert said(found, "Active")[2] == f"Can't admit new workloads: {text}."
