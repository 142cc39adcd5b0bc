"""From Kueue's objects to facts."""

from __future__ import annotations

import pytest

from shoal.api.codec import typed
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_convert import upgrade
from shoal.api.kueue_workload import Workload
from shoal.engine.kueue import Limits, read
from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import UNLIMITED, FlavorResource, order_time, terms_of


def workload(status=None, *, metadata=None, **spec):
    pod = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}
    spec.setdefault("podSets", [{"name": "main", "count": 3, "template": {"spec": pod}}])
    made = {
        "metadata": {"name": "w", "namespace": "ns", "uid": "u", "creationTimestamp": "2030-01-01T00:00:00Z"}
        | (metadata or {}),
        "spec": {"queueName": "q", **spec},
        "status": status or {},
    }
    return typed(made, Workload)


def cluster_queue(**spec):
    return typed(upgrade({"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": spec}), ClusterQueue)


def condition(kind, status="True", reason="", at="2030-01-01T00:10:00Z"):
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": at}


ADMISSION = {
    "clusterQueue": "cq",
    "podSetAssignments": [
        {"name": "main", "count": 3, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1500m"}},
    ],
}


@pytest.mark.parametrize(
    "status, metadata, spec, state",
    [
        ({}, {}, {}, "waiting"),
        ({"admission": ADMISSION, "conditions": [condition("QuotaReserved")]}, {}, {}, "reserved"),
        (
            {"admission": ADMISSION, "conditions": [condition("QuotaReserved"), condition("Admitted")]},
            {},
            {},
            "admitted",
        ),
        (
            {"admission": ADMISSION, "conditions": [condition("QuotaReserved"), condition("Evicted")]},
            {},
            {},
            "stopping",
        ),
        ({"conditions": [condition("Finished", reason="Succeeded")]}, {}, {}, "finished"),
        ({}, {}, {"active": False}, "held"),
        ({}, {"annotations": {"kueue.x-k8s.io/admission-gated-by": "x"}}, {}, "held"),
        ({"conditions": [condition("QuotaReserved", "False")]}, {}, {}, "waiting"),
    ],
)
def test_state_follows_conditions(status, metadata, spec, state):
    assert read.workload(workload(status, metadata=metadata, **spec)).state == state


def test_usage_comes_from_the_admission_less_what_was_given_back():
    status = {
        "admission": ADMISSION,
        "conditions": [condition("QuotaReserved")],
        "reclaimablePods": [{"name": "main", "count": 1}],
    }
    member = QueueMember(read.workload(workload(status)), "cq")
    assert member.usage == {FlavorResource("spot", "cpu"): 1000}


@pytest.mark.parametrize("reason, moves", [("PodsReadyTimeout", True), ("AdmissionCheck", True), ("Preempted", False)])
def test_only_failures_of_its_own_send_a_gang_to_the_back(reason, moves):
    gang = read.workload(workload({"conditions": [condition("Evicted", reason=reason)]}))
    assert (order_time(gang) > gang.created_at) is moves


def test_checks_and_back_off():
    status = {
        "admissionChecks": [{"name": "c", "state": "Retry"}],
        "requeueState": {"requeueAt": "2030-01-01T00:00:05Z"},
        "conditions": [condition("Requeued", "False", "AdmissionCheck")],
    }
    terms = terms_of(read.workload(workload(status)))
    assert terms.checks_failed and terms.backing_off and terms.requeue_at > 0


def test_a_quota_past_64_bits_is_unlimited():
    quota = {"name": "cpu", "nominalQuota": "1E", "borrowingLimit": "2", "lendingLimit": "500m"}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}
    queue = read.cluster_queue(cluster_queue(resourceGroups=[group]))
    assert queue.groups[0].flavors[0].limits["cpu"] == Limits(UNLIMITED, 2000, 500)


def test_older_spellings_of_cohort_and_fungibility():
    spec = {"cohort": "team", "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}}
    queue = read.cluster_queue(cluster_queue(**spec))
    assert queue.cohort == "team"
    assert (queue.fungibility.next_when_borrowing, queue.fungibility.next_when_preempting) == (False, False)


def test_a_zero_request_is_kept_because_it_gets_a_flavor():
    pod = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "0"}}}]}
    gang = read.workload(workload(podSets=[{"name": "main", "count": 1, "template": {"spec": pod}}]))
    assert gang.pod_sets[0].requests == {"cpu": 0}


@pytest.mark.parametrize(
    "replace, expected", [(False, {"cpu": 500, "memory": 2**30, "credits": 5}), (True, {"memory": 2**30, "credits": 5})]
)
def test_transformations_turn_one_resource_into_another(replace, expected):
    rules = read.PodRules(
        transformations=(read.Transformation(input="cpu", outputs={"credits": "10"}, replace=replace),)
    )
    assert read.workload(workload(), rules).pod_sets[0].charged == expected


def test_excluded_prefixes_are_not_charged():
    assert set(read.workload(workload(), read.PodRules(excluded_prefixes=("mem",))).pod_sets[0].charged) == {"cpu"}


def test_a_workload_that_cannot_be_read_becomes_a_gang_with_a_problem():
    pod = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "lots"}}}]}
    gang = read.workload(workload(podSets=[{"name": "main", "count": 1, "template": {"spec": pod}}]))
    assert "'lots' is not a quantity" in gang.problem


def test_a_pod_that_asks_for_more_than_its_own_limit_is_told_so():
    pod = {
        "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "2"}},
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
    }
    made = read.workload(workload(podSets=[{"name": "main", "count": 1, "template": {"spec": pod}}]))
    path = "spec.podSets[0].template.spec.resources"
    assert made.problem == (
        f'resources validation failed: {path}: Invalid value: ["cpu"]: requests must not exceed its limits'
    )
