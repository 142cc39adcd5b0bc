"""Queue objects as their controllers hold them: typed once per revision, and whole where they are written."""

from __future__ import annotations

import copy

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.queues import stored
from shoal.controllers.queues.checks import rules_of, steps
from shoal.controllers.queues.checks.draft import WorkloadDraft
from shoal.controllers.queues.stored import (
    AroundSpec,
    StoredClusterQueue,
    StoredWorkload,
    WorkloadViews,
    is_true,
    view,
)
from tests.cluster import Cluster
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, true
from tests.unit.queues.conftest import decide

MOMENT = "2026-01-01T00:00:00Z"
NEWER: Json = {
    "metadata": {"name": "w", "namespace": "default", "uid": "u", "resourceVersion": "7", "creationTimestamp": MOMENT},
    "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 2, "template": {"spec": {"fromLater": 1}}}]},
    "status": {
        "conditions": [
            {"type": "QuotaReserved", "status": "True", "lastTransitionTime": MOMENT, "fromLater": {"a": 1}},
        ],
        "admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "fromLater": True}]},
        "fromLater": "kept",
    },
}


def test_fields_that_no_type_knows_survive_a_write() -> None:
    before = copy.deepcopy(NEWER)
    workload = view(StoredWorkload)(NEWER)
    assert workload.spec.pod_sets[0].template == {"spec": {"fromLater": 1}}
    draft = WorkloadDraft(workload, 1_800_000_000_000_000)
    steps.admit(draft)
    assert [*draft.change] == ["conditions"]  # the rest is not written at all
    reserved, admitted = draft.change["conditions"]
    assert reserved == before["status"]["conditions"][0]
    assert (admitted["type"], admitted["status"]) == ("Admitted", "True")
    assert before == NEWER == workload.raw


def test_null_counts_as_absent() -> None:
    raw = {**NEWER, "status": {"conditions": None, "admission": None}}
    workload = view(StoredWorkload)(raw)
    assert not is_true(workload, "QuotaReserved") and workload.raw is raw


def test_a_queue_of_a_server_without_conversion_is_read_in_todays_words() -> None:
    raw = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "cq"},
        "spec": {"cohort": "all", "admissionChecks": ["nodes"]},
    }
    queue = view(StoredClusterQueue)(raw)
    assert (queue.spec.cohort_name, [*rules_of(queue)]) == ("all", ["nodes"])
    assert queue.raw["spec"] == {"cohort": "all", "admissionChecks": ["nodes"]}


def test_what_is_wrong_is_told_with_its_place() -> None:
    raw = {**NEWER, "spec": {"podSets": [{"name": "main", "count": "two", "template": {}}]}}
    with pytest.raises(msgspec.ValidationError, match=r"spec\.podSets\[0\]\.count"):
        view(StoredWorkload)(raw)


async def test_a_revision_is_decoded_once_however_often_it_is_read(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    convert = msgspec.convert

    def counted(source: Json, type: type, **more: object) -> object:
        if type in (StoredWorkload, AroundSpec):
            decoded.append(source["metadata"]["resourceVersion"])
        return convert(source, type, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(stored.msgspec, "convert", counted)
    controller = decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made,) = await make(quiet, job("train"))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.settled()
    held = controller.caches.workloads.get(Key("default", name_of(made)))
    assert held is not None and held.metadata.resource_version == decoded[-1]
    assert len(decoded) == len(set(decoded))


def test_equal_specs_and_labels_are_held_once_with_all_their_fields() -> None:
    views = WorkloadViews()

    def read(name: str, count: int) -> StoredWorkload:
        spec = {"queueName": "q", "podSets": [{"name": "main", "count": count, "template": {}}], "unknown": {"a": 1}}
        metadata = {"name": name, "namespace": "ns", "uid": name, "labels": {"team": "red"}}
        return views({**NEWER, "metadata": metadata, "spec": spec, "status": {"requeueState": {"count": count}}})

    one, alike, other = read("one", 2), read("alike", 2), read("other", 3)
    assert alike.spec is one.spec and alike.raw["spec"] is one.raw["spec"]
    assert alike.metadata.labels is one.metadata.labels and alike.metadata.labels == {"team": "red"}
    assert (alike.metadata.name, alike.raw["metadata"]["uid"]) == ("alike", "alike")
    assert alike.raw["spec"]["unknown"] == {"a": 1} and alike.raw["status"] == {"requeueState": {"count": 2}}
    assert (other.spec.pod_sets[0].count, one.spec.pod_sets[0].count) == (3, 2)
    assert alike == view(StoredWorkload)(alike.raw)


def test_what_is_wrong_beside_a_known_spec_is_told_with_its_place() -> None:
    views = WorkloadViews()
    views({**NEWER})
    with pytest.raises(msgspec.ValidationError, match=r"status\.conditions"):
        views({**NEWER, "status": {"conditions": "none"}})
