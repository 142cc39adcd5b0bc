"""Changes that a Workload may not follow, and Workloads that may not be made: told to users, and in no gang's way."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.codec import typed
from shoal.api.kind import Kind
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.controllers.queues import admission, workloads
from shoal.controllers.queues.jobs.app_wrapper import AppWrappers
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import (
    cluster_queue,
    complete,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    ray_job,
    said,
    true,
    warning,
)
from tests.unit.queues.conftest import decide
from tests.unit.queues.test_leaving import HIGH, priority_class
from tests.unit.queues.test_unsuspended import app_wrapper

CLASS = "kueue.x-k8s.io/priority-class"


@pytest.fixture
async def crowded(quiet: Cluster) -> Cluster:
    """A strict queue with more quota than there is room: 16 cores are taken by `first`."""
    quiet.server.admission.judges[("kueue.x-k8s.io", "workloads")] = admission.validate
    decide(quiet)
    queue = cluster_queue(quota={"cpu": "32"}, queueingStrategy="StrictFIFO")
    await make(quiet, flavor(), priority_class("high", 100), priority_class("low", -5), queue, local_queue())
    await make(quiet, job("first", 16))
    await quiet.until(kinds.JOB, "first", lambda one: one["spec"]["suspend"] is False)
    return quiet


async def waits_for_room(cluster: Cluster, made: Json) -> Json:
    return await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "Admitted")[1] == "WaitingForRoom")


def follows_any_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "may_follow", lambda spec, wanted: True)


@proven(without=follows_any_class)
async def test_f150_a_priority_that_comes_too_late_holds_up_no_gang(crowded: Cluster) -> None:
    """F150: a job that has quota and waits for room gets its first priority class, which may not change then. Holds: it
    starts when there is room, the queue behind it goes on, and the class counts once it has no quota."""
    (made,) = await make(crowded, job("second", 4))
    await waits_for_room(crowded, made)
    await crowded.client.patch(kinds.JOB, "second", "default", {"metadata": {"labels": HIGH}})
    (third,) = await make(crowded, job("third", 2))
    await waits_for_room(crowded, third)
    await complete(crowded, "first", 16)
    await crowded.until(kinds.JOB, "second", lambda one: one["spec"]["suspend"] is False)
    await crowded.until(kinds.JOB, "third", lambda one: one["spec"]["suspend"] is False)
    stored = await crowded.get(kinds.WORKLOAD, name_of(made))
    assert stored["spec"].get("priorityClassRef") is None
    assert "high counts from when the job has no quota" in await warning(crowded, made, "PriorityClassNotApplied")
    await crowded.client.patch(kinds.WORKLOAD, name_of(made), "default", {"spec": {"active": False}})
    await crowded.until(kinds.WORKLOAD, name_of(made), lambda one: one["spec"].get("priority") == 100)


async def test_a_job_with_quota_moves_from_one_class_to_another(crowded: Cluster) -> None:
    (made,) = await make(crowded, job("second", 4, labels={CLASS: "low"}))
    await waits_for_room(crowded, made)
    await crowded.client.patch(kinds.JOB, "second", "default", {"metadata": {"labels": HIGH}})
    moved = await crowded.until(kinds.WORKLOAD, name_of(made), lambda one: one["spec"]["priority"] == 100)
    assert moved["spec"]["priorityClassRef"]["name"] == "high"
    assert true("QuotaReserved")(moved)


async def test_a_default_class_that_comes_later_leaves_those_with_quota_alone(crowded: Cluster) -> None:
    (made,) = await make(crowded, job("second", 4))
    await waits_for_room(crowded, made)
    wanted = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "usual"},
        "value": 7,
        "globalDefault": True,
    }
    await crowded.create(kinds.PRIORITY_CLASS, wanted)
    (third,) = await make(crowded, job("third", 40))  # more than the queue can ever give: it has no quota
    await crowded.until(kinds.WORKLOAD, name_of(third), lambda one: one["spec"]["priority"] == 7)
    await complete(crowded, "first", 16)
    await crowded.until(kinds.JOB, "second", lambda one: one["spec"]["suspend"] is False)
    assert (await crowded.get(kinds.WORKLOAD, name_of(made)))["spec"]["priority"] == 0


async def test_a_default_class_that_comes_later_counts_for_those_without_quota(crowded: Cluster) -> None:
    (made,) = await make(crowded, job("second", 40))
    await crowded.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    wanted = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "usual"},
        "value": 7,
        "globalDefault": True,
    }
    await crowded.create(kinds.PRIORITY_CLASS, wanted)
    await crowded.until(kinds.WORKLOAD, name_of(made), lambda one: one["spec"]["priority"] == 7)


async def test_a_time_limit_that_changes_before_the_start_counts(crowded: Cluster) -> None:
    limit = "kueue.x-k8s.io/max-exec-time-seconds"
    (made,) = await make(crowded, job("second", 4, labels={limit: "900"}))
    await waits_for_room(crowded, made)
    await crowded.client.patch(kinds.JOB, "second", "default", {"metadata": {"labels": {limit: "60"}}})
    await crowded.until(kinds.WORKLOAD, name_of(made), lambda one: one["spec"]["maximumExecutionTimeSeconds"] == 60)


async def test_a_gate_that_may_not_be_added_any_more_is_told_and_holds_up_nothing(crowded: Cluster) -> None:
    (made,) = await make(crowded, job("second", 40))
    await crowded.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    gate = {"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": "example.com/gate"}}}
    await crowded.client.patch(kinds.JOB, "second", "default", gate)
    assert "cannot add admission gate" in await warning(crowded, made, "UpdateWorkloadRefused")
    quota = cluster_queue(quota={"cpu": "64"})["spec"]["resourceGroups"]
    await crowded.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"resourceGroups": quota}})
    await crowded.until(kinds.WORKLOAD, name_of(made), true("QuotaReserved"))


# --- Workloads that cannot be made


def twice_named(made: Json) -> Json:
    """One name twice, as Kubernetes allows in a pod: the last counts."""
    spec = made["spec"].get("template") or made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    spec = spec["spec"]
    spec["containers"][0]["env"] = [
        {"name": "MODE", "value": "slow"},
        {"name": "HOME", "value": "/"},
        {"name": "MODE", "value": "fast"},
    ]
    spec["containers"][0]["ports"] = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP", "name": "web"}]
    spec["imagePullSecrets"] = [{"name": "one"}, {"name": "one"}]
    return made


def keeps_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "without_duplicates", lambda pod_sets: pod_sets)


def unique_names(request: AdmissionRequest) -> AdmissionVerdict:
    """As the schema of Kueue's Workload: these lists are maps by these keys."""
    pod_sets = (request.object or {"spec": {}})["spec"].get("podSets") or ()
    for spec in (one["template"]["spec"] for one in pod_sets):
        lists = [spec.get("imagePullSecrets") or ()]
        for container in spec["containers"]:
            lists.append(container.get("env") or ())
            ports = container.get("ports") or ()
            lists.append([{"name": (one["containerPort"], one.get("protocol", "TCP"))} for one in ports])
        for listed in lists:
            names = [one["name"] for one in listed]
            if len(names) != len(set(names)):
                return AdmissionVerdict(False, f"Duplicate value: {names}", 422, "Invalid")
    return AdmissionVerdict()


@proven(without=keeps_duplicates)
@pytest.mark.parametrize("made", [job("train"), ray_job("train", 1)], ids=["Job", "RayJob"])
async def test_f153_a_job_that_names_a_variable_twice_is_queued_as_any_other(cluster: Cluster, made: Json) -> None:
    """F153: a pod template names a variable, a port or a pull secret twice, which a Workload may not. Holds: the last
    value counts, as in the pod; the job is queued and runs as it was written."""
    cluster.server.admission.judges[("kueue.x-k8s.io", "workloads")] = unique_names
    kind: Kind = kinds.JOB if made["kind"] == "Job" else kinds.RAY_JOB
    (stored,) = await make(cluster, twice_named(made))
    name = name_of(stored, made["kind"], kind.group)
    workload = await cluster.until(kinds.WORKLOAD, name, true("Admitted"))
    container = workload["spec"]["podSets"][0]["template"]["spec"]["containers"][0]
    assert [(one["name"], one["value"]) for one in container["env"]] == [("MODE", "fast"), ("HOME", "/")]
    assert len(container["ports"]) == 1
    started = await cluster.until(kind, "train", lambda one: one["spec"]["suspend"] is False)
    spec = started["spec"].get("template") or started["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert len(spec["spec"]["containers"][0]["env"]) == 3


async def test_a_workload_that_is_refused_is_told_on_its_job(quiet: Cluster) -> None:
    cluster, controller = quiet, decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())

    def refuses(request: AdmissionRequest) -> AdmissionVerdict:
        return AdmissionVerdict(request.operation != "CREATE", "no more than ten workloads here")

    cluster.server.admission.judges[("kueue.x-k8s.io", "workloads")] = refuses
    (made,) = await make(cluster, job("train"))
    assert "no more than ten workloads here" in await warning(cluster, made, "CreateWorkloadRefused")
    assert "no more than ten workloads here" in controller.reconciler.warnings.last(made["metadata"]["uid"])
    assert (await cluster.get(kinds.JOB, "train"))["spec"]["suspend"] is True


async def test_pod_sets_that_a_workload_cannot_take_over_give_it_up_instead_of_running_others(cluster: Cluster) -> None:
    (made,) = await make(cluster, ray_job("train", 40))
    name = name_of(made, "RayJob", "ray.io")
    await cluster.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")

    def refuses(request: AdmissionRequest) -> AdmissionVerdict:
        count = (request.object or {"spec": {}})["spec"]["podSets"][1]["count"]
        return AdmissionVerdict(count != 1, "one worker is too few")

    cluster.server.admission.judges[("kueue.x-k8s.io", "workloads")] = refuses
    spec = ray_job("train", 1)["spec"]["rayClusterSpec"]
    await cluster.client.patch(kinds.RAY_JOB, "train", "default", {"spec": {"rayClusterSpec": spec}})
    await cluster.until_gone(kinds.WORKLOAD, name)
    assert "one worker is too few" in await warning(cluster, made, "CreateWorkloadRefused")


def test_a_stored_workload_has_defaults_that_its_job_leaves_out() -> None:
    wanted = app_wrapper("train", 2)
    container = wanted["spec"]["components"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"containerPort": 80}]
    container["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"key": "k"}}}, {"name": "EMPTY", "value": ""}]
    pod_sets = AppWrappers().pod_sets(wanted)
    stored = AppWrappers().pod_sets(wanted)
    recorded = stored[0]["template"]["spec"]["containers"][0]
    recorded["ports"][0]["protocol"] = "TCP"
    recorded["env"][0]["valueFrom"]["secretKeyRef"]["name"] = ""

    def is_same() -> bool:
        workload = typed({"spec": {"podSets": stored}}, Workload)
        return workloads.is_same_shape(pod_sets, workload, admitted=False)

    assert is_same()
    recorded["ports"][0]["protocol"] = "UDP"
    assert not is_same()
    recorded["ports"][0]["protocol"] = "TCP"
    recorded["resources"]["requests"]["cpu"] = "2"
    assert not is_same()
