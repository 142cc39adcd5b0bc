"""What users may write of Kueue's kinds and what they are told, by the judges that one machine and clusters share."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import cluster as composition
from shoal.controllers.queues import admission, queue_status
from shoal.controllers.queues.jobs.batch import Jobs
from shoal.controllers.queues.jobs.ray import RayJobs
from shoal.engine.kueue.cycle.placing import PlacingStep
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.errors import Forbidden, Invalid
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, ray_job, said, true
from tests.unit.queues.conftest import decide

CLASS = "kueue.x-k8s.io/priority-class"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"


@pytest.fixture
async def judged(quiet: Cluster) -> Cluster:
    """With every judge that `shoal up` has, and no controller that decides."""
    found = quiet.server.admission
    found.judges.update(composition.judges(quiet.client))
    found.status_judges.update(composition.status_judges())
    found.preparers.update(composition.preparers(quiet.client))
    found.updaters.update(composition.updaters())
    return quiet


def workload(name: str = "gang", count: int = 3, **spec: Any) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"podSets": [{"name": "main", "count": count, "template": template}], **spec},
    }


def given(queue: str = "cluster-queue", **more: Any) -> Json:
    entry = {"name": "main", "count": 3, "flavors": {"cpu": "default-flavor"}, "resourceUsage": {"cpu": "3"}, **more}
    return {"clusterQueue": queue, "podSetAssignments": [entry]}


def condition(kind: str = "QuotaReserved") -> Json:
    at = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": at}


async def write_status(cluster: Cluster, name: str = "gang", **status: Any) -> Json:
    return await cluster.client.patch(kinds.WORKLOAD, name, "default", {"status": status}, subresource="status")


def asked(kind: str, group: str, obj: Json, old: Json | None = None, sub_resource: str = "") -> AdmissionRequest:
    request = {
        "uid": "1",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "name": obj["metadata"]["name"],
        "namespace": "default",
        "operation": "CREATE" if old is None else "UPDATE",
        "object": obj,
        "oldObject": old,
        "subResource": sub_resource,
    }
    return msgspec.convert(request, AdmissionRequest)


# --- codes and defaults


async def test_kueues_rules_refuse_with_403_and_a_schema_with_422(judged: Cluster) -> None:
    with pytest.raises(Forbidden, match="must be greater than or equal to 0"):
        await make(judged, cluster_queue(quota={"cpu": "-1"}))
    with pytest.raises(Invalid, match="queueingStrategy"):
        await make(judged, cluster_queue(queueingStrategy="Random"))
    borrowing = cluster_queue()
    borrowing["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "1"
    with pytest.raises(Invalid, match="borrowingLimit must be nil when cohort is empty"):
        await make(judged, borrowing)
    with pytest.raises(Forbidden, match=r"nodeLabels"):
        await make(judged, flavor("labelled", nodeLabels={"a/b/c": "x"}))
    with pytest.raises(Forbidden, match="must be a number above 0"):
        await make(judged, job("train", labels={"kueue.x-k8s.io/max-exec-time-seconds": "soon"}))
    lasting = ray_job("kept", 1)
    lasting["spec"]["shutdownAfterJobFinishes"] = False
    with pytest.raises(Forbidden, match="a queue gets its quota back"):
        await make(judged, lasting)


async def test_an_old_spelling_of_the_cohort_counts_for_the_borrowing_limit(judged: Cluster) -> None:
    borrowing = cluster_queue()
    borrowing["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "1"
    old = msgspec.structs.replace(kinds.CLUSTER_QUEUE, version="v1beta1")
    made = {**borrowing, "apiVersion": "kueue.x-k8s.io/v1beta1", "spec": {**borrowing["spec"], "cohort": "all"}}
    assert (await judged.client.create(old, made))["spec"]["cohort"] == "all"


async def test_a_queue_has_kueues_defaults(judged: Cluster) -> None:
    (made,) = await make(judged, cluster_queue(fairSharing={}))
    assert made["spec"]["fairSharing"] == {"weight": 1}
    assert made["spec"]["flavorFungibility"] == {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}
    assert made["spec"]["preemption"] == {
        "reclaimWithinCohort": "Never",
        "withinClusterQueue": "Never",
        "borrowWithinCohort": {"policy": "Never"},
    }


async def test_a_preference_needs_two_flavors_to_be_tried(judged: Cluster) -> None:
    wanted = {"whenCanBorrow": "TryNextFlavor", "preference": "BorrowingOverPreemption"}
    await make(judged, cluster_queue("free", flavorFungibility=wanted))
    with pytest.raises(Invalid, match="both whenCanBorrow and whenCanPreempt"):
        await make(judged, cluster_queue(flavorFungibility={"preference": "BorrowingOverPreemption"}))


async def test_a_class_that_names_no_priority_is_refused(judged: Cluster) -> None:
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    with pytest.raises(Invalid, match="priority should not be nil"):
        await make(judged, workload(priorityClassRef=reference))


async def test_a_flavors_tolerations_make_sense(judged: Cluster) -> None:
    with pytest.raises(Invalid, match="operator must be Exists"):
        await make(judged, flavor(tolerations=[{"operator": "Equal", "value": "a"}]))
    with pytest.raises(Invalid, match="effect must be 'NoExecute'"):
        await make(judged, flavor(tolerations=[{"key": "a", "tolerationSeconds": 5}]))
    (made,) = await make(judged, flavor(tolerations=[{"operator": "Exists"}, {"key": "a", "value": "b"}]))
    assert len(made["spec"]["tolerations"]) == 2


async def test_a_member_needs_a_way_to_it(judged: Cluster) -> None:
    member = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "MultiKueueCluster", "metadata": {"name": "far"}}
    with pytest.raises(Invalid, match="exactly one of kubeConfig or clusterProfileRef"):
        await judged.client.create(kinds.MULTIKUEUE_CLUSTER, {**member, "spec": {}})


# --- the status of Workloads


def _judges_no_status(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(composition, "status_judges", dict)


@proven(without=_judges_no_status)
async def test_f162_no_user_changes_what_a_workload_was_given(judged: Cluster) -> None:
    """F162: somebody writes another admission into the status of a Workload that has quota. Holds: refused; what it was
    given stays until it is taken back whole."""
    await make(judged, workload())
    with pytest.raises(Forbidden, match="must be set while the QuotaReserved condition is true"):
        await write_status(judged, conditions=[condition()])
    with pytest.raises(Forbidden, match="no pod set 'other'"):
        await write_status(judged, conditions=[condition()], admission=given(name="other"))
    with pytest.raises(Forbidden, match="is not a multiple of 3"):
        await write_status(judged, conditions=[condition()], admission=given(resourceUsage={"cpu": "4"}))
    await write_status(judged, conditions=[condition()], admission=given())
    with pytest.raises(Forbidden, match=r"status\.admission: field is immutable"):
        await write_status(judged, admission=given("another"))
    assert (await judged.get(kinds.WORKLOAD, "gang"))["status"]["admission"]["clusterQueue"] == "cluster-queue"
    await write_status(judged, conditions=[], admission=None)
    await write_status(judged, conditions=[condition()], admission=given("another"))


async def test_pods_given_back_are_not_taken_again(judged: Cluster) -> None:
    await make(judged, workload())
    with pytest.raises(Forbidden, match="should be less or equal to 3"):
        await write_status(judged, reclaimablePods=[{"name": "main", "count": 4}])
    await write_status(
        judged, conditions=[condition()], admission=given(), reclaimablePods=[{"name": "main", "count": 2}]
    )
    with pytest.raises(Forbidden, match="cannot be less than 2"):
        await write_status(judged, reclaimablePods=[{"name": "main", "count": 1}])


async def test_what_a_ready_check_adds_stays(judged: Cluster) -> None:
    await make(judged, workload())
    at = "2026-01-01T00:00:00Z"
    check = {"name": "nodes", "state": "Ready", "message": "", "lastTransitionTime": at}
    update = {"name": "main", "labels": {"a": "b"}}
    with pytest.raises(Forbidden, match="supported values"):
        await write_status(judged, admissionChecks=[{**check, "podSetUpdates": [{**update, "name": "other"}]}])
    await write_status(judged, admissionChecks=[{**check, "podSetUpdates": [update]}])
    with pytest.raises(Forbidden, match="podSetUpdates: field is immutable"):
        await write_status(judged, admissionChecks=[{**check, "podSetUpdates": [{**update, "labels": {"a": "c"}}]}])


async def test_a_gang_goes_only_to_a_cluster_that_was_nominated(judged: Cluster) -> None:
    await make(judged, workload())
    with pytest.raises(Forbidden, match="must be one of the nominatedClusterNames"):
        await write_status(judged, clusterName="far")
    with pytest.raises(Invalid, match="mutually exclusive"):
        await write_status(judged, clusterName="far", nominatedClusterNames=["far", "near"])
    await write_status(judged, nominatedClusterNames=["far", "near"])
    await write_status(judged, clusterName="far", nominatedClusterNames=None)
    with pytest.raises(Invalid, match="clusterName is immutable once set"):
        await write_status(judged, clusterName="near")


async def test_a_place_by_topology_has_as_many_values_as_levels_and_domains(judged: Cluster) -> None:
    await make(judged, workload())

    def place(**part: Any) -> Json:
        values = [{"universal": "a"}, {"individual": {"roots": ["1", "2"]}}]
        whole = {"domainCount": 2, "valuesPerLevel": values, "podCounts": {"individual": [1, 2]}, **part}
        return given(topologyAssignment={"levels": ["block", "rack"], "slices": [whole]})

    with pytest.raises(Invalid, match="valuesPerLevel must have the same length as the number of levels"):
        await write_status(judged, admission=place(valuesPerLevel=[{"universal": "a"}]))
    with pytest.raises(Invalid, match=r"podCounts\.individual must have length equal to domainCount"):
        await write_status(judged, admission=place(podCounts={"individual": [1]}))
    with pytest.raises(Invalid, match="must have roots of length equal to domainCount"):
        values = [{"universal": "a"}, {"individual": {"roots": ["1"]}}]
        await write_status(judged, admission=place(valuesPerLevel=values))
    stored = await write_status(judged, admission=place())
    assert stored["status"]["admission"] == place()


async def test_while_it_has_quota_its_queue_and_class_stay(judged: Cluster) -> None:
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    await make(judged, workload(queueName="user-queue", priorityClassRef=reference, priority=1))
    await write_status(judged, conditions=[condition()], admission=given())

    async def change(**spec: Any) -> Json:
        return await judged.client.patch(kinds.WORKLOAD, "gang", "default", {"spec": spec})

    with pytest.raises(Invalid, match="queueName is immutable"):
        await change(queueName="another")
    with pytest.raises(Invalid, match="priorityClassRef is immutable"):
        await change(priorityClassRef={"name": "low"})
    with pytest.raises(Invalid, match="priorityClassRef is immutable"):
        await change(priorityClassRef=None)
    assert (await change(active=False))["spec"]["active"] is False


# --- clients of v1beta1


def _forgets_the_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_with_kept_reference", lambda obj, old: AdmissionVerdict())


@proven(without=_forgets_the_reference)
def test_f164_a_client_that_does_not_know_the_field_does_not_lose_it() -> None:
    """F164: a typed client of v1beta1 updates a Workload that was stored as v1beta2, and drops what it does not know.
    Holds: the priority class stays, and its own fields change what they name."""
    reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    old = workload(priorityClassRef=reference, priority=1)
    seen = {**workload(priority=1, active=False), "apiVersion": "kueue.x-k8s.io/v1beta1"}
    kept = admission.prepare(asked("Workload", "kueue.x-k8s.io", seen, old)).changed
    assert kept is not None and kept["spec"]["priorityClassRef"] == reference and kept["spec"]["active"] is False
    seen["spec"]["priorityClassName"] = "low"
    moved = admission.prepare(asked("Workload", "kueue.x-k8s.io", seen, old)).changed
    assert moved is not None and moved["spec"]["priorityClassRef"] == {**reference, "name": "low"}
    assert "priorityClassName" not in moved["spec"]
    newer = workload(priority=1)
    assert admission.prepare(asked("Workload", "kueue.x-k8s.io", newer, old)).changed is None


# --- queues with many flavors


def _tells_of_every_flavor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_status, "MOST_FLAVORS", 1000)


@proven(without=_tells_of_every_flavor)
async def test_f163_a_local_queue_with_very_many_flavors_keeps_its_counts(judged: Cluster) -> None:
    """F163: a ClusterQueue has more flavors than the status of a LocalQueue may tell of. Holds: the status is written
    with as many as fit, and its counts and its condition stay current."""
    with pytest.raises(Invalid, match="Too many"):
        await _tell(judged, 65)
    decide(judged)
    names = [f"flavor-{number}" for number in range(70)]
    spec = cluster_queue()
    groups = [
        {
            "coveredResources": [resource],
            "flavors": [
                {"name": name, "resources": [{"name": resource, "nominalQuota": "1"}]}
                for name in names[number * 35 : number * 35 + 35]
            ],
        }
        for number, resource in enumerate(("cpu", "memory"))
    ]
    spec["spec"]["resourceGroups"] = groups
    await make(judged, *(flavor(name) for name in names), spec)
    await make(judged, local_queue())
    active = await judged.until(kinds.LOCAL_QUEUE, "user-queue", true("Active"))
    assert len(active["status"]["flavorsUsage"]) == 64
    assert len((await judged.client.get(kinds.CLUSTER_QUEUE, "cluster-queue"))["status"]["flavorsUsage"]) == 70


async def _tell(cluster: Cluster, flavors: int) -> None:
    await make(cluster, local_queue("loose", "nothing"))
    usage = [{"name": f"f{number}", "resources": [{"name": "cpu", "total": "0"}]} for number in range(flavors)]
    status = {"status": {"flavorsUsage": usage}}
    await cluster.client.patch(kinds.LOCAL_QUEUE, "loose", "default", status, subresource="status")


# --- jobs


async def test_a_priority_class_is_changed_and_not_removed(judged: Cluster) -> None:
    await make(judged, job("train", labels={CLASS: "high"}))
    await judged.client.patch(kinds.JOB, "train", "default", {"metadata": {"labels": {CLASS: "low"}}})
    with pytest.raises(Forbidden, match="may be changed, not removed"):
        await judged.client.patch(kinds.JOB, "train", "default", {"metadata": {"labels": {CLASS: None}}})


def _passes_topology_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlacingStep, "objection", lambda self, pod_set, flavor, resources: "")


@proven(without=_passes_topology_over)
async def test_f165_a_topology_that_is_required_is_never_passed_over(cluster: Cluster) -> None:
    """F165: a queued job demands a topology, and no flavor of its queue has one. Holds: the job waits and is told so;
    it never starts just anywhere."""
    kept = job("train")
    kept["spec"]["template"]["metadata"] = {"annotations": {REQUIRED: "rack"}}
    (made,) = await make(cluster, kept)
    waiting = await cluster.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] != "")
    assert said(waiting, "QuotaReserved")[:2] == ("False", "NoMatchingFlavor")
    assert 'Flavor "default-flavor" does not support TopologyAwareScheduling' in said(waiting, "QuotaReserved")[2]


def test_what_has_no_effect_draws_a_warning() -> None:
    wished = job("train")
    template = wished["spec"]["template"]
    template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-preferred-topology": "rack"}}
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]
    verdict = admission.validate(asked("Job", "batch", wished))
    assert verdict.allowed
    (warning,) = verdict.warnings
    assert "resourceClaims" in warning
    assert admission.validate(asked("Job", "batch", wished, wished)).warnings == ()
    named = flavor(topologyName="racks", nodeLabels={"a": "b"})
    assert admission.validate(asked("ResourceFlavor", "kueue.x-k8s.io", named)).warnings == ()
    policy = {"migration": {"mode": "RetainFirstAdmission"}}
    concurrent = cluster_queue(concurrentAdmissionPolicy=policy)
    (told,) = admission.validate(asked("ClusterQueue", "kueue.x-k8s.io", concurrent)).warnings
    assert "spec.concurrentAdmissionPolicy: has no effect here" in told
    elastic = job("grows")
    elastic["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    (told,) = admission.validate(asked("Job", "batch", elastic)).warnings
    assert "has no effect on a Job here" in told
    unqueued = {**wished, "metadata": {"name": "loose"}}
    assert admission.validate(asked("Job", "batch", unqueued)).warnings == ()


def test_the_submitter_has_kuberays_name_in_the_workload() -> None:
    beside = ray_job("train", 1)
    beside["spec"]["submissionMode"] = "SidecarMode"
    head = RayJobs().pod_sets(beside)[0]["template"]["spec"]["containers"]
    assert [one["name"] for one in head][-1] == "ray-job-submitter"
    apart = ray_job("train", 1)
    apart["spec"]["submissionMode"] = "K8sJobMode"
    containers = RayJobs().pod_sets(apart)[-1]["template"]["spec"]["containers"]
    assert [one["name"] for one in containers] == ["ray-job-submitter"]


async def test_our_own_writes_pass_the_judges(judged: Cluster) -> None:
    """A job's whole life, every status judged."""
    decide(judged)
    await make(judged, flavor(), cluster_queue(), local_queue())
    (made,) = await make(judged, job("train", 2))
    await judged.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await judged.client.patch(kinds.WORKLOAD, name_of(made), "default", {"spec": {"active": False}})
    evicted = await judged.until(kinds.WORKLOAD, name_of(made), lambda one: not true("QuotaReserved")(one))
    assert true("Evicted")(evicted)


def partial(name: str, parallelism: int) -> Json:
    """A Job that could do with four pods."""
    made = job(name)
    made["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "4"}
    made["spec"] |= {"parallelism": parallelism, "completions": 6}
    return made


def judges_by_size_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Jobs, "is_suspended", lambda self, one: True)


@proven(without=judges_by_size_alone)
async def test_f759_a_job_may_start_with_the_fewest_pods_it_asks_for(judged: Cluster) -> None:
    """F759: a Job with a minimum gets quota for just that many pods. Holds: its start is not refused for having no more
    pods than its minimum; one that waits with no more is."""
    await make(judged, partial("partial", 6))
    started = {"spec": {"parallelism": 4, "suspend": False}}
    stored = await judged.client.patch(kinds.JOB, "partial", "default", started)
    assert stored["spec"]["parallelism"] == 4
    with pytest.raises(Forbidden, match="must be a number from 1 to 3"):
        await make(judged, partial("few", 4))


async def test_a_job_is_not_started_with_another_queue(judged: Cluster) -> None:
    await make(judged, partial("partial", 6))
    elsewhere = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "other"}}, "spec": {"suspend": False}}
    with pytest.raises(Forbidden, match="immutable while the job is not suspended"):
        await judged.client.patch(kinds.JOB, "partial", "default", elsewhere)
