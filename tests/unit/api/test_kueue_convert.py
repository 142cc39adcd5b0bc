"""Kueue's two versions say the same thing in two ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.api import codec, kueue, kueue_convert, kueue_other, kueue_topology, kueue_workload
from shoal.api.kueue_convert import V1BETA1, V1BETA2, convert, review, upgrade
from shoal.api.meta import Json
from tests.faults import proven
from tests.unit.api.shapes import objects

TYPES = {
    "ClusterQueue": kueue.ClusterQueue,
    "LocalQueue": kueue.LocalQueue,
    "Cohort": kueue.Cohort,
    "Workload": kueue_workload.Workload,
    "MultiKueueCluster": kueue_other.MultiKueueCluster,
    "ResourceFlavor": kueue.ResourceFlavor,
    "AdmissionCheck": kueue.AdmissionCheck,
}


def old(kind: str, **parts: Any) -> Json:
    return {"apiVersion": V1BETA1, "kind": kind, "metadata": {"name": "x"}, **parts}


@pytest.mark.parametrize(
    "kind, v1beta1, v1beta2",
    [
        ("ClusterQueue", {"cohort": "team"}, {"cohortName": "team"}),
        (
            "ClusterQueue",
            {"admissionChecks": ["gpu", "quota"]},
            {"admissionChecksStrategy": {"admissionChecks": [{"name": "gpu"}, {"name": "quota"}]}},
        ),
        (
            "ClusterQueue",
            {"flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}},
            {"flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"}},
        ),
        (
            "Workload",
            {"priorityClassName": "high", "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"},
            {"priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}},
        ),
        (
            "MultiKueueCluster",
            {"kubeConfig": {"location": "west", "locationType": "Secret"}},
            {"clusterSource": {"kubeConfig": {"location": "west", "locationType": "Secret"}}},
        ),
        ("ResourceFlavor", {"nodeLabels": {"pool": "gpu"}}, {"nodeLabels": {"pool": "gpu"}}),
    ],
)
def test_a_v1beta1_spec_reads_as_v1beta2(kind: str, v1beta1: Json, v1beta2: Json) -> None:
    found = convert(old(kind, spec=v1beta1), V1BETA2)
    assert found == {"apiVersion": V1BETA2, "kind": kind, "metadata": {"name": "x"}, "spec": v1beta2}
    assert upgrade(found) == found


def test_statuses_move_to_their_new_names() -> None:
    queue = convert(
        old("LocalQueue", spec={}, status={"flavorUsage": [{"name": "f"}], "flavors": [{"name": "f"}]}), V1BETA2
    )
    assert queue["status"] == {"flavorsUsage": [{"name": "f"}]}
    workload = convert(old("Workload", spec={}, status={"accumulatedPastExexcutionTimeSeconds": 7}), V1BETA2)
    assert workload["status"] == {"accumulatedPastExecutionTimeSeconds": 7}


def _forgetful(patch: pytest.MonkeyPatch) -> None:
    keep = ("apiVersion", "kind", "metadata")
    patch.setattr(kueue_convert, "_rename", lambda fields, was, now: fields.pop(was, None))
    patch.setitem(kueue_convert._downgrades, "Workload", lambda obj: {name: obj[name] for name in keep if name in obj})


@proven(without=_forgetful)
@settings(max_examples=80, deadline=None, phases=[Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(sorted(TYPES)), data=st.data())
def test_f069_both_versions_agree_in_every_state(kind: str, data: st.DataObject) -> None:
    """F69: an object is read and written at the other version. Holds: it comes back as it was, unknown fields too."""
    raw: Json = {**data.draw(objects(TYPES[kind])), "apiVersion": V1BETA2, "kind": kind, "metadata": {"name": "x"}}
    raw = _settled(upgrade(raw))
    back = convert(convert(raw, V1BETA1), V1BETA2)
    assert codec.typed(back, TYPES[kind]) == codec.typed(raw, TYPES[kind])
    assert {name: back.get(name) for name in ("x-unknown", "zz9")} == {
        name: raw.get(name) for name in ("x-unknown", "zz9")
    }


def _settled(obj: Json) -> Json:
    """What the schema promises and random shapes do not: known priority classes, and one source per member cluster."""
    spec = dict(obj.get("spec") or {})
    if "priorityClassRef" in spec:
        spec["priorityClassRef"] = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    if "clusterSource" in spec:
        spec["clusterSource"] = {"kubeConfig": {"location": "somewhere"}}
    if obj["kind"] == "MultiKueueCluster":
        spec.setdefault("clusterSource", {"kubeConfig": {"location": "somewhere"}})
    return {**obj, "spec": spec} if "spec" in obj or spec else obj


@given(
    st.integers(1, 3).flatmap(
        lambda levels: st.lists(
            st.tuples(st.tuples(*[st.text("ab1-", max_size=4)] * levels), st.integers(0, 9)), max_size=6
        )
    )
)
def test_a_topology_assignment_keeps_its_domains(domains: list[kueue_topology.Domain]) -> None:
    assert kueue_topology.expand(kueue_topology.compress(domains)) == domains


def test_slices_store_shared_text_once() -> None:
    slices = kueue_topology.compress([(("rack-a", "node-1.x"), 2), (("rack-a", "node-2.x"), 2)])
    assert slices == [
        {
            "domainCount": 2,
            "podCounts": {"universal": 2},
            "valuesPerLevel": [
                {"universal": "rack-a"},
                {"individual": {"prefix": "node-", "suffix": ".x", "roots": ["1", "2"]}},
            ],
        }
    ]


@pytest.mark.parametrize(
    "assignment", [{"slices": [{"domainCount": 10**9}]}, {"slices": ["x"]}, {"slices": 7}, {"domains": [{"values": 7}]}]
)
def test_an_assignment_that_makes_no_sense_passes_through(assignment: Json) -> None:
    """One odd object must not fail a whole list."""
    assert kueue_topology.to_domains(assignment) == assignment
    assert kueue_topology.to_slices(assignment) == assignment


def test_a_conversion_review_is_answered() -> None:
    objects_ = [old("ClusterQueue", spec={"cohort": "a"}), old("LocalQueue", spec={})]
    answer = review({"request": {"uid": "7", "desiredAPIVersion": V1BETA2, "objects": objects_}})["response"]
    assert (answer["uid"], answer["result"]["status"]) == ("7", "Success")
    assert [found["apiVersion"] for found in answer["convertedObjects"]] == [V1BETA2, V1BETA2]


@pytest.mark.parametrize(
    "request_",
    [
        {"uid": "7", "desiredAPIVersion": "kueue.x-k8s.io/v9", "objects": [old("ClusterQueue")]},
        {"uid": "7", "desiredAPIVersion": V1BETA2, "objects": [old("ClusterQueue", spec="text")]},
        {"uid": "7", "desiredAPIVersion": V1BETA2, "objects": ["text"]},
    ],
)
def test_a_review_that_cannot_be_done_says_why_and_breaks_nothing(request_: Json) -> None:
    answer = review({"request": request_})["response"]
    assert answer["uid"] == "7" and answer["result"]["status"] == "Failed"
    assert answer["result"]["message"].startswith("conversion failed:")
