"""The pure parts: names, pod sets, what is asked of a node autoscaler, what admission changes and refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shoal.api.codec import typed
from shoal.api.kueue import ProvisioningRequestConfig
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.controllers.queues import admission, names
from shoal.controllers.queues.checks import requests
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged, restored
from shoal.controllers.queues.jobs import BY_NAME, batch
from shoal.controllers.queues.names import attempt_of, request_name, template_name, workload_name
from shoal.controllers.queues.surroundings import JobSurroundings
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, job, provisioning_config, ray_job, template

UID = "00000000-0000-0000-0000-000000000001"
RAY_JOBS, RAY_CLUSTERS, JOBS = (
    BY_NAME[key] for key in (("ray.io", "RayJob"), ("ray.io", "RayCluster"), ("batch", "Job"))
)


@pytest.mark.parametrize(
    ("kind", "group", "uid", "expected"),
    [
        ("RayJob", "ray.io", UID, "rayjob-demo-efab2"),
        ("RayJob", "ray.io", UID[:-1] + "2", "rayjob-demo-214bf"),
        ("RayCluster", "ray.io", UID, "raycluster-demo-edbc1"),
        ("Job", "batch", UID, "job-demo-001f5"),
    ],
)
def test_a_workload_is_named_after_its_very_job(kind: str, group: str, uid: str, expected: str) -> None:
    assert workload_name(kind, group, "demo", uid) == expected


def cuts_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        names, "request_name", lambda workload, check, attempt: names._fitted(f"{workload}-{check}-{attempt}", 253)
    )


@proven(without=cuts_at_the_end)
@pytest.mark.parametrize("length", [241, 247, 253])
def test_f087_the_attempt_is_read_back_from_a_name_of_any_length(length: int) -> None:
    """F87: later attempts are not recognised when names are long. Holds: the attempt is recoverable at any length, and
    names of other workloads and checks are never taken for ours."""
    workload = ("w" * 253)[:length]
    assert attempt_of(request_name("short", "nodes", 12), "short", "nodes") == 12
    made = [names.request_name(workload, "nodes", attempt) for attempt in (1, 2, 10)]
    assert [attempt_of(name, workload, "nodes") for name in made] == [1, 2, 10]
    assert len({*made}) == 3
    assert all(len(name) <= 253 and len(template_name(name, "workers" * 9)) <= 253 for name in made)
    assert attempt_of(request_name(workload, "nodes-1", 1), workload, "nodes") == 0 or length < 253
    assert attempt_of("somebody-elses-1", workload, "nodes") == 0


def test_the_pod_sets_of_a_ray_job() -> None:
    made = ray_job("train", 3)
    cluster = made["spec"]["rayClusterSpec"]
    cluster["workerGroupSpecs"][0].update(groupName="Big", numOfHosts=2)
    cluster["enableInTreeAutoscaling"] = True
    head, workers, submitter = RAY_JOBS.pod_sets(made)
    assert [(one["name"], one["count"]) for one in (head, workers, submitter)] == [
        ("head", 1),
        ("big", 6),
        ("submitter", 1),
    ]
    assert [one["name"] for one in head["template"]["spec"]["containers"]] == ["main", "autoscaler"]
    assert submitter["template"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "200Mi"}
    made["spec"]["submissionMode"] = "HTTPMode"
    assert [one["name"] for one in RAY_JOBS.pod_sets(made)] == ["head", "big"]


def test_what_a_start_adds_a_stop_takes_away() -> None:
    made = ray_job("train", 2)
    before = copy.deepcopy(made)
    recorded = RAY_JOBS.pod_sets(made)
    infos = [
        InjectedInfo(name=one["name"], count=one["count"], labels={"a": "b"}, node_selector={"zone": "x"},
                   tolerations=({"key": "gpu", "operator": "Exists"},))
        for one in recorded
    ]  # fmt: skip
    started = RAY_JOBS.started(made, infos)
    assert started["spec"]["suspend"] is False
    worker = started["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
    assert worker["metadata"]["labels"] == {"a": "b"}
    assert worker["spec"]["nodeSelector"] == {"zone": "x"}
    stopped = RAY_JOBS.stopped(started, recorded)
    submitter = stopped["spec"].pop("submitterPodTemplate")
    assert "nodeSelector" not in submitter["spec"]
    assert _without_empty(stopped) == _without_empty(before)
    assert made == before


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one not in ({}, None)}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value


def test_a_contradiction_is_never_started() -> None:
    pod = {"spec": {"nodeSelector": {"zone": "a"}}}
    info = InjectedInfo(name="main", count=1, node_selector={"zone": "b"})
    with pytest.raises(StartError, match="nodeSelector zone is 'a' in the template and would become 'b'"):
        merged(pod, info)
    assert restored(merged(pod, InjectedInfo(name="main", count=1, labels={"x": "y"})), pod) == pod


@pytest.mark.parametrize(
    ("parallelism", "completions", "succeeded", "expected"),
    [(4, 10, 3, {}), (4, 10, 7, {"main": 1}), (4, 10, 9, {"main": 3}), (1, 1, 0, {}), (4, None, 2, {"main": 2})],
)
def test_pods_that_no_controller_will_start_any_more_need_no_quota(
    parallelism: int, completions: int | None, succeeded: int, expected: dict[str, int]
) -> None:
    made = job("train", parallelism)
    made["spec"]["completions"] = completions
    made["status"] = {"succeeded": succeeded}
    assert JOBS.reclaimable(made) == expected


def failed_indexes_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_ended", lambda job, completions: int(job["status"].get("succeeded") or 0))


@proven(without=failed_indexes_run_again)
def test_f836_an_index_that_has_failed_for_good_gives_its_quota_back() -> None:
    """F836: an indexed Job with `backoffLimitPerIndex` goes on after an index has failed for good. Holds: its pod's
    quota goes back, as that of an index that is complete does; an index told twice counts once."""
    made = job("train", 3)
    made["spec"] |= {"completions": 3, "completionMode": "Indexed"}
    made["status"] = {"active": 2, "failed": 1}
    assert JOBS.reclaimable(made) == {}, "it is tried again"
    made["status"] = {"active": 1, "succeeded": 1, "failed": 2, "completedIndexes": "0", "failedIndexes": "1"}
    assert JOBS.reclaimable(made) == {"main": 2}
    made["status"] |= {"completedIndexes": "0-1", "failedIndexes": "1-2,9,x"}
    assert JOBS.reclaimable(made) == {"main": 3}


# --- requests for nodes


def workload(*sets: tuple[str, int, Json], **annotations: str) -> Workload:
    pod_sets = [{"name": name, "count": count, "template": one} for name, count, one in sets]
    metadata = {"name": "w", "namespace": "default", "uid": "u", "annotations": annotations}
    return typed({"metadata": metadata, "spec": {"podSets": pod_sets}}, Workload)


def config_with(**spec: Any) -> ProvisioningRequestConfig:
    return typed(provisioning_config(**spec), ProvisioningRequestConfig)


def infos(made: Workload) -> list[InjectedInfo]:
    return [InjectedInfo(name=one.name, count=one.count) for one in made.spec.pod_sets]


GPU = template(cpu="1", nvidia_com_gpu="1")
GPU["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}
CPU = template(cpu="1")


@pytest.mark.parametrize(
    ("managed", "policy", "expected"),
    [
        ([], None, [("head", 1), ("a", 2), ("b", 3)]),
        (["nvidia.com/gpu"], None, [("a", 2), ("b", 3)]),
        (["nvidia.com/gpu"], "IdenticalPodTemplates", [("a", 5)]),
        (["other.com/device"], None, []),
        ([], "IdenticalWorkloadSchedulingRequirements", [("head", 1), ("a", 5)]),
    ],
)
def test_only_pods_that_use_a_managed_resource_are_asked_room_for(
    managed: list[str], policy: str | None, expected: list[tuple[str, int]]
) -> None:
    made = workload(("head", 1, CPU), ("a", 2, GPU), ("none", 0, GPU), ("b", 3, GPU))
    spec: dict[str, Any] = {"managedResources": managed} | ({"podSetMergePolicy": policy} if policy else {})
    wanted = requests.wanted_pod_sets(made, config_with(**spec), infos(made))
    assert [(one.name, one.count) for one in wanted] == expected


def test_pod_sets_that_were_merged_all_get_the_annotations() -> None:
    made = workload(("a", 2, GPU), ("b", 3, GPU))
    config = config_with(podSetMergePolicy="IdenticalPodTemplates")
    wanted = requests.wanted_pod_sets(made, config, infos(made))
    request = {
        "metadata": {"name": "w-nodes-1"},
        "spec": {"provisioningClassName": "c"},
        "status": {"conditions": [{"type": "Provisioned", "status": "True", "message": "there"}]},
    }
    found = requests.answer(request, 1, {}, config, wanted, admitted=False, jitter=lambda: 0.0)
    assert found.state == "Ready" and found.updates is not None
    assert [one["name"] for one in found.updates] == ["a", "b"]


def test_limits_stand_in_for_requests_and_parameters_come_from_the_job() -> None:
    made = workload(("a", 2, GPU), **{"provreq.kueue.x-k8s.io/ValidUntilSeconds": "60", "other": "x"})
    config = config_with(parameters={"ValidUntilSeconds": "0", "kept": "yes"})
    templates, request = requests.objects(made, "nodes", 1, config, requests.wanted_pod_sets(made, config, infos(made)))
    assert request["spec"]["parameters"] == {"ValidUntilSeconds": "60", "kept": "yes"}
    resources = templates[0]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}
    assert GPU["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    ("attempt", "retries", "state", "wait"),
    [(1, 0, "Retry", 60), (2, 1, "Retry", 120), (3, 2, "Retry", 240), (4, 3, "Rejected", None)],
)
def test_a_failed_request_is_tried_again_ever_later(attempt: int, retries: int, state: str, wait: int | None) -> None:
    request = {
        "metadata": {"name": "x"},
        "status": {"conditions": [{"type": "Failed", "status": "True", "message": "none"}]},
    }
    check = {"name": "nodes", "state": "Pending", "retryCount": retries}
    found = requests.answer(request, attempt, check, config_with(), [], admitted=False, jitter=lambda: 0.0)
    assert (found.state, found.requeue_after) == (state, wait)


# --- admission


def review(kind: str, group: str, obj: Json, old: Json | None = None) -> AdmissionRequest:
    return AdmissionRequest(
        uid="1",
        kind=GroupVersionKind(group, "v1", kind),
        name=obj["metadata"]["name"],
        namespace="default",
        operation="CREATE" if old is None else "UPDATE",
        object=obj,
        old_object=old,
    )


def running(made: Json) -> Json:
    return {**made, "spec": {**made["spec"], "suspend": False}}


def test_each_cluster_of_a_ray_service_waits_in_the_queue_by_itself() -> None:
    """The second cluster of an upgrade asks for its own quota, while the first serves."""
    owner = {"apiVersion": "ray.io/v1", "kind": "RayService", "name": "web", "uid": "1", "controller": True}
    made = {"metadata": {**ray_job("web")["metadata"], "ownerReferences": [owner]}, "spec": {"suspend": False}}
    changed = admission.prepare(review("RayCluster", "ray.io", made)).changed
    assert changed is not None and changed["spec"]["suspend"] is True


def test_a_labelled_job_begins_suspended_and_only_once() -> None:
    made = running(ray_job("train"))
    changed = admission.prepare(review("RayJob", "ray.io", made)).changed
    assert changed is not None and changed["spec"]["suspend"] is True
    assert admission.prepare(review("RayJob", "ray.io", changed)).changed is None
    assert admission.prepare(review("RayJob", "ray.io", made, made)).changed is None
    plain = copy.deepcopy(made)
    del plain["metadata"]["labels"]
    assert admission.prepare(review("RayJob", "ray.io", plain)).changed is None
    assert admission.prepare(review("RayJob", "ray.io", made), JobSurroundings(child=True)).changed is None
    chosen = copy.deepcopy(made)
    chosen["spec"]["clusterSelector"] = {"ray.io/cluster": "mine"}
    assert admission.prepare(review("RayJob", "ray.io", chosen)).changed is None


def without(path: str, value: Any) -> Json:
    made = ray_job("train")
    where = made
    *outer, last = path.split(".")
    for step in outer:
        where = where[int(step)] if step.isdigit() else where[step]  # type: ignore[index]
    where[last] = value
    return made


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (without("spec.shutdownAfterJobFinishes", False), "spec.shutdownAfterJobFinishes: must be true"),
        (without("spec.rayClusterSpec", None), "spec.rayClusterSpec: is required"),
        (without("spec.rayClusterSpec.enableInTreeAutoscaling", True), "only as an elastic job"),
        (without("metadata.annotations", {"kueue.x-k8s.io/elastic-job": "true"}), ""),
        (without("spec.rayClusterSpec.workerGroupSpecs.0.groupName", "Head"), "is the name of another pod set"),
        (
            without("spec.rayClusterSpec.workerGroupSpecs", [{"groupName": f"g{n}"} for n in range(17)]),
            "at most 16 can be queued",
        ),
        (without("metadata.labels", {"kueue.x-k8s.io/queue-name": "No Queue"}), "metadata.labels"),
        (
            without("metadata.labels", {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/max-exec-time-seconds": "0"}),
            "must be a number above 0",
        ),
        (ray_job("fine"), ""),
    ],
)
def test_what_a_queue_can_never_start_whole_is_refused(made: Json, expected: str) -> None:
    verdict = admission.validate(review("RayJob", "ray.io", made))
    assert verdict.allowed == (not expected)
    assert expected in verdict.message


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "problems_of", lambda kind, obj, old: [])


@proven(without=unchecked)
@pytest.mark.parametrize("label", [None, "another"])
def test_f035_a_running_job_keeps_its_queue(label: str | None) -> None:
    """F35: the queue label is taken off a running job, or changed. Holds: refused; a suspended one may move."""
    old = running(job("train"))
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": label} if label else {}
    assert not admission.validate(review("Job", "batch", new, old)).allowed
    waiting = job("train")
    moved = copy.deepcopy(waiting)
    moved["metadata"]["labels"] = new["metadata"]["labels"]
    assert admission.validate(review("Job", "batch", moved, waiting)).allowed


def test_queues_are_judged_by_their_own_rules_and_kept_while_in_use() -> None:
    queue = cluster_queue()
    changed = admission.prepare(review("ClusterQueue", "kueue.x-k8s.io", queue)).changed
    assert changed is not None and changed["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "-1"
    assert not admission.validate(review("ClusterQueue", "kueue.x-k8s.io", queue)).allowed
